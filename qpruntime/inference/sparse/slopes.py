"""The gradient of EP's log evidence at its fixed point: a pass over rows, and what follows.

Per row beta = N - T m_g and rho = power beta^2 - T (1 - power T w). The derivatives are

    by k(x_n, x_n):  rho_n/2;   by the prior mean:  beta_n;
    by k(x_n, Z):    L^-T (beta_n mu - T_n B^-1 phi_n - rho_n phi_n);
    by k(Z, Z):      -L^-T (mu mu^T + B^-1 - I - sum rho_n phi_n phi_n^T) L^-1/2;
    by parameters of the likelihood:  sum of those of log Z_n at fixed cavities, over the power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from qpruntime.arrays import Array
from qpruntime.inference.sparse.blas import add_outer, divide, divide_transposed
from qpruntime.inference.sparse.block_updates import cavities, project, pulls, terms
from qpruntime.inference.sparse.passes import (
    Accumulated,
    Done,
    Job,
    block_rows,
    marginals,
    parts,
    room_for,
)
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.state import State, evidence
from qpruntime.inference.sparse.sums import Sums, unpacked
from qpruntime.kernels.cross import contract
from qpruntime.projection.parameters import PLACES, derivative

__all__ = ["Evaluation", "evaluation", "slopes"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Log evidence of sites, and its derivatives at a fixed point of EP.

    Attributes
    ----------
    value : float
    by_theta : ndarray
        By the kernel's free log parameters.
    by_Z : ndarray, shape (M, d)
        Zeros for kernels whose slopes in their inputs are not known.
    by_mean : float
        By a prior mean that all rows share.
    by_parameters : ndarray
        By the logarithms of parameters of the likelihood.
    """

    value: float
    by_theta: Array
    by_Z: Array
    by_mean: float
    by_parameters: Array


def slopes(state: State, job: Job, moved: Sequence[dict[int, Rule]] = ()) -> Done:
    """Sums over a chunk for the gradient; `moved` are rules with moved parameters, by place."""
    chunk, inducing, power = job.piece.load(), state.inducing, state.rule.power
    total, own = Accumulated(state), inducing.rounded
    pull = solve_triangular(inducing.L, state.mean, lower=True, trans=1)
    evidence, by_mean, by_parameters = 0.0, 0.0, np.zeros(len(moved))
    by_theta, by_Z = np.zeros(inducing.kernel.theta.size), np.zeros(inducing.Z.shape)
    rows = min(block_rows(inducing.size), len(chunk.y))
    spare = room_for("spare", rows, inducing.size, inducing.dtype)
    for part in parts(state, job, chunk):
        block, phi = part.block, part.phi
        mean, w = marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        log_z = project(state.rule, block, at, "log_z")[0]
        evidence += float(np.sum(terms(at, log_z, power)))
        for k, rules in enumerate(moved):
            found = {j: project(rules[j], block, at, "log_z")[0].sum() for j in PLACES}
            by_parameters[k] += float(derivative(found)) / power
        beta = pulls(at, power)
        rho = power * beta * beta - at.T * (1.0 - power * at.T * w)
        by_mean += float(beta.sum())
        # H = -(T B^-1 phi + rho phi) L^-1 + beta (L^-T mu)^T, in the place of phi.
        H, scaled = divide_transposed(part.room, state.rounded), spare[: len(phi)]
        H *= (-at.T).astype(phi.dtype)[:, None]
        H -= np.multiply(phi, rho.astype(phi.dtype)[:, None], out=scaled)
        total.square(phi, rho, scaled)
        divide_transposed(H, own)
        add_outer(H, beta.astype(phi.dtype), pull.astype(phi.dtype))
        one, two = contract(inducing.kernel, part.X, inducing.Z, H, 0.5 * rho)
        by_theta += one
        by_Z += two
    return Done(
        {
            "terms": evidence,
            "squares": total.sums()["B"],
            "mean": by_mean,
            "parameters": by_parameters,
            "theta": by_theta,
            "Z": by_Z,
        }
    )


def evaluation(state: State, sums: Sums) -> Evaluation:
    """Return the evidence and its gradient from the sums of `slopes` over all rows."""
    inducing = state.inducing
    m = inducing.size
    squares = unpacked(sums["squares"], m)
    squares += np.tril(squares, -1).T
    inverse = np.eye(m)
    divide_transposed(divide(inverse, state.root), state.root)
    S = np.outer(state.mean, state.mean) + inverse - np.eye(m) - squares
    # L^-T S L^-1, S being symmetric.
    S = divide_transposed(np.ascontiguousarray(divide_transposed(S, inducing.L).T), inducing.L)
    by_theta, by_Z = inducing.slopes(-0.25 * (S + S.T))
    return Evaluation(
        evidence(state, sums),
        sums["theta"] + by_theta,
        sums["Z"] + by_Z,
        float(sums["mean"]),
        sums["parameters"],
    )
