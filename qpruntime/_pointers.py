"""Functions that kernels take as addresses: signatures, calls and compilation at first use.

Kernels take likelihood functions as integers, called with a fixed signature. A jitted closure would
be compiled anew in every process; an address is not part of the compiled code, so one cached kernel
serves every likelihood, also a user's own. (numba's first-class functions do the same, but cost 10
us each whenever one is handed over, and warn that they are experimental.)
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from qpruntime._numba import INTERPRETED, kernel, variant

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.dispatcher import Dispatcher
    from numba.core.types import Type
    from numba.core.typing import Context
    from numba.core.typing.templates import Signature as KernelSignature

__all__ = [
    "COORDINATES",
    "EXACT",
    "FRAME",
    "LANDMARK",
    "MOMENTS",
    "PANEL",
    "POWERED",
    "RAISED_FRAME",
    "RAISED_MOMENTS",
    "RATIO",
    "RULE",
    "SPLIT",
    "SURFACES",
    "WP_RULE",
    "LatePointer",
    "LateStatus",
    "Pointer",
    "address",
    "at_power_one",
    "call_coordinates",
    "call_exact",
    "call_frame",
    "call_landmark",
    "call_moments",
    "call_panel",
    "call_powered",
    "call_raised_frame",
    "call_raised_moments",
    "call_ratio",
    "call_rule",
    "call_split",
    "call_surfaces",
    "call_wp_rule",
]

_VECTOR = types.Array(types.float64, 1, "C", readonly=True)
_float = types.float64

#: split(f, y, theta) -> (rest, curvature), with log p(y|f) = rest - curvature f^2 / 2
SPLIT = types.UniTuple(_float, 2)(_float, _float, _VECTOR)
#: moments(mu, sigma, y, theta) -> (log Z, tilted mean, tilted variance)
MOMENTS = types.UniTuple(_float, 3)(_float, _float, _float, _VECTOR)
#: frame(mu, sigma, y, theta) -> (centre, width, refine, side) of the quadrature variable
FRAME = types.UniTuple(_float, 4)(_float, _float, _float, _VECTOR)
#: The same two of the likelihood to a power, which is the last argument.
RAISED_MOMENTS = types.UniTuple(_float, 3)(*MOMENTS.args, _float)
RAISED_FRAME = types.UniTuple(_float, 4)(*FRAME.args, _float)
#: coordinates(mu, sigma, y, theta) -> (row, u, v) in a compact table
COORDINATES = types.UniTuple(_float, 3)(_float, _float, _float, _VECTOR)
#: landmark(y, theta, k) -> the k-th point where log p(y|f) has a kink or a narrow peak, or NaN
LANDMARK = _float(_float, _VECTOR, types.int64)
#: rule(split, landmark, power, mu, sigma, y, theta) -> (status, log Z, mean, variance, sigma*)
RULE = types.UniTuple(_float, 5)(types.int64, types.int64, _float, _float, _float, _float, _VECTOR)
_TENSOR = types.Array(types.float64, 3, "C", readonly=True)
#: ratio(coordinates, mu, sigma, y, theta, values, axes) -> sigma*/sigma_EP by a table, or NaN
RATIO = _float(types.int64, *COORDINATES.args, _TENSOR, _VECTOR)
#: lookup(mu, sigma, y, values, axes) -> (log Z, mean, sigma_EP, sigma*) in a table of surfaces
SURFACES = types.UniTuple(_float, 4)(_float, _float, _float, _TENSOR, _VECTOR)
#: wp_rule(..., theta, parameters) -> (status, log Z, mean, standard deviation, W_p)
WP_RULE = types.UniTuple(_float, 5)(*RULE.args, _VECTOR)
_OUT = types.Array(types.float64, 2, "C")
#: Addresses of a likelihood's functions, in the order of `Frame` in `sigma_star_kernels`.
_ADDRESSES = types.UniTuple(types.int64, 7)
#: exact(split, addresses, has frame, mu, sigma, y, theta, out) -> status, of quadrature; out is
#: filled with (log Z, mean, variance, sigma*)
EXACT = types.int64(types.int64, _ADDRESSES, types.boolean, _float, _float, _float, _VECTOR, _OUT)
#: powered(split, addresses, ep, power, mu, sigma, y, theta, out) -> status, of the likelihood to a
#: power
POWERED = types.int64(*EXACT.args[:3], _float, *EXACT.args[3:])
#: panel(covariance, panel, weight, count, start) -> status, of a block of rank-one updates
PANEL = types.int64(_OUT, _OUT, types.Array(types.float64, 1, "C"), types.int64, types.int64)


#: Held while an address is made. A user's function may need another one: the lock is reentrant.
_making = threading.RLock()


class LateStatus:
    """Status of a kernel whose late function could not be compiled, and the exception of it."""

    CODE = -4
    failure: BaseException | None = None

    @classmethod
    def raise_failure(cls) -> None:
        """Raise what stopped the compilation of a late function, if anything did."""
        failure, cls.failure = cls.failure, None
        if failure is not None:
            raise failure


def _kernel_of(function: Any, compiler: Callable[..., Any]) -> Any:
    """Compile a function, unless it is a kernel already."""
    return function if hasattr(function, "py_func") else compiler(function)


class Pointer:
    """A function with a fixed signature that kernels take as an argument.

    It compiles when it first crosses into a kernel, not when it is defined, so that importing a
    likelihood costs nothing. Calling it from Python runs it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: KernelSignature,
        compiler: Callable[..., Any] = kernel,
    ) -> None:
        self._kernel: Dispatcher = _kernel_of(function, compiler)
        self._signature = signature
        self._address = 0

    def __call__(self, *args: Any) -> Any:
        return self._kernel(*args)

    @property
    def function(self) -> Callable[..., Any]:
        """The function, compiled as a kernel."""
        return self._kernel

    def __getstate__(self) -> dict[str, Any]:
        # An address means nothing in another process.
        return {**self.__dict__, "_address": 0, "_code": None}

    @property
    def handle(self) -> int:
        """Argument for a kernel: the address, or the function itself if the jit is off.

        Made once, under one lock for all of them, and never replaced: an address that a kernel of
        another thread has been handed stays good for as long as this object lives.
        """
        if INTERPRETED:
            return self._interpreted()  # type: ignore[return-value]
        if not self._address:
            with _making:
                if not self._address:
                    self._kernel = self._build()
                    self._code = _with_address(self._kernel, self._signature)
                    self._address = address(self._code, self._signature)
        return self._address

    def _interpreted(self) -> Callable[..., Any]:
        """Return what stands for the address with the jit off."""
        return self._kernel

    def _build(self) -> Dispatcher:
        """Return what is to be compiled, or is; called once."""
        return self._kernel

    def reset(self) -> None:
        """Forget a failure; what is compiled has none."""

    def failure(
        self, mu: float = 0.0, sigma: float = 0.0, y: float = 0.0
    ) -> tuple[str, BaseException | None] | None:
        """Say what a user's function did wrong in a kernel of this thread, and what it raised.

        A cavity N(mu, sigma^2) says where to look if that is not on record.
        """
        return None


