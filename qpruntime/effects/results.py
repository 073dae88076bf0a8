"""Predictions and summaries of an effects model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, flag, levels, number, shown, whole
from qpruntime._validation import generator as generator_of
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.families import observation_quantiles, trials_of
from qpruntime.effects.state import EffectsState
from qpruntime.errors import CorrectionWarning, InputError, NumericalError, warn
from qpruntime.execution.blas_threads import alone
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.precision.posterior import PrecisionPosterior, Profile
from qpruntime.inference.sites import Sites
from qpruntime.predictive.density import log_density, wide
from qpruntime.predictive.mixtures import FAR_TAIL_VARIANCE, Mixture, warn_of_far_tails

__all__ = [
    "MarginalMixture",
    "Predictions",
    "Table",
    "correct_rates",
    "corrected_effects",
    "profiled_numbers",
    "weighted_quantiles",
]


_USUAL = (0.025, 0.5, 0.975)
#: Rows up to which coefficients are profiled by default.
_FEW = 2000
#: Variance of a log rate above which its mean is not that of a normal density: for a count of 0 it
#: is 10 % off at 1.5, 30 % at 3, and twice as large at 5. With more than `_FEW` rows it is
#: `FAR_TAIL_VARIANCE`.
_WIDE = 1.0
#: Events expected in a short time, as a logarithm.
_SHORT = 20.0
#: Wide rates for which EP runs once more: from 8 to 600, such that their number times that of rows
#: is at most this, which takes a second or two. Evidences are corrected up to 500 rows.
_RATES, _RATES_TIMES_ROWS, _FEW_PAIRED = (8, 600), 120_000, 500


class Predictions:
    """Methods of a fitted `EffectsModel`."""

    state_: EffectsState
    first_row_: dict[Any, NDArray[Any]]
    theta_: Array
    log_evidence_: float
    converged_: bool
    exposure: Any
    offset: Any

    def _fitted(self) -> EffectsState:
        check_is_fitted(self, "state_")
        return self.state_

    @alone
    def summary(self, q: ArrayLike = _USUAL, *, profile: bool | None = None) -> Table:
        """Coefficients in units of their columns, then deviations, ranges and correlations.

        Parameters
        ----------
        q : array-like, shape (Q,)
            Levels of quantiles.
        profile : bool, optional
            Whether coefficients are profiled: their densities follow the corrected evidence as they
            move, and are not normal. By default where there are 2000 rows or fewer, except for
            "gaussian", whose densities are normal; about a hundred iterations of EP for each. The
            intercept of a model with other columns is not.

        Returns
        -------
        Table
            Rows with mean, standard deviation and quantiles; names of deviations are "term: sd".
        """
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        state = self._fitted()
        names: list[str] = []
        values: list[Array] = []
        if state.assembly.blocks[0].name == "fixed":
            labels, rows = state.assembly.blocks[0].readings()
            names += [str(label) for label in labels]
            values.append(_numbers(state.effects(0, rows), at))
            if _wanted(profile, state):
                self._profile(values[0], at)
        nodes = state.nodes
        found: dict[str, list[float]] = {}
        for theta in nodes.draws:
            for name, value in self._natural(theta).items():
                found.setdefault(name, []).append(value)
        for name, each in found.items():
            draws, w = np.array(each), nodes.draw_weights
            mean = float(w @ draws)
            sd = float(np.sqrt(w @ (draws - mean) ** 2))
            names.append(name)
            values.append(np.concatenate([[mean, sd], weighted_quantiles(draws, w, at)])[None])
        return Table(tuple(names), header(at), np.vstack(values))

    def _profile(self, values: Array, q: Array) -> None:
        """Put profiled numbers in the place of EP's where a coefficient is one effect."""
        state = self.state_
        _, rows = state.assembly.blocks[0].readings()
        posterior = state.objective()(self.theta_).posterior
        for r in range(rows.shape[0]):
            own = sparse.csr_array(rows[[r]])
            if np.count_nonzero(own.data) == 1:
                column = int(own.indices[np.flatnonzero(own.data)[0]])
                values[r] = profiled_numbers(posterior, column, state.effects(0, own), q)

    def _natural(self, theta: Array) -> dict[str, float]:
        """Hyper-parameters in users' units, by name."""
        state = self.state_
        own, logs = state.split(theta)
        found = {}
        for block, part in zip(state.assembly.blocks, state.assembly.parts, strict=True):
            for name, value in block.deviations(own[part]).items():
                # The unit of y does not enter ranges and correlations.
                unit = state.family.unit if name.split(" ")[0] == "sd" else 1.0
                found[f"{block.name}: {name}"] = unit * value
        likelihood = state.family.outside(state.family.at(logs))
        for name in state.family.learn:
            found[name] = likelihood.parameters[name]
        return found

    @alone
    def effects(
        self,
        name: str,
        q: ArrayLike = _USUAL,
        *,
        above: float | None = None,
        correction: str | None = None,
    ) -> Table:
        """Effects of one term, a row a level, area, knot or node.

        Parameters
        ----------
        name : str
            Of the term, or one of its columns where no other has it.
        q : array-like, shape (Q,)
        above : float, optional
            Adds a column of probabilities that effects are above this.
        correction : {"fact", "blend", "tilt"}, optional
            Of the densities, which EP has normal: effects of few rows are skew. As of
            `Posterior.marginals`, at every node of the hyper-parameters; for 3000 sites at most.

        Raises
        ------
        InputError
            If there is no such term, or there are too many rows for a correction.
        """
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        state = self._fitted()
        number_of = self._block(name)
        labels, rows = state.assembly.blocks[number_of].readings()
        mixture: Any = state.effects
        if correction is not None:
            choice(correction, "correction", ("fact", "blend", "tilt"))
            mixture = partial(corrected_effects, state, correction=correction)
        mixture = mixture(number_of, rows)
        values, columns = _numbers(mixture, at), header(at)
        if above is not None:
            limit = number(above, "above")
            values = np.column_stack([values, 1.0 - mixture.below(np.full(len(values), limit))])
            columns = (*columns, f"P(>{limit:g})")
        return Table(tuple(map(str, labels.tolist())), columns, values)

    def term(self, name: str) -> Any:
        """Return the block of a term, which has its levels, knots, graph or mesh."""
        return self._fitted().assembly.blocks[self._block(name)]

    def _block(self, name: str) -> int:
        names = [one.name for one in self.state_.assembly.blocks]
        if name in names:
            return names.index(name)
        near = [
            k for k, own in enumerate(names) if f"({name})" in own or own.startswith(f"{name}(")
        ]
        if len(near) != 1:
            raise InputError(f"there is no term {shown(name)}; the model has {', '.join(names)}")
        return near[0]

    def _ahead(self, X: Any) -> tuple[Mixture, Array]:
        """The linear predictor, without and with what offsets and exposures add."""
        state: Any = self._fitted()
        data = DataColumns(X)
        model: Any = self
        offset = model._offset(data) + model._exposed(data, state.family)
        return state.ahead(data, np.zeros(data.rows)), offset

    @alone
    def latent(self, X: Any) -> tuple[Array, Array]:
        """Mean and variance of the linear predictor, each of shape (T,), with its offsets.

        Unknown levels of groups, and times and knots beyond the data, vary as the prior has it.
        """
        mixture, offset = self._ahead(X)
        mean, variance = mixture.moments()
        return mean + offset, variance

    def _predict_once(self) -> tuple[Array, ...]:
        rows = {name: np.repeat(column, 2) for name, column in self.first_row_.items()}
        self.predict(rows)
        return self.latent(rows)

    @alone
    def predict(self, X: Any) -> Array:
        """Expected observation, shape (T,).

        Of labels the probability of the second of ``family_.classes``, of pairs that of a success;
        of counts their mean for the exposure of each row.

        Warns
        -----
        UserWarning
            If the expected count of a row is above the 99 % quantile of its rate.
        CorrectionWarning
            If more log rates have a variance above 4 than a call corrects.
        """
        mixture, offset = self._ahead(X)
        state = self.state_
        pairs = zip(mixture.mean, mixture.variance, strict=True)
        each = [
            state.family.mean(state.likelihood(k), mean + offset, variance)
            for k, (mean, variance) in enumerate(pairs)
        ]
        expected = np.array(each)
        if state.family.kind != "counts":
            return np.asarray(mixture.weights @ expected)
        rows = np.flatnonzero((mixture.variance > _wide_variance(state)).any(axis=0))
        if rows.size:
            some = mixture._replace(mean=mixture.mean[:, rows], variance=mixture.variance[:, rows])
            rates = expected[:, rows]
            correct_rates(state, DataColumns(X).take(rows), offset[rows], some, rates)
            expected[:, rows] = rates
        mean = np.asarray(mixture.weights @ expected)
        _warn_of_tails(mixture, offset, mean)
        return mean

    @alone
    def predict_quantiles(
        self,
        X: Any,
        q: ArrayLike = _USUAL,
        *,
        kind: str = "mean",
        trials: ArrayLike | None = None,
    ) -> Array:
        """Quantiles of the expected observation, or of an observation, shape (T, Q).

        Parameters
        ----------
        X : data frame, mapping of columns or array-like
        q : array-like, shape (Q,)
        kind : {"mean", "latent", "observation"}
            Of what: the expected observation given eta, eta itself, or an observation yet to come,
            the smallest value that is not exceeded with probability q. Of labels that is a class,
            of "binomial" the number of successes.
        trials : array-like of int, shape (T,) or a number, optional
            Of the observations of "binomial", by default 1.

        Raises
        ------
        InputError
            If `trials` are not for this family, or not whole numbers from 0 on.
        """
        choice(kind, "kind", ("mean", "latent", "observation"))
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        mixture, offset = self._ahead(X)
        state = self.state_
        if kind == "observation":
            ahead = mixture._replace(mean=mixture.mean + offset)
            likelihoods = [state.likelihood(k) for k in range(state.count)]
            tried = trials_of(trials, state.family, offset.size)
            return observation_quantiles(ahead, likelihoods, state.family, state.y, at, tried)
        if trials is not None:
            raise InputError('trials are for kind="observation"')
        found = mixture.quantiles(at) + offset[:, None]
        if kind == "latent":
            return found
        # The expected observation rises with eta.
        return state.family.given(found.ravel()).reshape(found.shape)

    def predict_interval(
        self,
        X: Any,
        level: float = 0.9,
        *,
        kind: str = "mean",
        trials: ArrayLike | None = None,
    ) -> Array:
        """Lower and upper ends of central intervals, shape (T, 2); see `predict_quantiles`."""
        return self.predict_quantiles(X, central_levels(level), kind=kind, trials=trials)

    @alone
    def predict_log_density(self, X: Any, y: ArrayLike) -> Array:
        """Log predictive density, or probability, of observations `y`, one a row, shape (T,).

        Hyper-parameters are averaged over, not its logarithms.
        """
        mixture, offset = self._ahead(X)
        state = self.state_
        seen = state.family.encoded(y)
        if len(seen) != mixture.mean.shape[1]:
            rows = mixture.mean.shape[1]
            raise InputError(f"y must have {rows} rows like X, got shape {np.shape(y)}")
        each = []
        for k, (mean, variance) in enumerate(zip(mixture.mean, mixture.variance, strict=True)):
            own, numbers = state.likelihood(k).observing(seen)
            each.append(log_density(own, mean + offset, wide(variance), numbers))
        return logsumexp(np.array(each), axis=0, b=mixture.weights[:, None])

    @alone
    def exceedance(self, X: Any, limit: float) -> Array:
        """Probability that the linear predictor is above a limit, shape (T,)."""
        mixture, offset = self._ahead(X)
        return 1.0 - mixture.below(number(limit, "limit") - offset)

    @alone
    def sample(
        self, count: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, Array]:
        """Draw all effects jointly: by term an array (count, R), in users' units."""
        state = self._fitted()
        drawn = state.draws(generator_of(random_state), whole(count, "count", 1))
        found = {}
        places = state.assembly.places
        for k, (block, place) in enumerate(zip(state.assembly.blocks, places, strict=True)):
            rows = block.readings()[1]
            values = state.family.unit * np.asarray((rows @ drawn[:, place].T).T)
            found[block.name] = values + state.shifts(k, rows)
        return found


