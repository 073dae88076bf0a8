"""Observations as numbers that a likelihood sees: counts as they are, reals in units of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import shown

__all__ = ["Scale", "reals_scale", "values_of"]

# The median absolute deviation of a normal is its standard deviation over this.
_MAD = 1.4826


@dataclass(frozen=True)
class Scale:
    """z = (g(y) - centre)/unit, with g the logarithm or nothing.

    Attributes
    ----------
    centre, unit : float
    log : bool
    whole : bool
        Whether y are counts, which stay as they are.
    """

    centre: float = 0.0
    unit: float = 1.0
    log: bool = False
    whole: bool = True

    def into(self, y: Array) -> Array:
        """Return what the likelihood sees."""
        if self.whole:
            return y
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(((np.log(y) if self.log else y) - self.centre) / self.unit)

    def back(self, z: Array) -> Array:
        """Return observations."""
        if self.whole:
            return z
        with np.errstate(over="ignore"):
            own = self.centre + self.unit * z
            return np.asarray(np.exp(own) if self.log else own)

    def log_slope(self, y: Array) -> Array:
        """Return log dz/dy, which a density of y has beside that of z."""
        if self.whole:
            return np.zeros(y.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            return -np.log(self.unit) - (np.log(y) if self.log else np.zeros(y.shape))


def reals_scale(y: Array, log: bool) -> Scale:
    """Return that of real observations: their median and spread.

    Raises
    ------
    InputError
        If logarithms are asked for of what is not above 0.
    """
    if log and not (y > 0.0).all():
        i = int(np.argmax(~(y > 0.0)))
        raise InputError(
            f'y is {y[i]:g} at number {i}, and family "log-normal" is of numbers above 0: '
            'ask for "gaussian"'
        )
    own = np.log(y) if log else y
    centre = float(np.median(own))
    spread = _MAD * float(np.median(np.abs(own - centre)))
    spread = spread or float(own.std()) or abs(centre) or 1.0
    return Scale(centre, spread, log, False)


def values_of(y: Any, n: int) -> Array:
    """Observations with NaN for those that are missing, shape (N,).

    Raises
    ------
    InputError
        If they are no numbers, infinite, or not one a time.
    """
    try:
        if hasattr(y, "isna"):  # of pandas, whose missing values are no floats
            found = np.array(y.to_numpy(dtype=float, na_value=np.nan))
        else:
            found = np.array(y, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"y must be counts or other numbers, got {shown(y)}") from error
    if found.shape != (n,):
        raise InputError(f"y must have shape ({n},), one number a time, got {found.shape}")
    if np.isinf(found).any():
        i = int(np.argmax(np.isinf(found)))
        raise InputError(f"y is {found[i]:g} at number {i}: make what is missing NaN")
    return found
