"""Options of numba, functions across the jit boundary, and the notice that kernels compile."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import importlib
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from hashlib import blake2b
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, event
from numba.core.base import user_function
from numba.core.compiler import Compiler
from numba.core.targetconfig import ConfigStack
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.caching import Cache, IndexDataCacheFile
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
    "RULE",
    "SPLIT",
    "SURFACES",
    "WP_RULE",
    "LatePointer",
    "LateStatus",
    "Notice",
    "Pointer",
    "address",
    "announcement",
    "call_coordinates",
    "call_exact",
    "call_frame",
    "call_landmark",
    "call_moments",
    "call_panel",
    "call_powered",
    "call_raised_frame",
    "call_raised_moments",
    "call_rule",
    "call_split",
    "call_surfaces",
    "call_wp_rule",
    "contracted",
    "inlined",
    "inlined_by_numba",
    "kernel",
    "shared",
    "summed",
]

# --- Say that kernels compile, for whom, and how long that takes where nothing is cached.
#
# A message of the logger "qpruntime", as those of `qpruntime._duration`.

_LOG = logging.getLogger("qpruntime")
#: Seconds without a compilation after which the next one is announced again.
QUIET = 5.0

_OWN = ("qpruntime", "tablegen")

# Labels and compile times by the module whose function the user has called. Seconds are those of a
# first call with an empty cache on a core of 2020. The longest matching name applies.
_CALLED = {
    "qpruntime.estimators": ("an estimator", 20),
    "qpruntime.estimators.classifier": ("GPClassifier", 12),
    "qpruntime.estimators.poisson": ("GPPoissonRegressor", 15),
    "qpruntime.estimators.robust": ("GPRobustRegressor", 20),
    "qpruntime.effects": ("a model of effects", 20),
    "qpruntime.forecasting": ("a forecast", 20),
    "qpruntime.inference": ("inference", 10),
    "qpruntime.inference.corrections": ("corrections", 12),
    "qpruntime.inference.markov": ("a series", 12),
    "qpruntime.inference.sparse": ("inducing points", 12),
    "qpruntime.persistence": ("a loaded model", 10),
    "qpruntime.projection": ("projections", 8),
    "qpruntime.bayesopt": ("the optimiser", 10),
    "tablegen": ("tables", 20),
}


class Notice(event.Listener):
    """Say which kernels compile, which takes seconds when nothing is cached, and how many did.

    Once for what compiles together, and again for what does so later: some parts compile at
    their first use, minutes after the others.

    Parameters
    ----------
    kept : function
        Folder where all that compiles is kept for the next process, None if there is none.
    """

    def __init__(self, kept: Callable[[], str | None]) -> None:
        self._kept = kept
        self._inside = 0
        self._ended = -math.inf
        self.count = 0
        self.silent = False
        self._collected = False

    def on_start(self, event: event.Event) -> None:
        """Announce a compilation that the user waits for, and stop garbage collection meanwhile."""
        module = _own(event)
        if not module:
            return
        if not (self._inside or self.silent) and time.monotonic() - self._ended > QUIET:
            more = self._ended > -math.inf
            _LOG.warning("%s", announcement(_called() or module, more, self._kept()))
        if not self._inside:
            # Compilers make many small objects, and a fifth of the time would go into walks over
            # all that there are.
            self._collected = gc.isenabled()
            gc.disable()
        self._inside += 1

    def on_end(self, event: event.Event) -> None:
        if _own(event):
            self._inside -= 1
            if self._collected and not self._inside:
                gc.enable()
            self.count += 1
            self._ended = time.monotonic()

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Compile without a word."""
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before


def announcement(module: str, more: bool, folder: str | None) -> str:
    """Return the line that says that kernels compile for a function of this module."""
    names = [name for name in _CALLED if module == name or module.startswith(f"{name}.")]
    what, takes = module, "a few seconds"
    if names:
        what, seconds = _CALLED[max(names, key=len)]
        takes = f"about {seconds} s the first time"
    elif more:
        takes = "a few seconds more"
    if folder is None:
        kept = "in every process, as no folder can be written: set NUMBA_CACHE_DIR to one"
    else:
        kept = f"kept in {folder}"
    return (
        f"qpruntime: compiling {'more ' if more else ''}kernels for {what} on this machine; takes "
        f"{takes}; {kept} (python -m qpruntime warmup compiles all beforehand)"
    )


