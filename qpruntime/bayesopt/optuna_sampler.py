"""PESC as a sampler of Optuna: floats by predictive entropy search, anything else at random.

Needs Optuna: ``pip install "qpruntime[optuna]"``. Nothing else of the package imports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qpruntime.bayesopt.optimizer import Optimizer
from qpruntime.errors import InputError
from qpruntime.validation import whole

try:
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:  # pragma: no cover
    raise ImportError(
        'this module is a sampler of Optuna: pip install "qpruntime[optuna]"'
    ) from error

__all__ = ["PESCSampler"]

#: Where constraints are kept with a trial, as Optuna's own samplers do.
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
    seed : int
    **options
        Of `Optimizer`: kernel, noise, method, n_samples, hyper.

    Notes
    -----
    Floats are sampled together, those with ``log=True`` by their logarithm; other variables are
    independent and random. Failed and pruned trials are left out, running ones are pending. Studies
    have one objective.
    """

    def __init__(
        self,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        *,
        n_initial: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._constraints_func = constraints_func
        self._n_initial, self._seed, self._options = n_initial, whole(seed, "seed", 0), options
        self._independent = RandomSampler(seed=seed)
        self._space = optuna.search_space.IntersectionSearchSpace()

    def reseed_rng(self) -> None:
        """Draw independent variables anew; the search itself depends on seed and trial alone."""
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Floats that all trials so far have."""
        found = self._space.calculate(study)
        return {
            name: each
            for name, each in found.items()
            if isinstance(each, FloatDistribution) and each.step is None and not each.single()
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
        ends = [
            (
                _log(search_space[n], search_space[n].low),
                _log(search_space[n], search_space[n].high),
            )
            for n in names
        ]
        sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING))
        done = [t for t in trials if t.state == TrialState.COMPLETE]
        counts = {len(t.system_attrs[_KEY]) for t in done if _KEY in t.system_attrs}
        if len(counts) > 1:
            raise InputError(f"trials have {sorted(counts)} constraints: all need the same number")
        constraints = counts.pop() if counts else 0
        opt = Optimizer(
            ends, constraints, n_initial=self._n_initial, random_state=self._seed, **self._options
        )
        for t in trials:
            if t.number == trial.number or not set(names) <= set(t.params):
                continue
            x = np.array([_log(search_space[n], t.params[n]) for n in names])
            x = np.clip(x, opt.low, opt.high)
            if t.state == TrialState.RUNNING:
                opt.expect(x, id=t.number)
                continue
            c = t.system_attrs.get(_KEY)
            f = sign * t.value if math.isfinite(t.value) else math.nan
            opt.tell(x, f=f, c=[-float(v) for v in c] if c else None, id=t.number)
        opt._asked = trial.number
        return {n: _back(search_space[n], float(v)) for n, v in zip(names, opt.ask(), strict=True)}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample what is no float, and floats of the first trial, at random."""
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
            found = [float(v) for v in self._constraints_func(trial)]
            if not all(math.isfinite(v) for v in found):
                raise InputError(f"constraints of trial {trial.number} are {found}, not finite")
            study._storage.set_trial_system_attr(trial._trial_id, _KEY, found)
        self._independent.after_trial(study, trial, state, values)


def _log(distribution: Any, value: float) -> float:
    return math.log(value) if distribution.log else float(value)


def _back(distribution: Any, value: float) -> float:
    value = math.exp(value) if distribution.log else value
    return min(max(value, distribution.low), distribution.high)
