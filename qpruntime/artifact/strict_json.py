"""Read a JSON object that a stranger may have written: small, flat, plain, and of one meaning.

What `json` is lenient about is refused: repeated keys, of which one would be ignored, ``NaN`` and
``Infinity``, numbers that overflow, deep nesting, and strings that would act on a terminal.
"""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["loads"]

#: Metadata nest four deep.
_DEPTH = 8
_LARGEST_INTEGER = 2**63


def loads(text: str | bytes) -> dict[str, Any]:
    """Return the object.

    Raises
    ------
    ValueError
        If this is not a JSON object, or one that is refused; the message is a noun phrase.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")  # `json` would guess UTF-16 and UTF-32 as well
        document = json.loads(text, parse_constant=_constant, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("nesting without end") from error
    if not isinstance(document, dict):
        raise ValueError(f"a JSON {type(document).__name__}, not a JSON object")
    _check(document, _DEPTH)
    return document


def _constant(name: str) -> Any:
    raise ValueError(f"the number {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a repeated key")
    return found


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"nesting deeper than {_DEPTH}")
    if isinstance(value, dict):
        for name, entry in value.items():
            _check(name, depth)
            _check(entry, depth - 1)
    elif isinstance(value, list):
        for entry in value:
            _check(entry, depth - 1)
    elif isinstance(value, str):
        if not value.isprintable():
            raise ValueError(f"the unprintable string {value[:40]!r}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number beyond double precision")
    elif isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        raise ValueError("an integer of more than 64 bits")