class LatePointer(Pointer):
    """A function with a fixed signature that compiles when a running kernel first calls it.

    Kernels take the address of a cell, whose first number is the address of the function once it
    is compiled, and whose second is that of what compiles it. Quadrature takes a third of a first
    call to compile, and few fits need it: tables and closed forms serve the others.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: KernelSignature,
        compiler: Callable[..., Any] = kernel,
    ) -> None:
        super().__init__(function, signature, compiler)
        self._make_cell()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_compiler"], state["_cell"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_cell()

    def _make_cell(self) -> None:
        self._compiler = ctypes.CFUNCTYPE(None)(self._compile)
        address = ctypes.cast(self._compiler, ctypes.c_void_p).value
        self._cell = np.array([0, address], dtype=np.int64)

    @property
    def handle(self) -> int:
        """Argument for a kernel: the address of the cell, or without the jit the function."""
        if INTERPRETED:
            return self._kernel  # type: ignore[return-value]
        return int(self._cell.ctypes.data)

    def _compile(self) -> None:
        """Fill the cell, from within a kernel, which cannot raise: keep what goes wrong."""
        try:
            self._cell[0] = super().handle
        except BaseException as error:
            LateStatus.failure = error


def _with_address(dispatcher: Any, signature: Any) -> Any:
    """Compile a kernel that is called through its address, without the wrapper for Python."""
    compiled = signature.args in dispatcher.overloads
    if dispatcher.targetoptions.get("no_cfunc_wrapper") or not compiled:
        wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": False}
        dispatcher = variant(dispatcher, "-code", wrappers)
        dispatcher.compile(signature)
    return dispatcher


def address(compiled: Dispatcher, signature: KernelSignature) -> int:
    """Return where the wrapper of a compiled function begins, which is called as from C."""
    result = compiled.overloads[signature.args]
    name = result.fndesc.llvm_cfunc_wrapper_name
    return int(result.library.get_pointer_to_function(name))


def _at_power_one(mu: float, sigma: float, y: float, theta: Any) -> Any:
    return raised(mu, sigma, y, theta, 1.0)  # type: ignore[name-defined]  # noqa: F821


def at_power_one(raised: Pointer) -> FunctionType:
    """Return moments or a frame to a power as a function of the likelihood itself.

    numba does not find a closure over a kernel in the cache again: `raised` is a global name. The
    function stands in the cache beside the one that it calls, under its name and the constants of
    its closure.
    """
    function = getattr(raised.function, "py_func", raised.function)
    constants = "".join(f"-{cell.cell_contents}" for cell in function.__closure__ or ())
    code = _at_power_one.__code__.replace(
        co_filename=function.__code__.co_filename,
        co_firstlineno=function.__code__.co_firstlineno,
        co_qualname=f"{function.__qualname__}{constants}-at-one",
    )
    return FunctionType(code, {"__name__": function.__module__, "raised": raised.function})


#: Emits what a call of a kernel's intrinsic does, and returns the value of it.
Lowering = Callable[["BaseContext", ir.IRBuilder, "KernelSignature", Sequence[ir.Value]], ir.Value]


def _lower_call(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: KernelSignature,
    args: Sequence[ir.Value],
) -> ir.Value:
    """Emit a call through an address, with the types numba gives the wrapper it points to."""
    values = [context.data_model_manager[t].get_value_type() for t in signature.args[1:]]
    result = context.data_model_manager[signature.return_type].get_value_type()
    pointer = builder.inttoptr(args[0], ir.FunctionType(result, values).as_pointer())
    return builder.call(pointer, args[1:])


def _lower_late_call(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: KernelSignature,
    args: Sequence[ir.Value],
) -> ir.Value:
    """Emit a call through the cell of a `LatePointer`, which is compiled first if it is not."""
    number = ir.IntType(64)
    cell = builder.inttoptr(args[0], number.as_pointer())
    target = cgutils.alloca_once_value(builder, builder.load(cell))
    with builder.if_then(cgutils.is_null(builder, builder.load(target)), likely=False):
        compiler = builder.load(builder.gep(cell, [ir.Constant(ir.IntType(32), 1)]))
        builder.call(
            builder.inttoptr(compiler, ir.FunctionType(ir.VoidType(), []).as_pointer()), []
        )
        builder.store(builder.load(cell), target)
    result = context.get_constant_null(signature.return_type)
    if isinstance(signature.return_type, types.BaseTuple):
        code = context.get_constant(types.float64, LateStatus.CODE)
        result = builder.insert_value(result, code, 0)
    else:
        result = context.get_constant(signature.return_type, LateStatus.CODE)
    result = cgutils.alloca_once_value(builder, result)
    with builder.if_then(cgutils.is_not_null(builder, builder.load(target)), likely=True):
        called = _lower_call(context, builder, signature, [builder.load(target), *args[1:]])
        builder.store(called, result)
    return builder.load(result)


def _lower_zeros(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: KernelSignature,
    args: Sequence[ir.Value],
) -> ir.Value:
    """Emit zeros, in a branch that is not taken."""
    return context.get_constant_null(signature.return_type)


def _caller(signature: KernelSignature, lower: Lowering = _lower_call) -> Any:
    """Return what calls a function of this signature through its handle, from within a kernel.

    The handle comes first. It is the function itself if the jit is off.
    """
    if INTERPRETED:
        return lambda handle, *args: handle(*args)
    typed = signature.return_type(types.int64, *signature.args)

    def call(typing: Context, handle: Type, *args: Type) -> tuple[KernelSignature, Lowering]:
        return typed, lower

    # numba takes the number of arguments from here: those after a star would become one tuple.
    names = ("typing", "handle", *(f"argument_{k}" for k in range(len(signature.args))))
    call.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return intrinsic(call)


Two = tuple[float, float]
Three = tuple[float, float, float]
Four = tuple[float, float, float, float]
Five = tuple[float, float, float, float, float]

call_split: Callable[..., Two] = _caller(SPLIT)
call_landmark: Callable[..., float] = _caller(LANDMARK)
call_moments: Callable[..., Three] = _caller(MOMENTS)
call_raised_moments: Callable[..., Three] = _caller(RAISED_MOMENTS)
call_frame: Callable[..., Four] = _caller(FRAME, _lower_late_call)
call_raised_frame: Callable[..., Four] = _caller(RAISED_FRAME)
call_coordinates: Callable[..., Three] = _caller(COORDINATES)
call_rule: Callable[..., Five] = _caller(RULE, _lower_late_call)
call_panel: Callable[..., int] = _caller(PANEL, _lower_late_call)
call_wp_rule: Callable[..., Five] = _caller(WP_RULE)

if INTERPRETED:

    def call_surfaces(handle, *args):  # type: ignore[no-untyped-def]
        """Call the handle, which is the function itself if the jit is off."""
        return handle(*args)

    call_exact = call_powered = call_ratio = call_surfaces
else:
    # The types of these depend on those of their arguments.

    @intrinsic
    def call_surfaces(typing, handle, mu, sigma, y, values, axes):  # type: ignore[no-untyped-def]
        """Call the lookup of `qpruntime.projection.interpolation`; never with values in float32."""
        signature = SURFACES.return_type(types.int64, _float, _float, _float, values, axes)
        return signature, _lower_call if values.dtype == _float else _lower_zeros

    @intrinsic
    def call_ratio(typing, handle, coordinates, mu, sigma, y, theta, values, axes):  # type: ignore[no-untyped-def]
        """Call `COMPACT_RATIO` of `qpruntime.projection.site_kernel`; never with float32 values."""
        signature = _float(types.int64, *RATIO.args[:5], values, axes)
        return signature, _lower_late_call if values.dtype == _float else _lower_zeros

    @intrinsic
    def call_exact(typing, handle, split, frame, has_frame, mu, sigma, y, theta, out):  # type: ignore[no-untyped-def]
        """Call quadrature of one tilted density through its late handle; `frame` is a tuple."""
        return types.int64(types.int64, types.int64, frame, *EXACT.args[2:]), _lower_late_call

    @intrinsic
    def call_powered(typing, handle, split, frame, ep, power, mu, sigma, y, theta, out):  # type: ignore[no-untyped-def]
        """Call quadrature of a likelihood to a power through its late handle."""
        return types.int64(types.int64, types.int64, frame, *POWERED.args[2:]), _lower_late_call
