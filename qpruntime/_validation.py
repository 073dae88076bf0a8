"""Turn what users pass into float arrays, or say what is wrong with it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._typing import Array
from qpruntime.errors import InputError

__all__ = [
    "broadcast",
    "central_levels",
    "choice",
    "finite",
    "flag",
    "floats",
    "generator",
    "has_masked",
    "levels",
    "no_kernel",
    "no_text",
    "number",
    "path_of",
    "real",
    "shown",
    "unmasked",
    "whole",
]

# Bytes of a file name; the working directory of a build adds seven.
_LONGEST_NAME = 248


def floats(value: object) -> Array:
    """Return `value` as a float64 array; a `TypeError` says what it is if that is not numbers.

    Missing values become NaN. Input that would silently lose something is refused: imaginary parts,
    masks, text that looks like numbers.
    """
    if hasattr(value, "toarray"):
        raise TypeError("a sparse matrix; pass its .toarray()")
    if has_masked(value):
        raise TypeError("a masked array with masked entries; leave them out, or fill them in")
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


def real(value: object, name: str) -> Array:
    """Return `value` as a float64 array, or raise `InputError`."""
    try:
        return floats(value)
    except TypeError as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from error


def no_text(value: object, name: str) -> None:
    """Raise `InputError` for text where numbers belong, also for text that looks like numbers.

    scikit-learn converts what it can: a column that was read as text would be taken for numbers.
    """
    try:
        array = np.asarray(value)
    except Exception:  # what is no array is for validators to complain of
        return
    kind = array.dtype.kind
    if kind in "SUT" or (
        kind == "O" and any(isinstance(entry, (str, bytes)) for entry in array.flat)
    ):
        raise InputError(
            f"{name} must be numbers, and there is text in it: convert what are numbers, "
            f"np.asarray({name}, dtype=float)"
            + (
                ", or hand over a data frame, whose columns of text are levels"
                if name == "X"
                else ""
            )
        )


def has_masked(value: object) -> bool:
    """Tell whether entries of a masked array, or of a list of masked arrays, are masked."""
    if isinstance(value, (list, tuple)):
        return any(has_masked(entry) for entry in value)
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def unmasked(value: object, name: str, *, missing: bool = False) -> Any:
    """Return `value` unless entries are masked: these are refused, or made missing values.

    NumPy drops masks without a word wherever it converts an array, so that what is hidden under
    them would be taken for data.

    Parameters
    ----------
    value : object
        What the user passes. Only masked arrays, and lists of them, are looked at.
    name : str
        Short description used in messages.
    missing : bool
        Make masked entries NaN, NaT or None, for arguments whose missing values are supported.

    Raises
    ------
    InputError
        If entries are masked and missing values are not supported.
    """
    if not has_masked(value):
        return value.data if isinstance(value, np.ma.MaskedArray) else value
    array = np.ma.asarray(value) if isinstance(value, np.ma.MaskedArray) else _stacked(value)
    mask = np.ma.getmaskarray(array)
    if not missing:
        where = np.argwhere(mask)[0].tolist() if mask.ndim else [0]
        first = where[0] if len(where) == 1 else where
        raise InputError(
            f"{name} has masked entries ({int(np.sum(mask))} of {mask.size}, the first at {first}):"
            " leave these rows out, or fill them in, .filled(value)"
        )
    return _with_missing(array, mask)


def _stacked(value: object) -> np.ma.MaskedArray[Any, Any]:
    if isinstance(value, (list, tuple)):
        parts = [_stacked(entry) for entry in value]
        return np.ma.stack(parts) if len({part.shape for part in parts}) == 1 else np.ma.masked
    return np.ma.asarray(value)


def _with_missing(array: np.ma.MaskedArray[Any, Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    kind = array.dtype.kind
    gap: Any = np.nan if kind in "iuf" else None
    if kind in "mM":
        gap = np.array("NaT", dtype=array.dtype)
    keeps = kind in "fmM"
    filled = array.data.astype(array.dtype if keeps else np.float64 if kind in "iu" else object)
    filled[mask] = gap
    return filled


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
        result = float(value)
        if not (above < result <= most and math.isfinite(result)):
            raise ValueError
        return result
    except (TypeError, ValueError, OverflowError) as error:
        limits = f"in ({above:g}, {most:g}]" if most < math.inf else f"finite and above {above:g}"
        if most == math.inf and above <= 0.0:
            limits = "positive and finite" if above == 0.0 else "a finite number"
        raise InputError(f"{name} must be {limits}, got {shown(value)}") from error


def central_levels(level: object) -> Array:
    """Return the quantile levels (2,) at the ends of a central interval of this probability."""
    inside = number(level, "level")
    if not 0.0 < inside < 1.0:
        raise InputError(f"level must be between 0 and 1, got {inside:g}: 0.9 is nine tenths")
    return np.array([0.5 - 0.5 * inside, 0.5 + 0.5 * inside])


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
    """Return `repr` of plain values, at most a line of it: 'a' for NumPy's str_('a')."""
    text = " ".join(line.strip() for line in repr(_plain(value)).splitlines())
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(value: object) -> object:
    """Return scalars of NumPy, also those in short lists, as Python writes them."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    if isinstance(value, np.longdouble):
        return float(value)
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple, set) and len(value) <= 80:  # type: ignore[arg-type]
        return type(value)(_plain(entry) for entry in value)  # type: ignore[call-arg, attr-defined]
    return value


def choice(value: object, name: str, known: Iterable[str]) -> str:
    """Return `value`, or raise `InputError` if it is not one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} must be one of {tuple(known)}, got {shown(value)}")
    return value


def finite(value: object, name: str, shape: tuple[int, ...] | None = None) -> Array:
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
