"""Maximum likelihood: hyper-parameters where coefficients are maximised with them, not integrated.

The evidence with coefficients moved into the offsets has their slope as well, X' times the slopes
by the offsets. Both are searched together, each coefficient in units of what the posterior at the
start leaves of it.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.effects.assembly import Assembly
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.maximum import Mode, maximise
from qpruntime.effects.objective import Objective
from qpruntime.effects.scales import curvatures
from qpruntime.effects.search import climb
from qpruntime.errors import InputError

__all__ = ["most_likely"]


def most_likely(objective: Objective, max_iterations: int = 200) -> Mode:
    """Return the evaluation at the hyper-parameters of the largest likelihood.

    The likelihood is the evidence of all effects but the fixed ones, without priors of
    hyper-parameters. Without fixed effects that is the evidence itself.

    Raises
    ------
    InputError
        If there are no effects beside fixed ones.
    """
    assembly = objective.assembly
    if not isinstance(assembly.blocks[0], FixedBlock):
        return maximise(objective, prior=False, max_iterations=max_iterations)
    if len(assembly.blocks) < 2:
        raise InputError(
            'estimate="ml" is for models with effects beside fixed ones: use estimate="posterior"'
        )
    place = assembly.places[0]
    A = sparse.csr_array(objective.A)
    X, rest = A[:, place].toarray(), sparse.csr_array(A[:, place.stop :])
    inner = Objective(
        Assembly(assembly.blocks[1:]), rest, objective.y, objective.offset, objective.weights,
        objective.family, objective.tol, objective.max_sweeps, objective.operations,
    )  # fmt: skip
    first = objective.loosely(objective.start)
    mean, variance = first.posterior.latent()
    start = np.concatenate([objective.start, mean[place]])
    curvature = np.concatenate([curvatures(objective, first), 1.0 / variance[place]])
    p, offset = objective.size, objective.offset
    best = [(-np.inf, start)]

    def function(at: Array) -> tuple[float, Array]:
        inner.offset = offset + X @ at[p:]
        one = inner(at[:p], key=at)
        if one.evidence > best[0][0]:
            best[0] = one.evidence, at.copy()
        slope = np.concatenate([one.evidence_slope, X.T @ one.posterior.weights])
        return one.evidence, slope

    free = np.tile([-np.inf, np.inf], (len(mean[place]), 1))
    bounds = np.vstack([objective.bounds, free])
    result = climb(function, start, bounds, function(start), curvature, max_iterations)
    evaluation = objective(best[0][1][:p])
    return Mode(evaluation, int(result.nit), bool(result.success), str(result.message))
