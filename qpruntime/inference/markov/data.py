"""What is to be inferred of a series: its rows in order of time, and how they were observed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.projection.opening import shipped
from qpruntime.projection.projector import Projector

__all__ = ["Series"]


@dataclass(frozen=True)
class Series:
    """A series, sorted: times t, observations y, prior means of g = scale f + noise (N,).

    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods; `bounded`
    holds precisions at zero or above also where the likelihood is not log-concave. Where rows go on
    from others, `before` is the time of the last of these.
    """

    t: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    power: float = 1.0
    bounded: bool = False
    before: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Addresses of compiled functions mean nothing in another process, and predictions need no
        # likelihood: it is kept where it can be, for rows that are still to come.
        found = {name: getattr(self, name) for name in _FIELDS}
        own, kept = self.projector, None
        if own is not None and (own.table is None or own.table is shipped(own.likelihood)):
            kept = own.likelihood, own.method, "exact" if own.table is None else None, own.p
        try:
            pickle.dumps(kept)
        except Exception:  # of a user's function, whatever it is
            kept = None
        return {**found, "projector": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["projector"]
        projector = None if kept is None else Projector(*kept)
        for name, value in {**state, "projector": projector}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def steps(self) -> Array:
        """Time to the first row from what is before it, between rows, and 0, shape (N + 1,)."""
        found = np.zeros(self.t.size + 1)
        np.subtract(self.t[1:], self.t[:-1], out=found[1:-1])
        if self.before is not None:
            found[0] = self.t[0] - self.before
        return found

    def part(self, some: slice) -> Series:
        """Rows in a row, as a series that goes on from those before."""

        def cut(values: Array | None) -> Array | None:
            return None if values is None else values[some]

        return replace(
            self,
            t=self.t[some],
            y=self.y[some],
            prior=self.prior[some],
            weights=cut(self.weights),
            scale=cut(self.scale),
            before=self.before if some.start == 0 else float(self.t[some.start - 1]),
        )

    @cached_property
    def scales(self) -> Array:
        """`scale`, 1 by default."""
        return np.ones(self.t.size) if self.scale is None else self.scale

    @cached_property
    def exponents(self) -> Array:
        """`weights`, 1 by default."""
        if self.weights is not None:
            return self.weights
        return self.scales if self.scale is None else np.ones(self.t.size)

    @property
    def plain(self) -> bool:
        """Whether likelihoods are taken as they are."""
        return self.power == 1.0 and self.weights is None

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        concave = self.projector.likelihood.log_concave and self.projector.method != "wp"
        return bool(self.bounded or concave)

    @property
    def functions(self) -> tuple[Any, ...]:
        """What kernels take of the likelihood; powers other than 1 need another rule."""
        if self.plain:
            return self.projector.functions
        return self.projector.likelihood.functions(powers=True)


_FIELDS = ("t", "y", "prior", "weights", "scale", "power", "bounded", "before")
