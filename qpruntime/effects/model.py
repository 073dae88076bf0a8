"""The estimator of structured additive predictors over sparse precisions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, clone

from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime._validation import choice, finite, flag, number, shown, whole
from qpruntime.dataframes.readers import DataColumns, DataLike, array_of
from qpruntime.effects.checks import bounds_reached, collapsed, findings, single_rows
from qpruntime.effects.families import ObservationFamily, family_of, offsets_of
from qpruntime.effects.fixed import Fixed, FixedBlock
from qpruntime.effects.groups import GroupsBlock
from qpruntime.effects.integration import Integration, integrate
from qpruntime.effects.leave_one_out import LeftOut
from qpruntime.effects.objective import Assembly, EffectsObjective, ObjectiveValue
from qpruntime.effects.optimise import Mode, curvature, maximise, most_likely, window
from qpruntime.effects.results import Predictions
from qpruntime.effects.state import EffectsState
from qpruntime.effects.term import EffectBlock, Term
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.estimators.process import commit, draft_of
from qpruntime.execution.threads import alone
from qpruntime.inference.fixed_point.convergence import DEFAULT_MAX_SWEEPS, DEFAULT_TOL
from qpruntime.inference.precision.corrections import MOST
from qpruntime.likelihoods import Likelihood
from qpruntime.persistence.file import Savable

__all__ = ["EffectsModel", "fit_from"]

#: Evidences are corrected by default up to so many rows, or so many pairs of rows within groups.
_FEW, _FEW_PAIRS = 2000, 20_000
#: Tolerance of the sites where only a start is wanted.
_NEAR = 1e-4


@restorable("effects-model/1", root=True)
@dataclass(eq=False, repr=False, match_args=False)
class EffectsModel(LeftOut, Predictions, Savable, BaseEstimator):
    """Regression on effects: fixed, of groups, along time, over areas and in the plane, by EP.

    y ~ p(y | eta), eta = offset + the sum of all terms. Deviations, ranges and correlations have
    priors of penalised complexity; they are integrated, on a grid or by a central composite design.

    Parameters
    ----------
    terms : sequence of Term, optional
        `Fixed`, `Groups`, `Walk`, `Autoregressive`, `Areas`, `Plane`, `Product`; by default all
        columns as fixed effects.
    family : str or Likelihood
        "probit", "logistic", "binomial" (pairs of successes and trials), "poisson" and
        "negative-binomial" with log links, "student-t", "laplace", or any likelihood of
        `qpruntime.likelihoods`.
    exposure, offset : str or int, optional
        Column of exposures, which multiply the rate of counts; column that is added to eta.
    intercept : float, bool
        Prior standard deviation of the intercept; True is 100, False leaves it out.
    family_bounds : mapping, optional
        Of the likelihood's parameters: pairs between which they are learnt, or "fixed". By default
        scales are learnt between 1e-4 and 100 spreads of y, and dispersions between 1e6 and .01 or,
        if that is larger, 2/N, so that N zeros still bound a rate.
    integrate : {"auto", "grid", "ccd", "mode"}
        How hyper-parameters are integrated: a grid for three at most, a composite design for eight
        at most, or not. "auto" takes a grid for two, and a design for more and for two whose
        logarithms have posterior standard deviations of 0.3 or less. With two or more, "auto" and
        "ccd" take a lattice for standard deviations that may be 0.
    correction : {"auto", "pairs", None}
        Whether hyper-parameters are weighed by the evidence corrected by pairs of rows, as small
        groups need it; "auto" does so for 2000 rows or fewer, and for more rows if small groups
        have 20 000 pairs of rows or fewer.
    tol, max_sweeps
        Of every EP run; see `qpruntime.infer_precision`.
    max_iterations : int
        Of the search for the mode.
    operations : float
        Of one factorisation at most. A model that takes more is refused before it is fitted; 5e10
        take two to three seconds of one core, and a fit takes thirty to sixty factorisations.
    estimate : {"posterior", "ml"}
        "ml" takes the hyper-parameters of maximum likelihood, at which coefficients are maximised
        too, without priors, and does not integrate them; what is said of effects and coefficients
        is their posterior there.
    standardise : bool
        Whether observations of "gaussian", "student-t", "laplace" and "gamma" are centred and
        brought to unit spread inside, so that a fit does not depend on their unit and origin.
        Limits of deviations in priors of terms and the prior of the intercept are then in spreads
        of y; all that is predicted and reported is in the units of y.

    Attributes
    ----------
    blocks_ : tuple of EffectBlock
        Terms bound to the data of the fit.
    family_ : ObservationFamily
        Likelihood, classes, and what was learnt of it.
    theta_ : ndarray, shape (p,)
        Mode of the hyper-parameters, as `names_` has them; inside, where y has unit spread.
    names_ : tuple of str
    state_ : EffectsState
        Posterior at all nodes of the hyper-parameters.
    log_evidence_ : float
        At the mode.
    converged_ : bool
        Whether the search and the sites have settled.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Where all columns have names.

    See Also
    --------
    qpruntime.infer_precision, qpruntime.forecasting.GPForecaster
    qpruntime.plotting.CaterpillarDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Fixed, Groups
    >>> n = np.arange(120)
    >>> data = {"dose": np.sin(1.7 * n), "clinic": n // 6}
    >>> rate = np.exp(1.0 + 0.5 * data["dose"] + 0.6 * np.cos(2.0 * data["clinic"]))
    >>> y = np.random.default_rng(0).poisson(rate)
    >>> model = EffectsModel([Fixed("dose"), Groups("clinic")], "poisson").fit(data, y)
    >>> round(model.summary()["dose"]["mean"], 1), round(model.summary()["clinic: sd"]["mean"], 1)
    (0.6, 0.5)
    """

    terms: Sequence[Term] | Term | None = None
    family: str | Likelihood = "logistic"
    _: KW_ONLY
    exposure: Hashable = None
    offset: Hashable = None
    intercept: float | bool = True
    family_bounds: Mapping[str, Bounds | None] | None = None
    integrate: Integration = "auto"
    correction: Literal["auto", "pairs"] | None = "auto"
    tol: float = DEFAULT_TOL
    max_sweeps: int = DEFAULT_MAX_SWEEPS
    max_iterations: int = 200
    operations: float = 5e10
    estimate: Literal["posterior", "ml"] = "posterior"
    standardise: bool = True

    @alone
    def fit(self, X: DataLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit hyper-parameters and posterior.

        Parameters
        ----------
        X : data frame, mapping of columns or array-like, shape (N, d)
        y : array-like, shape (N,), or (N, 2) for "binomial"
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods; rows of weight 0 count as absent.

        Raises
        ------
        InputError
            If data, terms or observations are not usable; the message says which and what to do.
        NumericalError
            If double precision does not suffice.

        Warns
        -----
        ConvergenceWarning
            If the search or the sites have not settled.
        UserWarning
            If no level of a group has two rows of labels: its deviation is not identified.
        """
        return fit_from(self, X, y, sample_weight)

    def _rows(
        self, X: DataLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[DataColumns, NDArray[Any], Array, Array | None]:
        """Return data, observations, offsets and weights of the rows that have a weight."""
        data, observed = DataColumns(X), array_of(y, "y")
        if observed.ndim == 0 or len(observed) != data.rows:
            raise InputError(f"y must have {data.rows} rows like X, got shape {observed.shape}")
        weights = None
        if sample_weight is not None:
            weights = finite(sample_weight, "sample_weight", (data.rows,))
            if (weights < 0.0).any():
                raise InputError(f"sample_weight must be at least 0, got {weights.min():g}")
            kept = np.flatnonzero(weights > 0.0)
            if not kept.size:
                raise InputError("no row is left: all have weight 0 or exposure 0")
            if len(kept) < data.rows:
                data, observed, weights = data.take(kept), observed[kept], weights[kept]
        return data, observed, offsets_of(data, self.offset), weights

    def _blocks(self, data: DataColumns, weights: Array | None) -> list[EffectBlock]:
        """Return the blocks of all terms; fixed effects are one."""
        wanted = self._terms()
        if wanted is None:
            used = (self.exposure, self.offset)
            wanted = [Fixed(*(name for name in data.names if name not in used))]
        for term in wanted:
            if not isinstance(term, Term):
                raise InputError(
                    f'terms must be of qpruntime.effects, such as Fixed("dose"), got {shown(term)}'
                )
        fixed = [term for term in wanted if isinstance(term, Fixed)]
        others = [term for term in wanted if not isinstance(term, Fixed)]
        intercept = None
        if self.intercept is not False:
            intercept = (
                100.0 if self.intercept is True else number(self.intercept, "intercept", above=0.0)
            )
        blocks: list[EffectBlock] = []
        if fixed or intercept is not None:
            blocks.append(FixedBlock(fixed, data, intercept, weights))
        blocks += [term.bind(data, weights) for term in others]
        names = [block.name for block in blocks]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"two terms are {shown(name)}: leave one out")
        if not blocks:
            raise InputError("the model has no terms and no intercept")
        return blocks

    def _terms(self) -> Sequence[Term] | None:
        """Return the terms as a sequence, None if they follow from the data."""
        return [self.terms] if isinstance(self.terms, Term) else self.terms

    def _start(
        self,
        objective: EffectsObjective,
        data: DataColumns,
        y: NDArray[Any],
        weights: Array | None,
    ) -> None:
        """Let the search begin at the mode of a window of rows, where a field is large."""
        wanted = self._terms()
        part = None if wanted is None else window(wanted, objective.assembly.blocks, data)
        if part is None:
            return
        small = clone(self).set_params(
            terms=part.terms, integrate="mode", correction=None, tol=max(self.tol, _NEAR)
        )
        columns = data.take(part.rows)
        part_weights = None if weights is None else weights[part.rows]
        with warnings.catch_warnings(action="ignore"):
            try:
                state: EffectsState = small.fit(columns, y[part.rows], part_weights).state_
                units = np.log(state.family.unit / objective.family.unit)
                inner = state.objective()
                H = curvature(inner, inner(small.theta_)) * (data.rows / len(part.rows))
            except (InputError, NumericalError):  # the rows of a window need not have all levels
                return
        if len(H) == objective.size:
            # Deviations of the window are in units of its own observations.
            moved = small.theta_ + np.where(objective.scaled, units, 0.0)
            objective.start = np.clip(moved, *objective.bounds.T)
            if np.linalg.eigvalsh(H + H.T)[0] > 2.0:
                objective.curvature = 0.5 * (H + H.T)

    def _search(self) -> tuple[Callable[..., Mode], str]:
        """Return the function that finds the hyper-parameters, and how they are integrated."""
        if choice(self.estimate, "estimate", ("posterior", "ml")) == "posterior":
            return maximise, self.integrate
        if self.integrate not in ("auto", "mode"):
            raise InputError(
                f'estimate="ml" integrates no hyper-parameters: leave out integrate='
                f"{shown(self.integrate)}"
            )
        return most_likely, "mode"

    def _corrects(self, assembly: Assembly, A: sparse.csr_array) -> bool:
        """Decide whether weights of hyper-parameters follow the corrected evidence."""
        if self.correction is None:
            return False
        choice(self.correction, "correction", ("auto", "pairs"))
        if self.correction == "pairs" or A.shape[0] <= _FEW:
            return True
        rows = np.bincount(A.indices, minlength=A.shape[1])
        pairs = np.where(rows <= MOST, rows * (rows - 1) // 2, 0)
        grouped = np.zeros(A.shape[1], dtype=bool)
        for block, place in zip(assembly.blocks, assembly.places, strict=True):
            grouped[place] = isinstance(block, GroupsBlock)
        # Rows of one field are correlated without a level in common: such pairs are not enough.
        return not pairs[~grouped].any() and 0 < pairs.sum() <= _FEW_PAIRS

    @alone
    def check(self) -> tuple[str, ...]:
        """Say in plain words what is known to be off, and what to do.

        Returns
        -------
        tuple of str
            Sentences; none if there is nothing to say.
        """
        state: EffectsState = self._fitted()
        objective = state.objective()
        mode = objective(self.theta_)
        said = findings(objective, mode) + bounds_reached(objective, mode)
        if not self.converged_:
            said.insert(0, "the fit has not settled: raise max_iterations or max_sweeps")
        for name, gain in collapsed(objective, mode):
            said.append(
                f"the data do not ask for {name}: the log evidence is {gain:.2f} above that of a "
                "deviation of 0; its prior decides how large it is"
            )
        return tuple(said)


Model = TypeVar("Model", bound=EffectsModel)


def fit_from(
    model: Model,
    X: DataLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    begin: Mapping[str, float] | None = None,
    gain: float | None = None,
    towards_zero: bool = True,
) -> Model:
    """Fit a model, beginning at the hyper-parameters named, until a step gains less than `gain`.

    Deviations near zero are integrated as all others are if `towards_zero` is false.
    """
    draft = draft_of(model)
    whole(model.max_sweeps, "max_sweeps", 1)
    data, observed, offset, weights = model._rows(X, y, sample_weight)
    known = model.offset is None or np.isfinite(offset)
    family, outcomes = family_of(
        model.family, observed, model.family_bounds, offset=np.where(known, offset, 0.0),
        centred=model.intercept is not False, standardise=flag(model.standardise, "standardise"),
        weights=weights,
    )  # fmt: skip
    offset = offset / family.unit + family.shift(data, model.exposure)
    kept = np.flatnonzero(_possible(offset, outcomes, family))
    if len(kept) < data.rows:
        if not kept.size:
            raise InputError("no row is left: all have weight 0 or exposure 0")
        data, observed, outcomes, offset = (
            data.take(kept),
            observed[kept],
            outcomes[kept],
            offset[kept],
        )
        weights = None if weights is None else weights[kept]
    # Scales, knots, meshes and levels come from rows that count.
    assembly = Assembly(model._blocks(data, weights))
    A = assembly.columns(data)
    most = number(model.operations, "operations", above=0.0)
    limits = number(model.tol, "tol", above=0.0), model.max_sweeps, most
    objective = EffectsObjective(assembly, A, outcomes, offset, weights, family, *limits)
    model._start(objective, data, observed, weights)
    if gain is not None:
        objective.gain = gain
    if begin:
        start = [begin.get(*pair) for pair in zip(objective.names, objective.start, strict=True)]
        objective.start = np.clip(start, *objective.bounds.T)
    steps = whole(model.max_iterations, "max_iterations", 1)
    find, how = model._search()
    mode = find(objective, max_iterations=steps)
    value = _corrected if model._corrects(assembly, A) else _plain
    nodes, evaluations = integrate(objective, mode, how, value, towards_zero)
    draft.blocks_, draft.family_ = tuple(assembly.blocks), family
    draft.theta_ = mode.evaluation.theta
    draft.names_ = objective.names
    draft.state_ = EffectsState(objective, nodes, evaluations)
    count = len(outcomes) if weights is None else float(weights.sum())
    draft.log_evidence_ = float(mode.evaluation.evidence) - count * family.log_unit
    draft.converged_ = mode.converged and mode.evaluation.posterior.converged
    draft.n_iter_ = max(1, mode.iterations)
    draft.n_features_in_ = len(data.names)
    draft.first_row_ = data.first_row()
    if all(isinstance(name, str) for name in data.names):
        draft.feature_names_in_ = np.array(data.names, dtype=object)
    _complain(draft, assembly, A, mode, objective)
    return commit(model, draft)


def _plain(one: ObjectiveValue) -> float:
    return one.value


def _corrected(one: ObjectiveValue) -> float:
    return one.posterior.corrected_evidence().value + one.log_prior


def _possible(offset: Array, y: Array, family: ObservationFamily) -> NDArray[np.bool_]:
    """Decide which rows can be: a rate of 0 has no counts, and says nothing."""
    none = np.isneginf(offset)
    if none.any():
        if family.kind != "counts":
            raise InputError(f"offset is -inf in row {int(np.argmax(none))}: it must be finite")
        wrong = none & (y > 0.0)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise InputError(
                f"row {i} has exposure 0, or offset -inf, and {y[i]:g} counts, which cannot be: "
                "leave the row out or mend its exposure"
            )
    return ~none


def _complain(
    model: EffectsModel,
    assembly: Assembly,
    A: sparse.csr_array,
    mode: Mode,
    objective: EffectsObjective,
) -> None:
    """Warn about what is known to be off after a fit."""
    for sentence in bounds_reached(objective, mode.evaluation, upper=True):
        warn(sentence, UserWarning)
    if not model.converged_:
        warn(
            f"the fit has not settled after {mode.iterations} iterations ({mode.message}): raise "
            "max_iterations or max_sweeps, and see check()",
            ConvergenceWarning,
        )
    columns = sparse.csc_array(A)
    for block, place in zip(assembly.blocks, assembly.places, strict=True):
        if single_rows(block, columns[:, place], model.family_):
            warn(
                f"no level of {block.name} has two rows: its standard deviation is not identified "
                "by labels, and its prior decides; leave the term out",
                UserWarning,
            )
