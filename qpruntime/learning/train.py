"""Fit one Gaussian process to one encoded target: hyper-parameters, then the final posterior.

All estimators share it. It knows kernels, objectives and restarts, but no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.execution.threads import sized
from qpruntime.inference.problem import check_powers
from qpruntime.inference.sites import Sites
from qpruntime.learning import initialisation
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.hyper_integration.integrate import (
    NOTHING_TO_INTEGRATE,
    integrate_hyperparameters,
)
from qpruntime.learning.initialisation import Start, learns_nothing
from qpruntime.learning.inputs import Data, Slopes
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import INFERENCE_FAILS_MESSAGE, Optimum, optimise
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import Report, evaluation_reports
from qpruntime.learning.solvers import Solver, solvers
from qpruntime.learning.sparse.train import train_sparse
from qpruntime.likelihoods import Likelihood

__all__ = ["Fit", "train"]

# Relative tolerance on the objective of a run with one length-scale per feature, and its maximum
# number of iterations.
_EARLY, _STEPS = 1e-3, 15


@dataclass(frozen=True)
class Fit:
    """One fitted process: its kernel, its posterior, and every optimiser run, best first.

    `likelihood` has the parameters that were learnt, `slopes` those that were seen at last, `nodes`
    the hyper-parameters if these are integrated.
    """

    kernel: Kernel
    likelihood: Likelihood
    posterior: Any
    optima: tuple[Optimum, ...]
    slopes: Slopes | None = None
    nodes: Integrated | None = None

    def moved(self, change: Callable[[Kernel, Any], tuple[Kernel, Any]]) -> Fit:
        """Return the same with another kernel and posterior, at the mode and at all nodes."""
        kernel, posterior = change(self.kernel, self.posterior)
        nodes = None if self.nodes is None else self.nodes.moved(change)
        return replace(self, kernel=kernel, posterior=posterior, nodes=nodes)

    @property
    def optimum(self) -> Optimum | None:
        """The best optimiser run, if there was any."""
        return self.optima[0] if self.optima else None


def _rows(data: Data, begin: Start, settings: Settings, *_: object) -> int:
    # Passes over rows are of threads of our own.
    return len(data.X) if settings.sparse is None else 0


@sized(_rows)
def train(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    solver: Solver | None = None,
) -> Fit:
    """Maximise the objective from the kernel's parameters and from restarts, then infer.

    Parameters
    ----------
    data : Data
    begin : Start
        The kernel, whatever the settings say, and where to begin.
    settings : Settings
    rng : Generator
        For restarts.
    solver : Solver, optional
        The one to use, for observations of linear functionals; by default the data decide.
    """
    kernel, projector = begin.kernel, data.projector
    rows, others = data.joint is None and solver is None, begin.others
    if settings.search.objective == "loo":
        _check_leave_one_out(data)
    search = settings
    if solver is not None:
        # Advice about kernels whose matrix is diagonal is not for values of their own.
        search = replace(settings, kernel=None)
    elif settings.sparse is not None:
        return Fit(*train_sparse(data, begin, settings, rng))
    else:
        check_powers(1.0, data.weights, projector, len(data.y))
        solver_of = solvers(data, kernel, settings)
        solver = solver_of(kernel)
        # Kernels with another solver are skipped, which may be too slow for many rows.
        others = tuple(
            alternative for alternative in others if solver_of(alternative.kernel) is solver
        )
    optima: tuple[Optimum, ...] = ()
    sites: Sites | None = None
    advice: list[str] = []
    learns = bool(settings.optimize and (kernel.n_dims or data.learn))
    # Slopes add observations to those of the rows of X.
    solver.require(len(data.y if rows else data.X), kernel, learns)
    if learns:
        solver.expect(data, kernel)
        starts = begin, others
        begin, kernel, optima, sites, advice = _best(data, starts, settings, search, rng, solver)
        if settings.given and search is not settings:
            advice += initialisation.at_bounds(
                kernel, data.X, optima[0].theta, optima[0].slope, settings.search.objective
            )
        if not optima[0].success:
            advice.append(
                f"the {settings.search.objective} was not maximised: {optima[0].message}; "
                + _remedy(optima[0], data.learn)
            )
        theta = optima[0].theta
        projector = learnt(projector, data.learn, theta)
        kernel = kernel.clone_with_theta(theta[: kernel.n_dims])
    elif search.given and (shape := initialisation.degenerate(kernel, data.X)):
        advice = [initialisation.unrelated(kernel, data.X, shape, "")]
    if (
        optima
        and search is settings
        and not settings.given
        and (blind := learns_nothing(kernel, data.X))
    ):
        advice.append(blind)
    for text in advice:
        warn(text, ConvergenceWarning)
    post = solver.infer(kernel, replace(data, projector=projector), sites)
    nodes = None
    if settings.integrate is not None:
        if not optima:
            raise InputError(NOTHING_TO_INTEGRATE)
        node_rng = rng if settings.seeded else np.random.default_rng(0)
        nodes = integrate_hyperparameters(
            data, begin, settings, node_rng, solver, kernel, optima[0]
        )
    return Fit(kernel, projector.likelihood, post, optima, None, nodes)


def _best(
    data: Data,
    starts: tuple[Start, Sequence[Start]],
    settings: Settings,
    search: Settings,
    rng: np.random.Generator,
    solver: Solver,
) -> tuple[Start, Kernel, tuple[Optimum, ...], Sites | None, list[str]]:
    """Optimise from the first kernel and from the others, and return the best one's results.

    The results are the start, its kernel, all optima from the best on, EP's sites and advice.
    """
    begin, others = starts
    runs = (1 + settings.search.restarts) * (1 + len(others))
    with evaluation_reports(settings.verbose, settings.search.objective, runs) as report:
        optima, sites, advice = optimise(data, begin, search, rng, report, solver)
        # A kernel whose prior the data contradict gives way to the others.
        contradicted = optima[0].log_prior < begin.least_log_prior
        for alternative in others if contradicted else ():
            further, ended, _ = optimise(data, alternative, settings, rng, report, solver)
            if further[0].score > optima[0].score:
                begin, sites, optima = alternative, ended, further + optima
            else:
                optima += further
        kernel = begin.kernel
        if begin.by_feature and optima[0].success:
            kernel, optima, sites = _refine(
                data, begin, settings, rng, report, solver, optima, sites
            )
    return begin, kernel, optima, sites, advice


def _check_leave_one_out(data: Data) -> None:
    """Refuse methods whose leave-one-out density has no gradient, and warn about repeated rows."""
    method, groups = data.projector.method, data.groups
    if method in ("vb", "wp"):
        why = "maximises its bound" if method == "vb" else "has no gradient for it"
        raise InputError(f'method {method!r} {why}; optimize="loo" needs method "ep" or "qp"')
    if groups is not None and groups.repeat:
        copies = len(groups.codes) - groups.count
        warn(
            f'optimize="loo" leaves out single rows, and {copies} of {len(groups.codes)} rows '
            "have a copy in their group, which reveals them: give equal rows once, with "
            'sample_weight, or use "evidence"',
            UserWarning,
        )


def _refine(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    report: Report | None,
    solver: Solver,
    optima: tuple[Optimum, ...],
    sites: Sites | None,
) -> tuple[Kernel, tuple[Optimum, ...], Sites | None]:
    """Give each feature its own length-scale if that raises the objective by more than chance.

    Length-scales without any meaning raise it by half their number, and by more where data are
    few: it has to be more than their number (Akaike), and ten at least. The optimiser ends early,
    for the last digits of the objective are those that overfit.
    """
    further = begin.refined(optima[0].theta)
    least = begin.least_gain
    # Log probabilities, unlike densities, do not rise above zero.
    if data.discrete and -optima[0].value <= least:
        return begin.kernel, optima, sites
    settings = settings.shortened(_EARLY, _STEPS)
    (run, *_), ended, _ = optimise(data, further, settings, rng, report, solver)
    if not run.value - optima[0].value > least:
        return begin.kernel, optima, sites
    # It is meant to end early: where it did is nothing for the user to mend.
    return further.kernel, (replace(run, success=True), *optima), ended


def _remedy(optimum: Optimum, learn: Iterable[str]) -> str:
    """Return what to do about an optimiser that has not succeeded."""
    if optimum.message != INFERENCE_FAILS_MESSAGE:
        return "raise max_iter of optimize=Search(...) or widen the kernel's bounds"
    bounds = f"the bounds of {' and '.join(learn)}" if learn else "the kernel's bounds"
    return f"the best parameters before that are kept; narrow {bounds} to stay clear of it"
