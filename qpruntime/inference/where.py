"""Where predictions are asked for: arguments as they are written now, and as they once were."""

from __future__ import annotations

from typing import Any

from qpruntime.errors import InputError, RenamedWarning, warn

__all__ = ["asked"]

# Names of the prior mean at new points, and of places, that each engine once had of its own.
_MEANS = ("mean_star", "mean_new")
_PLACES = {"t_new": "t"}


def asked(
    where: tuple[str, ...],
    at: tuple[Any, ...],
    mean: Any,
    old: dict[str, Any],
    *,
    extra: tuple[str, ...] = (),
    none: bool = False,
) -> tuple[tuple[Any, ...], Any, dict[str, Any]]:
    """Return the places, the prior mean there, and other arguments that were given by place.

    Parameters
    ----------
    where : tuple of str
        Names of the arguments that say where.
    at : tuple
        As they were given.
    mean : array-like or None
    old : dict
        Arguments by names that are no longer used, or those of `where`.
    extra : tuple of str
        Arguments that once came after the places and before the mean.
    none : bool
        Whether there may be no places, as where the rows themselves are meant.

    Raises
    ------
    InputError
        If places are missing, or arguments are not known.
    """
    names = {_PLACES.get(name, name): value for name, value in old.items() if name not in _MEANS}
    given = list(at)
    for name in where[len(given) :]:
        if name not in names:
            break
        given.append(names.pop(name))
    unknown = [name for name in old if name in names or _PLACES.get(name) in names]
    if unknown:
        raise TypeError(f"unexpected argument {unknown[0]!r}; places are {', '.join(where)}")
    for name in old:
        if name in _MEANS or name in _PLACES:
            _renamed(f"{name}=", "mean=" if name in _MEANS else f"the first argument, {where[0]}")
    later = given[len(where) :]
    more: dict[str, Any] = {}
    for name, value in zip((*extra, "mean"), later, strict=False):
        _renamed(f"argument {len(where) + 1}", f"{name}=")
        more[name] = value
    if len(later) > len(extra) + 1:
        raise TypeError(f"at most {len(where)} arguments say where: {', '.join(where)}")
    means = [old[name] for name in _MEANS if name in old] + (
        [more.pop("mean")] if "mean" in more else []
    )
    if len(means) + (mean is not None) > 1:
        raise TypeError("the prior mean was given twice")
    found = tuple(given[: len(where)])
    if len(found) < len(where) and (found or not none):
        raise InputError(f"{' and '.join(where)} go together: hand over {', '.join(where)}")
    return found, means[0] if means else mean, more


def _renamed(old: str, new: str) -> None:
    warn(f"{old} is now {new}; the old spelling goes with the next release but one", RenamedWarning)
