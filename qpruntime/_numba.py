"""Options of numba, calls between kernels by name, and the keys of cached kernels."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
from collections.abc import Callable
from functools import cache, cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba
from llvmlite import binding
from numba import types
from numba.core import event
from numba.core.base import user_function
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_machinery import PassManager
from numba.core.targetconfig import ConfigStack

from qpruntime._compile_notice import OURS, Notice

if TYPE_CHECKING:
    from numba.core.caching import Cache, IndexDataCacheFile
    from numba.core.dispatcher import Dispatcher

__all__ = [
    "INTERPRETED",
    "cache_folder",
    "cache_folders",
    "compilations",
    "contracted",
    "contracted_inlined",
    "fingerprint",
    "inlined",
    "inlined_by_numba",
    "is_ours",
    "kernel",
    "plain",
    "shared",
    "summed",
    "unannounced",
    "variant",
]

#: True if numba is switched off, as for measuring line coverage.
INTERPRETED = bool(getattr(numba.config, "DISABLE_JIT", 0))

T = TypeVar("T", bound=tuple[Any, ...])
R = TypeVar("R")


def plain(values: T) -> T:
    """Return a named tuple, and those inside it, as plain ones, for a kernel called very often.

    numba tells the types of plain tuples in C. Named tuples make it ask Python again at every call,
    which took a tenth of a fit of 60 points.
    """
    return tuple([plain(value) if isinstance(value, tuple) else value for value in values])  # type: ignore[return-value]


#: True if kernels call each other by `_Inner`, which uses private interfaces of numba and so needs
#: a release that it was tested with. With other releases the first call takes a quarter longer.
_LINKED = not INTERPRETED and numba.__version__.startswith("0.68.")


class _ComparedFlags(Flags):
    """Options of a compilation, compared by what is set.

    numba compares them for each overload that it tries, reading all thirty options of both.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ComparedFlags) and self._values == other._values


#: Names of numba's passes for what no kernel of ours has, such as closures and array expressions.
_UNUSED_PASSES = {
    "with_lifting",
    "inline_closure_likes",
    "rewrite_semantic_constants",
    "Rewrite dynamic raises",
    "make_function_op_code_to_jit_function",
    "find_literally",
    "literal_unroll",
    "LiteralPropagation",
    "inline_overloads",
    "nopython_rewrites",
    "annotate_types",
    "dump_parfor_diagnostics",
}


class _Compiler(Compiler):
    """Compiler whose callees do not depend on the kernel that calls them first.

    numba compiles `max` or `np.empty` again for each set of options of a caller, and tries all its
    overloads again; a kernel of ours would keep the fast mathematics of whichever caller came
    first. Kernels skip passes that would find nothing in them, a twentieth of a first call.
    """

    def define_pipelines(self) -> Any:
        inherited = ConfigStack.top_or_none()
        for name in ("no_cpython_wrapper", "no_cfunc_wrapper", "fastmath", "forceinline"):
            inherited.discard(name)
        inherited.__class__ = _ComparedFlags
        (full,) = super().define_pipelines()
        lean = PassManager(full.pipeline_name)
        for step, name in full.passes:
            if step.name() not in _UNUSED_PASSES:
                lean.add_pass(step, name)
        lean.finalize()
        return [lean]


def _decorator(**given: object) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Return a decorator that compiles lazily, cached on disk, without the GIL.

    Divisions are IEEE's, and sums keep their order; `given` are further options of numba.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **given}
    if _LINKED:
        options |= {"pipeline_class": _Compiler, "no_cfunc_wrapper": True}

    def compiled(function: Callable[..., R]) -> Callable[..., R]:
        """Return the dispatcher of a function."""
        module: str = function.__module__
        try:
            dispatcher = numba.njit(cache=True, **options)(function)
            _key_by_contents(dispatcher, module)
        except RuntimeError:
            # Nowhere to keep a cache: compile in every process rather than not at all.
            if module.split(".")[0] == "qpruntime":
                _folders[module] = None
            dispatcher = numba.njit(**options)(function)
        if _LINKED:
            dispatcher.inner = inner = _Inner(dispatcher)
            dispatcher.get_call_template = inner.get_call_template
            dispatcher.get_overload = inner.get_overload
        return cast("Callable[..., R]", dispatcher)  # numba has no types

    return compiled


#: Compile with the options that all kernels have.
kernel = _decorator()
#: Compile as `kernel`, fusing multiply and add: a third faster for long sums of products.
contracted = _decorator(fastmath={"contract"})
#: Compile as `contracted`, adding in any order, as BLAS does: sums in vector registers.
summed = _decorator(fastmath={"contract", "reassoc", "nsz"})
#: Compile as `kernel`, copied by LLVM into its callers, as handing over arrays can be slow.
inlined = _decorator(forceinline=True)
#: Compile as `contracted`, copied by LLVM into its callers.
contracted_inlined = _decorator(fastmath={"contract"}, forceinline=True)
#: Compile as `contracted`, inlined before types are known and so lowered in each caller. It saves
#: counting references to arrays in tuples: 15 % of corrected marginals.
inlined_by_numba = _decorator(fastmath={"contract"}, inline="always")


def shared(dispatcher: Callable[..., R]) -> Callable[..., R]:
    """Let kernels call what Python calls too, so that it compiles once, with its wrappers."""
    if _LINKED:
        cast("Any", dispatcher).inner.twin = dispatcher
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
        return variant(
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
            # Closures of one name hold different constants, so that no name stands for one.
            named = "<locals>" not in self.dispatcher.py_func.__qualname__
            large = named and not result.fndesc.inline and _is_large(result)
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


def _is_large(result: Any) -> bool:
    """Decide whether a compiled function has more instructions than LLVM would inline."""
    module = result.library._get_module_for_linking()
    function = module.get_function(result.fndesc.mangled_name)
    # Each step asks LLVM, so it ends where the answer is known.
    instructions = (instruction for block in function.blocks for instruction in block.instructions)
    return next(islice(instructions, _SEPARATE, None), None) is not None


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


def variant(dispatcher: Any, suffix: str, options: dict[str, Any]) -> Any:
    """Return a dispatcher of the same function with other options, and its own files of a cache."""
    options = {
        **{name: value for name, value in dispatcher.targetoptions.items() if name != "nopython"},
        "pipeline_class": dispatcher._compiler.pipeline_class,
        **options,
    }
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
    return module.split(".")[0] in OURS and bool(_source(module)[0])


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
    if file is not None and hasattr(file, "_version") and module.split(".")[0] in OURS:
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
