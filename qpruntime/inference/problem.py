"""What is to be inferred: a prior, observations, and the rules by which sites are proposed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.site_update import PlainRules, Rules
from qpruntime.inference.solver import Prior
from qpruntime.jit import plain
from qpruntime.projection.kernel import raise_status
from qpruntime.projection.projector import Projector
from qpruntime.quadrature.sigma_star import OK

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """A prior of N latent values and their observations y (N,), checked and encoded.

    `bounded` holds site precisions at zero or above also where the likelihood is not log-concave.
    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods.
    """

    prior: Prior
    y: Array
    projector: Projector
    bounded: bool = False
    power: float = 1.0
    weights: Array | None = None

    @property
    def n(self) -> int:
        """Number of sites."""
        return len(self.y)

    @property
    def exponents(self) -> Array:
        """Weight of every site, shape (N,)."""
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def functions(self) -> tuple[Any, ...]:
        """What kernels take of the likelihood; powers other than 1 need the adaptive rule."""
        if self.power == 1.0 and self.weights is None:
            return self.projector.functions
        return self.projector.likelihood.functions(powers=True)

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        concave = self.projector.likelihood.log_concave and self.projector.method != "wp"
        return self.bounded or concave

    @cached_property
    def observations(self) -> tuple[Array, Array]:
        """Observations and their weights, as kernels take `Observations`.

        Of one kind, whatever users hand over: kernels would compile anew for slices and for arrays
        that cannot be written.
        """
        return _own(self.y), _own(self.exponents)

    def rules(self) -> PlainRules:
        """How sites are proposed."""
        return self._rules

    def matching(self) -> PlainRules:
        """How sites are proposed where only their means count."""
        return self._with(self._raised.means)

    def judging(self) -> PlainRules:
        """How the evidence is told: without what only QP looks up."""
        return self._with(self._raised.without_table)

    @cached_property
    def _raised(self) -> Projector:
        return self.projector.to_power(self.power)

    @cached_property
    def _rules(self) -> PlainRules:
        return plain(Rules(self.functions, self._raised.source, self.power, self.nonnegative))

    def _with(self, source: tuple[Any, ...]) -> PlainRules:
        functions, _, power, nonnegative = self._rules
        return functions, source, power, nonnegative

    def check(self, status: int, site: int, failure: Array) -> None:
        """Raise what the status of a kernel stands for; `failure` holds the cavity (mean, std)."""
        if status != OK:
            likelihood, table = self.projector.likelihood, self.projector.table
            raise_status(status, likelihood, failure[0], failure[1], self.y[site], table)


def _own(values: Array) -> Array:
    flags = values.flags
    return values if flags.c_contiguous and flags.writeable else np.array(values)
