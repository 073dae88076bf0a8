"""How cavities are projected: likelihoods to the power of power EP times their weights."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import plain
from qpruntime.projection.kernel import project_rows
from qpruntime.projection.projector import Projector

__all__ = ["Rule", "Wanted"]

#: All that the method gives; what has its mean; log Z alone.
Wanted = Literal["sites", "means", "log_z"]


class Rule:
    """A `Projector` with the power of power EP.

    Attributes
    ----------
    projector : Projector
        Where a table of the power ships, it looks there.
    power : float
    nonnegative : bool
        Whether precisions are held at zero or above: no more than rounding where the likelihood is
        log-concave.
    """

    def __init__(self, projector: Projector, power: float = 1.0, bounded: bool = False) -> None:
        self.projector, self.power = projector.to_power(power), power
        concave = projector.likelihood.log_concave and projector.method != "wp"
        self.bounded = bounded
        self.nonnegative = bool(bounded or concave)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rule, (self.projector, self.power, self.bounded)

    @cached_property
    def _powered(self) -> tuple[Any, ...]:
        return plain(self.projector.likelihood.functions(powers=True))

    @cached_property
    def _plain(self) -> tuple[Any, ...]:
        return plain(self.projector.functions)

    def project(
        self,
        mean: Array,
        std: Array,
        y: Array,
        weights: Array | None,
        wanted: Wanted = "sites",
        whole: bool = False,
    ) -> tuple[Array, Array, Array, Array]:
        """Project cavities N(mean, std^2), all of shape (n,).

        With `whole` the likelihoods are not raised to the power of power EP.

        Returns
        -------
        log_z, mean, std, where : ndarray, shape (n,)
            Where a lookup was: `INSIDE` or `OUTSIDE_GRID` of `qpruntime.projection.kernel`, or 0.

        Raises
        ------
        NumericalError, TableError
            If a cavity cannot be projected.
        """
        projector = self.projector
        power = 1.0 if whole else self.power
        raised = power != 1.0 or weights is not None
        powers = np.full(y.size, power) if weights is None else power * weights
        source = projector.source
        if wanted != "sites":
            source = projector.means if wanted == "means" else projector.without_table
        functions = self._powered if raised else self._plain
        return project_rows(
            projector.likelihood, (functions, source), powers, (mean, std), y, projector.table
        )
