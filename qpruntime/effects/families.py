"""What observations are: likelihoods by their statistical names, classes, exposures, means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.density import log_density, wide
from qpruntime.likelihoods import Likelihood
from qpruntime.validation import number, shown

__all__ = ["Family", "family_of"]

#: Names of statisticians where the package has others.
ALIASES = {"poisson": "poisson-exp", "bernoulli": "logistic", "logit": "logistic"}
_LABELS = ("probit", "logistic", "heaviside")
_COUNTS = ("poisson-exp", "negative-binomial")
_REALS = ("student-t", "laplace")
# The median absolute deviation of a normal is its standard deviation over this.
_MAD = 1.4826
# Bounds of a scale of noise in units of the observations' spread, and of a dispersion.
_SCALE, _DISPERSION = (1e-4, 1e2), (1e-2, 1e6)
#: Learnt by default, and where they start: .3 of the spread, a variance of twice the mean at 1.
_LEARNT = {"scale": 0.3, "dispersion": 1.0}
#: Prior standard deviation of the logarithm of a learnt parameter, around its start.
SPREAD = 2.0


@dataclass(frozen=True, eq=False)
class Family:
    """A likelihood, and what of it is learnt.

    Attributes
    ----------
    likelihood : Likelihood
    kind : {"labels", "counts", "pairs", "reals", "other"}
    classes : ndarray, shape (2,), or None
        Of labels, the second is the one whose probability is modelled.
    learn : dict
        Bounds of learnt parameters.
    """

    likelihood: Likelihood
    kind: str
    classes: NDArray[Any] | None = None
    learn: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def start(self) -> Array:
        """Logarithms of the learnt parameters where they start."""
        return np.log([self.likelihood.parameters[name] for name in self.learn])

    def at(self, logs: Array) -> Likelihood:
        """The likelihood with learnt parameters."""
        if not self.learn:
            return self.likelihood
        values = {n: float(np.exp(v)) for n, v in zip(self.learn, logs, strict=True)}
        return self.likelihood.with_parameters(**values)

    def log_prior(self, logs: Array) -> tuple[float, Array]:
        """Log density of the learnt parameters' logarithms, not normalised, and its slopes."""
        z = (logs - self.start) / SPREAD
        return float(-0.5 * z @ z), -z / SPREAD

    def encoded(self, y: ArrayLike) -> Any:
        """Observations as the likelihood takes them."""
        if self.classes is None:
            return self.likelihood.validate(y)
        given = np.asarray(y)
        unknown = ~np.isin(given, self.classes)
        if unknown.any():
            raise InputError(f"label {given[unknown][0]!r} is none of {self.classes.tolist()}")
        return np.where(given == self.classes[1], 1.0, -1.0)

    def mean(self, likelihood: Likelihood, centre: Array, variance: Array) -> Array:
        """Expected observation for latent values N(centre, variance).

        Of labels the probability of the second class, of pairs that of a success.
        """
        if self.kind == "counts":
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(centre + 0.5 * variance))
        if self.kind == "labels":
            return np.exp(log_density(likelihood, centre, wide(variance), np.ones(centre.shape)))
        if self.kind == "pairs":
            one = likelihoods.get("logistic")
            return np.exp(log_density(one, centre, wide(variance), np.ones(centre.shape)))
        if self.kind == "reals":
            return centre
        raise self._unknown("an expected observation")

    def given(self, f: Array) -> Array:
        """Expected observation for latent values f."""
        return self.mean(self.likelihood, f, np.zeros(f.shape))

    def shift(self, exposure: Array) -> Array:
        """What exposures add to the linear predictor."""
        if self.kind != "counts":
            raise InputError(
                f"exposure is for counts with a log link, 'poisson' and 'negative-binomial', not "
                f"for {self.likelihood.name!r}: use offset="
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(exposure))

    def _unknown(self, what: str) -> InputError:
        return InputError(f"{what} is not known for {self.likelihood.name!r}: use latent(X)")


def family_of(
    family: str | Likelihood, y: ArrayLike, bounds: Mapping[str, Any] | None
) -> tuple[Family, Any]:
    """Return the family of these observations, and the observations encoded.

    Parameters
    ----------
    family : str or Likelihood
    y : array-like, shape (N,) or (N, 2)
    bounds : mapping, optional
        Of parameters of the likelihood: pairs between which they are learnt, or "fixed".
    """
    name = ALIASES.get(family, family) if isinstance(family, str) else family
    own = likelihoods.get(name)
    kinds = {"labels": _LABELS, "counts": _COUNTS, "reals": _REALS, "pairs": ("binomial",)}
    kind = next((kind for kind, names in kinds.items() if own.name in names), "other")
    if own.recipe is not None:
        kind = "other"
    if kind == "labels":
        classes = _classes(y)
        found = Family(own, kind, classes)
        return found, found.encoded(y)
    seen = own.validate(y)
    if seen.ndim != (2 if kind == "pairs" else 1):
        raise InputError(f"y must have one observation a row, got shape {np.shape(y)}")
    spread = 1.0
    if kind == "reals":
        middle = np.median(seen)
        spread = float(_MAD * np.median(np.abs(seen - middle))) or float(seen.std()) or 1.0
    found = Family(own, kind)
    for parameter in own.parameters:
        limits = (bounds or {}).get(parameter)
        start = own.parameters[parameter]
        if limits is None and parameter in _LEARNT and own is likelihoods.get(own.name):
            unit = spread if parameter == "scale" else 1.0
            start = _LEARNT[parameter] * unit
            limits = tuple(unit * v for v in (_SCALE if parameter == "scale" else _DISPERSION))
        if limits is None or (isinstance(limits, str) and limits == "fixed"):
            continue
        try:
            low, high = (number(v, f"family_bounds of {parameter}", above=0.0) for v in limits)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"family_bounds of {parameter} must be two positive numbers or 'fixed', got "
                f"{shown(limits)}"
            ) from error
        inside = float(np.clip(start, low, high))
        own = own.with_parameters(**{parameter: inside})
        found = replace(found, likelihood=own, learn=found.learn | {parameter: (low, high)})
    unknown = sorted(set(bounds or {}) - set(own.parameters))
    if unknown:
        known = ", ".join(own.parameters) or "it has none"
        raise InputError(f"{own.name!r} has no parameter {unknown[0]!r}; its parameters: {known}")
    return found, seen


def _classes(y: ArrayLike) -> NDArray[Any]:
    """The two classes of labels, also where only one of a known pair occurs."""
    given = np.asarray(y)
    if given.ndim != 1:
        raise InputError(f"y must have one label a row, got shape {given.shape}")
    if given.dtype.kind in "fc" and np.isnan(given).any():
        raise InputError("y has labels that are nan: leave these rows out")
    found = np.unique(given)
    for pair in ([-1, 1], [0, 1], [False, True]):
        same_kind = (given.dtype.kind == "b") == isinstance(pair[0], bool)
        if same_kind and given.dtype.kind in "biuf" and set(found.tolist()) <= set(pair):
            return np.array(pair)
    if len(found) != 2:
        raise InputError(
            f"labels must be of two kinds, got {len(found)}: {shown(found.tolist()[:5])}; for "
            "counts name a family of counts, 'poisson' or 'negative-binomial'"
        )
    return found
