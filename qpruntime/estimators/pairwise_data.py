"""Pairwise comparisons, choices and utilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import in_blocks
from qpruntime._typing import Array
from qpruntime._validation import finite, shown, unmasked
from qpruntime.dataframes.levels import (
    kinds_of,
    level_keys,
    level_values,
    numbers_of,
    sorted_levels,
)
from qpruntime.errors import InputError
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.posterior import Posterior, solution_of

__all__ = [
    "Items",
    "Utilities",
    "Won",
    "choice_operator",
    "differences",
    "distinct",
    "items_of",
    "observed_choices",
    "pairs_of",
    "probabilities_of",
    "rows_of",
    "times_of",
    "won",
]


@dataclass(frozen=True)
class Utilities:
    """A posterior of utilities with its kernel.

    Attributes
    ----------
    posterior : Posterior
    kernel : scikit-learn kernel
    X_train : ndarray, shape (m, d)
        Where the latent values are.
    rows : ndarray, shape (n, d) or (n, d - 1)
        Of all items, without times.
    """

    posterior: Posterior
    kernel: Kernel
    X_train: Array
    rows: Array

    def compared(self, points: Array, which: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return the means and variances of the differences of points `which` (Q, 2), each (Q,)."""
        crossed, covariance = self.kernel(points, self.X_train), self.kernel(points)
        first, second = which.T
        diagonal = covariance.diagonal()
        variance = np.maximum(
            diagonal[first] + diagonal[second] - 2.0 * covariance[first, second], 0.0
        )

        def moments(block: slice) -> tuple[Array, Array]:
            rows = crossed[first[block]] - crossed[second[block]]
            return self.posterior.predict(self._all(rows), variance[block])

        return in_blocks(moments, len(which), len(self.X_train))

    def relative(self, points: Array) -> tuple[Array, Array]:
        """Return means and variances of utilities less the mean of all items at the same time."""
        mean, variance = np.empty((2, len(points)))
        for indices, items in self._by_time(points):
            crossed, covariance = self._centred(points[indices], items)
            mean[indices], variance[indices] = self.posterior.predict(
                self._all(crossed), covariance.diagonal()
            )
        return mean, variance

    def draws(
        self, points: Array, count: int, random_state: int | np.random.Generator | None
    ) -> Array:
        """Draw utilities (count, T) jointly at one time, relative to the mean of all items."""
        items = self._items_at(points[0])
        crossed, covariance = self._centred(points, items)
        return self.posterior.sample(
            self._all(crossed), covariance, n_samples=count, random_state=random_state
        )

    def joint(self, points: Array) -> tuple[Array, Array]:
        """Return the means (T,) and covariance (T, T) of utilities at points."""
        crossed, covariance = self._all(self.kernel(points, self.X_train)), self.kernel(points)
        mean, _ = self.posterior.predict(crossed, covariance.diagonal())
        return mean, covariance - solution_of(self.posterior).kept.reduced(crossed)

    def _all(self, crossed: Array) -> Array:
        """Return prior covariances with all latent values, 0 with the shared noise of choices."""
        more = solution_of(self.posterior).functionals.latent - len(self.X_train)
        return np.pad(crossed, ((0, 0), (0, more))) if more else crossed

    def prior_spread(self) -> float:
        """Return the mean prior variance of the utilities of all items, about their mean."""
        return float(
            self._centred(items := self._items_at(self.X_train[0]), items)[1].trace()
        ) / len(items)

    def _centred(self, points: Array, items: Array) -> tuple[Array, Array]:
        """Return covariances of f(points) - mean f(items) with f(X_train), and among themselves."""
        crossed = self.kernel(points, self.X_train)
        crossed -= self.kernel(items, self.X_train).mean(axis=0)
        across = self.kernel(points, items).mean(axis=1)
        covariance = self.kernel(points) - across[:, None] - across
        covariance += self.kernel(items).mean()
        return crossed, covariance

    def _items_at(self, point: Array) -> Array:
        """Return all items, at the time of a point if there are times."""
        if self.rows.shape[1] == point.size:
            return self.rows
        return np.column_stack([self.rows, np.full(len(self.rows), point[-1])])

    def _by_time(self, points: Array) -> list[tuple[NDArray[np.intp], Array]]:
        """Return the rows of points of one time, and all items at that time."""
        if self.rows.shape[1] == points.shape[1]:
            return [(np.arange(len(points)), self.rows)]
        _, which = np.unique(points[:, -1], return_inverse=True)
        rows = [np.flatnonzero(which == k) for k in range(which.max(initial=-1) + 1)]
        return [(indices, self._items_at(points[indices[0]])) for indices in rows]


