"""Names of likelihoods, of their tables and of commands: how they are spelt, read and suggested.

A likelihood with parameters is spelt ``student-t(nu=4, scale=0.3)``; its table of surfaces is the
file ``student-t,nu=4,scale=0.3-surfaces.h5``, which a shell takes without quotes. This module does
not know which likelihoods there are.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from qpruntime.errors import InputError

__all__ = [
    "MODULE_NAME",
    "command",
    "ending",
    "file_stem",
    "from_stem",
    "install_hint",
    "is_file_name",
    "meant",
    "nearest",
    "number",
    "printable",
    "quoted",
    "read",
    "size",
    "spell",
    "split_ending",
]

#: ``package.module:name``, how the command line names a user's likelihood.
MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_SPELT = re.compile(r"\s*([^()\s]+)\s*\((.*)\)\s*")
_ENDING = re.compile(r"(.+)-(compact|surfaces|wp-(\d+(?:[._]\d+)?))")
# All but these are written as the percent-encoded bytes of UTF-8. Commas part the parameters.
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|^[.-]")
# The name of a file may have 255 bytes; its working directory adds nine, the ending 20.
_LONGEST_STEM = 200


def spell(name: str, parameters: Mapping[str, float]) -> str:
    """Return a likelihood's name with its parameters, as ``"student-t(nu=4, scale=0.3)"``.

    Every digit is kept, so that `read` gives the same numbers back.
    """
    values = ", ".join(f"{key}={number(value)}" for key, value in parameters.items())
    return f"{name}({values})" if values else name


def number(value: float) -> str:
    """Return a number with all its digits, whole ones without a point."""
    return repr(float(value)).removesuffix(".0")


def read(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of ``name(parameter=value, ...)``, or the text and none.

    Raises
    ------
    InputError
        If what stands in the parentheses is not numbers by name.
    """
    match = _SPELT.fullmatch(text)
    if match is None:
        return text, {}
    parameters: dict[str, Any] = {}
    for part in match[2].split(",") if match[2].strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            parsed = float(value)
        except ValueError:
            equals = ""
        if not equals or key in parameters:
            raise InputError(
                f"cannot read {part.strip()!r} in {text!r}; write a likelihood with parameters "
                "as 'student-t(nu=4, scale=0.3)'"
            )
        parameters[key] = parsed
    return match[1], parameters


def file_stem(
    name: str, parameters: Mapping[str, float], preset: str = "grid", p: float | None = None
) -> str:
    """Return the name of a table's file, without ``.h5``; others have another one.

    Parameters
    ----------
    name, parameters
        Of the likelihood. Whoever leaves out parameters that have their default finds the table
        without them.
    preset : {"grid", "compact", "surfaces"}
    p : float, optional
        Order of L_p projections.
    """
    words = [name, *(f"{key}={number(value)}" for key, value in parameters.items())]
    safe = [_UNSAFE.sub(_encoded, words[0]) or "%"]
    safe += [re.sub(r"[^A-Za-z0-9._=+-]", _encoded, word) for word in words[1:]]
    stem = ",".join(safe)
    if len(stem) > _LONGEST_STEM:
        digest = hashlib.sha256(stem.encode()).hexdigest()
        stem = f"{stem[: _LONGEST_STEM - 20]},{digest[:16]}"
    return stem + ending(preset, p)


def _encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def ending(preset: str, p: float | None = None) -> str:
    """Return what follows the likelihood in the name of a file; `p` is that of L_p projections."""
    if p is not None:
        return f"-wp-{number(p)}".replace(".", "_")
    return "" if preset == "grid" else f"-{preset}"


def split_ending(text: str) -> tuple[str, str, float | None]:
    """Return likelihood, preset and order that the name of a table stands for."""
    match = _ENDING.fullmatch(text)
    if match is None:
        return text, "grid", None
    if match[3]:
        return match[1], "surfaces", float(match[3].replace("_", "."))
    return match[1], match[2], None


def from_stem(text: str) -> str:
    """Return the spelling that `file_stem` wrote as ``name,parameter=value,...``."""
    name, *parameters = text.split(",")
    return f"{name}({', '.join(parameters)})" if parameters and "(" not in text else text


def is_file_name(text: str) -> bool:
    """Return True for a file name, False for the name of a table, which may hold numbers."""
    return "/" in text or re.search(r"\.[A-Za-z]\w*$", text) is not None


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the known word that this one may have been meant for, or nothing."""
    if not isinstance(word, str):
        return ""
    folded = {name.casefold(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(word[:100].casefold(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else ""


def meant(word: object, known: Iterable[str]) -> str:
    """Return ``" (did you mean 'probit'?)"`` if a known word is close to this one, else nothing."""
    suggestion = nearest(word, known)
    return f" (did you mean {suggestion!r}?)" if suggestion else ""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, and where it runs: a checkout of the project."""
    return f"run pip install {shlex.quote(f'.[{extra}]')} in a checkout of qpruntime"


def command(*words: object) -> str:
    """Return ``tablegen`` and these words as a shell takes them: quoted where that is needed."""
    return quoted("tablegen", *words)


def quoted(*words: object) -> str:
    r"""Return words as a shell takes them, on one line that can be printed.

    >>> print(quoted("a b", "nu=4", "one\ntwo"))
    'a b' nu=4 $'one\x0atwo'
    """
    return " ".join(_quoted(str(word)) for word in words)


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        "\\" + c
        if c in "\\'"
        else c
        if c.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in c.encode(errors="surrogateescape"))
        for c in word
    )
    return f"$'{''.join(escaped)}'"


def printable(text: str) -> str:
    r"""Return the text with all that moves a terminal's cursor, or cannot be printed, escaped.

    >>> printable("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size(nbytes: float) -> str:
    """Return a number of bytes in words.

    >>> size(320176008.0), size(8e11)
    ('320.2 MB', '800.0 GB')
    """
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 1e3:.1f} KB"