def _warn_of_tails(mixture: Mixture, offset: Array, mean: Array) -> None:
    """Warn where an expected count is made by a tail of less than 1 %."""
    rows = np.flatnonzero((mixture.variance > FAR_TAIL_VARIANCE).any(axis=0))
    if not rows.size:
        return
    some = mixture._replace(mean=mixture.mean[:, rows], variance=mixture.variance[:, rows])
    with np.errstate(over="ignore"):
        high = np.exp(some.quantiles(np.array([0.99]))[:, 0] + offset[rows])
    remedy = "give effects smaller prior standard deviations"
    warn_of_far_tails(mean, rows, high, "the distribution of its rate", remedy)


def _wanted(profile: bool | None, state: EffectsState) -> bool:
    if profile is None:
        return state.rows <= _FEW and state.family.likelihood.name != "gaussian"
    return flag(profile, "profile")


def _numbers(mixture: Any, q: Array) -> Array:
    mean, variance = mixture.moments()
    return np.column_stack([mean, np.sqrt(np.maximum(variance, 0.0)), mixture.quantiles(q)])


# --- Tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with a name and numbers.

    Attributes
    ----------
    names : tuple of str
        Of the rows.
    columns : tuple of str
        Of the numbers: "mean", "sd", quantiles as "2.5%".
    values : ndarray, shape (R, columns)

    See Also
    --------
    qpruntime.effects.EffectsModel

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Groups
    >>> data = {"clinic": np.repeat(np.arange(8), 6)}
    >>> y = np.random.default_rng(0).poisson(np.repeat(np.linspace(1.0, 6.0, 8), 6))
    >>> table = EffectsModel([Groups("clinic")], "poisson").fit(data, y).summary()
    >>> table.names, sorted(table["intercept"])[:2]
    (('intercept', 'clinic: sd'), ['2.5%', '50%'])
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    values: Array

    def __getitem__(self, row: str) -> dict[str, float]:
        """Numbers of one row, by column."""
        where = self.names.index(row)
        return dict(zip(self.columns, self.values[where].tolist(), strict=True))

    def __iter__(self) -> Iterator[tuple[str, dict[str, float]]]:
        for name in self.names:
            yield name, self[name]

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> Array:
        """One column, shape (R,)."""
        return self.values[:, self.columns.index(name)]

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Rows by name."""
        return dict(self)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas, which has to be installed."""
        import pandas as pd

        return pd.DataFrame(self.values, index=list(self.names), columns=list(self.columns))

    def __str__(self) -> str:
        width = max([4, *map(len, self.names)])
        head = " " * width + "".join(f"{name:>10}" for name in self.columns)
        lines = [
            f"{name:<{width}}" + "".join(f"{v:>10.4g}" for v in row)
            for name, row in zip(self.names, self.values, strict=True)
        ]
        return "\n".join([head, *lines])

    __repr__ = __str__