# --- Choices of one among several ----------------------------------------------------------------

_SCALE = math.sqrt(2.0)


def rows_of(choices: ArrayLike | Sequence[ArrayLike], name: str = "pairs") -> list[NDArray[Any]]:
    """Return rows of two items or more, which may differ in length.

    Raises
    ------
    InputError
        If that is not what was given.
    """
    whole: Any = unmasked(choices, name)
    choices = whole
    if not (isinstance(choices, Sequence) and not isinstance(choices, str)):
        whole = np.asarray(choices)
        if whole.ndim != 2:
            raise InputError(f"{name} must have shape (P, 2), two items a row; got {whole.shape}")
    rows = [np.asarray(row) for row in whole]
    for number, row in enumerate(rows):
        if row.ndim != 1 or row.size < 2:
            raise InputError(
                f"{name} must have shape (P, 2), or more items a row; row {number} has shape "
                f"{row.shape}"
            )
    if not rows:
        raise InputError(f"{name} must have shape (P, 2), or more items a row; there are no rows")
    return rows


def observed_choices(
    items: Items,
    shown: Sequence[NDArray[Any]],
    sample_weight: ArrayLike | None,
    times: Array | None,
) -> tuple[Array, Functionals]:
    """Return where utilities are, shape (m, d), and the functionals that choices see.

    Raises
    ------
    InputError
        If an item is not known, or shown twice in one choice, or like the one that was chosen, or
        weights are not 0 and 1.
    """
    weights = np.ones(len(shown))
    if sample_weight is not None:
        weights = finite(sample_weight, "sample_weight", (len(shown),))
        if not np.isin(weights, (0.0, 1.0)).all() or not weights.any():
            raise InputError(
                "sample_weight must be 0 or 1 for choices among three or more, and 1 for one of "
                "them: repeat a choice for a whole weight"
            )
    kept = np.flatnonzero(weights)
    kept_rows = [row for row, weight in zip(shown, weights, strict=True) if weight]
    flat, sizes = np.concatenate(kept_rows), np.array([len(row) for row in kept_rows])
    of = np.repeat(kept, sizes)
    numbers = items.numbers(flat, "pairs")
    when = None if times is None else times[of]
    points, which = distinct(items.rows, numbers, when)
    places = np.split(which, np.cumsum(sizes)[:-1])
    for number, at in zip(kept, places, strict=True):
        if len(np.unique(at)) < len(at):
            raise InputError(f"choice {number} has an item twice: leave one out")
        if (points[at[1:]] == points[at[0]]).all(axis=1).any():
            raise InputError(
                f"choice {number} is of items with the same features, which no kernel can tell "
                "apart: leave it out, or add a feature"
            )
    return points, Functionals(choice_operator(places, len(points)), _columns(places, len(points)))


def _columns(places: Sequence[NDArray[np.intp]], n: int) -> int:
    return n + sum(len(row) > 2 for row in places)


def choice_operator(places: Sequence[NDArray[np.intp]], n: int) -> sparse.csr_array:
    """Return rows on n utilities and a unit normal for each choice among three or more.

    `places` are utilities of each choice, the chosen one first. Sites are probits of the rows.
    """
    entries: list[tuple[int, int, float]] = []
    row, unit = 0, n
    for row_places in places:
        several = len(row_places) > 2
        scale = _SCALE if several else 1.0
        for loser in row_places[1:]:
            entries += [(row, int(row_places[0]), scale), (row, int(loser), -scale)]
            if several:
                entries.append((row, unit, 1.0))
            row += 1
        unit += several
    rows, columns, values = zip(*entries, strict=True)
    return sparse.csr_array((values, (rows, columns)), shape=(row, _columns(places, n)))


def probabilities_of(mean: Array, covariance: Array) -> Array:
    """Return the probability of each of k items to be chosen, for utilities N(mean, covariance)."""
    return np.asarray(np.exp(log_probabilities(_SCALE * mean[None], 2.0 * covariance[None])[0]))


