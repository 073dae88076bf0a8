"""The corrections of one posterior, found when they are first asked for, and kept."""

from __future__ import annotations

import contextlib
from functools import cached_property

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.corrected import Corrected, Correction, Points, sampled
from qpruntime.inference.corrections.fixed_point import Normal, fixed_point, needed, normal_of
from qpruntime.inference.corrections.fold import one_sided, signless
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.observed import Observed
from qpruntime.inference.outcome import Outcome
from qpruntime.inference.sites import Sites
from qpruntime.memory import require, squares

__all__ = ["Correcting"]


class Correcting:
    """What corrections take of a posterior: its data, and the sites they begin at.

    Parameters
    ----------
    observed : Observed
    sites : Sites
    outcome : Outcome

    Raises
    ------
    InputError
        If covariance or likelihood are not at hand, or corrections cannot fit into memory: a
        factor, its inverse and the covariance.
    """

    def __init__(self, observed: Observed, sites: Sites, outcome: Outcome) -> None:
        needed(observed)
        what = f"a correction with N = {outcome.n}"
        require(squares(outcome.n, 3.0), what, "leave it out, or infer from fewer rows")
        self._observed, self._sites, self._outcome = observed, sites, outcome

    @cached_property
    def corrected(self) -> Corrected:
        """Corrections from EP's fixed point."""
        known, outcome = self._observed, self._outcome
        own = outcome.method == "ep" and known.power == 1.0 and outcome.status == "converged"
        find = one_sided if self._signless else fixed_point
        return Corrected(find(known, self._sites, outcome.log_evidence, own))

    def marginals(
        self, points: Points, correction: Correction, steps: int, rng: np.random.Generator
    ) -> Marginals:
        """Corrected marginals at points; chains of so many steps where they are sampled."""
        if correction == "sample":
            return sampled(self._normal(), points, rng, steps, self._signless)
        return self.corrected.marginals(points, correction)

    def _normal(self) -> Normal:
        """What chains run around: EP's normal, or the posterior's own where EP fails."""
        if self._outcome.method != "ep" or self._signless:
            with contextlib.suppress(NumericalError):
                return Normal(*self.corrected.found[:6])
        return normal_of(self._observed, self._sites)

    @cached_property
    def _signless(self) -> bool:
        """Whether the posterior is its own mirror image."""
        return signless(self._observed)


def at_sites(mean: Array, variance: Array) -> Points:
    """The rows themselves, as points."""
    return Points(None, variance, mean)
