"""How an inference ended: what is reported of it, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from qpruntime.inference.fixed_point.ended import Status

__all__ = ["Lookups", "Outcome"]


class Lookups(NamedTuple):
    """How often a table's grid was hit and missed, over all sweeps."""

    inside: int
    outside: int


@dataclass(frozen=True, eq=False)
class Outcome:
    """What every engine reports; `qpruntime.Posterior` says what each of these is."""

    likelihood: str
    method: str
    n: int
    log_evidence: float
    status: Status
    n_sweeps: int
    history: tuple[float, ...]
    lookups: Lookups
    skipped: int
    damped: int
    held: int
    worst: int
    jitter: float = 0.0
    fixed_points: tuple[float, ...] = ()

    def but(self, **changes: Any) -> Outcome:
        """Return a copy with other values."""
        return replace(self, **changes)
