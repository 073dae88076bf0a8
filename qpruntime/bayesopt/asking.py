"""What is known when a point is asked for: models, what is pending, samples of the minimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.box import Box
from qpruntime.bayesopt.conditioning import Conditioned, condition_all
from qpruntime.bayesopt.failures import Failing
from qpruntime.bayesopt.frame import Frame
from qpruntime.bayesopt.minimisers import draw
from qpruntime.bayesopt.settling import Projection
from qpruntime.bayesopt.space import Space
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import ConvergenceWarning, warn

__all__ = ["Awaited", "Given", "Knowledge", "complain"]

#: Of conditioning on one sample: 2 to 30 do nearly always.
_ITERATIONS = 60


class Awaited(NamedTuple):
    """Pending evaluations: points (P, d) of the unit cube, and which functions each will tell."""

    points: Array
    functions: list[set[int]]

    def imagined(
        self, surrogates: Sequence[Surrogate], values: Array, rng: np.random.Generator
    ) -> list[Surrogate]:
        """Surrogates that were told these values (K + 1, P), with noise, where they are awaited."""
        found = []
        for j, s in enumerate(surrogates):
            some = self._of(j)
            told = values[j][some] + np.sqrt(s.noise) * rng.standard_normal(len(some))
            found.append(s.joined(self.points[some], told) if some else s)
        return found

    def believed(self, surrogates: Sequence[Surrogate]) -> list[Surrogate]:
        """Surrogates that were told their own means where values are awaited."""
        found = []
        for j, s in enumerate(surrogates):
            at = self.points[self._of(j)]
            found.append(s.joined(at, s.posterior_mean(at)) if len(at) else s)
        return found

    def _of(self, j: int) -> list[int]:
        """Numbers of the evaluations that will tell function j."""
        return [i for i, which in enumerate(self.functions) if j in which]


class Given(NamedTuple):
    """Functions conditioned on each sample of the minimiser; samples without a feasible point."""

    posts: list[Conditioned]
    infeasible: int


@dataclass(frozen=True)
class Knowledge:
    """What an acquisition is handed: all that is known when a point is asked for.

    Attributes
    ----------
    groups : list of list of Surrogate
        Models of all functions in the unit cube, the objective first, which is minimised; then the
        constraints, which hold at 0 and above, then constraints of success. One list of the most
        probable models, or one a draw of the hyper-parameters (``hyper=``).
    failing : Failing
        Whose success is modelled, and how likely it makes a point.
    prices : ndarray, shape (K + 1,), or None
        Of evaluating each function alone; None if all are evaluated together.
    awaited : Awaited or None
        Pending evaluations.
    space : Space
        The variables; coordinates are those of its unit cube, ``space.d`` of them.
    n_samples, method : int, str
        Of the optimiser.
    rng : Generator
        The same for the same calls.
    """

    groups: Sequence[Sequence[Surrogate]]
    failing: Failing
    prices: Array | None
    awaited: Awaited | None
    space: Space
    n_samples: int
    method: Projection
    rng: np.random.Generator

    @cached_property
    def believed(self) -> list[list[Surrogate]]:
        """The groups, told their own means at pending points: nothing is to be learnt there."""
        if self.awaited is None:
            return [list(group) for group in self.groups]
        return [self.awaited.believed(group) for group in self.groups]

    @cached_property
    def given(self) -> Given:
        """Functions conditioned on samples of the minimiser, drawn at the first look.

        Sample m is of the models of group m mod G, pending outcomes imagined.
        """
        groups, awaited, rng, count = self.groups, self.awaited, self.rng, self.n_samples
        cube = Box(np.zeros(self.space.d), np.ones(self.space.d))
        at = None if awaited is None else awaited.points
        drawn, values = draw(groups, *cube, count, rng, at=at, space=self.space)
        if awaited is None:
            frames = [Frame(group) for group in groups]
            # All samples share the one frame there is.
            if len(groups) > 1:
                frames = [frames[m % len(groups)] for m in range(count)]
        else:
            frames = [
                Frame(awaited.imagined(groups[m % len(groups)], values[m], rng))
                for m in range(count)
            ]
        # One sample that has not settled is still a sample, and 60 iterations take 0.1 s.
        posts = condition_all(
            frames, drawn.X_star, self.method, max_sweeps=_ITERATIONS, complain=False
        )
        return Given(posts, int((~drawn.feasible).sum()))

    @property
    def sampled(self) -> Given | None:
        """`given` if anybody has looked at it."""
        return self.__dict__.get("given")


def complain(unsettled: int, n_samples: int) -> None:
    """Warn if so many samples of the minimiser are more than half of them."""
    if 2 * unsettled > n_samples:
        warn(
            f"{unsettled} of {n_samples} samples of the minimiser had not settled after "
            f"{_ITERATIONS} iterations: the point is chosen by rough gains. "
            "Seen where the noise given is far above that of the observations: "
            "noise=None learns it",
            ConvergenceWarning,
        )
