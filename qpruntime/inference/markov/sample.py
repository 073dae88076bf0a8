"""Joint draws of a series: forwards from row to row, each step under what all later rows say."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.markov.forwards import draw_states
from qpruntime.inference.markov.rows import Rows

__all__ = ["draw"]

#: Random numbers at once.
_NUMBERS = 4_000_000


def draw(rows: Rows, place: Any, count: int, rng: np.random.Generator) -> Array:
    """Draws of f at some rows, (count, size of `place`)."""
    series, d = rows.series, rows.space.dimension
    n = series.t.size
    wanted = np.zeros(n, dtype=np.bool_)
    wanted[place] = True
    column = np.cumsum(wanted) - 1
    found = np.empty((count, place.size))
    most = max(1, _NUMBERS // (n * d))
    chain = rows.space.arrays(float(series.t[0]))
    given = chain, series.steps, (rows.noise, series.scales), (rows.tau, rows.nu)
    for begin in range(0, count, most):
        some = slice(begin, min(begin + most, count))
        normal = rng.standard_normal((n, d, some.stop - some.start))
        out = np.empty((int(wanted.sum()), some.stop - some.start))
        draw_states(*given, np.empty((n, d + d * (d + 1) // 2)), normal, wanted, out)
        found[some] = out[column[place]].T
    return found
