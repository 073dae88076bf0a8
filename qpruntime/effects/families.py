"""Families of observations: likelihoods by their statistical names, classes, exposures, means."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods
from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime._validation import number, shown
from qpruntime.dataframes.levels import is_missing, level_values, sorted_levels
from qpruntime.dataframes.readers import DataColumns
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.density import (
    RATE_LIKELIHOODS,
    count_distribution,
    log_density,
    whole_counts,
    wide,
)
from qpruntime.predictive.distribution import Predicted
from qpruntime.predictive.expectation import cdf, component, kind_of
from qpruntime.predictive.inversion import mixture_quantiles
from qpruntime.predictive.mixtures import Mixture

__all__ = [
    "ObservationFamily",
    "below",
    "below_given",
    "discrete",
    "family_of",
    "observation_quantiles",
    "offsets_of",
    "trials_of",
]

#: Names of statisticians where the package has others.
ALIASES = {"poisson": "poisson-exp", "bernoulli": "logistic", "logit": "logistic"}
#: The median absolute deviation of a normal is its standard deviation over this, and the distance
#: between its 5 and 95 % points is so many standard deviations.
MAD_SCALE, _CENTRAL = 1.4826, 3.2897
#: Prior standard deviation of the logarithm of a learnt parameter, around its start.
SPREAD = 2.0


@restorable("family/1")
@dataclass(frozen=True, eq=False)
class ObservationFamily:
    """A likelihood, and what of it is learnt.

    Attributes
    ----------
    likelihood : Likelihood
    kind : {"labels", "counts", "pairs", "reals", "other"}
    classes : ndarray, shape (2,), or None
        Of labels, the second is the one whose probability is modelled.
    learn : dict
        Bounds of learnt parameters, in the units inside.
    centre, unit : float
        Inside, observations are (y - centre)/unit, and the predictor is (eta - centre)/unit.
    log : bool
        Whether observations are y/exp(centre) inside instead: their logarithms are shifted.
    """

    likelihood: Likelihood
    kind: str
    classes: NDArray[Any] | None = None
    learn: dict[str, tuple[float, float]] = field(default_factory=dict)
    centre: float = 0.0
    unit: float = 1.0
    log: bool = False

    @property
    def start(self) -> Array:
        """Logarithms of the learnt parameters where they start."""
        return np.log([self.likelihood.parameters[name] for name in self.learn])

    def at(self, logs: Array) -> Likelihood:
        """Return the likelihood with learnt parameters."""
        if not self.learn:
            return self.likelihood
        values = {n: float(np.exp(v)) for n, v in zip(self.learn, logs, strict=True)}
        return self.likelihood.with_parameters(**values)

    def outside(self, likelihood: Likelihood) -> Likelihood:
        """Return a likelihood that is known inside in the units of y."""
        if self.unit == 1.0 or "scale" not in likelihood.parameters:
            return likelihood
        return likelihood.with_parameters(scale=self.unit * likelihood.parameters["scale"])

    def inside(self, y: Array) -> Array:
        """Return encoded observations in the units inside."""
        if self.log:
            return np.asarray(y * np.exp(-self.centre))
        if self.kind != "reals":
            return y
        return np.asarray((y - self.centre) / self.unit)

    @property
    def log_unit(self) -> float:
        """Logarithm of the unit of y inside, by which densities differ."""
        return self.centre if self.log else float(np.log(self.unit))

    def log_prior(self, logs: Array) -> tuple[float, Array]:
        """Log density of the learnt parameters' logarithms, not normalised, and its slopes."""
        z = (logs - self.start) / SPREAD
        return float(-0.5 * z @ z), -z / SPREAD

    def encoded(self, y: ArrayLike) -> Array:
        """Observations as the likelihood takes them."""
        if self.classes is None:
            return self.likelihood.validate(y)
        labels = level_values(y, "y")
        unknown = ~np.isin(labels, self.classes)
        if unknown.any():
            raise InputError(
                f"label {shown(labels[unknown][0])} is none of {self.classes.tolist()}"
            )
        return np.where(labels == self.classes[1], 1.0, -1.0)

    def mean(self, likelihood: Likelihood, centre: Array, variance: Array) -> Array:
        """Return the expected observation for latent values N(centre, variance).

        This is the probability of the second class for labels, and that of a success for pairs.
        """
        if self.kind == "counts":
            with np.errstate(over="ignore"):
                return np.asarray(np.exp(centre + 0.5 * variance))
        if self.kind == "labels":
            return np.exp(log_density(likelihood, centre, wide(variance), np.ones(centre.shape)))
        if self.kind == "pairs":
            logistic = likelihoods.get("logistic")
            return np.exp(log_density(logistic, centre, wide(variance), np.ones(centre.shape)))
        if self.kind == "reals":
            return centre
        raise self._unknown("an expected observation")

    def given(self, f: Array) -> Array:
        """Return the expected observation for latent values f."""
        return self.mean(self.likelihood, f, np.zeros(f.shape))

    def shift(self, data: DataColumns, exposure: Hashable) -> Array:
        """Return what the column of exposures adds to the linear predictor, 0 if there is none."""
        if exposure is None:
            return np.zeros(data.rows)
        sizes = data.numbers(exposure, times=False)
        if (sizes < 0.0).any():
            i = int(np.argmax(sizes < 0.0))
            raise InputError(
                f"exposure {shown(exposure)} is {sizes[i]:g} in row {i}: it must be at least 0"
            )
        if self.kind != "counts":
            raise InputError(
                f"exposure is for counts with a log link, 'poisson' and 'negative-binomial', not "
                f"for {self.likelihood.name!r}: use offset="
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(sizes))

    def _unknown(self, what: str) -> InputError:
        return InputError(f"{what} is not known for {self.likelihood.name!r}: use latent(X)")


