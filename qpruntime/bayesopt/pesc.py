"""Predictive entropy search with constraints: conditioning on the minimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from scipy.special import log_ndtr

from qpruntime._typing import Array
from qpruntime._validation import choice, number, whole
from qpruntime.bayesopt.surrogate import Surrogate, points
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_rows

__all__ = [
    "Conditioned",
    "IndependentPosteriors",
    "ObservedFunctions",
    "Parts",
    "Projection",
    "SettledParts",
    "Steps",
    "begin",
    "checked",
    "condition",
    "condition_all",
    "least_gap",
    "log_heights",
    "log_one_minus",
    "settle",
    "stacked",
]

# --- NFCPD: functions given their data and that x* is the constrained minimiser, by EP or QP.
#
# Given x*, each c_k(x*) >= 0, and no observed point is feasible and lower than x*. In the
# coordinates g_n = f_n - f(x*) and c_k,n, n = 0 being x*, this is K + 1 ordinary problems with
# scalar steps as sites, coupled by their heights alone. All x* are solved together.


class Conditioned:
    """All functions given that x* is the constrained minimiser.

    Attributes
    ----------
    x_star : ndarray, shape (d,)
    tau, nu : ndarray, shape (K + 1, N + 1)
        Sites at x* (first) and at `points`: of f - f(x*), whose first is none, then of the
        constraints.
    points : ndarray, shape (N, d)
        All observed points.
    n_iterations : int
    converged : bool
    held : bool
        Whether site precisions are held at zero or above, because negative ones lead nowhere.

    See Also
    --------
    qpruntime.bayesopt.condition

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.bayesopt import Surrogate, condition
    >>> X = np.array([[0.1], [0.4], [0.7], [0.9]])
    >>> objective = Surrogate(1.0 * RBF(0.3), X, (X[:, 0] - 0.5) ** 2)
    >>> constraint = Surrogate(1.0 * RBF(0.3), X, X[:, 0] - 0.3)
    >>> post = condition([objective, constraint], [0.45])
    >>> mean, variance = post.predict([[0.45], [0.6]])
    >>> mean.shape, bool(np.all(variance >= 0.0))
    ((2, 2), True)
    """

    def __init__(
        self,
        frame: ObservedFunctions,
        base: IndependentPosteriors,
        parts: Parts,
        place: int,
        steps: Steps,
        end: tuple[int, bool, bool],
    ) -> None:
        self.frame, self.points = frame, frame.points
        self._steps = steps
        self.x_star = base.X[place]
        self.tau, self.nu = parts.tau[place], parts.nu[place]
        self.n_iterations, self.converged, self.held = end
        star = IndependentPosteriors(
            base.X[place : place + 1],
            base.mean[:, place : place + 1],
            base.variance[:, place : place + 1],
            base.cross[:, place : place + 1],
            [w[:, place : place + 1] for w in base.white],
        )
        self._star = star
        root = parts.root[place]
        A = root @ root.transpose(0, 2, 1)
        n = A.shape[-1]
        right = np.concatenate(
            [
                self.tau[:, :, None] * np.eye(n),
                (self.nu - self.tau * parts.mean[place])[:, :, None],
            ],
            axis=2,
        )
        # (I + T A)^-1 T and (I + T A)^-1 (nu - T m).
        solved = np.linalg.solve(np.eye(n) + self.tau[:, :, None] * A, right)
        self._inner, self._shift = solved[:, :, :n], solved[:, :, n]

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Latent mean and variance of all functions, the objective first, both (K + 1, T)."""
        X_checked = points(X, "X", self.points.shape[1])
        return self.at(self.frame.base(X_checked))

    def at(self, base: IndependentPosteriors) -> tuple[Array, Array]:
        """`predict` at the points of a base of the same frame."""
        star = self._star
        to_star = self.frame.between(base, star)[:, :, 0]
        cross = np.concatenate([to_star[:, :, None], base.cross], axis=2)
        cross[0, :, 1:] -= cross[0, :, :1]
        cross[0, :, 0] = 0.0
        inner = cross @ self._inner
        mean = base.mean + np.einsum("ktn,kn->kt", cross, self._shift)
        variance = base.variance - np.einsum("ktn,ktn->kt", inner, cross)
        # f(x*), and its covariance with f(x).
        weights = np.concatenate([np.zeros(1), star.cross[0, 0] - star.variance[0, 0]])
        mean_star = star.mean[0, 0] + weights @ self._shift[0]
        variance_star = star.variance[0, 0] - weights @ self._inner[0] @ weights
        between = to_star[0] - inner[0] @ weights
        least = 1e-13 * np.array([[s.scale] for s in self.frame.surrogates]) + 1e-300
        variance = np.maximum(variance, np.minimum(least, base.variance + 1e-300))
        gap = variance[0] + variance_star - 2.0 * between
        open_ = gap > least_gap(self.frame, base.variance[0] + star.variance[0, 0])
        gap = np.where(open_, gap, 1.0)
        return self._own_factor(mean, variance, mean[0] - mean_star, gap, between, open_)

    def _own_factor(
        self,
        mean: Array,
        variance: Array,
        lead: Array,
        gap: Array,
        between: Array,
        open_: NDArray[np.bool_],
    ) -> tuple[Array, Array]:
        """Take in the factor of each x itself: f(x) - f(x*) is N(lead, gap) before it."""
        centre, spread = np.array(mean), np.array(variance)
        centre[0], spread[0] = lead, gap
        sd = np.sqrt(spread)
        y = np.where(open_, log_heights(centre / sd), 0.0)
        new_mean, new_sd = self._steps(centre, sd, y)
        new_variance = new_sd**2
        slope = np.where(open_, (variance[0] - between) / gap, 0.0)
        first = mean[0] + slope * (new_mean[0] - lead)
        cavity_variance = variance[0] - slope**2 * (gap - new_variance[0])
        new_mean[0] = first
        new_variance[0] = np.maximum(cavity_variance, 1e-12 * variance[0])
        return new_mean, new_variance