def header(q: Sequence[float] | Array) -> tuple[str, ...]:
    """Names of mean, deviation and quantiles."""
    return ("mean", "sd", *(f"{100.0 * float(level):g}%" for level in q))


def weighted_quantiles(values: Array, weights: Array, q: Array) -> Array:
    """Quantiles of weighted draws, between them by straight lines."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    middle = (sums - 0.5 * weights[order]) / sums[-1]
    return np.interp(q, middle, values[order])


# --- Corrected marginals, averaged over hyper-parameters -----------------------------------------


class MarginalMixture(NamedTuple):
    """R mixtures of J densities; as `qpruntime.predictive.mixtures.Mixture`.

    Attributes
    ----------
    parts : tuple of Marginals, length J
        Of R numbers each.
    weights : ndarray, shape (J,)
    """

    parts: tuple[CorrectedMarginals, ...]
    weights: Array

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        mean = np.array([one.mean for one in self.parts])
        variance = np.array([one.variance for one in self.parts])
        centre = self.weights @ mean
        return centre, self.weights @ (variance + (mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,)."""
        return self.weights @ np.array([one.cdf(limit) for one in self.parts])

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (R, Q), by bisection between those of the parts."""
        each = np.array([one.quantile(q).reshape(-1, len(q)) for one in self.parts])
        low, high = each.min(axis=0), each.max(axis=0)
        for _ in range(_HALVINGS if len(self.parts) > 1 else 0):
            middle = 0.5 * (low + high)
            short = np.column_stack([self.below(column) for column in middle.T]) < q
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return 0.5 * (low + high)


def corrected_effects(
    state: EffectsState, block: int, rows: sparse.csr_array, correction: str
) -> MarginalMixture:
    """Sums of one block's effects, shape (R, K of the block), with corrected densities."""
    place = state.assembly.places[block]
    own = sparse.coo_array(rows)
    shape = (rows.shape[0], state.assembly.size)
    A = sparse.csr_array(sparse.coo_array((own.data, (own.row, own.col + place.start)), shape))
    objective = state.objective()
    parts = []
    for theta, sites in zip(state.nodes.theta, state.sites, strict=True):
        posterior = objective.posterior(theta, sites=sites)
        inner = posterior.marginals(A, mean=0.0, correction=correction)
        parts.append(inner.scaled(state.family.unit, state.shifts(block, rows)))
    return MarginalMixture(tuple(parts), state.nodes.weights)


