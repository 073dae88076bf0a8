"""Marginals, leave-one-out densities, evidence and its gradient, from the messages at the end.

Nothing in the sum is large: every row gives the evidence's share of its site, relative to the
marginal, and the log density of its innovation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.markov.rows import Rows
from qpruntime.projection.kernel import project_many

__all__ = ["Summary", "gradient", "summarise"]


@dataclass(frozen=True)
class Summary:
    """In order of time: moments of g and of its cavities (standard deviations), log densities."""

    mean: Array
    variance: Array
    cavity_mean: Array
    cavity_std: Array
    log_z: Array
    log_evidence: float


def summarise(rows: Rows, report: Array) -> Summary:
    """Compute what the sites of a settled series stand for.

    Raises
    ------
    NumericalError
        If the evidence is not finite.
    """
    series, tau, nu = rows.series, rows.tau, rows.nu
    h, w = series.scales, rows.noise
    projector, alpha = series.projector, series.power
    v, m = h * h * (report[:, 1] + w), h * report[:, 0]
    kept = 1.0 + tau * v
    variance, mean = v / kept, (m + nu * v) / kept
    cavity = series.prior + m, np.sqrt(v)
    source = projector.without_table
    args = projector.likelihood, source, *cavity, series.y, projector.table
    log_z = project_many(*args).log_z
    beta = nu - tau * mean
    own, own_v = log_z, v
    if not series.plain:
        k = 1.0 + (1.0 - alpha) * tau * v
        own_v = v / k
        own_m = series.prior + (m + (1.0 - alpha) * nu * v) / k
        own = project_many(
            projector.likelihood, source, own_m, np.sqrt(own_v), series.y, projector.table,
            alpha * series.exponents,
        ).log_z  # fmt: skip
    with np.errstate(all="ignore"):
        total = np.sum(
            own + 0.5 * np.log1p(alpha * tau * own_v) + 0.5 * own_v * (alpha * beta) ** 2
        )
        total /= alpha
        share = 1.0 + tau * (w * h * h)
        T, b, p = h * h * tau / share, h * beta, report[:, 3]
        S = 1.0 + T * p
        e = report[:, 2] - (report[:, 0] + h * nu / share * report[:, 1]) / (1.0 + T * report[:, 1])
        total -= 0.5 * np.sum(np.log(np.abs(S)) + np.log(np.abs(share)) + w * b * b)
        total += np.sum((b * e + 0.5 * b * b * p - 0.5 * T * e * e) / S)
    if not np.isfinite(total):
        raise NumericalError(
            f"the log evidence is {total}: an observation has no likelihood left in double "
            "precision under the others; check outliers, or widen the kernel"
        )
    return Summary(series.prior + mean, variance, *cavity, log_z, float(total))


def gradient(rows: Rows, mean: Array, variance: Array) -> Array:
    """Derivatives of EP's log evidence by the kernel's log parameters, at a fixed point of EP.

    Marginal mean and variance are in order of time; the rows have forward messages.
    """
    sums = rows.slope()
    series = rows.series
    h = series.scales
    noise = 0.0
    if rows.space.noises:
        beta = rows.nu - rows.tau * (mean - series.prior)
        noise = 0.5 * float(np.sum(h * h * (beta * beta - rows.tau * (1.0 - rows.tau * variance))))
    return rows.space.gradient(sums, noise)
