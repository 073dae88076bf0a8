"""Long arrays in blocks of rows: what is computed on the way stays in the cache, and small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from qpruntime.errors import NumericalError

__all__ = ["PointError", "in_blocks"]

#: An array, or a tuple of arrays, with a row for each of the slice.
T = TypeVar("T")
# Numbers in a matrix of one block, 4 MB. A covariance function of scikit-learn holds some five
# such at a time; blocks of a quarter or of four times that are no faster at N = 500.
_NUMBERS = 2**19
# Fewer rows than that leave triangular solves waiting for memory.
_FEWEST = 32


class PointError(NumericalError):
    """Double precision does not suffice at one row; `args` are its index and what is wrong."""

    def __str__(self) -> str:
        return f"point {self.args[0]} {self.args[1]}"


def in_blocks(function: Callable[[slice], T], rows: int, width: int) -> T:
    """Call a function with slices of `rows` rows, one after the other, and join what it returns.

    Parameters
    ----------
    function : callable
        ``function(some)`` returns an array, or a tuple of arrays, with a row for each of the slice.
    rows : int
    width : int
        Numbers in a row of the matrices that it makes.

    Returns
    -------
    ndarray or tuple of ndarray

    Raises
    ------
    PointError
        Of the function, with the index among all rows.
    """
    step = max(_FEWEST, _NUMBERS // max(width, 1))
    whole: tuple[Any, ...] = ()
    single = False
    for start in range(0, max(rows, 1), step):
        block = slice(start, min(start + step, rows))
        try:
            results = function(block)
        except PointError as error:
            raise PointError(start + error.args[0], error.args[1]) from error.__cause__
        if block == slice(0, rows):
            return results
        parts: tuple[Any, ...] = results if isinstance(results, tuple) else (results,)
        if not whole:
            single = not isinstance(results, tuple)
            whole = tuple(np.empty((rows, *part.shape[1:]), part.dtype) for part in parts)
        for array, part in zip(whole, parts, strict=True):
            array[block] = part
    return whole[0] if single else whole  # type: ignore[return-value]