def condition(
    surrogates: Sequence[Surrogate],
    x_star: ArrayLike,
    method: Projection = "ep",
    *,
    tol: float = 1e-4,
    max_sweeps: int = 200,
) -> Conditioned:
    """Condition functions on x* being their constrained minimiser.

    Parameters
    ----------
    surrogates : list of Surrogate
        The objective first, then the constraints, each with its own data.
    x_star : array-like, shape (d,)
    method : {"ep", "qp"}
        QP matches the quantiles of marginals, and is no nearer to samples than EP.
    tol : float
        Stop where the mean changes by less, in standard deviations, and so the variance, relative.
    max_sweeps : int
        Of all sites, at most.

    Returns
    -------
    Conditioned

    Raises
    ------
    InputError
        If shapes do not fit or something is not finite.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps` iterations.

    See Also
    --------
    qpruntime.bayesopt.gains, qpruntime.bayesopt.sample_minimisers

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.bayesopt import Surrogate, condition
    >>> X = np.array([[0.1], [0.4], [0.7], [0.9]])
    >>> objective = Surrogate(1.0 * RBF(0.3), X, (X[:, 0] - 0.5) ** 2)
    >>> constraint = Surrogate(1.0 * RBF(0.3), X, X[:, 0] - 0.3)
    >>> post = condition([objective, constraint], [0.45])
    >>> post.converged, post.tau.shape
    (True, (2, 5))
    """
    frame = ObservedFunctions(surrogates)
    star = np.atleast_1d(np.asarray(x_star, dtype=float))
    if star.ndim != 1:
        raise InputError(f"x_star must be one point of shape (d,), got shape {star.shape}")
    X = points(star[None, :], "x_star", frame.points.shape[1])
    return condition_all([frame], X, method, tol=tol, max_sweeps=max_sweeps)[0]


