"""Acquisitions: what makes a point worth evaluating, and those that have a name.

An acquisition is one function. It is handed what is known and returns worths, itself a function of
points; the optimiser looks for the best point. A new one with a name is a line in `NAMED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp, ndtr

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.bayesopt.history import Failing
from qpruntime.bayesopt.minimisers import draw
from qpruntime.bayesopt.pesc import (
    Conditioned,
    IndependentPosteriors,
    ObservedFunctions,
    Projection,
    checked,
    condition_all,
)
from qpruntime.bayesopt.search import maximise
from qpruntime.bayesopt.space import Box, Space
from qpruntime.bayesopt.surrogate import Surrogate, points
from qpruntime.errors import ConvergenceWarning, InputError, warn

__all__ = [
    "NAMED",
    "Acquisition",
    "Aim",
    "Awaited",
    "Given",
    "Knowledge",
    "Worths",
    "acquisition_of",
    "best_point",
    "check_apart",
    "complain",
    "gains",
    "gains_of",
    "least_feasible",
    "log_improvement",
    "log_mean",
    "named",
]

# --- What evaluating each function anywhere would tell about the minimiser, in nats.


def gains(surrogates: Sequence[Surrogate], posts: Sequence[Conditioned], X: ArrayLike) -> Array:
    """Mutual information between each function's next observation and the minimiser.

    Parameters
    ----------
    surrogates : list of Surrogate
        What is known now, the objective first.
    posts : list of Conditioned
        The same functions conditioned on samples of the minimiser.
    X : array-like, shape (T, d)

    Returns
    -------
    ndarray, shape (K + 1, T)
        In nats; the sum is the gain of evaluating all functions. It may be slightly negative.

    Raises
    ------
    InputError
        If shapes do not fit or there is nothing to average.

    See Also
    --------
    qpruntime.bayesopt.condition, qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.bayesopt import Surrogate, condition, gains
    >>> X = np.array([[0.1], [0.4], [0.7], [0.9]])
    >>> objective = Surrogate(1.0 * RBF(0.3), X, (X[:, 0] - 0.5) ** 2)
    >>> constraint = Surrogate(1.0 * RBF(0.3), X, X[:, 0] - 0.3)
    >>> known = [objective, constraint]
    >>> posts = [condition(known, [x]) for x in (0.4, 0.5)]
    >>> gains(known, posts, [[0.45], [0.8], [1.0]]).shape
    (2, 3)
    """
    known = checked(surrogates)
    if not posts or not all(isinstance(post, Conditioned) for post in posts):
        raise InputError("posts must be a list of what condition() returns, at least one")
    wrong = {len(post.tau) for post in posts} - {len(known)}
    if wrong:
        raise InputError(f"posts are of {wrong.pop()} functions, surrogates of {len(known)}")
    X_checked = points(X, "X", known[0].X.shape[1])
    _, variance = zip(*(s.predict(X_checked) for s in known), strict=True)
    noise = _noise(known)
    before = 0.5 * np.log(np.array(variance) + noise)
    bases = {id(post.frame): post.frame.base(X_checked) for post in posts}
    after = [np.log(post.at(bases[id(post.frame)])[1] + noise) for post in posts]
    return np.asarray(before - 0.5 * np.mean(after, axis=0))


def gains_of(posts: Sequence[Conditioned], X: Array) -> Array:
    """`gains` where each x* has surrogates of its own: hyper-parameters, or pending outcomes."""
    total: Array | float = 0.0
    bases: dict[int, IndependentPosteriors] = {}
    for post in posts:
        frame: ObservedFunctions = post.frame
        if id(frame) not in bases:
            bases[id(frame)] = frame.base(X)
        base = bases[id(frame)]
        noise = _noise(frame.surrogates)
        total = total + np.log((base.variance + noise) / (post.at(base)[1] + noise))
    return 0.5 * np.asarray(total) / len(posts)


def _noise(surrogates: Sequence[Surrogate]) -> Array:
    """Variance of the noise of each function, (K + 1, 1), with what stands in for none."""
    return np.array([[s.lift] for s in surrogates])


# --- Constrained expected improvement (Gardner et al., ICML 2014), by its logarithm.

#: Added to variances, in units of the observations' spread.
_LEAST = 1e-12


def least_feasible(surrogates: Sequence[Surrogate]) -> float | None:
    """Least mean of the objective where it was observed and means of constraints hold, if any."""
    objective = surrogates[0]
    fine = np.ones(len(objective.X), dtype=bool)
    for s in surrogates[1:]:
        # Means at data are those data but for rounding.
        fine &= s.posterior_mean(objective.X) >= -1e-8 * np.sqrt(s.scale)
    return float(objective.posterior_mean(objective.X)[fine].min()) if fine.any() else None


def log_improvement(
    surrogates: Sequence[Surrogate], best: float | None = None
) -> Callable[[Array], Array]:
    """Log of expected improvement times the probability of feasibility, a function of points.

    Parameters
    ----------
    surrogates : list of Surrogate
        The objective first, then the constraints.
    best : float, optional
        What is to be improved on; by default `least_feasible`. Where there is none, points are
        worth the probability of feasibility alone.
    """
    best = least_feasible(surrogates) if best is None else best

    def worths(U: Array) -> Array:
        """Return the log worth of each point: feasibility, times the expected improvement."""
        total = np.zeros(len(U))
        for s in surrogates[1:]:
            mean, variance = s.predict(U)
            total += log_ndtr(mean / np.sqrt(variance + _LEAST))
        if best is not None:
            mean, variance = surrogates[0].predict(U)
            sd = np.sqrt(variance + _LEAST)
            z = (best - mean) / sd
            density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
            total += np.log(np.maximum(sd * (z * ndtr(z) + density), 1e-300))
        return total

    return worths


def log_mean(logs: Sequence[Array]) -> Array:
    """Logarithm of the mean of what has these logarithms."""
    if len(logs) == 1:
        return logs[0]
    return np.asarray(logsumexp(np.array(logs), axis=0) - np.log(len(logs)))


# --- What is known when a point is asked for: models, what is pending, samples of the minimiser.

#: Limit of sweeps that condition on one sample; 2 to 30 are nearly always enough.
_ITERATIONS = 60


class Awaited(NamedTuple):
    """Pending evaluations: points (P, d) of the unit cube, and which functions each will tell."""

    points: Array
    functions: list[set[int]]

    def imagined(
        self, surrogates: Sequence[Surrogate], values: Array, rng: np.random.Generator
    ) -> list[Surrogate]:
        """Surrogates that were told these values (K + 1, P), with noise, where they are awaited."""
        models = []
        for j, s in enumerate(surrogates):
            rows = self._of(j)
            outcomes = values[j][rows] + np.sqrt(s.noise) * rng.standard_normal(len(rows))
            models.append(s.joined(self.points[rows], outcomes) if rows else s)
        return models

    def believed(self, surrogates: Sequence[Surrogate]) -> list[Surrogate]:
        """Surrogates that were told their own means where values are awaited."""
        models = []
        for j, s in enumerate(surrogates):
            at = self.points[self._of(j)]
            models.append(s.joined(at, s.posterior_mean(at)) if len(at) else s)
        return models

    def _of(self, j: int) -> list[int]:
        """Numbers of the evaluations that will tell function j."""
        return [i for i, which in enumerate(self.functions) if j in which]


class Given(NamedTuple):
    """Functions conditioned on each sample of the minimiser; samples without a feasible point."""

    posts: list[Conditioned]
    infeasible: int


@dataclass(frozen=True)
class Knowledge:
    """Arguments of an acquisition: all that is known when a point is asked for.

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

    See Also
    --------
    qpruntime.bayesopt.Optimizer, qpruntime.bayesopt.Surrogate

    Examples
    --------
    >>> from qpruntime.bayesopt import Optimizer
    >>> def explore(known):
    ...     objective = known.believed[0][0]
    ...     return lambda points: objective.predict(points)[1]
    ...
    >>> opt = Optimizer([(0.0, 1.0)], noise=0.0, acquisition=explore, random_state=0)
    >>> for _ in range(4):
    ...     x = opt.ask()
    ...     _ = opt.tell(x, f=x[0] ** 2)
    ...
    >>> opt.ask().shape
    (1,)
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
        sample, values = draw(groups, *cube, count, rng, at=at, space=self.space)
        if awaited is None:
            frames = [ObservedFunctions(group) for group in groups]
            # All samples share the one frame there is.
            if len(groups) > 1:
                frames = [frames[m % len(groups)] for m in range(count)]
        else:
            frames = [
                ObservedFunctions(awaited.imagined(groups[m % len(groups)], values[m], rng))
                for m in range(count)
            ]
        # One sample that has not settled is still a sample, and 60 iterations take 0.1 s.
        posts = condition_all(
            frames, sample.X_star, self.method, max_sweeps=_ITERATIONS, complain=False
        )
        return Given(posts, int((~sample.feasible).sum()))

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


