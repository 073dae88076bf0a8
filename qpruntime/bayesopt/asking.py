"""The point that tells most: functions given samples of their minimiser, and where they gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.acquisition import gains_of
from qpruntime.bayesopt.box import Box
from qpruntime.bayesopt.conditioning import Conditioned, condition_all
from qpruntime.bayesopt.failures import Failing
from qpruntime.bayesopt.frame import Frame
from qpruntime.bayesopt.minimisers import draw
from qpruntime.bayesopt.search import maximise
from qpruntime.bayesopt.settling import Projection
from qpruntime.bayesopt.space import Space
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import ConvergenceWarning, warn

__all__ = ["Awaited", "Given", "complain", "given_minimisers", "most_telling"]

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
            some = [i for i, which in enumerate(self.functions) if j in which]
            told = values[j][some] + np.sqrt(s.noise) * rng.standard_normal(len(some))
            found.append(s.joined(self.points[some], told) if some else s)
        return found


class Given(NamedTuple):
    """Functions before and given each sample of the minimiser; samples without a feasible point."""

    groups: Sequence[Sequence[Surrogate]]
    posts: list[Conditioned]
    infeasible: int


def given_minimisers(
    groups: Sequence[Sequence[Surrogate]],
    awaited: Awaited | None,
    n_samples: int,
    method: Projection,
    rng: np.random.Generator,
    space: Space,
) -> Given:
    """Draw minimisers in the space, and condition on each, pending outcomes imagined.

    Sample m is of the surrogates of group m mod G.
    """
    d = groups[0][0].X.shape[1]
    cube = Box(np.zeros(d), np.ones(d))
    at = None if awaited is None else awaited.points
    drawn, values = draw(groups, *cube, n_samples, rng, at=at, space=space)
    if awaited is None:
        frames = [Frame(group) for group in groups]
        # All samples share the one frame there is.
        if len(groups) > 1:
            frames = [frames[m % len(groups)] for m in range(n_samples)]
    else:
        frames = [
            Frame(awaited.imagined(groups[m % len(groups)], values[m], rng))
            for m in range(n_samples)
        ]
    # One sample that has not settled is still a sample, and 60 iterations take 0.1 s.
    posts = condition_all(frames, drawn.X_star, method, max_sweeps=_ITERATIONS, complain=False)
    return Given(groups, posts, int((~drawn.feasible).sum()))


def most_telling(
    given: Given, failing: Failing, prices: Array | None, rng: np.random.Generator, space: Space
) -> tuple[Array, int]:
    """Point (d,) of the unit cube with the largest gain, of all functions together.

    With prices (K + 1,) of that function whose gain is largest for its price; the second is which.
    """

    def worth(U: Array) -> Array:
        each = gains_of(given.posts, U)
        each = failing.expected(given.groups, each, U, prices is not None)
        return each if prices is None else each / prices[:, None]

    near = np.array([post.x_star for post in given.posts])
    return maximise(worth, near, near.shape[1], rng, space)


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
