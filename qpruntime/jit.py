"""The one place that sets numba options, and how a likelihood's functions cross the jit boundary.

Kernels take likelihood functions as *first-class functions*: values with a fixed signature,
called through a pointer. A jitted closure would be compiled anew in every process; a pointer is
not part of the compiled code, so one cached kernel serves every likelihood, also a user's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numba
import numba.experimental.function_type  # registers the type of `Pointer` with numba
from numba import types
from numba.core.compiler import Compiler
from numba.core.errors import NumbaExperimentalFeatureWarning

__all__ = ["COORDINATES", "FRAME", "MOMENTS", "SPLIT", "Pointer", "contracted", "kernel"]

_VECTOR = types.Array(types.float64, 1, "C", readonly=True)
_float = types.float64

#: split(f, y, theta) -> (rest, curvature), with log p(y|f) = rest - curvature f^2 / 2
SPLIT = types.UniTuple(_float, 2)(_float, _float, _VECTOR)
#: moments(mu, sigma, y, theta) -> (log Z, tilted mean, tilted variance)
MOMENTS = types.UniTuple(_float, 3)(_float, _float, _float, _VECTOR)
#: frame(mu, sigma, y, theta) -> (centre, width, refine, side) of the quadrature variable
FRAME = types.UniTuple(_float, 4)(_float, _float, _float, _VECTOR)
#: coordinates(mu, sigma, y, theta) -> (row, u, v) in a compact table
COORDINATES = types.UniTuple(_float, 3)(_float, _float, _float, _VECTOR)


class _Quiet(Compiler):
    """numba's compiler, silent about first-class functions being experimental (since 0.49)."""

    def compile_extra(self, func: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
            return super().compile_extra(func)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile lazily, cached on disk, without the GIL, with IEEE division and no reassociation."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", pipeline_class=_Quiet)(function)


def contracted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` that may fuse multiply and add: a third faster where sums of products dominate."""
    return numba.njit(
        cache=True,
        nogil=True,
        error_model="numpy",
        fastmath={"contract"},
        pipeline_class=_Quiet,
    )(function)


class Pointer(types.WrapperAddressProtocol):
    """A kernel with a fixed signature that other kernels take as an argument.

    It compiles when it first crosses into a kernel, not when it is defined, so that importing a
    likelihood costs nothing. Calling it from Python runs the kernel.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._kernel = kernel(function)
        self._signature = signature
        self._address = 0

    def __call__(self, *args: Any) -> Any:
        return self._kernel(*args)

    def __wrapper_address__(self) -> int:
        if not self._address:
            compiled: Any = self._kernel
            compiled.compile(self._signature)
            result = compiled.overloads[self._signature.args]
            name = result.fndesc.llvm_cfunc_wrapper_name
            self._address = result.library.get_pointer_to_function(name)
        return self._address

    def signature(self) -> Any:
        return self._signature