def offsets_of(data: DataColumns, column: Hashable) -> Array:
    """Return the column of offsets, which may be -inf; zeros if there is none."""
    if column is None:
        return np.zeros(data.rows)
    return data.numbers(column, times=False, infinite=True)


def family_of(
    family: str | Likelihood,
    y: ArrayLike,
    bounds: Mapping[str, Bounds | None] | None,
    *,
    offset: Array | float = 0.0,
    centred: bool = True,
    standardise: bool = True,
    weights: Array | None = None,
) -> tuple[ObservationFamily, Array]:
    """Return the family of these observations, and the observations encoded, in units inside.

    Parameters
    ----------
    family : str or Likelihood
    y : array-like, shape (N,) or (N, 2)
    bounds : mapping, optional
        Of parameters of the likelihood: pairs between which they are learnt, or "fixed".
    offset : ndarray, shape (N,), or float
        Known part of the predictor, which real observations are compared with.
    centred : bool
        Whether real observations are centred: a model without intercept has a fixed origin.
    standardise : bool
        Whether real observations are centred and brought to unit spread inside.
    weights : ndarray, shape (N,), optional
        Positive weights of the observations, by which centre and spread are taken.
    """
    chosen = likelihoods.get(ALIASES.get(family, family) if isinstance(family, str) else family)
    unknown = sorted(set(bounds or {}) - set(chosen.parameters))
    if unknown:
        known = ", ".join(chosen.parameters) or "it has none"
        raise InputError(
            f"{chosen.name!r} has no parameter {unknown[0]!r}; its parameters: {known}"
        )
    kind = _kind_of(chosen)
    if kind == "labels":
        fitted = ObservationFamily(chosen, kind, _classes(y))
        return fitted, fitted.encoded(y)
    outcomes = chosen.validate(y)
    if outcomes.ndim != (2 if kind == "pairs" else 1):
        raise InputError(f"y must have one observation a row, got shape {np.shape(y)}")
    spread, fitted = 1.0, ObservationFamily(chosen, kind)
    if kind == "reals":
        centre, spread = _scale_of(outcomes - offset, centred, weights)
        if standardise:
            fitted = replace(fitted, centre=centre, unit=spread)
    elif chosen.log_link and chosen.scale_family and standardise and centred:
        # The predictor is a logarithm, which the unit of y shifts.
        middle = _weighted_quantile(np.log(outcomes) - offset, 0.5, weights)
        fitted = replace(fitted, centre=middle, log=True)
    rows = len(outcomes) if weights is None else float(weights.sum())
    fitted = _with_learnt(fitted, bounds or {}, spread, rows)
    return fitted, fitted.inside(outcomes)


def _kind_of(likelihood: Likelihood) -> str:
    """Return what the observations of a likelihood are, "other" for one of a user's own."""
    if likelihood.recipe is not None:
        return "other"
    if likelihood.link is not None or likelihood.score is not None:
        return "labels"
    if likelihood.location:
        return "reals"
    if likelihood.name == "binomial":
        return "pairs"
    return "counts" if likelihood.name in RATE_LIKELIHOODS else "other"