def condition_all(
    frames: Sequence[ObservedFunctions],
    X_star: Array,
    method: Projection = "ep",
    *,
    tol: float = 1e-4,
    max_sweeps: int = 200,
    complain: bool = True,
) -> list[Conditioned]:
    """`condition` on M x*, each with its frame or all with the same; (M, d)."""
    choice(method, "method", ("ep", "qp"))
    number(tol, "tol", above=0.0)
    whole(max_sweeps, "max_sweeps", 1)
    steps = Steps(method)
    if len(frames) == 1:
        groups = [(frames[0], np.arange(len(X_star)))]
    else:
        groups = [(frame, np.array([m])) for m, frame in enumerate(frames)]
    bases = [frame.base(X_star[which]) for frame, which in groups]
    starts = [begin(frame, base) for (frame, _), base in zip(groups, bases, strict=True)]
    parts, iterations, settled, damped = settle(stacked(starts), steps, tol, max_sweeps)
    if complain and not settled.all():
        warn(
            f"not converged after {max_sweeps} iterations at {int((~settled).sum())} of "
            f"{len(settled)} minimisers: raise max_sweeps, or give the observations some noise",
            ConvergenceWarning,
        )
    conditioned: list[Conditioned] = []
    for (frame, which), base in zip(groups, bases, strict=True):
        n = len(conditioned)
        parts_of_post = Parts(*[a[n : n + len(which)] for a in parts])  # type: ignore[arg-type]
        for i in range(len(which)):
            end = int(iterations[n + i]), bool(settled[n + i]), bool(damped[n + i])
            conditioned.append(Conditioned(frame, base, parts_of_post, i, steps, end))
    return conditioned


# --- The fixed point of NFCPD: sites of all functions move in parallel until they have settled.
#
# Steps at x* and the observed points are coupled by their heights alone; many x* move at once. The
# factor of point n says: not (all c_k(x_n) >= 0 and f(x_n) < f(x*)). Averaged over cavities of the
# others it is a step in each function, with y = log(height right of 0/height left of 0).

Projection = Literal["ep", "qp"]
#: Each iteration moves by so much less than the last.
_SLOWER = 0.99
_HALVINGS = 40
#: Functions that contradict their data by more than 1e5 standard deviations are left at that:
#: the square of this, in B, is what double precision has to spare.
_NARROWEST = 1e-5
#: Steps shorter than this lead nowhere.
_STUCK = 1e-3


class SettledParts(NamedTuple):
    """Parts whose sites have moved; iterations, settled and held (M,), of every x*."""

    parts: Parts
    iterations: NDArray[np.int64]
    settled: NDArray[np.bool_]
    is_damped: NDArray[np.bool_]


class Steps:
    """Project steps with cavities N(mean, sd^2), EP or QP; arguments are not looked at again."""

    def __init__(self, method: Projection) -> None:
        projector = Projector("step", method)
        self._likelihood = projector.likelihood
        self._rules = projector.functions, projector.source

    def __call__(self, mean: Array, sd: Array, y: Array) -> tuple[Array, Array]:
        """Return moments of the step's tilted densities, in the shape of `mean`."""
        cavities, heights = (mean.reshape(-1), sd.reshape(-1)), y.reshape(-1)
        unit_outcomes = np.ones(mean.size)
        _, means, std, _ = project_rows(
            self._likelihood, self._rules, unit_outcomes, cavities, heights
        )
        return means.reshape(mean.shape), std.reshape(mean.shape)


class _SiteMarginals(NamedTuple):
    """Marginals (mean, variance) and cavities (centre, spread); fine (M,): all are proper."""

    mean: Array
    variance: Array
    centre: Array
    spread: Array
    fine: NDArray[np.bool_]


def _marginals(root: Array, prior: Array, tau: Array, nu: Array) -> _SiteMarginals:
    """Posterior and cavities given the sites, by B = I + L' T L: variances are sums of squares."""
    L = root.swapaxes(-1, -2)
    B = L @ (tau[..., None] * root)
    B[..., np.arange(B.shape[-1]), np.arange(B.shape[-1])] += 1.0
    try:
        R, proper = np.linalg.cholesky(B), np.ones(B.shape[:2], dtype=bool)
    except np.linalg.LinAlgError:
        R, proper = _roots_one_by_one(B)
    H = np.linalg.solve(R, L)
    variance = np.einsum("mkrn,mkrn->mkn", H, H)
    inner = np.einsum("mkrn,mkn->mkr", H, nu - tau * prior)
    mean = prior + np.einsum("mkrn,mkr->mkn", H, inner)
    kept = 1.0 - tau * variance
    fine = proper.all(axis=1) & (kept > 1e-12).all(axis=(1, 2))
    kept = np.where(kept > 1e-12, kept, 1.0)
    return _SiteMarginals(mean, variance, (mean - nu * variance) / kept, variance / kept, fine)