def _called() -> str:
    """Return the module of ours whose function was called from outside of us, empty if none was."""
    frame, name = sys._getframe(1), ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] in _OWN and not module.startswith(_BETWEEN):
            name = module
        frame = frame.f_back  # type: ignore[assignment]
    return name


# Modules that are on the way to those that are called, or compile.
_BETWEEN = ("qpruntime.execution.", "qpruntime._numba", "qpruntime._numba")


def _own(event: event.Event) -> str:
    """Name of the module whose function compiles, if it is one of ours."""
    module = str(event.data["dispatcher"].py_func.__module__)
    return module if module.split(".")[0] in _OWN else ""


# --- The one place that sets numba options, and how a likelihood's functions cross the jit
# boundary.
#
# Kernels take likelihood functions as addresses: integers, called with a fixed signature. A jitted
# closure would be compiled anew in every process; an address is not part of the compiled code, so
# one cached kernel serves every likelihood, also a user's own. (numba's first-class functions do
# the same, but cost 10 us each whenever one is handed over, and warn that they are experimental.)

#: True if numba is switched off, as for measuring line coverage.
INTERPRETED = bool(getattr(numba.config, "DISABLE_JIT", 0))

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
#: lookup(mu, sigma, y, values, axes) -> (log Z, mean, sigma_EP, sigma*) in a table of surfaces
SURFACES = types.UniTuple(_float, 4)(_float, _float, _float, _TENSOR, _VECTOR)
#: wp_rule(..., theta, parameters) -> (status, log Z, mean, standard deviation, W_p)
WP_RULE = types.UniTuple(_float, 5)(*RULE.args, _VECTOR)
_OUT = types.Array(types.float64, 2, "C")
#: exact(split, frame, rule, landmark, raised moments, raised frame, has frame, mu, sigma, y, theta,
#: out) -> status, of quadrature; out is filled with (log Z, mean, variance, sigma*)
EXACT = types.int64(
    *(types.int64,) * 6, types.boolean, _float, _float, _float, _VECTOR, _OUT
)  # fmt: skip
#: powered(split, frame, rule, landmark, raised moments, raised frame, ep, power, mu, sigma, y,
#: theta, out) -> status, of the likelihood to a power
POWERED = types.int64(
    *(types.int64,) * 6, types.boolean, _float, _float, _float, _float, _VECTOR, _OUT
)  # fmt: skip
#: panel(covariance, panel, weight, count, start) -> status, of a block of rank-one updates
PANEL = types.int64(_OUT, _OUT, types.Array(types.float64, 1, "C"), types.int64, types.int64)


T = TypeVar("T", bound=tuple[Any, ...])
R = TypeVar("R")


def plain(values: T) -> T:
    """Return a named tuple, and those inside it, as plain ones, for a kernel called very often.

    numba tells the types of plain tuples in C. Named tuples make it ask Python again at every call,
    which took a tenth of a fit of 60 points.
    """
    return tuple([plain(value) if isinstance(value, tuple) else value for value in values])  # type: ignore[return-value]


def kernel(function: Callable[..., R]) -> Callable[..., R]:
    """Compile lazily, cached on disk, without the GIL, with IEEE division and no reassociation."""
    return _compiled(function)


def contracted(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `kernel`, fusing multiply and add: a third faster for long sums of products."""
    return _compiled(function, fastmath={"contract"})


def summed(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `contracted`, adding in any order, as BLAS does: sums in vector registers."""
    return _compiled(function, fastmath={"contract", "reassoc", "nsz"})


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `kernel`, copied by LLVM into its callers, as handing over arrays can be slow."""
    return _compiled(function, forceinline=True)


def inlined_by_numba(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `contracted`, inlined before types are known and so lowered in each caller.

    It saves counting references to arrays in tuples: 15 % of corrected marginals.
    """
    return _compiled(function, fastmath={"contract"}, inline="always")


#: Whether kernels call each other by `_Inner`. It uses private interfaces of numba, so that it is
#: for releases that it was tested with; with others the first call takes a quarter longer.
_LINKED = not INTERPRETED and numba.__version__.startswith("0.68.")


class _Compiler(Compiler):
    """Compiler that shares numba's own functions between kernels with and without wrappers.

    numba compiles `max` or `np.empty` again for each set of options of a caller, and tries all its
    overloads again. A callee without options of its own inherits the others, as numba has it.
    """

    def define_pipelines(self) -> Any:
        shared = ConfigStack.top_or_none()
        for name in ("no_cpython_wrapper", "no_cfunc_wrapper"):
            shared.discard(name)
        return super().define_pipelines()


def _compiled(function: Callable[..., Any], **given: object) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **given}
    if _LINKED:
        options = options | {"pipeline_class": _Compiler}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
        _key_by_contents(dispatcher, function.__module__)
    except RuntimeError:
        # Nowhere to keep a cache: compile in every process rather than not at all.
        if function.__module__.split(".")[0] == "qpruntime":
            _folders[function.__module__] = None
        dispatcher = numba.njit(**options)(function)
    if _LINKED:
        dispatcher.inner = inner = _Inner(dispatcher)
        dispatcher.get_call_template = inner.get_call_template
        dispatcher.get_overload = inner.get_overload
    return dispatcher


