"""The mode of the hyper-parameters: L-BFGS-B on log evidence and log prior."""

from __future__ import annotations

from typing import NamedTuple

from qpruntime.arrays import Array
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.effects.scales import curvatures
from qpruntime.effects.search import climb
from qpruntime.errors import NumericalError

__all__ = ["Mode", "maximise"]


class Mode(NamedTuple):
    """Where the search ended.

    Attributes
    ----------
    evaluation : Evaluation
        The best one.
    iterations : int
    converged : bool
    message : str
        The optimiser's own.
    """

    evaluation: Evaluation
    iterations: int
    converged: bool
    message: str


def maximise(objective: Objective, prior: bool = True, max_iterations: int = 200) -> Mode:
    """Return the mode; without `prior` that of the evidence alone."""

    def of(one: Evaluation) -> tuple[float, Array]:
        if prior:
            return one.value, one.slope
        return one.evidence, one.evidence_slope

    if not objective.size or (objective.bounds[:, 0] == objective.bounds[:, 1]).all():
        return Mode(objective(objective.start), 0, True, "there is nothing to learn")
    first = objective.loosely(objective.start)
    best = [first]

    def function(theta: Array) -> tuple[float, Array]:
        one = objective.loosely(theta)
        if best[0].posterior.converged and not one.posterior.converged:
            # Its evidence may be anything, and its slope leads anywhere.
            raise NumericalError(f"sites have not settled at {theta}")
        found = of(one)
        if found[0] > of(best[0])[0]:
            best[0] = one
        return found

    known = objective.curvature
    if known is None:
        known = curvatures(objective, first)
    begin = of(first)
    del first  # posteriors are large
    start, bounds = objective.start, objective.bounds
    result = climb(function, start, bounds, begin, known, max_iterations)
    end = best[0]
    if end.tol > objective.tol:
        end = objective(end.theta)
    return Mode(end, int(result.nit), bool(result.success), str(result.message))
