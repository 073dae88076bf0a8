"""How predictions are judged, ours and those of peers by the same sums.

Needs NumPy and SciPy alone: interpreters of peers have no qpruntime.
"""

from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr


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
