"""Likelihoods that do not know the sign of f, under a prior mean of 0: one peak, and |f|.

They declare it, `Likelihood.even`: a density may be even for the observations at hand alone, as
noise is at y = 0, and then f has a sign all the same. As p(y|f) = p(y|-f) for all sites at once,
the posterior has two mirrored halves. EP started from nothing settles between them, or not at all;
started to one side it finds the peak there, if the peaks are apart. The marginals of |f| are the
same on either side, and the evidence is twice that of one.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.fixed_point import (
    SWEEPS,
    TOL,
    FixedPoint,
    fixed_point,
    needed,
    problem_of,
)
from qpruntime.inference.corrections.grid import Densities, log_density_many, normalised
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.fixed_point.settle import settle
from qpruntime.inference.observed import Observed
from qpruntime.inference.sites import Sites

__all__ = ["fold", "one_sided", "signless"]

#: A peak is to one side if some mean is so many standard deviations away from 0.
_ASIDE = 1.5


def signless(observed: Observed) -> bool:
    """Whether the sign of the whole latent function is unknown, for any observations."""
    return needed(observed)[1].even and not np.any(observed.prior)


def one_sided(observed: Observed, sites: Sites, evidence: float, own: bool) -> FixedPoint:
    """Return EP's fixed point at a peak to one side, or the one between where there is none.

    The log evidence of the former counts both peaks. Raises as `fixed_point`.
    """
    K, _ = needed(observed)
    aside = np.full(len(K), math.sqrt(K.diagonal().mean()))
    end = settle(problem_of(observed, aside), Limits(TOL, SWEEPS))
    try:
        found = fixed_point(observed, end.sites, evidence, own=False)
    except NumericalError:
        return fixed_point(observed, sites, evidence, own)._replace(folded=True)
    if (np.abs(found.fixed.mean) < _ASIDE * found.fixed.std).all():
        return found._replace(folded=True, own=own)
    return found._replace(folded=True, aside=True, log_evidence=found.log_evidence + math.log(2.0))


def fold(found: Densities) -> Densities:
    """Densities of |f|."""
    at = np.sort(np.abs(found.points), axis=1)
    across = (found.points[:, 0] < 0.0) & (found.points[:, -1] > 0.0)
    at[across, 0] = 0.0
    sides: list[Array] = []
    for points in (at, -at):
        out = np.empty(at.shape)
        log_density_many(found.points, found.logs, points, out)
        sides.append(out)
    return normalised(at, np.logaddexp(*sides))
