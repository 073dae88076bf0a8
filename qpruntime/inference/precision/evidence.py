"""The log evidence corrected by pairs of cumulants."""

from __future__ import annotations

import numpy as np

from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import CorrectedEvidence
from qpruntime.inference.precision.cumulants import third_and_fourth
from qpruntime.inference.precision.pairs import PairSums, all_pairs, level_pairs, pairs_of_levels
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites

__all__ = ["corrected_by_pairs", "pair_sums"]

#: Sites up to which all pairs are taken.
_FEW = 2000
#: Half of the fourth order is what agrees with exact evidences.
_HALF = 0.5


def pair_sums(
    problem: Problem,
    solved: PrecisionSolved,
    here: Marginals,
    sites: Sites,
    levels: bool | None = None,
) -> PairSums:
    """Sums over pairs that share a level, or over all; by default over all of up to 2000 sites.

    Raises
    ------
    InputError
        If the sites are not those of EP.
    """
    if problem.projector.method != "ep" or problem.power != 1.0:
        raise InputError(
            'corrections by pairs start from EP\'s fixed point: infer with method="ep"'
        )
    hermite = third_and_fourth(problem, here, sites)
    std = np.sqrt(here.variance)
    if levels is None:
        levels = here.mean.size > _FEW
    if not levels:
        return all_pairs(solved, std, hermite)
    return pairs_of_levels(solved, level_pairs(solved.prior), std, hermite)


def corrected_by_pairs(evidence: float, sums: PairSums) -> CorrectedEvidence:
    """The evidence with both sums, and the size of the fourth-order terms."""
    return CorrectedEvidence(evidence + sums.third + _HALF * sums.fourth, abs(sums.fourth))
