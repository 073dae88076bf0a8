"""What an array library has to provide, by the names that the formulas here use.

`NumPy` is the reference, without derivatives; `qpruntime.jax` and `qpruntime.torch` bring theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["NumPy", "Operations"]


class Operations:
    """Element-wise functions and reductions of one library.

    Attributes are functions of arrays: ``exp log log1p expm1 sqrt abs tanh floor erfc lgamma``,
    ``where maximum minimum``.
    """

    exp: Any
    log: Any
    log1p: Any
    expm1: Any
    sqrt: Any
    abs: Any
    tanh: Any
    floor: Any
    erfc: Any
    lgamma: Any
    where: Any
    maximum: Any
    minimum: Any

    def arrays(self, *values: Any) -> list[Any]:
        """Arrays of one floating type, broadcast against each other."""
        raise NotImplementedError

    def constant(self, value: Any, like: Any) -> Any:
        """A constant array of the type and place of `like`."""
        raise NotImplementedError

    def held(self, x: Any) -> Any:
        """The same numbers, through which nothing is derived."""
        raise NotImplementedError

    def take(self, table: Any, index: Any) -> Any:
        """Entries of a flat array at floating whole numbers."""
        raise NotImplementedError

    def total(self, x: Any) -> Any:
        """Sum over the last axis."""
        raise NotImplementedError

    def largest(self, x: Any) -> Any:
        """Maximum over the last axis."""
        raise NotImplementedError

    def derived(self, value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Any:
        """A function of one array whose derivative is another such function."""
        raise NotImplementedError

    def along(self, function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
        """An element-wise function at x, and its derivative, of the same structure."""
        raise NotImplementedError


class NumPy(Operations):
    """By NumPy and SciPy."""

    exp, log, log1p, expm1, sqrt = np.exp, np.log, np.log1p, np.expm1, np.sqrt
    abs, tanh, floor = np.abs, np.tanh, np.floor
    where = staticmethod(np.where)  # the others do not bind
    maximum, minimum = np.maximum, np.minimum

    def __init__(self) -> None:
        from scipy.special import erfc, gammaln

        self.erfc, self.lgamma = erfc, gammaln

    def arrays(self, *values: Any) -> list[Any]:
        return list(np.broadcast_arrays(*(np.asarray(v, float) for v in values)))

    def constant(self, value: Any, like: Any) -> Any:
        return np.asarray(value, like.dtype)

    def held(self, x: Any) -> Any:
        return x

    def take(self, table: Any, index: Any) -> Any:
        return table[index.astype(np.int64)]

    def total(self, x: Any) -> Any:
        return x.sum(axis=-1)

    def largest(self, x: Any) -> Any:
        return x.max(axis=-1)

    def derived(self, value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Any:
        return value