# --- Comparisons of two items --------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """Items that are compared.

    Attributes
    ----------
    names : ndarray, shape (n,), or None
        Sorted; None for items with features, which have row numbers.
    rows : ndarray, shape (n, d)
        Features, or the number of each name.
    """

    names: NDArray[Any] | None
    rows: Array

    def numbers(self, labels: ArrayLike, name: str) -> NDArray[np.intp]:
        """Return the row numbers of items, in the shape of `labels`.

        Raises
        ------
        InputError
            If there is an item that is not known.
        """
        items = np.asarray(unmasked(labels, name))
        if self.names is None:
            if items.dtype.kind not in "iu" or (
                items.size and not 0 <= items.min() <= items.max() < len(self.rows)
            ):
                raise InputError(
                    f"{name} must be whole numbers from 0 to {len(self.rows) - 1}, rows of X, got "
                    f"{shown(labels)}"
                )
            return items.astype(np.intp)
        at = numbers_of(_names(items, name), self.names, name).reshape(items.shape)
        if (at < 0).any():
            raise InputError(
                f"{name} have the item {shown(items[at < 0][0])}, which was not in the fit: fit "
                "with features of items to compare new ones"
            )
        return at.astype(np.intp)


def items_of(X: ArrayLike | None, pairs: NDArray[Any]) -> Items:
    """Return the items of X: features (n, d), names (n,), or, for None, the names in pairs."""
    features = pairs.ravel() if X is None else np.asarray(unmasked(X, "X"))
    if features.ndim == 1:
        names = sorted_levels(_names(features, "pairs" if X is None else "X"))
        if len(names) < 2:
            raise InputError(f"there must be two items or more, got {names.tolist()}")
        return Items(names, np.arange(len(names), dtype=float)[:, None])
    rows = (
        finite(features, "X") if features.dtype.kind in "fiub" else finite(_numbers(features), "X")
    )
    if rows.ndim != 2 or len(rows) < 2 or rows.shape[1] == 0:
        raise InputError(
            f"X must have shape (n, d), the features of two items or more, or (n,), their names; "
            f"got {rows.shape}"
        )
    return Items(None, np.array(rows))


def pairs_of(pairs: ArrayLike) -> NDArray[Any]:
    """Return pairs as an array of shape (P, 2), P > 0, or raise `InputError`."""
    try:
        array = np.asarray(unmasked(pairs, "pairs"))
    except ValueError as error:
        raise InputError(f"pairs must have shape (P, 2): {error}") from error
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise InputError(f"pairs must have shape (P, 2), two items a row; got {array.shape}")
    return array


def times_of(times: ArrayLike | None, count: int) -> Array | None:
    """Return one time for each row, in days for dates."""
    if times is None:
        return None
    values = np.asarray(unmasked(times, "times"))
    if values.dtype.kind == "O" and values.ndim == 1:
        values = level_values(values, "times")
    if values.dtype.kind == "M":
        missing = np.isnat(values)
        values = values.astype("datetime64[s]").astype(float) / 86400.0
        values[missing] = np.nan
    values = finite(values, "times")
    if values.shape not in ((), (count,)):
        raise InputError(f"times must be one or have shape {(count,)}, got {values.shape}")
    return np.array(np.broadcast_to(values, (count,)))


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
    columns = np.concatenate([first, second])
    return sparse.csr_array((values, (rows, columns)), shape=(count, n))


def distinct(rows: Array, numbers: NDArray[np.intp], times: Array | None) -> tuple[Array, Any]:
    """Return the distinct points of items at times, and which of them each is.

    Points have the item's row, and its time in a further column where there are times.
    """
    if times is None:
        first, which = np.unique(numbers, return_inverse=True)
        return rows[first], which.reshape(numbers.shape)
    item_times = np.column_stack([numbers.ravel().astype(float), times.ravel()])
    first, which = np.unique(item_times, axis=0, return_inverse=True)
    points = np.column_stack([rows[first[:, 0].astype(int)], first[:, 1]])
    return points, which.reshape(numbers.shape)


def _names(items: NDArray[Any], name: str) -> NDArray[Any]:
    """Return names of items as levels, flat.

    Raises
    ------
    InputError
        If names are missing, not finite or of several kinds.
    """
    values = level_values(items.ravel(), name)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"{name} have names that are not finite: leave them out")
    if values.dtype.kind in "mM" and np.isnat(values).any():
        raise InputError(f"{name} have missing names: leave these rows out")
    if values.dtype.kind == "O":
        if any(value is None for value in values):
            raise InputError(f"{name} have missing names: leave these rows out")
        kinds = sorted(kinds_of(level_keys(values)))
        if len(kinds) > 1:
            raise InputError(f"{name} must be of one type, got {' and '.join(kinds)}")
    return values


def _numbers(values: NDArray[Any]) -> Array:
    try:
        return values.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"X of shape (n, d) must be numbers: {error}") from error
