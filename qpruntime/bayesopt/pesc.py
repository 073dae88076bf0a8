"""NFCPD: functions given their data and that x* is the constrained minimiser, by EP or QP.

Given x*, each c_k(x*) >= 0, and no observed point is feasible and lower than x*. In the coordinates
g_n = f_n - f(x*) and c_k,n, n = 0 being x*, this is K + 1 ordinary problems with scalar steps as
sites, coupled by their heights alone. All x* are solved together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.bayesopt.frame import Base, Frame, Parts, begin, least_gap, stacked
from qpruntime.bayesopt.settling import Projection, Steps, log_heights, settle
from qpruntime.bayesopt.surrogate import Surrogate, points
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.renamed import renamed
from qpruntime.validation import choice, number, whole

__all__ = ["Conditioned", "condition", "condition_all"]


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
    """

    def __init__(
        self,
        frame: Frame,
        base: Base,
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
        one = Base(
            base.X[place : place + 1],
            base.mean[:, place : place + 1],
            base.variance[:, place : place + 1],
            base.cross[:, place : place + 1],
            [w[:, place : place + 1] for w in base.white],
        )
        self._star = one
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
        found = points(X, "X", self.points.shape[1])
        return self.at(self.frame.base(found))

    def at(self, base: Base) -> tuple[Array, Array]:
        """`predict` at the points of a base of the same frame."""
        star = self._star
        to_star = self.frame.between(base, star)[:, :, 0]
        mean, variance = np.empty(base.mean.shape), np.empty(base.mean.shape)
        cross = np.concatenate([to_star[:, :, None], base.cross], axis=2)
        cross[0, :, 1:] -= cross[0, :, :1]
        cross[0, :, 0] = 0.0
        inner = cross @ self._inner
        mean = base.mean + np.einsum("ktn,kn->kt", cross, self._shift)
        variance = base.variance - np.einsum("ktn,ktn->kt", inner, cross)
        # f(x*), and its covariance with f(x).
        own = np.concatenate([np.zeros(1), star.cross[0, 0] - star.variance[0, 0]])
        mean_star = star.mean[0, 0] + own @ self._shift[0]
        variance_star = star.variance[0, 0] - own @ self._inner[0] @ own
        between = to_star[0] - inner[0] @ own
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
        own = variance[0] - slope**2 * (gap - new_variance[0])
        new_mean[0] = first
        new_variance[0] = np.maximum(own, 1e-12 * variance[0])
        return new_mean, new_variance


@renamed(max_iter="max_sweeps")
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
    """
    frame = Frame(surrogates)
    star = np.atleast_1d(np.asarray(x_star, dtype=float))
    if star.ndim != 1:
        raise InputError(f"x_star must be one point of shape (d,), got shape {star.shape}")
    X = points(star[None, :], "x_star", frame.points.shape[1])
    return condition_all([frame], X, method, tol=tol, max_sweeps=max_sweeps)[0]


def condition_all(
    frames: Sequence[Frame],
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
    parts, iterations, settled, held = settle(stacked(starts), steps, tol, max_sweeps)
    if complain and not settled.all():
        warn(
            f"not converged after {max_sweeps} iterations at {int((~settled).sum())} of "
            f"{len(settled)} minimisers: raise max_sweeps, or give the observations some noise",
            ConvergenceWarning,
        )
    found: list[Conditioned] = []
    for (frame, which), base in zip(groups, bases, strict=True):
        n = len(found)
        own = Parts(*[a[n : n + len(which)] for a in parts])  # type: ignore[arg-type]
        for i in range(len(which)):
            end = int(iterations[n + i]), bool(settled[n + i]), bool(held[n + i])
            found.append(Conditioned(frame, base, own, i, steps, end))
    return found