def correct_rates(
    state: EffectsState, data: DataColumns, offset: Array, mixture: Mixture, rates: Array
) -> None:
    """Replace expected counts by normal densities where log rates are wide.

    The mean of e^f under a wide normal is made by its upper tail, which the counts may rule out.
    Here it is the probability of one event in a short time, divided by that time: the evidence of
    the data with one more row that counts 1, over the evidence without.

    Parameters
    ----------
    state : EffectsState
    data : DataColumns
        T rows.
    offset : ndarray, shape (T,)
    mixture : Mixture
        Log rates without offsets.
    rates : ndarray, shape (J, T)
        Expected counts by normal densities, which change.

    Warns
    -----
    CorrectionWarning
        If a call leaves out rates with a variance above 4.
    """
    objective = state.objective()
    thetas = [state.split(theta)[0] for theta in state.nodes.theta]
    designs, unknown = zip(*state.assembly.ahead(data, thetas), strict=True)
    variance = mixture.variance - np.array(unknown)
    cells = np.argwhere(variance > _wide_variance(state))
    # The rates that add most to the mean over nodes come first, in case there are too many.
    share = np.log(state.nodes.weights)[:, None] + mixture.mean + 0.5 * variance
    cells = cells[np.argsort(-share[tuple(cells.T)], kind="stable")]
    level = float(np.log((1.0 + state.y.sum()) / np.exp(state.offset).sum()))
    evidences: dict[int, float] = {}
    logs: dict[tuple[Any, ...], float] = {}
    most = int(np.clip(_RATES_TIMES_ROWS // state.rows, *_RATES))
    left = np.zeros(data.rows, dtype=bool)
    for k, t in cells.tolist():
        row = designs[k][[t]]
        key = (k, row.indices.tobytes(), row.data.tobytes())
        if key not in logs:
            if len(logs) >= most:
                left[t] |= variance[k, t] > FAR_TAIL_VARIANCE
                continue
            # An event is rare in it even at the rate that makes the mean of a normal density.
            far = float(mixture.mean[k, t] + mixture.variance[k, t])
            time = -_SHORT - max(level, far)
            theta, sites = state.nodes.theta[k], Sites(*state.sites[k])
            more = Sites(np.append(sites.tau, 0.0), np.append(sites.nu, 0.0))
            try:
                if k not in evidences:
                    evidences[k] = _evidence(objective.posterior(theta, sites=sites))
                event = objective.with_row(row, 1.0, time).posterior(theta, sites=more)
                logs[key] = _evidence(event) - evidences[k] - time
            except NumericalError:
                logs[key] = np.nan
        with np.errstate(over="ignore"):
            rate = np.exp(logs[key] + offset[t] + 0.5 * unknown[k][t])
        if not np.isnan(rate):
            rates[k, t] = rate
    if left.any():
        warn(
            f"expected counts of {left.sum()} rows are those of a normal log rate with a variance "
            f"above {FAR_TAIL_VARIANCE:g}, whose far tail the counts may rule out: of {state.rows} "
            f"rows a call corrects at most {most} pairs of a row and a node of the "
            "hyper-parameters, the largest first; predict fewer different rows at a time",
            CorrectionWarning,
        )


def _wide_variance(state: EffectsState) -> float:
    return _WIDE if state.rows <= _FEW else FAR_TAIL_VARIANCE


def _evidence(posterior: PrecisionPosterior) -> float:
    """Return the log evidence, corrected where pairs of rows are few."""
    if len(posterior.mean) > _FEW_PAIRED:
        return posterior.log_evidence
    return posterior.corrected_evidence().value


# Levels at which the profile's quantiles are taken, and bisections of the mixture's.
_LEVELS = 401
_HALVINGS = 50


def profiled_numbers(
    posterior: PrecisionPosterior, column: int, mixture: Mixture, q: Array
) -> Array:
    """Mean, standard deviation and quantiles of one coefficient, shape (2 + Q,).

    Parameters
    ----------
    posterior : PrecisionPosterior
        At the mode of the hyper-parameters.
    column : int
        Of the design.
    mixture : Mixture
        The effect (J, 1) at all nodes, in users' units.
    q : ndarray, shape (Q,)
    """
    found: Profile = posterior.coefficient(column)
    latent, variance = posterior.latent()
    own, std = float(latent[column]), float(np.sqrt(variance[column]))
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    z = (found.quantile(levels) - own) / std
    # In users' units, in which an effect may only be of another scale and origin.
    centre = mixture.mean[:, 0]
    each = np.sqrt(mixture.variance[:, 0])
    means = centre + each * (found.mean - own) / std
    mean = float(mixture.weights @ means)
    within = (each * found.std / std) ** 2
    sd = float(np.sqrt(mixture.weights @ (within + (means - mean) ** 2)))
    low = np.full(len(q), (centre + each * z[0]).min())
    high = np.full(len(q), (centre + each * z[-1]).max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = (middle[:, None] - centre) / each
        below = np.interp(at, z, levels, left=0.0, right=1.0) @ mixture.weights
        low, high = np.where(below < q, middle, low), np.where(below < q, high, middle)
    return np.concatenate([[mean, sd], 0.5 * (low + high)])