# --- Acquisitions that have a name, and the best point of any.

#: Worths of points (T, d) of the unit cube: (T,), or (K + 1, T), one row a function, where the
#: knowledge has prices. The largest is best.
Worths = Callable[[Array], Array]

#: Number of points of least mean at which the search begins if an acquisition names none.
_NEAR = 5


@dataclass(frozen=True)
class Aim:
    """Worths, and points (n, d) near which the best may be: what an acquisition may return too.

    See Also
    --------
    qpruntime.bayesopt.Knowledge

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.bayesopt import Aim, Optimizer
    >>> def explore(known):
    ...     objective = known.believed[0][0]
    ...     return Aim(lambda points: objective.predict(points)[1], np.array([[0.0], [1.0]]))
    ...
    >>> opt = Optimizer([(0.0, 1.0)], noise=0.0, acquisition=explore, random_state=0)
    >>> for _ in range(4):
    ...     x = opt.ask()
    ...     _ = opt.tell(x, f=x[0] ** 2)
    ...
    >>> opt.ask().shape
    (1,)
    """

    worths: Worths
    near: Array


#: A function from the knowledge of a run to the worths of points.
Acquisition = Callable[[Knowledge], Worths | Aim]


def pesc(known: Knowledge) -> Aim:
    """Predictive entropy search: what an observation tells about the constrained minimiser.

    Per price, where functions are evaluated alone.
    """
    posts, prices = known.given.posts, known.prices

    def worths(U: Array) -> Array:
        expected = known.failing.expected(known.groups, gains_of(posts, U), U, prices is not None)
        return expected if prices is None else expected / prices[:, None]

    return Aim(worths, np.array([post.x_star for post in posts]))


