"""Choices of one among several: what is seen of utilities, and probabilities of each.

Item i of those shown is chosen if f_i + e_i is the largest, for independent normal e of variance
1/2: of two it is a comparison with noise of variance 1. Given u = sqrt(2) e of the chosen one, a
unit normal, the others are below it with probabilities Phi(sqrt(2) (f_chosen - f_j) + u): a site
for each along its functional of f and u. Their product, integrated over u, is the likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.comparisons import Items, distinct
from qpruntime.inference.classes.probabilities import log_probabilities
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.validation import finite

__all__ = ["choice_operator", "probabilities_of", "rows_of", "seen"]

_SCALE = math.sqrt(2.0)


def rows_of(given: Any, name: str = "pairs") -> list[NDArray[Any]]:
    """Return rows of two items or more, which may differ in length.

    Raises
    ------
    InputError
        If that is not what was given.
    """
    whole: Any = given
    if not (isinstance(given, Sequence) and not isinstance(given, str)):
        whole = np.asarray(given)
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


def seen(
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
    own = [row for row, weight in zip(shown, weights, strict=True) if weight]
    flat, sizes = np.concatenate(own), np.array([len(row) for row in own])
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
                f"choice {number} is of items with the same features, of which no kernel prefers "
                "one: leave it out, or add a feature that tells them apart"
            )
    return points, Functionals(choice_operator(places, len(points)), _columns(places, len(points)))


def _columns(places: Sequence[NDArray[np.intp]], n: int) -> int:
    return n + sum(len(own) > 2 for own in places)


def choice_operator(places: Sequence[NDArray[np.intp]], n: int) -> sparse.csr_array:
    """Return rows on n utilities and a unit normal for each choice among three or more.

    `places` are utilities of each choice, the chosen one first. Sites are probits of the rows.
    """
    entries: list[tuple[int, int, float]] = []
    row, unit = 0, n
    for own in places:
        several = len(own) > 2
        scale = _SCALE if several else 1.0
        for other in own[1:]:
            entries += [(row, int(own[0]), scale), (row, int(other), -scale)]
            if several:
                entries.append((row, unit, 1.0))
            row += 1
        unit += several
    rows, columns, values = zip(*entries, strict=True)
    return sparse.csr_array((values, (rows, columns)), shape=(row, _columns(places, n)))


def probabilities_of(mean: Array, covariance: Array) -> Array:
    """Probability of each of k items to be chosen, shape (k,), of utilities N(mean, covariance)."""
    found: Array = np.exp(log_probabilities(_SCALE * mean[None], 2.0 * covariance[None])[0])
    return found
