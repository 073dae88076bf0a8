"""A model as a tree of plain values, with its arrays apart; and back.

Objects are what pickle would make of them: a class, the arguments of its ``__new__``, and its
state. Only classes of `qpruntime.saving.known` are written, and only these are made again.
"""

from __future__ import annotations

import copyreg
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.errors import InputError
from qpruntime.saving.known import callable_of, class_of, name_of

__all__ = ["Malformed", "decoded", "encoded"]

_DEPTH = 100
_KINDS = "biufcUSMm"
_INFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Malformed(ValueError):
    """A tree that `encoded` does not make; the message is a noun phrase."""


def encoded(model: Any) -> tuple[Any, list[NDArray[Any]]]:
    """Return the tree of a model, and its arrays.

    Raises
    ------
    InputError
        If something in it is not known here; the message says where it is.
    """
    writer = _Writer()
    return writer.value(model, "model"), writer.arrays


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def value(self, x: Any, place: str) -> Any:
        """One value of the tree."""
        if x is None or type(x) in (bool, int, str):
            return x
        if type(x) is float:
            return x if math.isfinite(x) else {"float": repr(x)}
        if isinstance(x, np.ndarray) and x.dtype.kind == "O":
            items = [self.value(item, place) for item in x.ravel()]
            return {"objects": items, "shape": list(x.shape)}
        if isinstance(x, (np.ndarray, np.generic)):
            return self._array(x, place)
        if isinstance(x, np.dtype):
            return {"dtype": x.str}
        if isinstance(x, slice):
            return {"slice": [self.value(v, place) for v in (x.start, x.stop, x.step)]}
        if type(x) in (tuple, list, set, frozenset):
            items = [self.value(item, f"{place}[{k}]") for k, item in enumerate(x)]
            return {type(x).__name__: items}
        if type(x) is dict:
            pairs = [[self.value(k, place), self.value(v, f"{place}.{k}")] for k, v in x.items()]
            return {"dict": pairs}
        return self._object(x, place)

    def _array(self, x: Any, place: str) -> Any:
        kind = "array" if isinstance(x, np.ndarray) else "scalar"
        plain = np.asarray(x)
        if plain.dtype.kind not in _KINDS:
            raise InputError(f"{place} is an array of {plain.dtype}, which is not saved: pickle it")
        if id(x) not in self._seen or kind == "scalar":
            self._seen[id(x)] = len(self.arrays)
            self._alive.append(x)
            self.arrays.append(plain)
        return {kind: self._seen[id(x)]}

    def _object(self, x: Any, place: str) -> Any:
        try:
            reduce = copyreg.dispatch_table.get(type(x))
            made = x.__reduce_ex__(4) if reduce is None else reduce(x)
        except TypeError as error:
            raise InputError(f"{place} cannot be saved: {error}") from error
        if not isinstance(made, tuple) or any(part is not None for part in made[3:]):
            raise _unknown(x, place)
        function, arguments = made[:2]
        state = made[2] if len(made) > 2 else None
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            name, arguments = name_of(arguments[0]), arguments[1:]
            if class_of(name) is not type(x):
                raise _unknown(x, place)
            head = {"object": name}
        else:
            name = name_of(function)
            if callable_of(name) is None:
                raise _unknown(x, place)
            head = {"call": name}
        return head | {
            "arguments": [self.value(a, f"{place}({k})") for k, a in enumerate(arguments)],
            "state": self.value(state, place),
        }


def _unknown(x: Any, place: str) -> InputError:
    kind = type(x)
    return InputError(
        f"{place} is a {kind.__module__}.{kind.__qualname__}, which no file without code can hold: "
        "pickle the model, or fit it without that"
    )


def decoded(tree: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return the model of a tree that a stranger may have written; `Malformed` if there is none."""
    return _value(tree, arrays, 0)


def _value(x: Any, arrays: list[NDArray[Any]], depth: int) -> Any:
    if depth > _DEPTH:
        raise Malformed(f"nesting deeper than {_DEPTH}")
    if x is None or type(x) in (bool, int, float, str):
        return x
    if not isinstance(x, dict) or not x:
        raise Malformed(f"a {type(x).__name__} where a value is to be")
    if "object" in x or "call" in x:
        return _made(x, arrays, depth)
    if set(x) == {"objects", "shape"}:
        return _objects(x, arrays, depth)
    (kind, content), *more = x.items()
    if more:
        raise Malformed(f"a value of two kinds, {kind!r:.40} and another")
    if kind == "float":
        if content not in _INFINITE:
            raise Malformed(f"the number {content!r:.40}")
        return _INFINITE[content]
    if kind in ("array", "scalar"):
        if type(content) is not int or not 0 <= content < len(arrays):
            raise Malformed(f"array number {content!r:.40} of {len(arrays)}")
        found = arrays[content]
        if kind == "array":
            return found
        if found.shape != ():
            raise Malformed("a scalar with a shape")
        return found[()]
    if kind == "dtype":
        if not isinstance(content, str) or len(content) > 10:
            raise Malformed(f"the dtype {content!r:.40}")
        return np.dtype(content)
    if not isinstance(content, list):
        raise Malformed(f"a {kind!r:.40} that is no list")
    if kind == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            raise Malformed("a dict that is not of pairs")
        pairs = [[_value(v, arrays, depth + 1) for v in pair] for pair in content]
        return dict(pairs)
    items = [_value(item, arrays, depth + 1) for item in content]
    kinds: dict[str, Any] = {
        "tuple": tuple, "list": list, "set": set, "frozenset": frozenset,
    }  # fmt: skip
    if kind == "slice" and len(items) == 3:
        return slice(*items)
    if kind not in kinds:
        raise Malformed(f"a value of kind {kind!r:.40}")
    return kinds[kind](items)


def _objects(x: dict[str, Any], arrays: list[NDArray[Any]], depth: int) -> Any:
    """An array of objects, as of labels that are text."""
    items, shape = x["objects"], x["shape"]
    plain = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not (isinstance(items, list) and plain and math.prod(shape) == len(items)):
        raise Malformed("objects of another shape")
    found = np.empty(len(items), dtype=object)
    for k, item in enumerate(items):
        found[k] = _value(item, arrays, depth + 1)
    return found.reshape(shape)


def _made(x: dict[str, Any], arrays: list[NDArray[Any]], depth: int) -> Any:
    """Make an object, or call for one."""
    kind = "object" if "object" in x else "call"
    if set(x) != {kind, "arguments", "state"} or not isinstance(x["arguments"], list):
        raise Malformed(f"an {kind} without arguments or state")
    name = x[kind]
    if not isinstance(name, str):
        raise Malformed(f"the name {name!r:.40}")
    arguments = [_value(a, arrays, depth + 1) for a in x["arguments"]]
    state = _value(x["state"], arrays, depth + 1)
    try:
        if kind == "call":
            function = callable_of(name)
            if function is None:
                raise Malformed(f"a call of {name!r:.80}, which is not called")
            return function(*arguments)
        known = class_of(name)
        if known is None:
            raise Malformed(f"an object of {name!r:.80}, which is not made")
        made = known.__new__(known, *arguments)
        _set_state(made, state)
        return made
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise Malformed(f"a {name.partition(':')[2]} with other parts ({error})") from error


def _set_state(made: Any, state: Any) -> None:
    if state is None:
        return
    setter = getattr(made, "__setstate__", None)
    if setter is not None:
        setter(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    for attributes in (state, slots):
        for name, value in (attributes or {}).items():
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
                raise Malformed(f"an attribute {name!r:.40}")
            object.__setattr__(made, name, value)
