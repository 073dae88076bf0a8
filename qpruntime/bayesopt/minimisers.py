"""Samples of the constrained minimiser: draw every function whole, and minimise what was drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.stats import qmc

from qpruntime._typing import Array
from qpruntime._validation import generator, whole
from qpruntime.bayesopt.pesc import checked
from qpruntime.bayesopt.space import Space, box
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import InputError
from qpruntime.kernels.random_features import PriorDraws, stationary_terms

__all__ = [
    "FEATURES",
    "Minimisers",
    "Paths",
    "check_coordinates",
    "draw",
    "sample_minimisers",
    "sobol",
]

# --- Functions drawn from a posterior, whole: random features corrected by Matheron's rule.
#
# path(x) = p(x) + k(x, X) (K + noise)^-1 (y - p(X) - e): p a draw from the prior out of random
# cosines and sines, e noise. Only p is approximate, and only away from the data.

#: Pairs of cosine and sine. The median error of the log standard deviation is then .1 at most.
FEATURES = 1000


class Paths:
    """M functions drawn from the posterior of one surrogate.

    Their frequencies are the same, their amplitudes independent.

    Parameters
    ----------
    surrogate : Surrogate
    M : int
    rng : Generator
    features : int
        Pairs of cosine and sine, shared by the terms of the kernel.
    """

    def __init__(
        self, surrogate: Surrogate, M: int, rng: np.random.Generator, features: int = FEATURES
    ) -> None:
        self.surrogate = surrogate
        self.prior = PriorDraws(surrogate.kernel, surrogate.X.shape[1], M, rng, features)
        self.terms, self.W = stationary_terms(surrogate.kernel), self.prior.frequencies
        self.a, self.b, self._constant = self.prior.a, self.prior.b, self.prior.constant
        self._single = self.W.astype(np.float32), np.vstack([self.a, self.b]).astype(np.float32)
        e = math.sqrt(surrogate.noise) * rng.standard_normal((len(surrogate.X), M))
        gap = (surrogate.y - surrogate.mean)[:, None] - self.prior(surrogate.X) - e
        self.weights = surrogate.solve(gap)

    def __call__(self, X: Array) -> Array:
        """All functions at X, shape (T, M)."""
        s = self.surrogate
        return s.mean + self.prior(X) + s.covariance(X, s.X) @ self.weights

    def coarse(self, X: Array) -> Array:
        """Return the same to about five digits, in an eighth of the time."""
        s = self.surrogate
        W, weights = self._single
        phase = X.astype(np.float32) @ W
        waves = np.empty((len(X), 2 * phase.shape[1]), dtype=np.float32)
        np.cos(phase, out=waves[:, : phase.shape[1]])
        np.sin(phase, out=waves[:, phase.shape[1] :])
        return s.mean + self._constant + waves @ weights + s.covariance(X, s.X) @ self.weights

    def slope(self, x: Array, m: int) -> tuple[float, Array]:
        """Value and gradient (d,) of function m at one point x (d,)."""
        s = self.surrogate
        phase = x @ self.W
        cos, sin = np.cos(phase), np.sin(phase)
        value = s.mean + self._constant[m] + cos @ self.a[:, m] + sin @ self.b[:, m]
        gradient = self.W @ (cos * self.b[:, m] - sin * self.a[:, m])
        if len(s.X):
            k, dk = self._kernel_slope(x)
            value += k @ self.weights[:, m]
            gradient = gradient + self.weights[:, m] @ dk
        return float(value), gradient

    def _kernel_slope(self, x: Array) -> tuple[Array, Array]:
        """k(x, X), shape (n,), and its gradient in x, shape (n, d)."""
        s = self.surrogate
        k, dk = np.zeros(len(s.X)), np.zeros(s.X.shape)
        for term in self.terms:
            value, slope = term.slope(x, s.X)
            k += value
            dk += slope
        return k, dk


# --- Samples of the constrained minimiser: draw every function whole, and minimise what was drawn.

#: Coordinates of a Sobol sequence.
_MAX_COORDINATES = int(qmc.Sobol.MAXDIM)

#: Points of the first look for each draw, and draws until one has a feasible point.
_GRID, _REDRAWS = 1024, 10
_STEPS = 25


class Minimisers(NamedTuple):
    """X_star (M, d); feasible (M,): whether the drawn functions have a feasible point."""

    X_star: Array
    feasible: NDArray[np.bool_]


def check_coordinates(d: int) -> None:
    """Raise `InputError` if there is no Sobol sequence in d coordinates."""
    if d > _MAX_COORDINATES:
        raise InputError(
            f"{d} coordinates are more than the {_MAX_COORDINATES} that Sobol's sequence has: "
            "leave out variables, or choices of a category, each of which is a coordinate"
        )


def sobol(n: int, d: int, rng: np.random.Generator) -> Array:
    """Return n scrambled Sobol points of the unit cube, n rounded up to a power of 2."""
    check_coordinates(d)
    power = max(0, int(np.ceil(np.log2(max(n, 1)))))
    return np.asarray(qmc.Sobol(d, rng=rng).random_base2(power)[:n])


def sample_minimisers(
    surrogates: Sequence[Surrogate],
    bounds: ArrayLike,
    n_samples: int = 10,
    *,
    features: int = FEATURES,
    random_state: int | np.random.Generator | None = None,
) -> Minimisers:
    """Draw minimisers of f in a box subject to c_k >= 0.

    Parameters
    ----------
    surrogates : list of Surrogate
        The objective first, then the constraints; kernels are sums of RBF and Matern.
    bounds : array-like, shape (d, 2)
    n_samples : int
    features : int
        Random features of every drawn function.
    random_state : int, Generator or None

    Returns
    -------
    Minimisers
        Where the functions drawn have no feasible point, ten times in a row, x* is where the
        constraint that is violated most is violated least.

    Raises
    ------
    InputError
        If the box is empty, shapes do not fit, or a kernel has no known spectrum.

    See Also
    --------
    qpruntime.bayesopt.condition

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.bayesopt import Surrogate, sample_minimisers
    >>> X = np.array([[0.1], [0.4], [0.7], [0.9]])
    >>> objective = Surrogate(1.0 * RBF(0.3), X, (X[:, 0] - 0.5) ** 2)
    >>> constraint = Surrogate(1.0 * RBF(0.3), X, X[:, 0] - 0.3)
    >>> drawn = sample_minimisers([objective, constraint], [(0.0, 1.0)], 5, random_state=0)
    >>> drawn.X_star.shape, bool(drawn.feasible.all())
    ((5, 1), True)
    """
    models = checked(surrogates)
    low, high = box(bounds)
    if len(low) != models[0].X.shape[1]:
        raise InputError(
            f"bounds are of {len(low)} variables, surrogates of {models[0].X.shape[1]}"
        )
    whole(n_samples, "n_samples", 1)
    whole(features, "features", 1)
    rng = generator(random_state)
    return draw([models], low, high, n_samples, rng, features)[0]


def draw(
    groups: Sequence[Sequence[Surrogate]],
    low: Array,
    high: Array,
    M: int,
    rng: np.random.Generator,
    features: int = FEATURES,
    at: Array | None = None,
    space: Space | None = None,
) -> tuple[Minimisers, list[Array]]:
    """`sample_minimisers`, draw m from group m mod G; also the drawn functions at the points `at`.

    If a space is given, the box is its unit cube and minimisers are points of the space. The second
    is one array (K + 1, len(at)) for each draw.
    """
    X_star = np.empty((M, len(low)))
    feasible = np.zeros(M, dtype=bool)
    values: list[Array] = [np.empty(0)] * M
    slack = np.full(M, -np.inf)
    for g, group in enumerate(groups):
        waiting = np.arange(g, M, len(groups))
        data = np.unique(np.vstack([s.X for s in group]), axis=0)
        for _ in range(_REDRAWS + 1):
            if not waiting.size:
                break
            paths = [Paths(s, len(waiting), rng, features) for s in group]
            grid = low + (high - low) * sobol(_GRID, len(low), rng)
            grid = np.vstack([grid, np.clip(data, low, high)])
            grid = grid if space is None else space.snap(grid)
            coarse = np.array([p.coarse(grid) for p in paths])
            beside = np.array([p(at) for p in paths]) if at is not None else None
            for i, m in enumerate(waiting):
                x, least = _minimise(paths, i, grid, coarse[:, :, i], low, high, space)
                if least >= 0.0 or least > slack[m]:
                    X_star[m], slack[m], feasible[m] = x, least, least >= 0.0
                    if beside is not None:
                        values[m] = beside[:, :, i]
            waiting = waiting[~feasible[waiting]]
    return Minimisers(X_star, feasible), values


def _minimise(
    paths: Sequence[Paths],
    m: int,
    grid: Array,
    values: Array,
    low: Array,
    high: Array,
    space: Space | None,
) -> tuple[Array, float]:
    """Constrained minimiser of draw m, and the least c_k there, inf without constraints.

    The search begins at the best point of the grid: the lowest feasible one, or else the one
    nearest to feasible. Rounded variables are first searched as continuous ones, then rounded and
    fixed while the others are searched again.
    """
    scales = np.array([np.sqrt(p.surrogate.scale) or 1.0 for p in paths])
    least = (values[1:] / scales[1:, None]).min(axis=0, initial=np.inf)
    if (least >= 0.0).any():
        start = int(np.argmin(np.where(least >= 0.0, values[0], np.inf)))
        x, slack = grid[start], max(float(least[start]), 0.0)
        best = values[0, start]
    else:
        start = int(np.argmax(least))
        x, slack, best = grid[start], float(least[start]), np.inf
    every = [(0.0, 1.0)] * len(x)
    rounded = None if space is None or space.loose.all() else space
    for hold in (False, True):
        if hold and (rounded is None or not rounded.loose.any()):
            break
        ends = rounded.held(x) if hold and rounded is not None else every
        end = _polish(paths, m, x, low, high, scales, ends)
        if end is None:
            continue
        if rounded is not None:
            end = rounded.snap(end[None])[0]
        path_values = [p.slope(end, m)[0] for p in paths]
        least_slack = min(
            (v / s for v, s in zip(path_values[1:], scales[1:], strict=True)), default=np.inf
        )
        if -1e-6 <= least_slack < 0.0:
            least_slack = 0.0
        if path_values[0] < best if least_slack >= 0.0 and slack >= 0.0 else least_slack > slack:
            x, slack, best = end, float(least_slack), path_values[0]
    return x, slack


def _polish(
    paths: Sequence[Paths],
    m: int,
    x: Array,
    low: Array,
    high: Array,
    scales: Array,
    ends: list[tuple[float, float]],
) -> Array | None:
    """Sequential quadratic programming in the unit cube from x; None if it gets nowhere."""
    width = high - low
    cache: dict[bytes, tuple[Array, Array]] = {}

    def look(u: Array) -> tuple[Array, Array]:
        """Return the values and slopes of all paths at u, in units of their scales."""
        key = u.tobytes()
        if key not in cache:
            cache.clear()
            at = low + width * u
            pairs = [p.slope(at, m) for p in paths]
            cache[key] = (
                np.array([v for v, _ in pairs]) / scales,
                np.array([g for _, g in pairs]) * width / scales[:, None],
            )
        return cache[key]

    constraints = []
    if len(paths) > 1:
        constraints = [
            {"type": "ineq", "fun": lambda u: look(u)[0][1:], "jac": lambda u: look(u)[1][1:]}
        ]
    try:
        end = minimize(
            lambda u: look(u)[0][0],
            (x - low) / width,
            jac=lambda u: look(u)[1][0],
            bounds=ends,
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": _STEPS, "ftol": 1e-7},
        ).x
    except (ValueError, np.linalg.LinAlgError):
        return None
    return low + width * np.clip(end, 0.0, 1.0) if np.isfinite(end).all() else None