def shared(dispatcher: Any) -> Any:
    """Let kernels call what Python calls too, so that it compiles once, with its wrappers."""
    if _LINKED:
        dispatcher.inner.twin = dispatcher
    return dispatcher


#: Instructions beyond which a kernel is called by its name. LLVM inlines a fifth of that.
_SEPARATE = 250


class _Inner:
    """A kernel as other kernels call it, which makes a first call a quarter shorter.

    numba compiles a callee for itself, with a wrapper for Python and one for C that no kernel uses,
    and once more in every caller and in the callers of these. Here callees have no wrappers, and
    files of their own in the cache. A large one, which LLVM would not inline, is called where it
    is, by a name that the linker knows.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self._symbols: dict[tuple[Any, ...], _Symbol | None] = {}

    @cached_property
    def twin(self) -> Any:
        """Dispatcher without wrappers, made when a kernel first calls it."""
        return _variant(
            self.dispatcher, "-inner", {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        )

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for a calling kernel, and describe the call to numba."""
        # numba would compile another specialisation for each literal number among the arguments.
        args = tuple(map(types.unliteral, args))
        kws = {name: types.unliteral(value) for name, value in kws.items()}
        _, folded = self.dispatcher._compiler.fold_argument_types(args, kws)
        owner = self._owner(folded)
        template = type(owner).get_call_template(owner, args, kws)
        result = owner.overloads[folded]
        # numba forgets these where it reads a kernel from the cache.
        result.library._reload_init.update(result.reload_init)
        if folded not in self._symbols:
            large = not result.fndesc.inline and _size(result) > _SEPARATE
            self._symbols[folded] = self._link(result, folded) if large else None
        return template

    def get_overload(self, signature: Any) -> Any:
        """Return what numba finds the compiled function by."""
        args = tuple(signature)
        return self._symbols.get(args) or self._owner(args).overloads[args].entry_point

    def load(self, args: tuple[Any, ...]) -> None:
        """Compile or read from the cache what a kernel that was read from the cache calls."""
        if not self._symbols.get(args):
            owner = self._owner(args)
            owner.compile(args)
            self._symbols[args] = self._link(owner.overloads[args], args)

    def _owner(self, args: tuple[Any, ...]) -> Any:
        return self.dispatcher if args in self.dispatcher.overloads else self.twin

    def _link(self, result: Any, args: tuple[Any, ...]) -> _Symbol:
        """Let the linker know the machine code by a name, and numba how to call it."""
        function = self.dispatcher.py_func
        symbol = _Symbol(function.__module__, function.__qualname__, args)
        description = copy.copy(result.fndesc)
        pointer = result.library.get_pointer_to_function(description.mangled_name)
        binding.add_symbol(symbol.name, pointer)
        description.mangled_name = symbol.name
        call = user_function(description, ())

        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            # Whoever reads the caller from the cache has to load the callee first.
            context.active_code_library._reload_init.add(symbol)
            return call(context, builder, signature, values)

        result.target_context.insert_func_defn([(lower, symbol, call.signature)])
        return symbol


def _size(result: Any) -> int:
    """Return how many instructions a compiled function has."""
    module = result.library._get_module_for_linking()
    function = module.get_function(result.fndesc.mangled_name)
    return sum(1 for block in function.blocks for _ in block.instructions)


