"""How far a fit in stages is: a bar on a terminal, otherwise a line for each evaluation."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from qpruntime.arrays import Array
from qpruntime.learning.progress import drawn_bar, time_left

__all__ = ["Stage", "Stages", "planned", "staged"]

# Steps of the bar.
_TOTAL = 1000


class Stage(NamedTuple):
    """One stage: its words, rows, inducing inputs, and how many evaluations it usually takes."""

    words: str
    rows: int
    inducing: int
    usual: int

    @property
    def cost(self) -> float:
        """Cost of one evaluation, in some unit."""
        return float(self.rows) * self.inducing**2


def planned(sizes: Sequence[int], m: int, moving: bool) -> list[Stage]:
    """Return the stages of a fit on so many rows, one after the other, at last on all."""
    some, *more = sizes
    found = [Stage(f"parameters on {some} rows", some, m, 25)]
    if moving:
        found.append(Stage(f"inducing inputs too, on {some} rows", some, m, 40))
    found += [Stage(f"{between} rows", between, m, 30) for between in more[:-1]]
    found += [Stage(f"all {n} rows", n, m, 12) for n in more[-1:]]
    return found


class Stages:
    """Called with theta and value after every evaluation; `say` takes the share done, and words."""

    def __init__(self, stages: Sequence[Stage], say: Callable[[int, str], Any] | None) -> None:
        self.stages, self._say = tuple(stages), say
        self._now, self._done, self._spent = 0, 0, 0.0
        self._begun = time.perf_counter()

    def begin(self, number: int) -> None:
        """Go to a stage, counted from 0."""
        self._now, self._done = number, 0

    def __call__(self, theta: Array, value: float) -> None:
        stage = self.stages[self._now]
        self._done += 1
        self._spent += stage.cost
        if self._say is None:
            return
        # A stage that takes longer than usual may be over any time.
        left = max(stage.usual - self._done, 0) * stage.cost
        left += sum(later.usual * later.cost for later in self.stages[self._now + 1 :])
        seconds = (time.perf_counter() - self._begun) / self._spent * left
        self._say(
            int(_TOTAL * self._spent / (self._spent + left)),
            f"stage {self._now + 1} of {len(self.stages)}, {stage.words}: {self._done} "
            f"evaluations, evidence per row {value / stage.rows:.5f}{time_left(seconds)}",
        )


@contextlib.contextmanager
def staged(verbose: int, stages: Sequence[Stage]) -> Iterator[Stages]:
    """Yield what is to be told of every evaluation; silent unless `verbose`."""

    def line(_: int, words: str) -> None:
        print(words, file=sys.stderr)

    if verbose != 1:
        yield Stages(stages, line if verbose else None)
    else:
        with drawn_bar(_TOTAL) as update:
            yield Stages(stages, update or line)