def _with_learnt(
    family: ObservationFamily, bounds: Mapping[str, Bounds | None], spread: float, rows: float
) -> ObservationFamily:
    """Return the family with starts and bounds of learnt parameters, in its units."""
    declared = family.likelihood
    registered = likelihoods.is_registered(declared)
    has_defaults = registered and declared is likelihoods.get(declared.name)
    learn, values = {}, {}
    for name, value in declared.parameters.items():
        # Scales are given in the units of y.
        unit = family.unit if name == "scale" else 1.0
        values[name] = value / unit
        limits = bounds.get(name)
        if limits is None and has_defaults:
            limits = declared.effect_bounds(name, spread, rows)
            if limits is not None:
                values[name] = declared.default_start(name, spread) / unit
        if limits is None or (isinstance(limits, str) and limits == "fixed"):
            continue
        try:
            low, high = (number(v, f"family_bounds of {name}", above=0.0) for v in limits)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"family_bounds of {name} must be two positive numbers or 'fixed', got "
                f"{shown(limits)}"
            ) from error
        learn[name] = low / unit, high / unit
        values[name] = float(np.clip(values[name], *learn[name]))
    return replace(family, likelihood=declared.with_parameters(**values), learn=learn)


def _scale_of(y: Array, centred: bool, weights: Array | None) -> tuple[float, float]:
    """Centre and spread of real observations, which a few outliers do not move.

    The spread is that of the middle half or of the middle nine tenths, whichever is larger: most
    rows may be of one group.
    """
    centre = _weighted_quantile(y, 0.5, weights) if centred else 0.0
    low, high = (_weighted_quantile(y - centre, q, weights) for q in (0.05, 0.95))
    reach = (high - low) / _CENTRAL if centred else max(abs(low), abs(high)) / (0.5 * _CENTRAL)
    spread = max(MAD_SCALE * _weighted_quantile(np.abs(y - centre), 0.5, weights), reach)
    spread = spread or float(np.sqrt(np.average((y - centre) ** 2, weights=weights)))
    # If all rows are equal, the spread is rounding alone.
    least = 1e-14 * float(np.abs(y).max())
    return centre, spread if spread > least else abs(centre) or 1.0


def _weighted_quantile(values: Array, q: float, weights: Array | None) -> float:
    """Return a quantile; a value of weight 2 counts as two equal values do.

    NumPy's quantile is the mean, over an interval of the length of one value, of the sorted values
    as a step function of their number. The same mean is taken with steps as long as the weights.
    """
    if weights is None:
        return float(np.quantile(values, q))
    order = np.argsort(values, kind="stable")
    end = np.cumsum(weights[order])
    length = min(1.0, float(end[-1]) / len(end))
    first = q * (end[-1] - length)
    overlap = np.minimum(end, first + length) - np.maximum(end - weights[order], first)
    return float(np.average(values[order], weights=np.maximum(overlap, 0.0)))


