"""Means of all sites matched to those of their tilted densities, the precisions being fixed.

For fixed precisions that is the minimum of a convex function of the posterior means: each site's
tilted mean falls short of a mean that is too high. A step that takes every site for itself goes too
far where many share what they see, as the C - 1 of a row do, and so do rows that are near. How far
is found along the step, where means and sites are linear: no product with a matrix is needed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.parallel import match
from qpruntime.inference.proposals import propose_all
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.inference.solver import Asked, Solved

__all__ = ["Linear", "settle_means"]

# Where what is left of the slope along a step is less than this share it is taken as it is.
_LEFT = 0.25
_TRIALS = 8
# Steps end when the means are so near in posterior deviations, root mean squared.
_NEAR = 1e-3


class Linear(Solved, Protocol):
    """A posterior whose solution is linear in the sites' precision-weighted means."""

    def solution(self) -> tuple[Array, Array, Array]:
        """All that follows from these."""

    def between(self, start: tuple[Array, ...], share: float) -> None:
        """Go to this share of the way from `start`, sites and solution, to where it is."""


def settle_means(
    solved: Linear, asked: Asked, marginals: tuple[Array, Array], sites: Sites, most: int
) -> Sites:
    """Move nu until marginal means are projected ones, in so many steps at most."""
    tau, nu = sites
    mean, pull = solved.mean, solved.weights
    lacking = _lacking(asked, Marginals(mean, *marginals, pull), sites)
    for _ in range(most):
        begun = nu, *solved.solution()
        solved.relocate(nu + lacking)
        end, end_pull = solved.mean, solved.weights
        way = end - mean
        slope = float(way @ lacking)

        def ahead(share: float) -> Array:
            here = Marginals(
                mean + share * way,  # noqa: B023  called before they change
                *marginals,
                pull + share * (end_pull - pull),  # noqa: B023
            )
            return _lacking(asked, here, Sites(tau, nu + share * lacking))  # noqa: B023

        share, further = 1.0, ahead(1.0)
        low, high = (0.0, slope), (1.0, float(way @ further))
        for _ in range(_TRIALS):
            left = float(way @ further)
            if abs(left) <= _LEFT * slope or (share == 1.0 and left > 0.0):
                break
            low, high = ((share, left), high) if left > 0.0 else (low, (share, left))
            share = low[0] + (high[0] - low[0]) * min(max(low[1] / (low[1] - high[1]), 0.1), 0.9)
            further = ahead(share)
        nu = nu + share * lacking
        if share < 1.0:
            solved.between(begun, share)
        mean, pull, lacking = solved.mean, solved.weights, further
        step = lacking * np.sqrt(marginals[0])
        if not float(step @ step) > _NEAR**2 * step.size:
            break
    return Sites(tau, nu)


def _lacking(asked: Asked, here: Marginals, sites: Sites) -> Array:
    """What each site for itself would add to nu to have its projected mean."""
    rules, ignored = asked.matching(), np.zeros(3, dtype=np.int64)
    changes = propose_all(asked, rules, here, sites, ignored)
    nu = sites.nu.copy()
    match(rules[2], (*here,), (sites.tau, nu), (*changes,))
    nu -= sites.nu
    return nu
