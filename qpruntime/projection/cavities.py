"""Which observation of a table is looked at, and which cavities it covers: for pictures of it."""

from __future__ import annotations

from qpruntime.errors import InputError
from qpruntime.projection.table import Table

__all__ = ["domain", "outcome_of"]


def outcome_of(table: Table, outcome: float | None) -> float:
    """Return the observation that is meant, by default 1 or the first that the table holds.

    Raises
    ------
    InputError
        If it is none of the likelihood's, or a grid does not hold it.
    """
    known = table.metadata.outcomes
    if outcome is None:
        outcome = 1.0 if known[0] <= 1.0 <= known[-1] else known[0]
    y = float(table.likelihood.validate([outcome])[0])
    grid = table.metadata.kind == "grid" and not table.likelihood.mirror
    if grid and not known[0] <= y <= known[-1]:
        raise InputError(f"the table holds y = {known[0]:g} to {known[-1]:g}, got {y:g}")
    return y


def domain(table: Table, y: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of mu and log10 sigma that a table covers, or some that are worth a look."""
    if table.metadata.kind == "compact":
        return (-10.0, 10.0), (-2.0, 2.0)
    mu, log10_sigma = table.metadata.axes[:2]
    low, high = mu.start, mu.stop
    if table.metadata.kind == "surfaces":
        mode = table.metadata.traits["mode"]
        if mode == "location":
            low, high = low + y, high + y
        elif mode == "mirror" and y < 0.0:
            low, high = -high, -low
        # 10^x need not come back as x.
        slack = 1e-9
        return (low + slack * abs(low), high - slack * abs(high)), (
            log10_sigma.start + slack,
            log10_sigma.stop - slack,
        )
    return (low, high), (log10_sigma.start, log10_sigma.stop)
