"""Large dense blocks factorised and inverted in single precision, in half the time.

For steps whose sites are wanted to 1e-4 or so. Kernels call these routines as they call LAPACK's;
what is small, not definite in single precision, or without memory for a copy is left to LAPACK.
An interruption cannot pass through a kernel: it is kept, and raised when the kernel has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.linalg import lapack

from qpruntime.inference.precision.blas import routines

__all__ = ["raise_kept", "single_routines"]

#: Sides from which on single precision pays for its copies.
_SIDE = 512
_KIND = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
#: What was raised within a kernel that had to go on.
_KEPT: list[BaseException] = []


def raise_kept() -> None:
    """Raise what interrupted a kernel since the last time; its result is of no use."""
    if _KEPT:
        error = _KEPT[0]
        _KEPT.clear()
        raise error


@cache
def single_routines() -> tuple[int, ...]:
    """As `routines`, with a factor and an inverse in single precision."""
    known = routines()
    own = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in _callbacks()]
    return (*own, *known[2:])


@cache
def _callbacks() -> tuple[Any, Any]:
    """Kept for as long as their addresses are in use."""
    potrf, potri = routines()[:2]
    factor = partial(lapack.spotrf, lower=1, overwrite_a=1)
    inverse = partial(lapack.spotri, lower=1, overwrite_c=1)
    return _KIND(_in_single(potrf, factor)), _KIND(_in_single(potri, inverse))


def _in_single(exact: int, routine: Callable[..., tuple[Any, int]]) -> Callable[..., None]:
    """A routine (letter, n, a, lda, info) of pointers."""
    double = _KIND(exact)

    def run(letter: int, n: int, a: int, lda: int, info: int) -> None:
        try:
            side = ctypes.c_int.from_address(n).value
            if side >= _SIDE and _replaced(routine, side, a, ctypes.c_int.from_address(lda).value):
                ctypes.c_int.from_address(info).value = 0
                return
        except MemoryError:
            pass
        except BaseException as error:
            _KEPT.append(error)
        double(letter, n, a, lda, info)

    return run


def _replaced(routine: Callable[..., tuple[Any, int]], side: int, a: int, ld: int) -> bool:
    """Whether a matrix at this address, by columns, could be replaced by what a routine makes."""
    size = ld * (side - 1) + side
    flat = np.ctypeslib.as_array((ctypes.c_double * size).from_address(a))
    steps = (flat.itemsize, ld * flat.itemsize)
    block = np.lib.stride_tricks.as_strided(flat, (side, side), steps)
    found, failed = routine(block.astype(np.float32, order="F"))
    if not failed:
        block[:] = found
    return not failed
