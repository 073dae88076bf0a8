"""Walks beyond their last value: weights of the last values, and the variance of what is new."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError

__all__ = ["forecasts"]


def forecasts(taps: Array, beyond: Array, count: int) -> tuple[Array, Array]:
    """Continue sequences whose filtered values are independent with variance 1.

    Parameters
    ----------
    taps : ndarray, shape (p + 1,)
        The filter, of whole differences or sums.
    beyond : ndarray, shape (T,)
        Steps after the last value, above 0; between whole ones a straight line is taken.
    count : int
        Values that there are.

    Returns
    -------
    weights : ndarray, shape (T, p)
        Of the last value, the one before it, ...
    variance : ndarray, shape (T,)
    """
    p = len(taps) - 1
    most = int(np.ceil(beyond.max()))
    if most > 10 * count:
        raise InputError(
            f"a walk over {count} knots cannot be continued for {most}: predict nearer to the data"
        )
    forward = -taps[:-1][::-1] / taps[-1]
    means = np.zeros((most + 1, p))
    means[0, 0] = 1.0
    impulse = np.zeros(most + 1)
    impulse[0] = 1.0 / taps[-1]
    # Values known before the forecast, newest first, as rows of weights.
    history = list(np.eye(p))
    shocks = [0.0] * p
    for h in range(1, most + 1):
        means[h] = sum(f * row for f, row in zip(forward, history, strict=True))
        history = [means[h], *history[:-1]]
        shocks = [impulse[h - 1], *shocks[: p - 1]]
        impulse[h] = sum(f * s for f, s in zip(forward, shocks, strict=True))
    low = np.floor(beyond).astype(int)
    share = beyond - low
    high = np.minimum(low + 1, most)
    weights = (1.0 - share)[:, None] * means[low] + share[:, None] * means[high]
    variance = np.empty(len(beyond))
    for k, (a, w) in enumerate(zip(low, share, strict=True)):
        # New values 1, ..., a + 1 enter by their impulse responses.
        now = np.append(impulse[:a][::-1], 0.0)
        then = impulse[: a + 1][::-1]
        variance[k] = float((((1.0 - w) * now + w * then) ** 2).sum())
    return weights, variance