def _classes(y: ArrayLike) -> NDArray[Any]:
    """Return the two classes of labels, also where only one of a known pair occurs."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InputError(f"y must have one label a row, got shape {labels.shape}")
    if any(map(is_missing, labels)):
        raise InputError("y has labels that are nan: leave these rows out")
    labels = level_values(labels, "y")
    levels = sorted_levels(labels)
    for pair in ([-1, 1], [0, 1], [False, True]):
        same_kind = (labels.dtype.kind == "b") == isinstance(pair[0], bool)
        if same_kind and labels.dtype.kind in "biuf" and set(levels.tolist()) <= set(pair):
            return np.array(pair)
    if len(levels) != 2:
        raise InputError(
            f"labels must be of two kinds, got {len(levels)}: {shown(levels.tolist()[:5])}; for "
            "counts name a family of counts, 'poisson' or 'negative-binomial'"
        )
    return levels


# --- Distribution functions and quantiles of new observations ------------------------------------


def discrete(family: ObservationFamily, likelihood: Likelihood) -> bool:
    """Decide whether observations have probabilities, not densities."""
    if family.kind in ("labels", "pairs", "counts"):
        return True
    return Predicted.discrete(likelihood)


def below(
    family: ObservationFamily,
    likelihood: Likelihood,
    mean: Array,
    variance: Array,
    y: Array,
    trials: Array | None = None,
) -> Array:
    """P(Y <= y) for latent values N(mean, variance), each of shape (n,).

    Raises
    ------
    InputError
        If the likelihood is known by its density alone.
    """
    if family.kind == "labels":
        # The distribution function has a closed form, or takes one integral.
        return _label_below(likelihood, mean, variance, y)
    if likelihood.given is None:
        raise InputError(
            f"{likelihood.name!r} is known by its density alone, and has no distribution function: "
            "use loo() or predict_log_density(X, y)"
        )
    return cdf(likelihood, mean, wide(variance), y, trials=trials)


def below_given(
    family: ObservationFamily,
    likelihood: Likelihood,
    f: Array,
    y: Array,
    trials: Array | None = None,
) -> Array:
    """P(Y <= y | f), as `below`, for f (n, M) and one y a row."""
    if family.kind == "labels":
        return _label_below(likelihood, f, np.zeros(f.shape), y[:, None])
    assert likelihood.given is not None
    more = () if trials is None else (trials[:, None],)
    return np.asarray(likelihood.given(f, likelihood.theta, *more).cdf(y[:, None]))


def _label_below(likelihood: Likelihood, mean: Array, variance: Array, y: Array) -> Array:
    """P(Y <= y) of labels -1 and +1 for latent values N(mean, variance)."""
    low = np.exp(log_density(likelihood, mean, wide(variance), np.full(mean.shape, -1.0)))
    return np.where(y >= 1.0, 1.0, np.where(y >= -1.0, low, 0.0))


def observation_quantiles(
    mixture: Mixture,
    likelihoods: Sequence[Likelihood],
    family: ObservationFamily,
    seen: Array,
    q: Array,
    trials: Array | None = None,
) -> NDArray[Any]:
    """Quantiles of an observation, shape (R, Q): the smallest y with P(Y <= y) >= q.

    These are classes for labels, and numbers of successes in the given trials for pairs.

    Parameters
    ----------
    mixture : Mixture
        Of linear predictors, with their offsets.
    likelihoods : sequence of Likelihood, length J
        With the parameters of each node.
    family : ObservationFamily
    seen : ndarray
        Observations of the fit: where those of a likelihood can be that is known by its density
        alone. Its latent values are then taken to be normal, with the mixture's moments.
    q : ndarray, shape (Q,)
    trials : ndarray, shape (R,), optional
        Of pairs.
    """
    if family.kind == "labels":
        assert family.classes is not None
        nodes = zip(likelihoods, mixture.mean, mixture.variance, strict=True)
        lower = [below(family, node, m, v, np.full(m.size, -1.0)) for node, m, v in nodes]
        return np.asarray(
            family.classes[((mixture.weights @ np.array(lower))[:, None] < q).astype(int)]
        )
    # Rows of the same levels have the same linear predictor, and are searched once.
    columns = [*mixture.mean, *mixture.variance, *([] if trials is None else [trials])]
    rows = np.stack(columns, axis=1, dtype=float)
    # Sorting bytes takes a sixth of the time of sorting rows of numbers.
    as_bytes = rows.view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, distinct, back = np.unique(as_bytes, return_index=True, return_inverse=True)
    trials = None if trials is None else trials[distinct]
    return _searched(mixture.at(distinct), likelihoods, family, seen, q, trials)[back]


def _searched(
    mixture: Mixture,
    likelihoods: Sequence[Likelihood],
    family: ObservationFamily,
    seen: Array,
    q: Array,
    trials: Array | None,
) -> Array:
    """Return quantiles of an observation that is no label, as `observation_quantiles` does."""
    if likelihoods[0].given is None:
        best = likelihoods[int(np.argmax(mixture.weights))]
        mean, variance = mixture.moments()
        return Predicted.of(best, seen).quantiles(mean, variance, q)
    nodes = list(zip(likelihoods, mixture.mean, mixture.variance, strict=True))
    if family.kind == "counts":
        shapes = [likelihood.parameters.get("dispersion", inf) for likelihood in likelihoods]
        parts = [
            count_distribution(m, v, q, link="exp", dispersion=shape)
            for (_, m, v), shape in zip(nodes, shapes, strict=True)
        ]
        quantiles = mixture_quantiles(parts, mixture.weights, q, True)
        return whole_counts(quantiles, *mixture.moments()).astype(float)
    parts = [component(node_likelihood, m, wide(v), q, trials) for node_likelihood, m, v in nodes]
    return mixture_quantiles(parts, mixture.weights, q, *kind_of(likelihoods[0]))


def trials_of(given: ArrayLike | None, family: ObservationFamily, rows: int) -> Array | None:
    """Trials of rows of pairs (T,), 1 by default; None for other families."""
    if family.kind != "pairs":
        if given is not None:
            raise InputError(f'trials are for family "binomial", not {family.kind}')
        return None
    counts = np.asarray(1 if given is None else given, dtype=float)
    if counts.shape not in ((), (rows,)):
        raise InputError(f"trials must be a number or have shape ({rows},), got {counts.shape}")
    counts = np.broadcast_to(counts, (rows,))
    wrong = ~((counts >= 0.0) & (counts == np.floor(counts)))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(f"trials must be whole numbers from 0 on, got {counts[i]:g} in row {i}")
    return counts
