"""What a fit without arguments has chosen, and one line that says so."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.operations import RATE, dense_evaluation
from qpruntime.learning.warp import Warp

__all__ = ["Choice", "looked_at", "tell"]

_LOG = logging.getLogger("qpruntime")

# Fits that cost as many seconds at the reference speed say what they chose without being asked.
_LONG = 60.0
# Evaluations of a dense fit of all rows.
_USUAL = 30


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for all processes of a model.

    Attributes
    ----------
    engine : {"dense", "inducing", "inducing+nearest"}
    rows : int
    kernels : tuple of str
        Of every process, in words.
    inducing : tuple of int
        Inducing points of every process; none where the engine is dense.
    nearest : int
        Rows that correct a point.
    warp : Warp or None
        What features go through.
    stages : tuple of Stage
    again : float or None
        Where other rows were drawn, because all rows predicted worse than the first: the density
        of rows left out of the fit that was taken.
    """

    engine: str
    rows: int
    kernels: tuple[str, ...]
    inducing: tuple[int, ...]
    nearest: int
    warp: Warp | None
    stages: tuple[Stage, ...]
    again: float | None = None

    @property
    def words(self) -> str:
        """The choice in one line of words."""
        how = "all of them by the dense engine"
        if self.inducing:
            low, high = min(self.inducing), max(self.inducing)
            how = f"{low} inducing points" if low == high else f"{low} to {high} inducing points"
        if self.nearest:
            how += f" and the {self.nearest} nearest rows of each point"
        kernel = self.kernels[0] if len(set(self.kernels)) == 1 else "kernels that differ"
        last = [stage.density for stage in self.stages if not math.isnan(stage.density)]
        judged = f"; {-last[-1]:.4f} a row held out" if last else ""
        if self.again is not None:
            judged = f"; begun again with other rows drawn: {-self.again:.4f} a row left out"
        return f"{self.rows} rows: {how}, {kernel}{judged}"


def looked_at(
    rows: int, processes: int, warp: Warp | None, features: int, stages: tuple[Stage, ...]
) -> Choice:
    """All rows by the dense engine, of so many features, which may be their ranks."""
    kernel = f"{'ranks of features, ' if warp else ''}Matérn 2.5 of {features} features"
    choice = Choice("dense", rows, (kernel,) * processes, (), 0, warp, stages)
    # Densities of rows left out are those of a common length-scale, and not of this fit.
    tell(replace(choice, stages=()), 0.0)
    return choice


def tell(choice: Choice, operations: float) -> None:
    """Say what was chosen: where it took long, also to those who have not asked."""
    other = ""
    if choice.engine != "dense":
        seconds = len(choice.kernels) * _USUAL * dense_evaluation(choice.rows) / RATE
        other = f"; inducing=None would take about {_duration(seconds)}"
    level = (
        logging.WARNING if choice.again is not None or operations > _LONG * RATE else logging.INFO
    )
    _LOG.log(level, "qpruntime: %s%s", choice.words, other)


def _duration(seconds: float) -> str:
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds > 2.0 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
