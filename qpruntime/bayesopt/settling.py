"""The fixed point of NFCPD: sites of all functions move in parallel until they have settled.

Steps at x* and the observed points are coupled by their heights alone; many x* move at once. The
factor of point n says: not (all c_k(x_n) >= 0 and f(x_n) < f(x*)). Averaged over cavities of the
others it is a step in each function, with y = log(height right of 0/height left of 0).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from qpruntime.arrays import Array
from qpruntime.bayesopt.frame import Parts
from qpruntime.projection.kernel import project_rows
from qpruntime.projection.projector import Projector

__all__ = ["Ended", "Projection", "Steps", "log_heights", "log_one_minus", "settle"]

Projection = Literal["ep", "qp"]
#: Each iteration moves by so much less than the last.
_SLOWER = 0.99
_HALVINGS = 40
#: Functions that contradict their data by more than 1e5 standard deviations are left at that:
#: the square of this, in B, is what double precision has to spare.
_NARROWEST = 1e-5
#: Steps shorter than this lead nowhere.
_STUCK = 1e-3


class Ended(NamedTuple):
    """Parts whose sites have moved; iterations, settled and held (M,), of every x*."""

    parts: Parts
    iterations: NDArray[np.int64]
    settled: NDArray[np.bool_]
    held: NDArray[np.bool_]


class Steps:
    """Project steps with cavities N(mean, sd^2), EP or QP; arguments are not looked at again."""

    def __init__(self, method: Projection) -> None:
        projector = Projector("step", method)
        self._likelihood = projector.likelihood
        self._rules = projector.functions, projector.source

    def __call__(self, mean: Array, sd: Array, y: Array) -> tuple[Array, Array]:
        cavities, heights = (mean.reshape(-1), sd.reshape(-1)), y.reshape(-1)
        ones = np.ones(mean.size)
        _, means, std, _ = project_rows(self._likelihood, self._rules, ones, cavities, heights)
        return means.reshape(mean.shape), std.reshape(mean.shape)


class _State(NamedTuple):
    """Marginals (mean, variance) and cavities (centre, spread); fine (M,): all are proper."""

    mean: Array
    variance: Array
    centre: Array
    spread: Array
    fine: NDArray[np.bool_]


def _marginals(root: Array, prior: Array, tau: Array, nu: Array) -> _State:
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
    return _State(mean, variance, (mean - nu * variance) / kept, variance / kept, fine)


def _roots_one_by_one(B: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Cholesky roots of those matrices that have one; the unit matrix for the others."""
    R, proper = np.empty_like(B), np.ones(B.shape[:2], dtype=bool)
    for at in np.ndindex(B.shape[:2]):
        try:
            R[at] = np.linalg.cholesky(B[at])
        except np.linalg.LinAlgError:
            R[at], proper[at] = np.eye(B.shape[-1]), False
    return R, proper


def settle(parts: Parts, steps: Steps, tol: float, max_iter: int) -> Ended:
    """Move all sites in parallel, by less every time, halved where something is improper."""
    root, prior, silent, tau, nu = parts
    M = len(root)
    iterations, settled = np.zeros(M, dtype=np.int64), np.zeros(M, dtype=bool)
    active = np.arange(M)
    state = _marginals(root, prior, tau, nu)
    step, held = np.ones(M), np.zeros(M, dtype=bool)
    for n in range(1, max_iter + 1):
        own = _State(*[a[active] for a in state])  # type: ignore[arg-type]
        new_tau, new_nu, change = _propose(own, silent[active], held[active], steps)
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
            held[stuck] = True
            negative = tau[stuck] < 0.0
            tau[stuck], nu[stuck] = np.where(negative, 0.0, (tau[stuck], nu[stuck]))
            for kept, new in zip(
                state, _marginals(root[stuck], prior[stuck], tau[stuck], nu[stuck]), strict=True
            ):
                kept[stuck] = new
            step[stuck] = 1.0
        step = np.minimum(2.0 * step, _SLOWER**n)
    return Ended(Parts(root, prior, silent, tau, nu), iterations, settled, held)


def _propose(
    state: _State, silent: NDArray[np.bool_], held: NDArray[np.bool_], steps: Steps
) -> tuple[Array, Array, Array]:
    """New sites, and by how much they would move the marginals, (M,); held ones stay positive."""
    seen = state.spread > 1e-250
    seen[:, 0] &= ~silent
    centre = np.where(seen, state.centre, 0.0)
    spread = np.where(seen, state.spread, 1.0)
    sd = np.sqrt(spread)
    y = log_heights(centre / sd)
    y[:, 1:, 0] = np.inf
    y[:, 1:, 1:][np.broadcast_to(silent[:, None, 1:], y[:, 1:, 1:].shape)] = 0.0
    y[~seen] = 0.0
    seen &= y != 0.0
    mean, std = steps(centre, sd, y)
    std = np.maximum(std, _NARROWEST * sd)
    # As wide as the cavity at most, with the same mean, where no precision may be negative.
    wide = (std**2 > spread) & held[:, None, None]
    std = np.where(wide, sd, std)
    tau = np.where(seen & ~wide, 1.0 / std**2 - 1.0 / spread, 0.0)
    nu = np.where(seen, mean / std**2 - centre / spread, 0.0)
    marginal = np.where(seen, state.variance, 1.0)
    moved = np.abs(mean - np.where(seen, state.mean, mean)) / np.sqrt(marginal)
    widened = np.abs(np.where(seen, std**2, 1.0) / marginal - 1.0)
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
