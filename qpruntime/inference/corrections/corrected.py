"""`Corrected`: the corrections of one posterior, computed when they are asked for, and kept."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.corrections.conditional import Targets, log_densities
from qpruntime.inference.corrections.fixed_point import FixedPoint
from qpruntime.inference.corrections.grid import Densities, moments, normalised
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.corrections.response import Response, pair_sums, respond

__all__ = ["CORRECTIONS", "Corrected", "CorrectedEvidence", "Correction"]

Correction = Literal["blend", "fact"]
CORRECTIONS = get_args(Correction)

#: Weight of the linear response in the log variance; the rest is that of FACT.
_RESPONSE = 2.0 / 3.0

_BESIDE = "EP was run beside the posterior's own method: corrections start from its fixed point"


class CorrectedEvidence(NamedTuple):
    """Corrected log evidence, and its spread: all fourth-order terms, of which half are added."""

    value: float
    spread: float


class Corrected:
    """What can be said truer of a posterior, from EP's fixed point.

    Parameters
    ----------
    found : FixedPoint
    """

    def __init__(self, found: FixedPoint) -> None:
        self.found = found

    @cached_property
    def evidence(self) -> CorrectedEvidence:
        """EP's log evidence and the sums over pairs of sites."""
        found = self.found
        shift, spread = pair_sums(found.V, found.fixed, found.tilted.hermite)
        return CorrectedEvidence(found.log_evidence + shift, spread)

    @cached_property
    def response(self) -> Response | None:
        """Linear response of the fixed point; None where it has none."""
        found = self.found
        return respond(found.V, found.fixed, found.tilted.hermite)

    def sites(self) -> Targets:
        """Return the N sites as points whose marginals are asked for."""
        fixed = self.found.fixed
        return Targets(self.found.V, fixed.mean, fixed.std, np.arange(fixed.mean.size))

    def new_points(self, K_star: Array, mean: Array, variance: Array) -> Targets:
        """Return new points as such, with EP's mean and variance there."""
        V, fixed = self.found.V, self.found.fixed
        rows = K_star - (K_star * fixed.tau) @ V
        std = np.sqrt(np.maximum(variance, 1e-300))
        return Targets(np.ascontiguousarray(rows), mean, std, np.full(mean.size, -1))

    def marginals(self, targets: Targets, correction: Correction) -> Marginals:
        """Marginals by FACT, or by its shape with the mean and variance of the blend."""
        found = self.found
        problem = found.rule, found.fixed, found.tilted
        low, high, logs = log_densities(*problem, targets)
        found.likelihood.raise_failure()
        densities = normalised(low, high, logs)
        mean, variance, skewness = moments(densities)
        spread = np.full(mean.size, np.nan)
        notes = () if found.own else (_BESIDE,)
        if self.response is not None:
            sites = targets.own[0] >= 0
            other = (
                self.response.variance if sites else self.response.at(targets.rows, targets.std**2)
            )
            good = other > 0.0
            spread[good] = np.abs(np.log(variance[good] / other[good]))
            if correction == "blend" and good.all():
                moved = targets.mean + targets.rows @ self.response.push
                blended = variance ** (1.0 - _RESPONSE) * other**_RESPONSE
                densities = shifted(densities, mean, moved, np.sqrt(blended / variance))
                mean, variance = moved, blended
        return Marginals(
            mean,
            variance,
            skewness,
            spread,
            correction,
            notes,
            densities,
            found.likelihood,
        )


def shifted(densities: Densities, mean: Array, moved: Array, stretch: Array) -> Densities:
    """Move densities of mean `mean` to `moved` and stretch them about it."""
    low, high, logs, below = densities
    return Densities(
        moved + stretch * (low - mean),
        moved + stretch * (high - mean),
        logs - np.log(stretch)[:, None],
        below,
    )