def _roots_one_by_one(B: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Cholesky roots of those matrices that have one; the unit matrix for the others."""
    R, proper = np.empty_like(B), np.ones(B.shape[:2], dtype=bool)
    for at in np.ndindex(B.shape[:2]):
        try:
            R[at] = np.linalg.cholesky(B[at])
        except np.linalg.LinAlgError:
            R[at], proper[at] = np.eye(B.shape[-1]), False
    return R, proper


def settle(parts: Parts, steps: Steps, tol: float, max_iter: int) -> SettledParts:
    """Move all sites in parallel, by less every time, halved where something is improper."""
    root, prior, silent, tau, nu = parts
    M = len(root)
    iterations, settled = np.zeros(M, dtype=np.int64), np.zeros(M, dtype=bool)
    active = np.arange(M)
    state = _marginals(root, prior, tau, nu)
    step, is_damped = np.ones(M), np.zeros(M, dtype=bool)
    for n in range(1, max_iter + 1):
        active_state = _SiteMarginals(*[a[active] for a in state])  # type: ignore[arg-type]
        new_tau, new_nu, change = _propose(active_state, silent[active], is_damped[active], steps)
        d_tau, d_nu = new_tau - tau[active], new_nu - nu[active]
        iterations[active] += 1
        done = change < tol
        settled[active[done]] = True
        active, d_tau, d_nu = active[~done], d_tau[~done], d_nu[~done]
        if not active.size:
            break
        trying = np.arange(active.size)
        for _ in range(_HALVINGS):
            at = active[trying]
            scale = step[at][:, None, None]
            new_tau = tau[at] + scale * d_tau[trying]
            new_nu = nu[at] + scale * d_nu[trying]
            tried = _marginals(root[at], prior[at], new_tau, new_nu)
            good = at[tried.fine]
            tau[good], nu[good] = new_tau[tried.fine], new_nu[tried.fine]
            for kept, new in zip(state, tried, strict=True):
                kept[good] = new[tried.fine]
            trying = trying[~tried.fine]
            if not trying.size:
                break
            step[active[trying]] *= 0.5
        stuck = active[step[active] < _STUCK]
        if stuck.size:
            # Negative precisions leave no way to a fixed point: they are held at zero.
            is_damped[stuck] = True
            negative = tau[stuck] < 0.0
            tau[stuck], nu[stuck] = np.where(negative, 0.0, (tau[stuck], nu[stuck]))
            for kept, new in zip(
                state, _marginals(root[stuck], prior[stuck], tau[stuck], nu[stuck]), strict=True
            ):
                kept[stuck] = new
            step[stuck] = 1.0
        step = np.minimum(2.0 * step, _SLOWER**n)
    return SettledParts(Parts(root, prior, silent, tau, nu), iterations, settled, is_damped)


def _propose(
    state: _SiteMarginals, silent: NDArray[np.bool_], held: NDArray[np.bool_], steps: Steps
) -> tuple[Array, Array, Array]:
    """Return new sites, and how far they would move the marginals; held ones stay positive."""
    informative = state.spread > 1e-250
    informative[:, 0] &= ~silent
    centre = np.where(informative, state.centre, 0.0)
    spread = np.where(informative, state.spread, 1.0)
    sd = np.sqrt(spread)
    y = log_heights(centre / sd)
    y[:, 1:, 0] = np.inf
    y[:, 1:, 1:][np.broadcast_to(silent[:, None, 1:], y[:, 1:, 1:].shape)] = 0.0
    y[~informative] = 0.0
    informative &= y != 0.0
    mean, std = steps(centre, sd, y)
    std = np.maximum(std, _NARROWEST * sd)
    # If precisions may not be negative, the normal is at most as wide as the cavity, with the same
    # mean.
    wide = (std**2 > spread) & held[:, None, None]
    std = np.where(wide, sd, std)
    tau = np.where(informative & ~wide, 1.0 / std**2 - 1.0 / spread, 0.0)
    nu = np.where(informative, mean / std**2 - centre / spread, 0.0)
    marginal = np.where(informative, state.variance, 1.0)
    moved = np.abs(mean - np.where(informative, state.mean, mean)) / np.sqrt(marginal)
    widened = np.abs(np.where(informative, std**2, 1.0) / marginal - 1.0)
    return tau, nu, np.maximum(moved, widened).max(axis=(1, 2))


def log_one_minus(x: Array) -> Array:
    """log(1 - e^x), x <= 0."""
    with np.errstate(divide="ignore"):
        near = x > -np.log(2.0)
        return np.where(
            near, np.log(-np.expm1(np.where(near, x, -1.0))), np.log1p(-np.exp(np.minimum(x, -0.5)))
        )


def log_heights(alpha: Array) -> Array:
    """Return y of every function's step at every point, shape (..., K + 1, N).

    Parameters
    ----------
    alpha : ndarray, shape (..., K + 1, N)
        Mean over standard deviation of the cavities: of f_n - f(x*), then of c_k,n.
    """
    below, above = log_ndtr(-alpha[..., 0, :]), log_ndtr(alpha[..., 0, :])
    feasible = log_ndtr(alpha[..., 1:, :])
    constraints = feasible.shape[-2]
    y = np.empty(alpha.shape)
    y[..., 0, :] = -log_one_minus(feasible.sum(axis=-2)) if constraints else np.inf
    for k in range(constraints):
        others = np.delete(feasible, k, axis=-2).sum(axis=-2)  # differences might be inf - inf
        lost = others + below
        with np.errstate(divide="ignore"):
            much = np.logaddexp(log_one_minus(others), others + above)
            y[..., k + 1, :] = np.where(
                lost < -np.log(2.0), np.log1p(-np.exp(np.minimum(lost, -0.5))), much
            )
    return y


# --- All functions at all observed points, which every x* shares, and with it: what NFCPD begins
# with.
#
# Posterior means and covariances, their roots continued by x*; no sites yet.

#: A variance below this part of the prior variance is rounding, and is dropped.
_RANK = 1e-14
#: Var(f_n - f(x*)) below this part of the variances says that the points are one, so does this
#: part of the prior variance, to which posterior variances are rounded.
_SAME, _ROUNDED = 1e-12, 1e-14


class IndependentPosteriors(NamedTuple):
    """Every function at T points, given its own data alone.

    mean, variance (K + 1, T); cross (K + 1, T, N) with the N observed points; white, a list of
    K + 1 arrays (n_j, T), as of `Surrogate.whiten`.
    """

    X: Array
    mean: Array
    variance: Array
    cross: Array
    white: list[Array]


def checked(surrogates: Sequence[Surrogate]) -> list[Surrogate]:
    """Return functions, the objective first, that agree about d; or raise `InputError`."""
    models = list(surrogates)
    if not models or not all(isinstance(s, Surrogate) for s in models):
        raise InputError(
            "surrogates must be a list of Surrogate, the objective first, then the constraints"
        )
    widths = [s.X.shape[1] for s in models]
    if len(set(widths)) > 1:
        raise InputError(f"surrogates must have points of one width, got {widths}")
    return models


class ObservedFunctions:
    """Functions (the objective first) at the union of their observed points.

    Attributes
    ----------
    points : ndarray, shape (N, d)
        Every observed point once: a factor counted twice makes variances 3 % too small.
    mean : ndarray, shape (K + 1, N)
    roots : list of ndarray, shape (N, r_j)
        Of the posterior covariances, r_j their numerical rank.
    """

    def __init__(self, surrogates: Sequence[Surrogate]) -> None:
        self.surrogates = checked(surrogates)
        everywhere = np.vstack([s.X for s in self.surrogates]) + 0.0
        self.points = np.unique(everywhere, axis=0)
        self._white = [s.whiten(self.points) for s in self.surrogates]
        self.mean = np.array([s.posterior_mean(self.points) for s in self.surrogates])
        self.roots: list[Array] = []
        self._leading: list[tuple[NDArray[np.intp], Array]] = []
        for s, Z in zip(self.surrogates, self._white, strict=True):
            V = s.covariance(self.points, self.points) - Z.T @ Z
            root, pivots, leading = _root(V, _RANK * s.scale)
            self.roots.append(root)
            self._leading.append((pivots, leading))

    def base(self, X: Array) -> IndependentPosteriors:
        """All functions at the points X, shape (T, d)."""
        mean, variance, cross, white = [], [], [], []
        for s, Z in zip(self.surrogates, self._white, strict=True):
            W = s.whiten(X)
            white.append(W)
            mean.append(s.posterior_mean(X))
            variance.append(s.posterior_variance(X, W))
            cross.append(s.covariance(X, self.points) - W.T @ Z)
        return IndependentPosteriors(X, np.array(mean), np.array(variance), np.array(cross), white)

    def between(self, one: IndependentPosteriors, other: IndependentPosteriors) -> Array:
        """Posterior covariances of all functions between two sets of points, (K + 1, T, M)."""
        return np.array(
            [
                s.covariance(one.X, other.X) - a.T @ b
                for s, a, b in zip(self.surrogates, one.white, other.white, strict=True)
            ]
        )

    def rows(self, base: IndependentPosteriors) -> tuple[list[Array], Array]:
        """Continue the roots by the points of a base: rows (T, r_j) each, and what is left.

        A point's covariance is root = [row, sqrt(left)], of which the last is its own.
        """
        rows, residual = [], np.empty(base.variance.shape)
        for j, (pivots, leading) in enumerate(self._leading):
            row = solve_triangular(leading, base.cross[j][:, pivots].T, lower=True).T
            rows.append(row)
            residual[j] = np.maximum(base.variance[j] - np.einsum("tr,tr->t", row, row), 0.0)
        return rows, residual


def _root(V: Array, least: float) -> tuple[Array, NDArray[np.intp], Array]:
    """Pivoted Cholesky root of V to its numerical rank: root, pivots, and its leading triangle."""
    if not len(V):
        return np.zeros((0, 0)), np.zeros(0, dtype=np.intp), np.zeros((0, 0))
    factor, order, rank, _ = dpstrf(0.5 * (V + V.T), tol=least, lower=1)
    rank = int(rank) if factor[0, 0] > 0.0 and V.diagonal().max() > least else 0
    order = np.asarray(order, dtype=np.intp) - 1
    lower = np.tril(factor)[:, :rank]
    root = np.empty_like(lower)
    root[order] = lower
    return root, order[:rank], lower[:rank]


class Parts(NamedTuple):
    """Sites of all functions at x* (first) and the observed points, for M x*.

    root (M, K + 1, N + 1, r) and mean (M, K + 1, N + 1) of the coordinates before conditioning;
    silent (M, N + 1): points that are x*; tau, nu (M, K + 1, N + 1).
    """

    root: Array
    mean: Array
    silent: NDArray[np.bool_]
    tau: Array
    nu: Array


def least_gap(frame: ObservedFunctions, variances: Array) -> Array:
    """Least Var(f_n - f(x*)) of points that are not one, given the sum of both variances."""
    return np.maximum(_SAME * variances, _ROUNDED * frame.surrogates[0].scale)


def begin(frame: ObservedFunctions, base: IndependentPosteriors) -> Parts:
    """Roots and means of g and c at x* and the observed points, for every x* of the base."""
    rows, residual = frame.rows(base)
    M, n = len(base.X), len(frame.points) + 1
    widest = max(r.shape[1] for r in frame.roots) + 1
    root = np.zeros((M, len(frame.roots), n, widest))
    mean = np.empty((M, len(frame.roots), n))
    for j, new_rows in enumerate(frame.roots):
        r = new_rows.shape[1]
        root[:, j, 0, :r], root[:, j, 0, r] = rows[j], np.sqrt(residual[j])
        root[:, j, 1:, :r] = new_rows
        mean[:, j, 0], mean[:, j, 1:] = base.mean[j], frame.mean[j]
    variance = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    root[:, 0] -= root[:, 0, :1].copy()
    mean[:, 0] -= mean[:, 0, :1].copy()
    gap = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    same = gap <= least_gap(frame, variance + variance[:, :1])
    zero = np.zeros(mean.shape)
    return Parts(root, mean, same, zero, zero.copy())


def stacked(starts: list[Parts]) -> Parts:
    """Return the x* of all parts as one, with roots as wide as the widest."""
    if len(starts) == 1:
        return starts[0]
    widest = max(s.root.shape[-1] for s in starts)
    padded = [
        np.pad(s.root, ((0, 0), (0, 0), (0, 0), (0, widest - s.root.shape[-1]))) for s in starts
    ]
    others = [np.concatenate(arrays) for arrays in zip(*(s[1:] for s in starts), strict=True)]
    return Parts(np.concatenate(padded), *others)
