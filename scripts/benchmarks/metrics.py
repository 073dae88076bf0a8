"""How predictions are judged, ours and those of peers by the same sums.

Needs NumPy and SciPy alone: interpreters of peers have no qpruntime.
"""

from typing import Any

import numpy as np
from scipy import stats
from scipy.special import log_ndtr, logsumexp, ndtr

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_ROWS = 1000
# Intervals leave out so much on either side.
_TAIL = 0.05


def calibration_error(p: np.ndarray, hit: np.ndarray, bins: int = 15) -> float:
    """Mean difference of probability and frequency in bins of equal width."""
    at = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(float(np.sum(p[at == k] - hit[at == k]))) for k in range(bins)]
    return sum(gaps) / len(p)


def coverage(low: Any, high: Any, y: Any) -> tuple[float, float]:
    """Share of observations in closed intervals, and the mean width of these."""
    return float(np.mean((low <= y) & (y <= high))), float(np.mean(high - low))


def normal_log_density(mean: Any, std: Any, y: Any) -> Any:
    """Of each observation."""
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)


def judge(mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Negative log probability and calibration error, 15 bins, of probit predictions."""
    z = mean / np.sqrt(1.0 + variance)
    return float(-np.mean(log_ndtr(y * z))), calibration_error(ndtr(z), y > 0.0)


def judge_noise(
    noise: dict[str, Any], mean: np.ndarray, variance: np.ndarray, y: np.ndarray
) -> tuple[float, float]:
    """Negative log density of observations, and the share that 90 % intervals cover.

    `noise` is {"exposure": (T,)} of Poisson counts at the rate exp(f), or {"nu", "scale"}.
    """
    density, covered = np.empty(len(y)), np.empty(len(y), bool)
    weights = _WEIGHTS / _WEIGHTS.sum()
    for start in range(0, len(y), _ROWS):
        some = slice(start, start + _ROWS)
        f = mean[some, None] + np.sqrt(variance[some, None]) * _NODES
        at = y[some, None]
        if "exposure" in noise:
            law = stats.poisson(noise["exposure"][some, None] * np.exp(f))
            logs, upto, below = law.logpmf(at), law.cdf(at), law.cdf(at - 1.0)
        else:
            t = stats.t(noise["nu"], f, noise["scale"])
            logs, upto = t.logpdf(at), t.cdf(at)
            below = upto
        density[some] = logsumexp(logs + np.log(weights), axis=1)
        covered[some] = (upto @ weights >= _TAIL) & (below @ weights < 1.0 - _TAIL)
    return float(-density.mean()), float(covered.mean())