class _Symbol(NamedTuple):
    """Name of a kernel for the linker, the same in every process; calling it loads the kernel."""

    module: str
    kernel: str
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Name in the machine code of callers."""
        digest = blake2b(repr(tuple(self)).encode(), digest_size=16).hexdigest()
        return f"{self.module}.{self.kernel}.{digest}"

    def __call__(self) -> None:
        getattr(importlib.import_module(self.module), self.kernel).inner.load(self.args)


def _variant(dispatcher: Any, suffix: str, options: dict[str, Any]) -> Any:
    """Return a dispatcher of the same function with other options, and its own files of a cache."""
    given = {name: value for name, value in dispatcher.targetoptions.items() if name != "nopython"}
    options = given | {"pipeline_class": dispatcher._compiler.pipeline_class} | options
    function, store = dispatcher.py_func, dispatcher._cache
    if not hasattr(store, "_cache_file"):
        return numba.njit(**options)(function)
    twin = numba.njit(cache=True, **options)(function)
    file = twin._cache._cache_file
    file.__init__(store.cache_path, store._impl.filename_base + suffix, file._source_stamp)
    _key_by_contents(twin, function.__module__)
    return twin


# The folder that caches the kernels of each module, None if there is none, in the order of
# definition.
_folders: dict[str, str | None] = {}


def cache_folders() -> dict[str, str]:
    """Return the modules whose kernels are kept on disk, each with its folder."""
    return {module: folder for module, folder in _folders.items() if folder is not None}


def cache_folder() -> str | None:
    """Return the folder below which kernels are kept, None if any of them is kept nowhere."""
    folders = [folder for folder in _folders.values() if folder is not None]
    return os.path.commonpath(folders) if folders and len(folders) == len(_folders) else None


@cache
def _source(module: str) -> tuple[str, tuple[str, ...]]:
    """Return the hash of a module's text and the names of the modules that it imports."""
    path = _ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        text = path.read_bytes()
    except OSError:
        return "", ()
    imported = []
    for package, names in _IMPORTED.findall(text.decode("utf-8")):
        imported += [package, *(f"{package}.{name.strip()}" for name in names.split(","))]
    return blake2b(text, digest_size=16).hexdigest(), tuple(imported)


@cache
def fingerprint(module: str) -> str:
    """Return the hash of the sources of a module and of all modules of ours that it imports.

    A kernel is read from the cache only where this is the same. It is of contents and not of
    times, so that a copy of the package may take the cache along.
    """
    waiting, hashes = [module], {}
    while waiting:
        name = waiting.pop()
        if name not in hashes:
            hashes[name], imported = _source(name)
            waiting += imported
    return blake2b(repr(sorted(hashes.items())).encode(), digest_size=16).hexdigest()


def is_ours(module: str) -> bool:
    """Return whether a name is that of a module of ours, by its file."""
    return module.split(".")[0] in _OWN and bool(_source(module)[0])


_ROOT = Path(__file__).parents[1]
_IMPORTED = re.compile(
    r"^(?:from|import) ((?:qpruntime|tablegen)(?:\.\w+)*)(?: import \(?([^)]*?)(?:\)|$))?", re.M
)


def _key_by_contents(dispatcher: Dispatcher[Callable[..., R]], module: str) -> None:
    """Let the disk cache depend on the contents of the modules that a kernel can call.

    numba looks at the time of the function's own file only: a kernel that calls one from an edited
    file would be loaded as it was before the edit. The version of a cache is compared before its
    contents are read, which fails where they name a tuple that is no more.
    """
    store: Cache | None = getattr(dispatcher, "_cache", None)
    file: IndexDataCacheFile | None = getattr(store, "_cache_file", None)
    if file is not None and hasattr(file, "_version") and module.split(".")[0] in _OWN:
        file._version = (file._version, fingerprint(module))
        file._source_stamp = "by content"
    _folders[module] = None if store is None else store.cache_path
    if store is not None:
        store.save_overload = _forgiving(store.save_overload)


def _forgiving(save: Callable[..., None]) -> Callable[..., None]:
    """Save what can be saved: a disk that is full or read-only is no error."""

    def attempt(*args: object) -> None:
        with contextlib.suppress(OSError):
            save(*args)

    return attempt


_NOTICE = Notice(cache_folder)
event.register("numba:compile", _NOTICE)


def compilations() -> int:
    """Return how many kernels this process has compiled."""
    return _NOTICE.count


