"""Marginals, leave-one-out densities, evidence and its gradient, from the messages at the end.

Nothing in the sum is large: every row gives the evidence's share of its site, relative to the
marginal, and the log density of its innovation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.markov.rows import Rows
from qpruntime.projection.kernel import project_many

__all__ = ["Summary", "cavities", "gradient", "summarise"]

#: Rows that are summed at once: more take memory, and no less time.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Summary:
    """In order of time: moments of g, leave-one-out log densities; and the log evidence."""

    mean: Array
    variance: Array
    log_z: Array
    log_evidence: float


def cavities(rows: Rows, report: Array) -> tuple[Array, Array]:
    """Means and standard deviations of the cavities of g, each of shape (N,)."""
    h = rows.series.scales
    mean = rows.series.prior + h * report[:, 0]
    return mean, h * np.sqrt(report[:, 1] + rows.noise)


def summarise(rows: Rows, report: Array) -> Summary:
    """Compute what the sites of a settled series stand for, block by block.

    Raises
    ------
    NumericalError
        If the evidence is not finite.
    """
    n = rows.tau.size
    found = Summary(np.empty(n), np.empty(n), np.empty(n), 0.0)
    total = 0.0
    for begin in range(0, n, _BLOCK):
        total += _fill(rows, report, slice(begin, begin + _BLOCK), found)
    if not np.isfinite(total):
        raise NumericalError(
            f"the log evidence is {total}: an observation has no likelihood left in double "
            "precision under the others; check outliers, or widen the kernel"
        )
    return replace(found, log_evidence=float(total))


def _fill(rows: Rows, whole: Array, some: slice, found: Summary) -> float:
    """Fill some rows of a summary; return their share of the evidence."""
    series, tau, nu = rows.series, rows.tau[some], rows.nu[some]
    report, prior, y = whole[some], series.prior[some], series.y[some]
    h, w = series.scales[some], rows.noise
    projector, alpha = series.projector, series.power
    v, m = h * h * (report[:, 1] + w), h * report[:, 0]
    kept = 1.0 + tau * v
    variance, mean = v / kept, (m + nu * v) / kept
    likelihood, source, table = projector.likelihood, projector.without_table, projector.table
    log_z = project_many(likelihood, source, prior + m, np.sqrt(v), y, table).log_z
    found.mean[some], found.variance[some], found.log_z[some] = prior + mean, variance, log_z
    beta = nu - tau * mean
    own, own_v = log_z, v
    if not series.plain:
        k = 1.0 + (1.0 - alpha) * tau * v
        own_v = v / k
        own_m = prior + (m + (1.0 - alpha) * nu * v) / k
        powers = alpha * series.exponents[some]
        own = project_many(likelihood, source, own_m, np.sqrt(own_v), y, table, powers).log_z
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
    return float(total)


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
