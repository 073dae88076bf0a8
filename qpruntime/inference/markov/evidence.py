"""Marginals, leave-one-out densities, evidence and its gradient, from the messages at the end.

Nothing in the sum is large: every row gives the evidence's share of its site, relative to the
marginal, and the log density of its innovation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.report import Report
from qpruntime.projection.kernel import project_many

__all__ = [
    "NO_SUMMARY",
    "Summary",
    "cavities",
    "noise_slope",
    "require_evidence",
    "summarise",
]

#: Rows that are summed at once: more take memory, and no less time.
_BLOCK = 1 << 16


class Finished(Protocol):
    """What the functions below take of a `Rows`."""

    series: Series
    noise: float
    tau: Array
    nu: Array


@dataclass(frozen=True)
class Summary:
    """Moments of g and leave-one-out log densities in order of time, and the log evidence.

    `noise` is the derivative of EP's evidence by white noise at its fixed point, and
    `balance` is how many innovations of positive sites are negative, less those of negative sites;
    `sound` says that cavities are proper. Moments are there only if they are.
    """

    mean: Array
    variance: Array
    log_z: Array
    log_evidence: float
    balance: int = 0
    sound: bool = True
    noise: float = 0.0

    @property
    def proper(self) -> bool:
        """Whether the posterior has a positive precision.

        Innovations of g change sign as often as precisions do (Sylvester): only then has it.
        """
        return self.sound and self.balance == 0


NO_SUMMARY = Summary(np.empty(0), np.empty(0), np.empty(0), math.nan, sound=False)


def require_evidence(found: Summary) -> None:
    """Raise `NumericalError` if the evidence is not finite."""
    if not np.isfinite(found.log_evidence):
        raise NumericalError(
            f"the log evidence is {found.log_evidence}: an observation has no likelihood left in "
            "double precision under the others; check outliers, or widen the kernel"
        )


def cavities(rows: Finished, report: Report) -> tuple[Array, Array]:
    """Means and standard deviations of the cavities of g, each of shape (N,)."""
    h = rows.series.scales
    mean = rows.series.prior + h * report.mean
    return mean, h * np.sqrt(report.variance + rows.noise)


def summarise(rows: Finished, report: Report) -> Summary:
    """Compute what the sites of a series stand for, block by block."""
    n = rows.tau.size
    blocks = [slice(begin, begin + _BLOCK) for begin in range(0, n, _BLOCK)]
    signs = [_signs(rows, report, some) for some in blocks]
    if not all(sound for sound, _ in signs):
        return NO_SUMMARY
    found = Summary(np.empty(n), np.empty(n), np.empty(n), 0.0)
    total = math.fsum(_fill(rows, report, some, found) for some in blocks)
    balance = sum(balance for _, balance in signs)
    noise = math.fsum(noise_slope(rows, report, some) for some in blocks)
    return replace(found, log_evidence=total, balance=balance, noise=noise)


def _signs(rows: Finished, whole: Report, some: slice) -> tuple[bool, int]:
    """Whether cavities of some rows are proper, and the balance of their innovations."""
    report, tau = whole[some], rows.tau[some]
    w, h = rows.noise, rows.series.scales[some]
    wide = h * h * (report.variance + w)
    with np.errstate(all="ignore"):
        S = 1.0 + tau * (h * h * (report.variance_before + w))
        balance = int(np.sum((tau > 0.0) & (S < 0.0))) - int(np.sum((tau < 0.0) & (S < 0.0)))
        sound = (
            np.isfinite(report.columns).all()
            and (wide > 0.0).all()
            and (1.0 + tau * wide > 0.0).all()
        )
    return bool(sound), balance


def _fill(rows: Finished, whole: Report, some: slice, found: Summary) -> float:
    """Fill some rows of a summary; return their share of the evidence."""
    series, tau, nu = rows.series, rows.tau[some], rows.nu[some]
    report, prior, y = whole[some], series.prior[some], series.y[some]
    h, w = series.scales[some], rows.noise
    projector, alpha = series.projector, series.power
    v, m = h * h * (report.variance + w), h * report.mean
    kept = 1.0 + tau * v
    variance, mean = v / kept, (m + nu * v) / kept
    likelihood, source, table = projector.likelihood, projector.without_table, projector.table
    log_z = project_many(likelihood, source, prior + m, np.sqrt(v), y, table).log_z
    found.mean[some], found.variance[some], found.log_z[some] = prior + mean, variance, log_z
    # nu - tau mean, which would cancel where a site dominates its marginal.
    beta = (nu - tau * m) / kept
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
        T, b, p = h * h * tau / share, h * beta, report.variance_before
        S = 1.0 + T * p
        e = report.mean_before - (report.mean + h * nu / share * report.variance) / (
            1.0 + T * report.variance
        )
        total -= 0.5 * np.sum(np.log(np.abs(S)) + np.log(np.abs(share)) + w * b * b)
        total += np.sum((b * e + 0.5 * b * b * p - 0.5 * T * e * e) / S)
    return float(total)


def noise_slope(rows: Finished, whole: Report, some: slice = slice(None)) -> float:
    """Derivative of EP's log evidence by the variance of white noise, from a report.

    1 - tau var would cancel where noise is small: it is cavity over marginal precision, 1/(1 + tau
    v_c), and nu - tau mean is (nu - tau m_c) times that.
    """
    report, h, tau = whole[some], rows.series.scales[some], rows.tau[some]
    v, m = h * h * (report.variance + rows.noise), h * report.mean
    kept = 1.0 + tau * v
    beta = (rows.nu[some] - tau * m) / kept
    return 0.5 * float(np.sum(h * h * (beta * beta - tau / kept)))
