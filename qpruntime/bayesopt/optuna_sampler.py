"""PESC as a sampler of Optuna: all variables that every trial has, by predictive entropy search.

Needs Optuna, the extra ``optuna``. Nothing else of the package imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from qpruntime._formatting import install_hint
from qpruntime._validation import whole
from qpruntime.bayesopt.optimizer import Optimizer
from qpruntime.bayesopt.space import Category, Integer, Real
from qpruntime.errors import InputError

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:  # pragma: no cover
    raise ImportError(f"this module is a sampler of Optuna: {install_hint('optuna')}") from error

if TYPE_CHECKING:
    from optuna.distributions import IntDistribution

    #: Distributions of numbers, and all that studies have.
    Counted: TypeAlias = FloatDistribution | IntDistribution
    Suggested: TypeAlias = CategoricalDistribution | Counted

__all__ = ["PESCSampler"]

#: Key of a trial's system attribute that holds constraints, as in Optuna's own samplers.
_KEY = "constraints"


class PESCSampler(BaseSampler):
    """Constrained predictive entropy search for ``optuna.create_study(sampler=...)``.

    Parameters
    ----------
    constraints_func : callable, optional
        ``constraints_func(trial) -> sequence of float``, feasible at 0 and **below**, as Optuna
        has it (`Optimizer` has it the other way round).
    n_initial : int, optional
        Trials of the Sobol design that comes first.
    random_state : int
    **options
        Of `Optimizer`: kernel, noise, method, n_samples, hyper.

    See Also
    --------
    qpruntime.bayesopt.Optimizer

    Notes
    -----
    Variables that all trials have are sampled together, those with ``log=True`` by their logarithm;
    others are independent and random. Running trials are pending. Failed and pruned ones make a
    constraint of success. Studies have one objective.

    Examples
    --------
    >>> import optuna
    >>> from qpruntime.bayesopt.optuna_sampler import PESCSampler
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study(sampler=PESCSampler(n_initial=4, random_state=0))
    >>> study.optimize(lambda trial: trial.suggest_float("x", -1.0, 1.0) ** 2, n_trials=6)
    >>> len(study.trials), study.best_value < 0.1
    (6, True)
    """

    def __init__(
        self,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        *,
        n_initial: int | None = None,
        random_state: int = 0,
        **options: Any,
    ) -> None:
        self._constraints_func = constraints_func
        self._n_initial, self._options = n_initial, options
        self._seed = whole(random_state, "random_state", 0)
        self._independent = RandomSampler(seed=self._seed)
        self._space = optuna.search_space.IntersectionSearchSpace()

    def reseed_rng(self) -> None:
        """Draw independent variables anew; the search itself depends on seed and trial alone."""
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Variables that all trials so far have."""
        space = self._space.calculate(study)
        return {
            name: distribution for name, distribution in space.items() if not distribution.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Ask an optimiser that is told all trials."""
        if not search_space:
            return {}
        if len(study.directions) > 1:
            raise InputError("PESCSampler minimises one objective, the study has several")
        names = sorted(search_space)
        # A name may be that of a result, "f" say.
        variables = {f"x {n}": _variable(search_space[n]) for n in names}
        maximise = study.direction == optuna.study.StudyDirection.MAXIMIZE
        states = (TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL, TrialState.PRUNED)
        trials = study.get_trials(deepcopy=False, states=states)
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        counts = {len(t.system_attrs[_KEY]) for t in done if _KEY in t.system_attrs}
        if len(counts) > 1:
            raise InputError(f"trials have {sorted(counts)} constraints: all need the same number")
        constraints = counts.pop() if counts else 0
        opt = Optimizer(
            constraints=constraints,
            n_initial=self._n_initial,
            random_state=self._seed,
            space=variables,
            maximise=maximise,
            **self._options,
        )
        for t in trials:
            if t.number == trial.number or not set(names) <= set(t.params):
                continue
            x = {f"x {n}": _kept(search_space[n], t.params[n]) for n in names}
            c = t.system_attrs.get(_KEY)
            if c is not None or t.state != TrialState.COMPLETE:
                opt.expect(x, id=t.number)
            if t.state == TrialState.COMPLETE:
                f = t.value if t.value is not None and math.isfinite(t.value) else math.nan
                opt.tell(x, f=f, c=[-float(v) for v in c] if c else None, id=t.number)
            elif t.state != TrialState.RUNNING:
                opt.tell(x, id=t.number)
        opt._asked = trial.number
        proposal = opt.ask()
        return {n: _back(search_space[n], proposal[f"x {n}"]) for n in names}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> object:
        """Sample what not all trials have, and everything of the first trial, at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Keep a trial's constraints with it."""
        if self._constraints_func is not None and state == TrialState.COMPLETE:
            constraints = [float(v) for v in self._constraints_func(trial)]
            if not all(math.isfinite(v) for v in constraints):
                raise InputError(
                    f"constraints of trial {trial.number} are {constraints}, not finite"
                )
            study._storage.set_trial_system_attr(trial._trial_id, _KEY, constraints)
        self._independent.after_trial(study, trial, state, values)


def _step(distribution: Counted) -> float | None:
    """Return the step by which values are counted, if they are."""
    counted = isinstance(distribution, FloatDistribution) or distribution.step > 1
    return distribution.step if counted and not distribution.log else None


def _variable(distribution: Suggested) -> Real | Integer | Category:
    """Return the variable of a distribution; choices, and values with a step, are counted."""
    if isinstance(distribution, CategoricalDistribution):
        return Category(range(len(distribution.choices)))
    step = _step(distribution)
    if step is not None:
        return Integer(0, round((distribution.high - distribution.low) / step))
    kind = Real if isinstance(distribution, FloatDistribution) else Integer
    return kind(distribution.low, distribution.high, distribution.log)


def _kept(distribution: Suggested, value: Any) -> float | int:
    """Return a parameter of a trial as a value of `_variable`."""
    if isinstance(distribution, CategoricalDistribution):
        return int(distribution.to_internal_repr(value))
    step, variable = _step(distribution), _variable(distribution)
    if step is not None:
        value = round((value - distribution.low) / step)
    return cast("float | int", min(max(value, variable.low), variable.high))


def _back(distribution: Suggested, value: float) -> object:
    """Return the parameter of a trial for a value of `_variable`."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[value]
    step = _step(distribution)
    if step is not None:
        value = distribution.low + value * step
    return min(max(value, distribution.low), distribution.high)
