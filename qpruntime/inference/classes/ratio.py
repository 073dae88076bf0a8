"""Class probabilities by ratios of evidences: with one row more, of each class in turn.

p(c) is the evidence of all rows and a new one of class c over that of all rows, so probabilities
are in the proportion of the former. Corrected by pairs of cumulants they are truer than those of
the normal posterior by more than its own errors, for one inference a class and point.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.solution import CORRECTED
from qpruntime.inference.correcting import Correcting
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.fixed_point.settle import settle
from qpruntime.inference.observed import Observed
from qpruntime.inference.outcome import Outcome
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector

__all__ = ["RATIO", "log_ratios"]

#: What asks for it.
RATIO = "ratio"
# The evidence is stationary in the sites, but its correction is not.
_TOL = 1e-8


def log_ratios(
    layout: Layout, K: Array, sites: Sites, outcome: Outcome, crossed: Array, diagonal: Array
) -> Array:
    """Log probabilities of all classes at T points, shape (T, C).

    Parameters
    ----------
    layout : Layout
    K : ndarray, shape (C, N, N) or (1, N, N)
    sites : Sites
        Where to begin, flat.
    outcome : Outcome
        Of the inference.
    crossed, diagonal : ndarray, shape (C, T, N) and (C, T), or with 1 for C
        Prior covariances of the points with the rows, and prior variances.

    Raises
    ------
    InputError
        With more sites than corrections are computed for.
    """
    C, n, points = layout.classes, layout.n, crossed.shape[1]
    if layout.sites + C - 1 > CORRECTED:
        raise InputError(
            f'correction="ratio" is for {CORRECTED} sites at most, N (C - 1) = {layout.sites} '
            "here: leave it out, or infer from fewer rows"
        )
    kinds = max(len(K), len(crossed))
    wide = np.empty((kinds, n + 1, n + 1))
    out = np.empty((points, C))
    start = Sites(*(np.append(part, np.zeros(C - 1)) for part in sites))
    for t in range(points):
        for c in range(kinds):
            wide[c, :n, :n] = K[c % len(K)]
            wide[c, n, :n] = wide[c, :n, n] = crossed[c % len(crossed), t]
            wide[c, n, n] = diagonal[c % len(diagonal), t]
        for label in range(C):
            longer = Layout(np.append(layout.own, label), C)
            out[t, label], start = _evidence(longer, wide, start, outcome)
        top = out[t].max()
        out[t] -= top + np.log(np.exp(out[t] - top).sum())
    return out


def _evidence(layout: Layout, K: Array, start: Sites, outcome: Outcome) -> tuple[float, Sites]:
    """Corrected log evidence, and the sites it was found with but those of the last row."""
    covariance, y = layout.contrasts(K), np.ones(layout.sites)
    prior, probit = np.zeros(layout.sites), get("probit")
    problem = Problem(DensePrior(covariance, prior), y, Projector(probit, "ep"))
    end = settle(problem, Limits(_TOL, 100, 1.0), order="parallel", sites=start)
    value, _ = log_evidence(problem, end)
    told = outcome.but(method="ep", n=layout.sites, log_evidence=value, status=end.status)
    correcting = Correcting(Observed(covariance, y, prior, probit), end.sites, told)
    last = slice(layout.sites - layout.classes + 1, None)
    tau, nu = (part.copy() for part in end.sites)
    tau[last] = nu[last] = 0.0
    return correcting.corrected.evidence.value, Sites(tau, nu)
