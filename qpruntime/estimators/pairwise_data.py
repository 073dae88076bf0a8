"""Comparisons of two items: who they are, who won, and the operator that they see utilities by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, shown

__all__ = ["Items", "Won", "differences", "distinct", "items_of", "pairs_of", "times_of", "won"]


@dataclass(frozen=True)
class Items:
    """What is compared.

    Attributes
    ----------
    names : ndarray, shape (n,), or None
        Sorted; None for items with features, which have row numbers.
    rows : ndarray, shape (n, d)
        Features, or the number of each name.
    """

    names: NDArray[Any] | None
    rows: Array

    def numbers(self, given: ArrayLike, name: str) -> NDArray[np.intp]:
        """Row numbers of items, of the shape that was given.

        Raises
        ------
        InputError
            If there is an item that is not known.
        """
        found = np.asarray(given)
        if self.names is None:
            if found.dtype.kind not in "iu" or (
                found.size and not 0 <= found.min() <= found.max() < len(self.rows)
            ):
                raise InputError(
                    f"{name} must be whole numbers from 0 to {len(self.rows) - 1}, rows of X, got "
                    f"{shown(given)}"
                )
            return found.astype(np.intp)
        _one_type(found, name)
        try:
            at = np.searchsorted(self.names, found)
            known = self.names[np.minimum(at, len(self.names) - 1)] == found
        except TypeError as error:
            raise InputError(f"{name} are not of the type of the items: {error}") from error
        if not np.all(known):
            raise InputError(
                f"{name} have the item {found[~known].tolist()[0]!r}, which the fit did not: its "
                "utility is that of no one; fit with features of items to compare new ones"
            )
        return at.astype(np.intp)


def items_of(X: ArrayLike | None, pairs: NDArray[Any]) -> Items:
    """Return the items of X: features (n, d), names (n,), or, for None, the names in pairs."""
    given = pairs.ravel() if X is None else np.asarray(X)
    if given.ndim == 1:
        _one_type(given, "pairs" if X is None else "X")
        names = np.unique(given)
        if len(names) < 2:
            raise InputError(f"there must be two items or more, got {names.tolist()}")
        return Items(names, np.arange(len(names), dtype=float)[:, None])
    rows = finite(given, "X") if given.dtype.kind in "fiub" else finite(_numbers(given), "X")
    if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] == 0:
        raise InputError(
            f"X must have shape (n, d), the features of two items or more, or (n,), their names; "
            f"got {rows.shape}"
        )
    return Items(None, np.array(rows))


def pairs_of(pairs: ArrayLike) -> NDArray[Any]:
    """Return pairs as an array of shape (P, 2), P > 0, or raise `InputError`."""
    try:
        found = np.asarray(pairs)
    except ValueError as error:
        raise InputError(f"pairs must have shape (P, 2): {error}") from error
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        raise InputError(f"pairs must have shape (P, 2), two items a row; got {found.shape}")
    return found


def times_of(times: ArrayLike | None, count: int) -> Array | None:
    """Return one time for each row, in days for dates."""
    if times is None:
        return None
    found = np.asarray(times)
    if found.dtype.kind == "M":
        found = found.astype("datetime64[s]").astype(float) / 86400.0
        found[np.isnat(np.asarray(times))] = np.nan
    found = finite(found, "times")
    if found.shape not in ((), (count,)):
        raise InputError(f"times must be one or have shape {(count,)}, got {found.shape}")
    return np.array(np.broadcast_to(found, (count,)))


@dataclass(frozen=True)
class Won:
    """Comparisons as wins: a tie is half a win of either.

    Attributes
    ----------
    of : ndarray, shape (W,)
        The comparison that each win is of.
    swapped : ndarray of bool, shape (W,)
        Whether the second item of the pair won.
    weights : ndarray, shape (W,), or None
        Powers of their likelihoods; None if all are 1.
    """

    of: NDArray[np.intp]
    swapped: NDArray[np.bool_]
    weights: Array | None


def won(count: int, scores: ArrayLike | None, sample_weight: ArrayLike | None) -> Won:
    """Return the wins of so many comparisons.

    Raises
    ------
    InputError
        If scores are not 1, 1/2 or 0, or weights no numbers of 0 or more, of which one is above.
    """
    score, weight = np.ones(count), np.ones(count)
    if scores is not None:
        score = finite(scores, "scores", (count,))
        if odd := sorted(set(score.tolist()) - {0.0, 0.5, 1.0}):
            raise InputError(
                f"scores must be 1 where the first item won, 0 where the second did, and 0.5 for "
                f"ties; got {odd[0]:g}"
            )
    if sample_weight is not None:
        weight = finite(sample_weight, "sample_weight", (count,))
        if (weight < 0.0).any() or not weight.any():
            raise InputError("sample_weight must be 0 or more, and above 0 for one comparison")
    tied = score == 0.5
    rows = np.arange(count)
    of = np.concatenate([rows, rows[tied]])
    swapped = np.concatenate([score == 0.0, np.ones(tied.sum(), dtype=bool)])
    share = np.where(tied, 0.5, 1.0)[of] * weight[of]
    kept = share > 0.0
    of, swapped, share = of[kept], swapped[kept], share[kept]
    return Won(of, swapped, None if (share == 1.0).all() else share)


def differences(first: NDArray[np.intp], second: NDArray[np.intp], n: int) -> sparse.csr_array:
    """Return rows e_first - e_second, shape (P, n)."""
    count = len(first)
    rows = np.tile(np.arange(count), 2)
    values = np.repeat([1.0, -1.0], count)
    found = sparse.csr_array((values, (rows, np.concatenate([first, second]))), shape=(count, n))
    return found


def distinct(rows: Array, numbers: NDArray[np.intp], times: Array | None) -> tuple[Array, Any]:
    """Return the distinct points of items at times, and which of them each is.

    Points have the item's row, and its time in a further column where there are times.
    """
    if times is None:
        some, which = np.unique(numbers, return_inverse=True)
        return rows[some], which.reshape(numbers.shape)
    both = np.column_stack([numbers.ravel().astype(float), times.ravel()])
    some, which = np.unique(both, axis=0, return_inverse=True)
    points = np.column_stack([rows[some[:, 0].astype(int)], some[:, 1]])
    return points, which.reshape(numbers.shape)


def _one_type(values: NDArray[Any], name: str) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"{name} have names that are not finite: leave them out")
    if values.dtype.kind == "O":
        types = sorted({type(value).__name__ for value in values.flat})
        if len(types) > 1:
            raise InputError(f"{name} must be of one type, got {' and '.join(types)}")


def _numbers(given: NDArray[Any]) -> Array:
    try:
        return given.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"X of shape (n, d) must be numbers: {error}") from error
