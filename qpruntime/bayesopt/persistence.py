"""The file of an optimisation: written whole, and read as what a stranger may have written.

Everything is checked on reading, so that no later call meets damage: each entry by its type and its
limits, and all of them by a seal, the SHA-256 of the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from qpruntime._atomic_file import open_regular, write_whole
from qpruntime._sealed_file import damage_named, json_object
from qpruntime._validation import flag, number, path_of, shown, whole
from qpruntime.bayesopt.space import LARGEST_VALUE, Space
from qpruntime.errors import InputError

__all__ = ["Saved", "damage", "read_json", "read_saved", "write_json"]

_FORMAT = "qpruntime-bayesopt-2"


class Saved(NamedTuple):
    """Entries of a file, checked one by one, but for `models`, which `Models` checks."""

    space: Space
    #: Arguments of `Optimizer`, by name.
    settings: dict[str, Any]
    kernels: list[str]
    acquisition: str
    asked: int
    infeasible_draws: int
    unsettled: int
    models: dict[str, Any]
    evaluations: list[dict[str, Any]]


def write_json(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then in its place."""
    state = {"format": _FORMAT, **state}
    state["seal"] = _seal(state)
    text = json.dumps(state, allow_nan=False, indent=1)
    write_whole(path, lambda file: file.write(text.encode()))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read an object as `write_json` wrote it, or raise `InputError`."""
    source = path_of(path, "path")
    try:
        with open_regular(source) as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
    with damage(source):
        state = json_object(content)
        if state.get("format") != _FORMAT:
            raise ValueError(f"its format is {shown(state.get('format'))}, not {_FORMAT}")
    return state


def read_saved(path: str | os.PathLike[str]) -> Saved:
    """Read a file and check it, or raise `InputError`, which names it."""
    state = read_json(path)
    with damage(path):
        saved = _saved(state)
        if "seal" in state and state["seal"] != _seal(state):
            raise ValueError(
                "its seal is of other contents; if they were meant to be edited, take out 'seal'"
            )
    return saved


def damage(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Turn what goes wrong inside into an `InputError` that names the file."""
    return damage_named(path, "saved optimisation", "save it again", InputError)


def _seal(state: dict[str, Any]) -> str:
    unsealed = {name: value for name, value in state.items() if name != "seal"}
    text = json.dumps(unsealed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _saved(state: dict[str, Any]) -> Saved:
    constraints = whole(state["constraints"], "constraints", 0)
    outputs = constraints + 1
    space = Space.from_state(_object(state["space"]))
    kernels = _listed(state["kernels"], "kernels", outputs)
    noise = _listed(state["noise"], "noise", outputs)
    seed = state["seed"]
    if not isinstance(seed, str) or not (seed.isascii() and seed.isdigit()):
        raise ValueError(f"seed must be digits, got {shown(seed)}")
    rows = _listed(state["evaluations"], "evaluations")
    ids: set[str] = set()
    settings = {
        "constraints": constraints,
        "maximise": flag(state["maximise"], "maximise"),
        "noise": [None if v is None else number(v, "noise") for v in noise],
        "method": _text(state["method"], "method"),
        "n_samples": whole(state["n_samples"], "n_samples", 1),
        "n_initial": whole(state["n_initial"], "n_initial", 1),
        "hyper": whole(state["hyper"], "hyper", 0),
        "random_state": int(seed),
    }
    return Saved(
        space,
        settings,
        [_text(k, "kernels") for k in kernels],
        _text(state["acquisition"], "acquisition"),
        whole(state["asked"], "asked", 0),
        whole(state["infeasible_draws"], "infeasible_draws", 0),
        whole(state["unsettled"], "unsettled", 0),
        _object(state["models"]),
        [_evaluation(_object(row), space, outputs, ids) for row in rows],
    )


def _evaluation(row: dict[str, Any], space: Space, outputs: int, seen: set[str]) -> dict[str, Any]:
    """One evaluation, checked; its id is added to those seen."""
    id = _text(row["id"], "an id")
    if id in seen:
        raise ValueError(f"the id {shown(id)} is there twice")
    seen.add(id)
    label = f"of evaluation {shown(id)}"
    x = [number(v, f"x {label}") for v in _listed(row["x"], f"x {label}", len(space.variables))]
    for v, variable in zip(x, space.variables, strict=True):
        if not variable.low <= v <= variable.high or (variable.whole and v != math.floor(v)):
            raise ValueError(f"x {label} is {x}, which is outside the box or not whole")
    values = [
        None if v is None else number(v, f"a value {label}")
        for v in _listed(row["values"], f"values {label}", outputs)
    ]
    if any(v is not None and abs(v) > LARGEST_VALUE for v in values):
        raise ValueError(f"values {label} are beyond 1e100")
    awaited, failed = (_functions(row[name], f"{name} {label}", outputs) for name in _STATES)
    observed = {j for j, v in enumerate(values) if v is not None}
    if awaited & observed or failed & observed or awaited & failed:
        raise ValueError(f"a function {label} is told, awaited or failed at once")
    return {"id": id, "x": x, "values": values, "awaited": awaited, "failed": failed}


_STATES = ("awaited", "failed")


def _functions(value: object, name: str, outputs: int) -> set[int]:
    functions = [whole(j, name, 0) for j in _listed(value, name)]
    if len(set(functions)) < len(functions) or max(functions, default=0) >= outputs:
        raise ValueError(
            f"{name} must be different functions below {outputs}, got {shown(functions)}"
        )
    return set(functions)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{shown(value)} is there for an object")
    return value


def _listed(value: object, name: str, size: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or (size is not None and len(value) != size):
        raise ValueError(f"{name} must be a list{f' of {size}' if size is not None else ''}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {shown(value)}")
    return value