#: A context in which kernels compile without a line on stderr.
unannounced = _NOTICE.silenced


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


class LatePointer:
    """A function with a fixed signature that compiles when a running kernel first calls it.

    Kernels take the address of a cell, whose first number is the address of the function once it
    is compiled, and whose second is that of what compiles it. Quadrature takes a third of a first
    call to compile, and few fits need it: tables and closed forms serve the others.
    """

    def __init__(self, function: Callable[..., Any], signature: KernelSignature) -> None:
        self.__setstate__({"_kernel": kernel(function), "_signature": signature})

    def __getstate__(self) -> dict[str, Any]:
        # Addresses mean nothing in another process.
        return {"_kernel": self._kernel, "_signature": self._signature}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kernel: Dispatcher = state["_kernel"]
        self._signature: KernelSignature = state["_signature"]
        self._compiler = ctypes.CFUNCTYPE(None)(self._compile)
        address = ctypes.cast(self._compiler, ctypes.c_void_p).value
        self._cell = np.array([0, address], dtype=np.int64)

    def __call__(self, *args: Any) -> Any:
        return self._kernel(*args)

    @property
    def handle(self) -> int:
        """Argument for a kernel: the address of the cell, or without the jit the function."""
        if INTERPRETED:
            return self._kernel  # type: ignore[return-value]
        return int(self._cell.ctypes.data)

    def _compile(self) -> None:
        """Fill the cell, from within a kernel, which cannot raise: keep what goes wrong."""
        try:
            with _making:
                if not self._cell[0]:
                    self._code = _with_address(self._kernel, self._signature)
                    self._cell[0] = address(self._code, self._signature)
        except BaseException as error:
            LateStatus.failure = error


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
        self._kernel: Dispatcher = compiler(function)
        self._signature = signature
        self._address = 0

    def __call__(self, *args: Any) -> Any:
        return self._kernel(*args)

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


def _with_address(dispatcher: Any, signature: Any) -> Any:
    """Compile a kernel that is called through its address, without the wrapper for Python."""
    if signature.args not in dispatcher.overloads:
        dispatcher = _variant(dispatcher, "-code", {"no_cpython_wrapper": True})
        dispatcher.compile(signature)
    return dispatcher


def address(compiled: Dispatcher, signature: KernelSignature) -> int:
    """Return where the wrapper of a compiled function begins, which is called as from C."""
    result = compiled.overloads[signature.args]
    name = result.fndesc.llvm_cfunc_wrapper_name
    return int(result.library.get_pointer_to_function(name))


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


def _lower_exact(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: KernelSignature,
    args: Sequence[ir.Value],
) -> ir.Value:
    """Emit a call of quadrature: the addresses in the frame are handed over one by one."""
    addresses = cgutils.unpack_tuple(builder, args[2])[:5]
    flat = signature.return_type(*(types.int64,) * 7, *signature.args[3:])
    return _lower_late_call(context, builder, flat, [*args[:2], *addresses, *args[3:]])


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

    The handle comes first. With the jit off it is the function itself.
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

    def call_exact(handle, split, frame, *args):  # type: ignore[no-untyped-def]
        """Call the handle, which is the function itself if the jit is off."""
        return handle(split, *frame[:5], *args)

    call_powered = call_exact
else:
    # The types of these depend on those of their arguments.

    @intrinsic
    def call_surfaces(typing, handle, mu, sigma, y, values, axes):  # type: ignore[no-untyped-def]
        """Call the lookup of `qpruntime.projection.interpolation`; never with values in float32."""
        signature = SURFACES.return_type(types.int64, _float, _float, _float, values, axes)
        return signature, _lower_call if values.dtype == _float else _lower_zeros

    @intrinsic
    def call_exact(typing, handle, split, frame, has_frame, mu, sigma, y, theta, out):  # type: ignore[no-untyped-def]
        """Call quadrature of one tilted density through its late handle; `frame` is a tuple."""
        return types.int64(types.int64, types.int64, frame, *EXACT.args[6:]), _lower_exact

    @intrinsic
    def call_powered(typing, handle, split, frame, ep, power, mu, sigma, y, theta, out):  # type: ignore[no-untyped-def]
        """Call quadrature of a likelihood to a power through its late handle."""
        return types.int64(types.int64, types.int64, frame, *POWERED.args[6:]), _lower_exact
