"""Rows as users hand them over, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.arguments import check_powers
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.lazy import as_array, inputs_of, rows_of
from qpruntime.inference.sparse.rows import Rows
from qpruntime.inference.sparse.rule import Rule
from qpruntime.projection.projector import Projector
from qpruntime.validation import finite

__all__ = ["CheckedRows", "about_prior", "checked_rows"]


# Squares of scales keep their digits, and times a variance they stay numbers.
_LEAST_SCALE, _LARGEST_SCALE = 1e-150, 1e100


class CheckedRows(NamedTuple):
    """Rows, how their sites are projected, and the prior mean if all rows share one."""

    rows: Rows
    rule: Rule
    prior: float | None


def checked_rows(
    X: Any,
    y: ArrayLike,
    projector: Projector,
    power: float,
    weights: ArrayLike | None,
    mean: ArrayLike,
    d: int,
    scale: ArrayLike | None = None,
) -> CheckedRows:
    """Check N rows of `d` columns, of any kind that `inputs_of` takes.

    Raises
    ------
    InputError
        If an argument is not usable; the message says which.
    """
    inputs = inputs_of(X, "X")
    n = int(inputs.shape[0])
    if inputs.shape[1] != d:
        raise InputError(f"Z must have {inputs.shape[1]} columns like X, got {d}")
    projector, encoded = projector.observing(as_array(y, "y"))
    weights = None if weights is None else as_array(weights, "weights")
    if encoded.shape != (n,):
        raise InputError(f"y must have shape ({n},) like the rows of X, got {encoded.shape}")
    projector.check_outcomes(encoded)
    prior = finite(as_array(mean, "mean"), "mean")
    if prior.shape not in ((), (n,)):
        raise InputError(f"mean must be a number or have shape ({n},), got {prior.shape}")
    power, checked = check_powers(power, weights, projector, n)
    offset = np.array(np.broadcast_to(prior, (n,))) if prior.any() else None
    rows = rows_of(inputs, np.ascontiguousarray(encoded), checked, offset, _scale(scale, n))
    return CheckedRows(rows, Rule(projector, power), float(prior) if prior.ndim == 0 else None)


def _scale(scale: ArrayLike | None, n: int) -> Array | None:
    """Return scales as an array of their own, None for scales of 1, or raise `InputError`."""
    if scale is None:
        return None
    checked = finite(as_array(scale, "scale"), "scale", (n,))
    wrong = ~((checked >= _LEAST_SCALE) & (checked <= _LARGEST_SCALE))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"scale must be positive, from {_LEAST_SCALE:g} to {_LARGEST_SCALE:g}, got "
            f"{checked[row]:g} at row {row}; leave out rows that tell nothing of f"
        )
    return None if (checked == 1.0).all() else np.array(checked)


def about_prior(sites: Sites, rows: Rows) -> Sites:
    """Return sites about zero as sites about the prior means of their rows."""
    nu = sites.nu.copy()
    for number in range(rows.chunks):
        some = rows.slice(number)
        prior = rows.others(some)[2]
        if prior is not None:
            nu[some] -= sites.tau[some] * prior
    return Sites(sites.tau, nu)
