"""Saved models: a sealed file of a document and of arrays, which holds no code.

The document is the tree of a model. It is read as if a stranger had written it: only classes that
`qpruntime._restorable` names are made, and only their calls are called.
"""

from __future__ import annotations

import contextlib
import copyreg
import json
import math
import os
import warnings
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from qpruntime._atomic_file import open_regular
from qpruntime._memory import require
from qpruntime._restorable import call_of, class_of, is_root, name_of
from qpruntime._sealed_file import (
    DamagedFile,
    array_from,
    damage_named,
    json_object,
    read_sealed,
    write_sealed,
)
from qpruntime._typing import Array
from qpruntime._validation import path_of
from qpruntime.errors import InputError, QPError, TableError

__all__ = ["Savable", "decoded", "encoded", "load", "save"]

# --- What can be saved has the same two methods.


class Savable:
    """An estimator or a posterior, to one file without code and back."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this to one file that `load` opens on another machine, and that holds no code.

        Predictions are the same to the bit where arithmetic is. Prior covariances and tables are
        left out, as in pickles; tables are found again by their hash.

        Parameters
        ----------
        path : path
            Whole or absent; what was there is replaced.

        Raises
        ------
        InputError
            If the file cannot be written, or if this holds what no file without code can: a prior
            mean of another package, a likelihood or a kernel of your own. Pickle these.
        """
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` has written; no code of the file is run, whoever wrote it.

        Raises
        ------
        TableError
            If it is no such file, was changed or cut short, is of a newer format, or its table is
            missing.
        InputError
            If it cannot be read, or is something else; `qpruntime.load` reads any.
        """
        model = load(path)
        if not isinstance(model, cls):
            raise InputError(
                f"{os.fspath(path)} holds a {type(model).__name__}, not a {cls.__name__}; "
                "qpruntime.load reads any"
            )
        return model

    def _predict_once(self) -> tuple[Array, ...]:
        """Predict at two points, and return latent moments, which are finite and of one shape.

        `load` calls it, and so finds parts that do not fit together.
        """
        raise NotImplementedError


# --- The file

_FORMAT = 1
_DOCUMENT = "model.json"
#: Bytes that the document may have.
_LARGEST = 1 << 26


def save(model: object, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator or a posterior to one file that holds no code.

    `load` reads it on another machine, with these or newer versions of the packages, and its
    predictions are the same to the bit where arithmetic is. Prior covariances and the data of
    tables are left out, as in pickles; a table is found again by its hash.

    Parameters
    ----------
    model : estimator or posterior
    path : path
        Whole or absent; what was there is replaced.

    Raises
    ------
    InputError
        If the file cannot be written, or the model holds what no file without code can: a prior
        mean of another package, a likelihood or a kernel of your own. Pickle these.
    """
    name = name_of(type(model))
    if name is None or not is_root(name):
        raise InputError(
            f"what is saved is a fitted estimator or a posterior, got {type(model).__qualname__}; "
            "pickle others"
        )
    tree, arrays = encoded(model)
    document = {"format": _FORMAT, "of": name, "arrays": len(arrays), "tree": tree}
    text = json.dumps(document, allow_nan=False).encode()
    if len(text) > _LARGEST:
        raise InputError(f"the model's document has {len(text)} bytes, more than {_LARGEST}")
    members = {f"{number}": array for number, array in enumerate(arrays)}
    write_sealed(path, "model", {_DOCUMENT: text, **members})


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` has written: no code of the file is run, whoever wrote it.

    Parameters
    ----------
    path : path

    Returns
    -------
    estimator or posterior

    Raises
    ------
    TableError
        If it is no such file, was changed or cut short, is of a newer format, or its table is not
        there; the message says which.
    InputError
        If it cannot be read, is no regular file, or is larger than the memory there is.

    See Also
    --------
    qpruntime.GPClassifier.save

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import qpruntime
    >>> model = qpruntime.GPClassifier().fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.npz"
    ...     model.save(path)
    ...     again = qpruntime.load(path)
    ...
    >>> again.predict([[-1.5], [1.5]]).tolist()
    [0, 1]
    """
    source = path_of(path, "path")
    try:
        with open_regular(source) as file:
            nbytes = os.fstat(file.fileno()).st_size
            what, remedy = f"the model of {source.name}", "load it where there is more memory"
            require(2.0 * nbytes, what, remedy)
            with damage_named(source, "saved model", "save the model again", TableError):
                return _model(read_sealed(file, "model"))
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error


def _model(members: dict[str, bytes]) -> Any:
    """Return the model of members that a stranger may have written."""
    text = members.get(_DOCUMENT)
    if text is None or len(text) > _LARGEST:
        raise DamagedFile(f"it has no document, or one of more than {_LARGEST} bytes")
    document = json_object(text)
    count = _count(document, len(members))
    arrays = [array_from(members[f"{k}.npy"]) for k in range(count)]
    name = document["of"]
    if not (isinstance(name, str) and is_root(name)):
        raise DamagedFile(f"it is a {name!r:.80}, which is no estimator or posterior")
    model = decoded(document["tree"], arrays)
    if type(model) is not class_of(name):
        raise DamagedFile(f"it is a {type(model).__qualname__} under the name of another")
    _check_parts(model)
    return model


def _check_parts(model: Any) -> None:
    """Raise whatever a prediction raises where parts of a model do not fit together.

    A forged file has the right hash. A model may refuse the point with one of our errors, because
    it may need columns or an exposure that are not known here.
    """
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(QPError):
        moments = model._predict_once()
        if len({moment.shape for moment in moments}) > 1:
            raise DamagedFile("its means and variances have different shapes")
        if not all(np.isfinite(moment).all() for moment in moments):
            raise DamagedFile("its predictions are not finite")


def _count(document: dict[str, Any], members: int) -> int:
    """Check the head of the document; return how many arrays there are."""
    form = document.get("format")
    if type(form) is int and form > _FORMAT:
        raise DamagedFile(
            f"its format {form} is of a newer qpruntime, this one reads {_FORMAT}: update it"
        )
    if form != _FORMAT or set(document) != {"format", "of", "arrays", "tree"}:
        raise DamagedFile(f"its document is of format {form!r:.40}")
    if document["arrays"] != members - 1:
        raise DamagedFile(
            f"it has {members - 1} arrays, and a document of {document['arrays']!r:.40}"
        )
    return members - 1


# --- A model as a tree of plain values, with its arrays apart; and back.
#
# Objects are what pickle would make of them: a class, the arguments of its ``__new__``, and its
# state. Only classes that `qpruntime._restorable` names are written, and only these are made
# again.


#: Values that JSON holds.
Tree = None | bool | int | float | str | list["Tree"] | dict[str, "Tree"]

_DEPTH = 100
_KINDS = "biufUSMm"
_INFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encoded(model: object) -> tuple[Tree, list[NDArray[Any]]]:
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
        self._alive: list[object] = []

    def value(self, x: Any, place: str) -> Tree:
        """One value of the tree."""
        if x is None or type(x) in (bool, int, str):
            return cast("Tree", x)  # of exactly these types, unlike what isinstance tells
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
            pairs: list[Tree] = [
                [self.value(k, place), self.value(v, f"{place}.{k}")] for k, v in x.items()
            ]
            return {"dict": pairs}
        return self._object(x, place)

    def _array(self, x: object, place: str) -> Tree:
        kind = "array" if isinstance(x, np.ndarray) else "scalar"
        plain = np.asarray(x)
        if plain.dtype.kind not in _KINDS:
            raise InputError(f"{place} is an array of {plain.dtype}, which is not saved: pickle it")
        if id(x) not in self._seen or kind == "scalar":
            self._seen[id(x)] = len(self.arrays)
            self._alive.append(x)
            self.arrays.append(plain)
        return {kind: self._seen[id(x)]}

    def _object(self, x: object, place: str) -> Tree:
        # An object may have a form whose parts are arrays in place of other packages.
        x = x.without_code() if hasattr(x, "without_code") else x
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
            kind, name, arguments = "object", name_of(type(x)), arguments[1:]
        else:
            kind, name = "call", name_of(function)
        if name is None or (class_of if kind == "object" else call_of)(name) is None:
            raise _unknown(x, place)
        head = {kind: name}
        return head | {
            "arguments": [self.value(a, f"{place}({k})") for k, a in enumerate(arguments)],
            "state": self.value(state, place),
        }


def _unknown(x: object, place: str) -> InputError:
    kind = type(x)
    return InputError(
        f"{place} is a {kind.__module__}.{kind.__qualname__}, which no file without code can hold: "
        "pickle the model, or fit it without that"
    )


def decoded(tree: object, arrays: list[NDArray[Any]], depth: int = 0) -> Any:
    """Return the model of a tree that a stranger may have written; or raise `DamagedFile`."""
    if depth > _DEPTH:
        raise DamagedFile(f"nesting deeper than {_DEPTH}")
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if not isinstance(tree, dict) or not tree:
        raise DamagedFile(f"a {type(tree).__name__} where a value is to be")
    if "object" in tree or "call" in tree:
        return _made(tree, arrays, depth)
    if set(tree) == {"objects", "shape"}:
        return _objects(tree, arrays, depth)
    (kind, content), *more = tree.items()
    if more:
        raise DamagedFile(f"a value of two kinds, {kind!r:.40} and another")
    if kind == "float":
        if content not in _INFINITE:
            raise DamagedFile(f"the number {content!r:.40}")
        return _INFINITE[content]
    if kind in ("array", "scalar"):
        if type(content) is not int or not 0 <= content < len(arrays):
            raise DamagedFile(f"array number {content!r:.40} of {len(arrays)}")
        array = arrays[content]
        if array.dtype.kind not in _KINDS:
            raise DamagedFile(f"an array of {array.dtype}")
        if kind == "array":
            return array
        if array.shape != ():
            raise DamagedFile("a scalar with a shape")
        return array[()]
    if kind == "dtype":
        if not isinstance(content, str) or len(content) > 10:
            raise DamagedFile(f"the dtype {content!r:.40}")
        return np.dtype(content)
    if not isinstance(content, list):
        raise DamagedFile(f"a {kind!r:.40} that is no list")
    if kind == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            raise DamagedFile("a dict that is not of pairs")
        pairs = [[decoded(v, arrays, depth + 1) for v in pair] for pair in content]
        return dict(pairs)
    items = [decoded(item, arrays, depth + 1) for item in content]
    kinds: dict[str, type[tuple | list | set | frozenset]] = {
        "tuple": tuple, "list": list, "set": set, "frozenset": frozenset,
    }  # fmt: skip
    if kind == "slice" and len(items) == 3:
        return slice(*items)
    if kind not in kinds:
        raise DamagedFile(f"a value of kind {kind!r:.40}")
    return kinds[kind](items)


def _objects(x: dict[str, Any], arrays: list[NDArray[Any]], depth: int) -> Any:
    """Return an array of objects, as of labels that are text."""
    items, shape = x["objects"], x["shape"]
    plain = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not (isinstance(items, list) and plain and math.prod(shape) == len(items)):
        raise DamagedFile("objects of another shape")
    values = np.empty(len(items), dtype=object)
    for k, item in enumerate(items):
        values[k] = decoded(item, arrays, depth + 1)
    return values.reshape(shape)


def _made(x: dict[str, Any], arrays: list[NDArray[Any]], depth: int) -> Any:
    """Make an object, or call for one."""
    kind = "object" if "object" in x else "call"
    if set(x) != {kind, "arguments", "state"} or not isinstance(x["arguments"], list):
        raise DamagedFile(f"an {kind} without arguments or state")
    name = x[kind]
    if not isinstance(name, str):
        raise DamagedFile(f"the name {name!r:.40}")
    arguments = [decoded(a, arrays, depth + 1) for a in x["arguments"]]
    state = decoded(x["state"], arrays, depth + 1)
    try:
        if kind == "call":
            function = call_of(name)
            if function is None:
                raise DamagedFile(f"a call of {name!r:.80}, which is not called")
            return function(*arguments)
        known = class_of(name)
        if known is None:
            raise DamagedFile(f"an object of {name!r:.80}, which is not made")
        made = known.__new__(known, *arguments)
        _set_state(made, state)
        return made
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise DamagedFile(f"a {name} with other parts ({error})") from error


def _set_state(made: object, state: Any) -> None:
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
                raise DamagedFile(f"an attribute {name!r:.40}")
            object.__setattr__(made, name, value)