def expected_improvement(known: Knowledge) -> Worths:
    """Log expected improvement times the probability that constraints hold and nothing fails.

    Pending evaluations are taken to give their means; draws of hyper-parameters are averaged.
    """
    improvements = [log_improvement(group) for group in known.believed]
    return lambda U: log_mean([improvement(U) for improvement in improvements])


def thompson(known: Knowledge) -> Aim:
    """Return the constrained minimiser of one draw of all functions."""
    group = known.groups[int(known.rng.integers(len(known.groups)))]
    d = known.space.d
    sample, _ = draw([group], np.zeros(d), np.ones(d), 1, known.rng, space=known.space)
    return Aim(lambda U: -((U - sample.X_star) ** 2).sum(axis=1), sample.X_star)


NAMED: dict[str, Acquisition] = {"pesc": pesc, "ei": expected_improvement, "thompson": thompson}
#: Acquisitions that weigh whole points, not single functions.
_TOGETHER = ("ei", "thompson")


def acquisition_of(acquisition: object) -> Acquisition:
    """Return the acquisition of a name, or a user's own, or raise `InputError`."""
    if isinstance(acquisition, str) and acquisition in NAMED:
        return NAMED[acquisition]
    if isinstance(acquisition, str) or not callable(acquisition):
        raise InputError(
            f"acquisition must be one of {', '.join(NAMED)} or a function of what is known, got "
            f"{shown(acquisition)}"
        )
    return acquisition


def named(acquisition: object) -> str:
    """Return how a file names an acquisition: its name, or module and name of a user's own."""
    if isinstance(acquisition, str):
        return acquisition
    kind = acquisition if hasattr(acquisition, "__qualname__") else type(acquisition)
    return f"{kind.__module__}.{kind.__qualname__}"


def check_apart(acquisition: object) -> None:
    """Raise `InputError` if functions cannot be asked for alone by this one."""
    if isinstance(acquisition, str) and acquisition in _TOGETHER:
        raise InputError(
            f'acquisition {acquisition!r} weighs points, not single functions: "pesc" can be asked '
            "with decoupled=True"
        )


def best_point(acquisition: Acquisition, known: Knowledge) -> tuple[Array, int]:
    """Point (d,) of the unit cube of the largest worth, and the function that it is of.

    Raises
    ------
    InputError
        If an acquisition of a user does not give what it should.
    """
    criterion = acquisition(known)
    aim = criterion if isinstance(criterion, Aim) else Aim(criterion, _likely(known))
    if not callable(aim.worths):
        raise InputError(
            f"an acquisition must return a function of points (T, d), got {shown(aim.worths)}"
        )
    near = points(aim.near, "near of an acquisition's aim", known.space.d)
    rows = 1 if known.prices is None else len(known.prices)

    def checked(U: Array) -> Array:
        """Return the worths as rows, or raise `InputError` for a wrong shape or NaN."""
        values = np.asarray(aim.worths(U), dtype=float)
        if values.shape == (len(U),):
            values = values[None]
        if values.shape != (rows, len(U)):
            raise InputError(
                f"an acquisition must give worths of shape ({rows}, T){_KINDS[rows > 1]} at "
                f"T = {len(U)} points, got {values.shape}"
            )
        if np.isnan(values).any():
            raise InputError("an acquisition must give numbers, got NaN: -inf is worth nothing")
        return values

    return maximise(checked, near, known.rng, known.space)


#: Words for the shape of worths, for whole points and for single functions.
_KINDS = {False: " or (T,)", True: ", one row a function, as decoupled=True asks"}


def _likely(known: Knowledge) -> Array:
    """Observed points of least mean objective."""
    objective = known.groups[0][0]
    return objective.X[np.argsort(objective.posterior_mean(objective.X), kind="stable")[:_NEAR]]
