"""Turn what users pass into float arrays, or say what is wrong with it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime.errors import InputError

__all__ = [
    "broadcast",
    "choice",
    "finite",
    "flag",
    "floats",
    "generator",
    "levels",
    "no_kernel",
    "number",
    "path_of",
    "real",
    "shown",
    "whole",
]

# Bytes of a file name; the working directory of a build adds seven.
_LONGEST_NAME = 248


def floats(value: ArrayLike) -> Array:
    """Return `value` as a float64 array; a `TypeError` says what it is if that is not numbers.

    Missing values become NaN. What would lose something without a word is refused: imaginary
    parts, masks, text that looks like numbers.
    """
    if hasattr(value, "toarray"):
        raise TypeError("a sparse matrix; pass its .toarray()")
    if np.ma.is_masked(value):
        raise TypeError("a masked array; leave masked entries out")
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            for entry in array.flat:
                if isinstance(entry, (str, bytes)):
                    raise TypeError(f"{type(entry).__name__} values")
        elif array.dtype.kind not in "fiub":
            raise TypeError(f"{array.dtype} values")
        with np.errstate(over="ignore"):
            return array.astype(np.float64, copy=False)
    except Exception as error:  # whatever the conversion of a foreign object raises
        raise TypeError(str(error) or type(error).__name__) from error


def real(value: ArrayLike, name: str) -> Array:
    """Return `value` as a float64 array, or raise `InputError`."""
    try:
        return floats(value)
    except TypeError as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from error


def broadcast(**arrays: Array) -> list[Array]:
    """Return the named arrays broadcast against each other, or raise `InputError`."""
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError as error:
        names, shapes = ", ".join(arrays), ", ".join(str(a.shape) for a in arrays.values())
        raise InputError(f"{names} must broadcast, got shapes {shapes}") from error


def number(value: object, name: str, *, above: float = -math.inf, most: float = math.inf) -> float:
    """Return `value` as a finite float in (above, most], or raise `InputError`."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    try:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise TypeError
        found = float(value)
        if not (above < found <= most and math.isfinite(found)):
            raise ValueError
        return found
    except (TypeError, ValueError, OverflowError) as error:
        limits = f"in ({above:g}, {most:g}]" if most < math.inf else f"finite and above {above:g}"
        if most == math.inf and above <= 0.0:
            limits = "positive and finite" if above == 0.0 else "a finite number"
        raise InputError(f"{name} must be {limits}, got {shown(value)}") from error


def flag(value: object, name: str, remedy: str = "") -> bool:
    """Return `value` as a bool, or raise `InputError`, which ends with a remedy."""
    if not isinstance(value, (bool, np.bool_)):
        more = f"; {remedy}" if remedy else ""
        raise InputError(f"{name} must be True or False, got {shown(value)}{more}")
    return bool(value)


def path_of(value: object, name: str) -> Path:
    """Return `value` as a path that a file may have, or raise `InputError`."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text:
        raise InputError(f"{name} must be a path, got {shown(value)}")
    try:
        longest = max(len(os.fsencode(part)) for part in text.split(os.sep))
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is no name a file can have: {shown(value)}") from error
    if "\0" in text or longest > _LONGEST_NAME:
        raise InputError(f"{name} is no name a file can have: {shown(value)}")
    return Path(text)


def shown(value: object) -> str:
    """Return `repr`, at most a line of it."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= 80 else text[:77] + "..."


def choice(value: object, name: str, known: Iterable[str]) -> str:
    """Return `value`, or raise `InputError` if it is not one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} must be one of {tuple(known)}, got {shown(value)}")
    return value


def finite(value: ArrayLike, name: str, shape: tuple[int, ...] | None = None) -> Array:
    """Return `value` as finite floats, of exactly this shape if one is given."""
    array = real(value, name)
    if shape is not None and array.shape != shape:
        raise InputError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(
            f"{name}{list(where) if where else ''} is {array[where]}: it must be finite"
        )
    return array


def levels(value: ArrayLike, name: str) -> Array:
    """Return the levels of quantiles, one number or several, strictly between 0 and 1."""
    array = real(value, name)
    if array.ndim > 1 or not ((array > 0.0) & (array < 1.0)).all():
        raise InputError(f"{name} must be numbers strictly between 0 and 1, got {shown(value)}")
    return array


def no_kernel(given: object, others: str = "") -> InputError:
    """Return the error for what is no kernel; `others` is what else could have been given."""
    return InputError(
        f"kernel must be {others}one of sklearn.gaussian_process.kernels, for example "
        f"1.0 * RBF(length_scale=1.0), got {shown(given)}"
    )


def whole(value: object, name: str, least: int) -> int:
    """Return `value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    return int(value)


def generator(seed: object) -> np.random.Generator:
    """Return the generator of this seed, or the generator itself."""
    try:
        return np.random.default_rng(seed)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InputError(f"random_state must be None, a seed or a Generator: {error}") from error
