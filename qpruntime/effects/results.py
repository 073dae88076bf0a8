"""Predictions and summaries of an effects model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import (
    central_levels,
    choice,
    flag,
    generator as generator_of,
    levels,
    number,
    shown,
    whole,
)
from qpruntime.dataframes.readers import DataColumns, DataLike
from qpruntime.effects.families import observation_quantiles, offsets_of, trials_of
from qpruntime.effects.state import EffectsState
from qpruntime.effects.term import EffectBlock
from qpruntime.effects.wide_rates import (
    FEW_ROWS,
    PredictorPart,
    correct_rates,
    parts_by_width,
    wide_variance,
)
from qpruntime.errors import InputError
from qpruntime.execution.threads import alone
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.profile import Profile, profile, profiles_unless_normal
from qpruntime.predictive.density import mixture_log_density
from qpruntime.predictive.mixtures import Mixture, warn_of_far_tails

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MarginalMixture",
    "Predictions",
    "SummaryTable",
    "corrected_effects",
    "profiled_numbers",
    "weighted_quantiles",
]


_USUAL = (0.025, 0.5, 0.975)


class Predictions:
    """Methods of a fitted `EffectsModel`."""

    state_: EffectsState
    first_row_: dict[Any, NDArray[Any]]
    theta_: Array
    log_evidence_: float
    converged_: bool
    exposure: Hashable
    offset: Hashable

    def _fitted(self) -> EffectsState:
        check_is_fitted(self, "state_")
        return self.state_

    @alone
    def summary(self, q: ArrayLike = _USUAL, *, profile: bool | None = None) -> SummaryTable:
        """Coefficients in units of their columns, then deviations, ranges and correlations.

        Parameters
        ----------
        q : array-like, shape (Q,)
            Levels of quantiles.
        profile : bool, optional
            Whether coefficients are profiled: their densities follow the corrected evidence as they
            move, and are not normal. It takes about a hundred iterations of EP for each. By default
            those are profiled whose quantiles would move by more than 0.045 standard deviations,
            up to 2000 rows. The intercept of a model with other columns is not.

        Returns
        -------
        SummaryTable
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
                self._profile(values[0], at, every=bool(profile))
        nodes = state.nodes
        w = nodes.draw_weights
        for name, draws in self._natural(nodes.draws.T).items():
            mean = float(w @ draws)
            sd = float(np.sqrt(w @ (draws - mean) ** 2))
            names.append(name)
            values.append(np.concatenate([[mean, sd], weighted_quantiles(draws, w, at)])[None])
        return SummaryTable(tuple(names), header(at), np.vstack(values))

    def _profile(self, values: Array, q: Array, every: bool) -> None:
        """Put profiled numbers in the place of EP's where a coefficient is one effect.

        Effects whose density is close to a normal keep EP's numbers unless `every` is True.
        """
        state = self.state_
        _, rows = state.assembly.blocks[0].readings()
        solution = solution_of(state.objective()(self.theta_).posterior)
        latent, variance = solution.latent()
        effects = sparse.csr_array(rows)
        effects.eliminate_zeros()
        alone_in_row = np.flatnonzero(np.diff(effects.indptr) == 1)
        columns = effects.indices[effects.indptr[alone_in_row]]
        if every:
            densities: list[Profile | None] = [profile(solution, int(k)) for k in columns]
        else:
            densities = profiles_unless_normal(solution, columns)
        for r, column, density in zip(alone_in_row, columns, densities, strict=True):
            if density is not None:
                normal = (float(latent[column]), float(np.sqrt(variance[column])))
                values[r] = profiled_numbers(density, normal, state.effects(0, rows[[r]]), q)

    def _natural(self, theta: Array) -> dict[str, Array]:
        """Hyper-parameters (p, D) in users' units, by name."""
        state = self.state_
        block_theta, logs = state.split(theta)
        deviations: dict[str, Array] = {}
        for block, part in zip(state.assembly.blocks, state.assembly.parts, strict=True):
            for name, value in block.deviations(block_theta[part]).items():
                # The unit of y does not enter ranges and correlations.
                unit = state.family.unit if name.split(" ")[0] == "sd" else 1.0
                deviations[f"{block.name}: {name}"] = unit * value
        for name, log in zip(state.family.learn, logs, strict=True):
            deviations[name] = (state.family.unit if name == "scale" else 1.0) * np.exp(log)
        return deviations

    @alone
    def effects(
        self,
        name: str,
        q: ArrayLike = _USUAL,
        *,
        above: float | None = None,
        correction: str | None = None,
    ) -> SummaryTable:
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
        mixture: Mixture | MarginalMixture
        if correction is None:
            mixture = state.effects(number_of, rows)
        else:
            choice(correction, "correction", ("fact", "blend", "tilt"))
            mixture = corrected_effects(state, number_of, rows, correction)
        values, columns = _numbers(mixture, at), header(at)
        if above is not None:
            limit = number(above, "above")
            values = np.column_stack([values, 1.0 - mixture.below(np.full(len(values), limit))])
            columns = (*columns, f"P(>{limit:g})")
        return SummaryTable(tuple(map(str, labels.tolist())), columns, values)

    def term(self, name: str) -> EffectBlock:
        """Return the block of a term, which has its levels, knots, graph or mesh."""
        return self._fitted().assembly.blocks[self._block(name)]

    def _block(self, name: str) -> int:
        names = [block.name for block in self.state_.assembly.blocks]
        if name in names:
            return names.index(name)
        near = [
            k
            for k, block_name in enumerate(names)
            if f"({name})" in block_name or block_name.startswith(f"{name}(")
        ]
        if len(near) != 1:
            raise InputError(f"there is no term {shown(name)}; the model has {', '.join(names)}")
        return near[0]

    def _ahead(self, X: DataLike) -> tuple[Mixture, Array]:
        """Return the linear predictor, and what offsets and exposures add to it."""
        state, data = self._fitted(), DataColumns(X)
        offset = offsets_of(data, self.offset) + state.family.shift(data, self.exposure)
        return state.ahead(data, np.zeros(data.rows)), offset

    def _parts(self, X: DataLike) -> tuple[tuple[PredictorPart, ...], Array]:
        """Return the linear predictor with densities of wide log rates, and the offsets."""
        mixture, offset = self._ahead(X)
        return parts_by_width(self.state_, DataColumns(X), mixture), offset

    @alone
    def latent(self, X: DataLike) -> tuple[Array, Array]:
        """Mean and variance of the linear predictor, each of shape (T,), with its offsets.

        Unknown levels of groups, and times and knots beyond the data, vary as the prior has it.
        """
        parts, offset = self._parts(X)
        mean, variance = _by_rows(parts, lambda part: np.column_stack(part.mixture.moments())).T
        return mean + offset, variance

    def _predict_once(self) -> tuple[Array, ...]:
        rows = {name: np.repeat(column, 2) for name, column in self.first_row_.items()}
        self.predict(rows)
        return self.latent(rows)

    @alone
    def predict(self, X: DataLike) -> Array:
        """Predict expected observations, shape (T,).

        This is the probability of the second of ``family_.classes`` for labels, that of a success
        for pairs, and the mean at the exposure of each row for counts.

        Warns
        -----
        UserWarning
            If the expected count of a row is above the 99 % quantile of its rate.
        CorrectionWarning
            If more normal log rates have a variance above 4 than a call corrects.
        """
        mixture, offset = self._ahead(X)
        state, data = self.state_, DataColumns(X)
        parts = parts_by_width(state, data, mixture)

        def expected_at_nodes(part: PredictorPart) -> Array:
            normals = zip(part.nodes, part.mixture.mean, part.mixture.variance, strict=True)
            rates = [
                state.family.mean(state.likelihood(k), mean + offset[part.rows], variance)
                for k, mean, variance in normals
            ]
            return part.expected(np.array(rates), offset[part.rows], state.count).T

        expected = _by_rows(parts, expected_at_nodes).T
        if state.family.kind != "counts":
            return np.asarray(mixture.weights @ expected)
        weights = np.broadcast_to(mixture.weights[:, None], expected.shape)
        rows = np.flatnonzero((mixture.variance > wide_variance(state)).any(axis=0))
        if rows.size:
            rates = expected[:, rows]
            shaped = [part.rows for part in parts if part.tops is not None]
            is_normal = ~np.isin(rows, shaped)
            correct_rates(state, data.take(rows), offset[rows], mixture.at(rows), rates, is_normal)
            # Nodes without a corrected rate are left out, unless there are no others.
            settled = ~np.isnan(rates)
            counts = settled | ~settled.any(axis=0)
            rates = np.where(settled, rates, expected[:, rows])
            expected[:, rows] = np.where(counts, rates, 0.0)
            weights = weights.copy()
            weights[:, rows] *= counts
        mean: Array = (weights * expected).sum(axis=0) / weights.sum(axis=0)
        for part in parts:
            _warn_of_tails(part, offset, mean)
        return mean

    @alone
    def predict_quantiles(
        self,
        X: DataLike,
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
            The quantity: the expected observation given eta, eta itself, or an observation yet to
            come, the smallest value that is not exceeded with probability q. That is a class for
            labels, and the number of successes for "binomial".
        trials : array-like of int, shape (T,) or a number, optional
            Trials of the observations of "binomial", by default 1.

        Raises
        ------
        InputError
            If `trials` are not for this family, or not whole numbers from 0 on.
        """
        choice(kind, "kind", ("mean", "latent", "observation"))
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        parts, offset = self._parts(X)
        state = self.state_
        if kind == "observation":
            counts = trials_of(trials, state.family, offset.size)

            def quantiles_of_part(part: PredictorPart) -> NDArray[Any]:
                mean = part.mixture.mean + offset[part.rows]
                return observation_quantiles(
                    part.mixture._replace(mean=mean),
                    [state.likelihood(k) for k in part.nodes],
                    state.family,
                    state.y,
                    at,
                    None if counts is None else counts[part.rows],
                )

            return _by_rows(parts, quantiles_of_part)
        if trials is not None:
            raise InputError('trials are for kind="observation"')
        quantiles = _by_rows(parts, lambda part: part.mixture.quantiles(at)) + offset[:, None]
        if kind == "latent":
            return quantiles
        # The expected observation rises with eta.
        return state.family.given(quantiles.ravel()).reshape(quantiles.shape)

    def predict_interval(
        self,
        X: DataLike,
        level: float = 0.9,
        *,
        kind: str = "mean",
        trials: ArrayLike | None = None,
    ) -> Array:
        """Lower and upper ends of central intervals, shape (T, 2); see `predict_quantiles`."""
        return self.predict_quantiles(X, central_levels(level), kind=kind, trials=trials)

    @alone
    def predict_log_density(self, X: DataLike, y: ArrayLike) -> Array:
        """Log predictive density, or probability, of observations `y`, one a row, shape (T,).

        Hyper-parameters are averaged over, not its logarithms.
        """
        parts, offset = self._parts(X)
        state = self.state_
        outcomes = state.family.encoded(y)
        if len(outcomes) != offset.size:
            raise InputError(f"y must have {offset.size} rows like X, got shape {np.shape(y)}")

        def log_density_of(part: PredictorPart) -> Array:
            mixture = part.mixture._replace(mean=part.mixture.mean + offset[part.rows])
            likelihoods = [state.likelihood(k) for k in part.nodes]
            return mixture_log_density(likelihoods, mixture, outcomes[part.rows])

        return _by_rows(parts, log_density_of)

    @alone
    def exceedance(self, X: DataLike, limit: float) -> Array:
        """Probability that the linear predictor is above a limit, shape (T,)."""
        parts, offset = self._parts(X)
        height = number(limit, "limit")
        return _by_rows(parts, lambda part: 1.0 - part.mixture.below(height - offset[part.rows]))

    @alone
    def sample(
        self, count: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, Array]:
        """Draw all effects jointly: by term an array (count, R), in users' units."""
        state = self._fitted()
        effects = state.draws(generator_of(random_state), whole(count, "count", 1))
        samples = {}
        places = state.assembly.places
        for k, (block, place) in enumerate(zip(state.assembly.blocks, places, strict=True)):
            rows = block.readings()[1]
            values = state.family.unit * np.asarray((rows @ effects[:, place].T).T)
            samples[block.name] = values + state.shifts(k, rows)
        return samples


def _by_rows(
    parts: Sequence[PredictorPart], answer: Callable[[PredictorPart], NDArray[Any]]
) -> NDArray[Any]:
    """Return what is computed for each part, of its rows along the first axis, in their order."""
    if len(parts) == 1:
        return answer(parts[0])
    rows = np.concatenate([part.rows for part in parts])
    return np.concatenate([answer(part) for part in parts])[np.argsort(rows)]


def _warn_of_tails(part: PredictorPart, offset: Array, mean: Array) -> None:
    """Warn where an expected count is made by a tail of less than 1 %."""

    def high(wide: NDArray[np.intp]) -> Array:
        with np.errstate(over="ignore"):
            log_rates = part.mixture.at(wide).quantiles(np.array([0.99]))[:, 0]
            return np.asarray(np.exp(log_rates + offset[part.rows[wide]]))

    remedy = "give effects smaller prior standard deviations"
    warn_of_far_tails(mean, part.mixture, high, "the distribution of its rate", remedy, part.rows)


def _wanted(profile: bool | None, state: EffectsState) -> bool:
    if profile is None:
        return state.rows <= FEW_ROWS and state.family.likelihood.name != "gaussian"
    return flag(profile, "profile")


def _numbers(mixture: Mixture | MarginalMixture, q: Array) -> Array:
    """Return means, standard deviations and quantiles of R numbers, shape (R, 2 + Q)."""
    mean, variance = mixture.moments()
    return np.column_stack([mean, np.sqrt(np.maximum(variance, 0.0)), mixture.quantiles(q)])


# --- Tables --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SummaryTable:
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

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a data frame of pandas, which has to be installed."""
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
    parts : tuple of CorrectedMarginals, length J
        Of R numbers each.
    weights : ndarray, shape (J,)
    """

    parts: tuple[CorrectedMarginals, ...]
    weights: Array

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        mean = np.array([part.mean for part in self.parts])
        variance = np.array([part.variance for part in self.parts])
        centre = self.weights @ mean
        return centre, self.weights @ (variance + (mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,)."""
        return np.asarray(self.weights @ np.array([part.cdf(limit) for part in self.parts]))

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (R, Q), by bisection between those of the parts."""
        part_quantiles = np.array([part.quantile(q).reshape(-1, len(q)) for part in self.parts])
        low, high = part_quantiles.min(axis=0), part_quantiles.max(axis=0)
        for _ in range(_HALVINGS if len(self.parts) > 1 else 0):
            middle = 0.5 * (low + high)
            short = np.column_stack([self.below(column) for column in middle.T]) < q
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return np.asarray(0.5 * (low + high))


def corrected_effects(
    state: EffectsState, block: int, rows: sparse.csr_array, correction: str
) -> MarginalMixture:
    """Return sums of one block's effects, rows (R, K) of it, with corrected densities."""
    A, objective = state.design_of(block, rows), state.objective()
    parts = []
    for theta, sites in zip(state.nodes.theta, state.sites, strict=True):
        posterior = objective.posterior(theta, sites=sites)
        inner = posterior.marginals(A, mean=0.0, correction=correction)
        parts.append(inner.scaled(state.family.unit, state.shifts(block, rows)))
    return MarginalMixture(tuple(parts), state.nodes.weights)


# Levels at which the profile's quantiles are taken, and bisections of the mixture's.
_LEVELS = 401
_HALVINGS = 50


def profiled_numbers(
    density: Profile, normal: tuple[float, float], mixture: Mixture, q: Array
) -> Array:
    """Mean, standard deviation and quantiles of one coefficient, shape (2 + Q,).

    Parameters
    ----------
    density : Profile
        Density at the mode of the hyper-parameters.
    normal : tuple of float
        Mean and standard deviation of EP's density there.
    mixture : Mixture
        The effect (J, 1) at all nodes, in users' units.
    q : ndarray, shape (Q,)
    """
    mode, std = normal
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    z = (density.quantile(levels) - mode) / std
    # Convert to users' units, which may only change the scale and origin of an effect.
    centre = mixture.mean[:, 0]
    spreads = np.sqrt(mixture.variance[:, 0])
    means = centre + spreads * (density.mean - mode) / std
    mean = float(mixture.weights @ means)
    within = (spreads * density.std / std) ** 2
    sd = float(np.sqrt(mixture.weights @ (within + (means - mean) ** 2)))
    low = np.full(len(q), (centre + spreads * z[0]).min())
    high = np.full(len(q), (centre + spreads * z[-1]).max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = (middle[:, None] - centre) / spreads
        below = np.interp(at, z, levels, left=0.0, right=1.0) @ mixture.weights
        low, high = np.where(below < q, middle, low), np.where(below < q, high, middle)
    return np.concatenate([[mean, sd], 0.5 * (low + high)])
