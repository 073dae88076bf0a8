"""Structure of a forecaster's model: columns of its parts, and the model of effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime.dataframes.readers import DataColumns, DataLike
from qpruntime.effects import Autoregressive, EffectsModel, Fixed, Walk
from qpruntime.effects.integration import Integration
from qpruntime.effects.term import DEVIATION, EffectBlock, NormalPrior, Term
from qpruntime.errors import InputError
from qpruntime.forecasting.calendar import StepClock
from qpruntime.forecasting.families import COUNTS, Scale, bounds_of, exposures_of, likelihood_of
from qpruntime.forecasting.pairs import Cycle, Damped
from qpruntime.forecasting.predictive import Ahead
from qpruntime.likelihoods import Likelihood

__all__ = [
    "NOISE",
    "SHORT",
    "TREND",
    "Learnt",
    "PooledTerm",
    "Structure",
    "ahead_of",
]


#: Steps between knots of the trend at least, and knots at most.
_SPACING, _KNOTS = 4, 100
#: Knots of a season at most: of a longer one a knot has several steps.
_PHASES = 200
#: Below so many observations, or so many events, deviations are hardly known: their prior,
#: (limit, probability), keeps expected counts finite, which are means of e^f.
SHORT, _SHORT_PRIOR = 40, (1.0, 0.01)
# Prior standard deviation of what a regressor adds to a log rate where it is farthest from its
# mean: of labels and of columns of two values, and of other numbers. In units of the spread a
# column that is rarely 1 would have a prior so wide that the mean of e^f is astronomic where all
# its counts are 0.
_CONTRAST, _NUMBERS = 2.0, 5.0
# Prior standard deviation of a straight line's rise over the spread of the times.
_LINE = 1.0
# And that of an outlier's effect: of counts on the log rate, else in units of the spread.
_OUTLIER = 5.0
# Prior standard deviation of the log rate of a series without a single count.
_NO_COUNT = 3.0
# Between the chains of two phases, in seasons: nothing lasts so long.
_APART = 1e8
#: Columns of the model by name.
DataRows = dict[str, NDArray[Any]]
#: Names of columns.
TREND, NOISE, EXPOSURE, LINE = "trend", "step", "exposure", "line"
# Families whose exposures the model of effects takes itself.
_EXPOSED = ("poisson", "negative-binomial")


@restorable("forecast-structure/1")
@dataclass(frozen=True)
class Structure:
    """Parts of a forecasting model.

    Attributes
    ----------
    seasons : tuple of float
        Periods in steps.
    regressors : tuple of str
    trend : {"level", "line", "slope", "damped", "none"}
    noise : bool
        True if there is autoregressive noise.
    family : str or Likelihood
    scale : Scale
    learnt : Learnt or None
        Hyper-parameters that were learnt from other series.
    empty : bool
        True if all counts are 0, which gives no lower limit of their rate.
    cycle : float
        Approximate period, in steps, of a cycle whose period wanders; 0 if there is none.
    drifting : tuple of float
        Seasons whose pattern changes from one to the next.
    outliers : tuple of float
        Steps of outliers, which have an effect each.
    clock : StepClock or None
        Clock whose hours and days seasons follow; None if steps are its own.
    """

    seasons: tuple[float, ...]
    regressors: tuple[str, ...]
    trend: str
    noise: bool
    family: str | Likelihood
    scale: Scale
    learnt: Learnt | None = None
    empty: bool = False
    cycle: float = 0.0
    drifting: tuple[float, ...] = ()
    outliers: tuple[float, ...] = ()
    clock: StepClock | None = None

    def columns(self, steps: Array, X: DataLike | None, exposure: ArrayLike | None) -> DataRows:
        """Return the columns of the model for these steps.

        Raises
        ------
        InputError
            If regressors or exposures are not those of these steps.
        """
        data: DataRows = {NOISE: steps, TREND: steps, LINE: steps}
        wall = self.wall_steps(steps)
        for period in self.seasons:
            knots = phases(period)
            phase = np.floor(np.mod(wall, period) * (knots / period) + 1e-9)
            data[f"season {period:g}"] = np.minimum(phase, knots - 1.0)
        for period in self.drifting:
            # Each phase has a chain of its own, from one season to the next.
            turn, phase = np.divmod(np.round(wall), period)
            data[f"drift {period:g}"] = turn + _APART * phase
        for step in self.outliers:
            data[f"outlier at {step:g}"] = (steps == step).astype(float)
        data[EXPOSURE] = self._exposure(steps, exposure)
        if self._offset:
            data[EXPOSURE] = np.log(data[EXPOSURE])
        if X is None:
            return data
        frame = DataColumns(X)
        if frame.rows != len(steps):
            raise InputError(f"X must have {len(steps)} rows, one a step, got {frame.rows}")
        for name in self.regressors:
            if name in data:
                raise InputError(f"a regressor must not be called {name!r}: rename it")
            data[name] = _regressor(frame, name)
        return data

    def wall_steps(self, steps: Array) -> Array:
        """Return steps as clocks on the wall show them, which seasons follow."""
        return steps if self.clock is None else self.clock.wall_steps(steps)

    @property
    def _offset(self) -> bool:
        """True if logarithms of exposures are added here."""
        return not (isinstance(self.family, str) and self.family in _EXPOSED)

    def _exposure(self, steps: Array, exposure: ArrayLike | None) -> Array:
        sizes = exposures_of(exposure, len(steps))
        if sizes is None:
            return np.ones(len(steps))
        if isinstance(self.family, str) and self.family not in COUNTS:
            raise InputError(
                f"exposure is for counts, and the family is {self.family!r}: divide y by it, or "
                "make it a regressor"
            )
        if self._offset and not (sizes > 0.0).all():
            raise InputError(f"exposure must be above 0 for family {self.family!r}")
        return sizes

    def model(self, data: DataRows, integrate: Integration, y: Array | None = None) -> EffectsModel:
        """Return the unfitted model of effects, for observations `y` if they are known."""
        steps = data[TREND]
        known = len(steps)
        if self.scale.whole and y is not None:
            known = min(known, int(min(y.sum(), known)))
        prior = _SHORT_PRIOR if known < SHORT else DEVIATION
        terms = self._effects(data)
        if self.outliers:
            columns = [f"outlier at {step:g}" for step in self.outliers]
            terms.append(Fixed(*columns, std=_OUTLIER, standardise=False))
        if self.trend == "line":
            terms.append(Fixed(LINE, std=_LINE))
        if self.trend != "none":
            span = steps.max() - steps.min()
            knots = int(np.clip(min(len(steps), span) // _SPACING, 5, _KNOTS))
            if self.trend == "damped":
                terms.append(Damped(TREND, knots, prior=prior))
            order = 2 if self.trend == "slope" else 1
            terms.append(Walk(TREND, order, knots=knots, prior=prior))
        # Parts that come back are seen more often than a trend: what counts is how many events.
        prior = DEVIATION if known == len(steps) else prior
        for period in self.seasons:
            terms.append(Walk(f"season {period:g}", 2, cyclic=phases(period), prior=prior))
        for period in self.drifting:
            terms.append(Autoregressive(f"drift {period:g}", step=1.0, prior=prior))
        if self.cycle:
            terms.append(Cycle(NOISE, self.cycle, prior=prior))
        if self.noise:
            terms.append(Autoregressive(NOISE, step=1.0, prior=prior))
        family = self.family
        bounds: Mapping[str, Bounds] | None = None
        if self.learnt is not None:
            terms = [PooledTerm.of(term, self.learnt) for term in terms]
            integrate = "mode" if self.learnt.stds is None else integrate
        if self._offset or self.learnt is not None:
            family = likelihood_of(self.family)
            bounds = bounds_of(family, self.scale)
            if self.learnt is not None:
                family, bounds = self.learnt.family(family, bounds)
        exposed: dict[str, Any] = {"offset" if self._offset else "exposure": EXPOSURE}
        exposed["intercept"] = _NO_COUNT if self.empty else True
        return EffectsModel(
            terms, family, family_bounds=bounds, integrate=integrate, standardise=False, **exposed
        )

    def _effects(self, data: DataRows) -> list[Term]:
        """Return terms of the regressors, with priors of effects on a log rate if y are counts."""
        if not self.regressors:
            return []
        if not self.scale.whole:
            return [Fixed(*self.regressors)]
        terms: list[Term] = []
        for name in self.regressors:
            column = np.asarray(data[name])
            if column.dtype.kind not in "iuf":
                terms.append(Fixed(name, std=_CONTRAST, standardise=False))
                continue
            reach = float(np.abs(column - column.mean()).max())
            most = _CONTRAST if np.unique(column).size == 2 else _NUMBERS
            terms.append(Fixed(name, std=most * float(column.std()) / reach))
        return terms


def phases(period: float) -> int:
    """Return the knots of a season."""
    return int(min(_PHASES, max(4, round(period))))


def _regressor(frame: DataColumns, name: str) -> NDArray[Any]:
    """Return a column of numbers, or of labels."""
    at = name if name in frame.names else int(name) if name.isdigit() else name
    if not frame.is_numeric(at) and frame.column(at).dtype.kind != "b":
        return frame.levels(at)
    try:
        return frame.numbers(at)
    except InputError as error:
        raise InputError(
            f"{error}; a regressor is needed at every step, also those to come"
        ) from error


def ahead_of(model: EffectsModel, data: DataRows, scale: Scale) -> Ahead:
    """Return the distributions of observations of a fitted model at the rows of `data`."""
    mixture, offset = model._ahead(data)
    # A rate of 0 is one of e^-700: no formula meets an infinite number.
    moved = np.maximum(mixture.mean + offset, -700.0)
    state = model.state_
    node_likelihoods = [state.likelihood(k) for k in range(state.count)]
    return Ahead(mixture._replace(mean=moved), node_likelihoods, scale)


# --- Hyper-parameters learnt from other series ---------------------------------------------------

# A prior is never narrower than this: a few series cannot know better.
_LEAST = 0.1


@restorable("learnt/1")
@dataclass(frozen=True, eq=False)
class Learnt:
    """Hyper-parameters by their names in `EffectsModel.names_`.

    Attributes
    ----------
    names : tuple of str
    centres : ndarray, shape (p,)
    stds : ndarray, shape (p,), or None
        How far single series are from the centres; None holds them there.
    """

    names: tuple[str, ...]
    centres: Array
    stds: Array | None = None

    def of(self, name: str) -> tuple[float, float | None]:
        """Return centre and standard deviation of one parameter."""
        k = self.names.index(name)
        return float(self.centres[k]), None if self.stds is None else float(self.stds[k])

    def family(
        self, likelihood: Likelihood, bounds: Mapping[str, Bounds]
    ) -> tuple[Likelihood, Mapping[str, Bounds]]:
        """Return the likelihood at the centres, and bounds or "fixed" for its parameters."""
        known = {p: self.of(f"log {p}")[0] for p in bounds if f"log {p}" in self.names}
        values = {p: float(np.exp(v)) for p, v in known.items()}
        centred = likelihood.with_parameters(**values)
        if self.stds is None:
            return centred, dict.fromkeys(bounds, "fixed")
        return centred, bounds


@restorable("held-term/1")
class PooledTerm(Term):
    """A term whose hyper-parameters start at given values, and stay there or near.

    Parameters
    ----------
    term : Term
    centres : ndarray, shape (p,)
    stds : ndarray, shape (p,), or None
    """

    def __init__(self, term: Term, centres: Array, stds: Array | None) -> None:
        self.term, self.centres, self.stds = term, centres, stds

    @classmethod
    def of(cls, term: Term, learnt: Learnt) -> Term:
        """Return a term held by what was learnt of it."""
        if isinstance(term, Fixed):
            return term
        known = [i for i, name in enumerate(learnt.names) if name.startswith(f"{term.name}: ")]
        stds = None if learnt.stds is None else learnt.stds[known]
        return cls(term, learnt.centres[known], stds)

    @property
    def name(self) -> str:
        """Name of the part."""
        return self.term.name

    def bind(self, data: DataColumns, weights: Array | None = None) -> EffectBlock:
        """Return the block of the term with its start, and its bounds or priors, replaced."""
        block = self.term.bind(data, weights)
        block.start = np.clip(self.centres, *block.bounds.T)
        if self.stds is None:
            block.bounds = np.column_stack([block.start, block.start])
            return block
        block.priors = tuple(
            NormalPrior(max(_LEAST, float(s)), float(c))
            for c, s in zip(self.centres, self.stds, strict=True)
        )
        return block
