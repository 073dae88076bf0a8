"""Families of a forecaster, and how their likelihoods are learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from qpruntime import likelihoods
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import real, shown, unmasked
from qpruntime.effects.families import MAD_SCALE
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood

__all__ = [
    "COUNTS",
    "REALS",
    "ROUNDED",
    "Scale",
    "bounds_of",
    "exposures_of",
    "is_whole",
    "likelihood_of",
    "reals_scale",
    "scale_of",
    "values_of",
]

# --- Likelihoods ---------------------------------------------------------------------------------

#: Counts with a log link, whose exposures shift it.
COUNTS = ("poisson", "negative-binomial", "zero-inflated", "hurdle")
#: Families of real numbers; the last is "gaussian" for logarithms.
REALS = ("gaussian", "student-t", "log-normal")
#: Counts that vary less than events do: normal numbers rounded to whole ones, 0 if below.
ROUNDED = "rounded-gaussian"
_NAMES = {"poisson": "poisson-exp", "log-normal": "gaussian", ROUNDED: "gaussian"}
# Standard deviation of a number that is rounded to a whole one: such noise is never smaller.
_ROUNDING, _WIDE = 12.0**-0.5, 10.0


def is_whole(family: str | Likelihood, y: Array) -> bool:
    """Decide whether observations are counts; for a likelihood that is given, by their values."""
    if isinstance(family, str) and family in REALS:
        return False
    wrong = (y < 0.0) | (y != np.round(y))
    if isinstance(family, str) and family in (*COUNTS, ROUNDED) and wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(
            f'y is {y[i]:g} at number {i}, which is no count: family="auto" takes other numbers, '
            '"gaussian" and "student-t" are of them'
        )
    return not wrong.any()


def scale_of(family: str | Likelihood, y: Array) -> Scale:
    """Return how the likelihood of a family sees these observations, none of them missing."""
    if not isinstance(family, str) or family not in (*REALS, ROUNDED):
        return Scale()
    return replace(reals_scale(y, family == "log-normal"), rounded=family == ROUNDED)


def likelihood_of(family: str | Likelihood) -> Likelihood:
    """Return the likelihood where its learnt parameters start.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    if isinstance(family, Likelihood):
        return family
    name = _NAMES.get(family, family)
    try:
        likelihood = likelihoods.get(name)
    except InputError as error:
        known = ", ".join((*COUNTS, ROUNDED, *REALS))
        raise InputError(
            f'family must be "auto", one of {known}, or a likelihood, got {shown(family)}'
        ) from error
    return likelihood.with_parameters(
        **{p: likelihood.default_start(p) for p in likelihood.parameters}
    )


def bounds_of(likelihood: Likelihood, scale: Scale) -> dict[str, tuple[float, float]]:
    """Return the bounds of the learnt parameters, as the likelihood sees observations."""
    ranges = {name: likelihood.parameter_range(name) for name in likelihood.parameters}
    known = {name: range.series or range.effects for name, range in ranges.items()}
    bounds = {name: bounds for name, bounds in known.items() if bounds is not None}
    if scale.rounded:
        least = _ROUNDING / scale.unit
        bounds["scale"] = least, max(_WIDE * least, bounds["scale"][1])
    return bounds


# --- Observations in a likelihood's units --------------------------------------------------------


@restorable("scale/1")
@dataclass(frozen=True)
class Scale:
    """z = (g(y) - centre)/unit, with g the logarithm or nothing.

    Attributes
    ----------
    centre, unit : float
    log : bool
    whole : bool
        Whether y are counts, which stay as they are.
    rounded : bool
        Whether y are the numbers of the likelihood rounded to whole ones, 0 if these are below.
    """

    centre: float = 0.0
    unit: float = 1.0
    log: bool = False
    whole: bool = True
    rounded: bool = False

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
            values = self.centre + self.unit * z
            return np.asarray(np.exp(values) if self.log else values)

    def log_slope(self, y: Array) -> Array:
        """Return log dz/dy, which a density of y has beside that of z."""
        if self.whole:
            return np.zeros(y.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(-np.log(self.unit) - (np.log(y) if self.log else np.zeros(y.shape)))


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
    values = np.log(y) if log else y
    centre = float(np.median(values))
    spread = MAD_SCALE * float(np.median(np.abs(values - centre)))
    spread = spread or float(values.std()) or abs(centre) or 1.0
    return Scale(centre, spread, log, False)


def exposures_of(exposure: ArrayLike | None, n: int) -> Array | None:
    """Return exposures (N,) from one for each time or one for all; None if there are none."""
    if exposure is None:
        return None
    sizes = real(exposure, "exposure")
    if sizes.shape not in ((), (n,)):
        raise InputError(f"exposure must have shape ({n},), got {sizes.shape}")
    return np.array(np.broadcast_to(sizes, (n,)))


def values_of(y: ArrayLike, n: int) -> Array:
    """Return observations (N,) with NaN for those that are missing or masked.

    Raises
    ------
    InputError
        If they are no numbers, infinite, or not one a time.
    """
    y = unmasked(y, "y", missing=True)
    try:
        # Missing values of pandas are no floats.
        if hasattr(y, "isna") and hasattr(y, "to_numpy"):
            values = np.array(y.to_numpy(dtype=float, na_value=np.nan))
        else:
            values = np.array(y, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"y must be counts or other numbers, got {shown(y)}") from error
    if values.shape != (n,):
        raise InputError(f"y must have shape ({n},), one number a time, got {values.shape}")
    if np.isinf(values).any():
        i = int(np.argmax(np.isinf(values)))
        raise InputError(f"y is {values[i]:g} at number {i}: make what is missing NaN")
    return values
