"""Hyper-parameters of one function: the most probable ones, or draws by slice sampling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime.arrays import Array

__all__ = ["Model", "default_kernel", "most_probable", "slice_samples"]

#: Prior of the default kernel, in units of the box and of the observations' spread: medians and
#: standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.5, 1.0
_VARIANCE, _VARIANCE_SD = 1.0, 1.0
_NOISE, _NOISE_SD = 1e-5, 2.5
#: Variance of the noise is bounded: below, nothing is gained but rounding.
_NOISE_BOUNDS = np.log([1e-8, 1.0])


class Model(NamedTuple):
    """What is learnt: a kernel, whose theta has a normal prior or none, and perhaps the noise.

    centre, spread: of theta, and of the log noise last if it is learnt; infinite spread is flat.
    """

    kernel: Any
    noise: float | None
    centre: Array
    spread: Array
    bounds: Array


def default_kernel(d: int, noise: float | None, shape: str = "rbf") -> Model:
    """A constant times RBF or Matern 5/2, a length-scale for each variable of the unit cube."""
    length = np.full(d, _LENGTH * np.sqrt(d))
    inner = RBF(length, (1e-2, 1e2)) if shape == "rbf" else Matern(length, (1e-2, 1e2), nu=2.5)
    kernel = ConstantKernel(_VARIANCE, (1e-3, 1e3)) * inner
    centre = kernel.theta.copy()
    spread = np.concatenate([[_VARIANCE_SD], np.full(d, _LENGTH_SD)])
    return _with_noise(kernel, noise, centre, spread)


def given_kernel(kernel: Any, noise: float | None) -> Model:
    """A user's kernel, all values within its bounds equally probable."""
    n = len(kernel.theta)
    return _with_noise(kernel, noise, kernel.theta.copy(), np.full(n, np.inf))


def _with_noise(kernel: Any, noise: float | None, centre: Array, spread: Array) -> Model:
    bounds = np.reshape(kernel.bounds, (-1, 2)) if len(centre) else np.zeros((0, 2))
    if noise is None:
        centre = np.append(centre, np.log(_NOISE))
        spread = np.append(spread, _NOISE_SD)
        bounds = np.vstack([bounds, _NOISE_BOUNDS])
    return Model(kernel, noise, centre, spread, bounds)


def _loss(p: Array, model: Model, X: Array, y: Array) -> tuple[float, Array]:
    """Minus log posterior of the parameters, and its gradient."""
    n = len(model.kernel.theta)
    K, dK = model.kernel.clone_with_theta(p[:n])(X, eval_gradient=True)
    noise = np.exp(p[n]) if model.noise is None else model.noise
    K[np.diag_indices_from(K)] += noise + 1e-10 * K.diagonal().max()
    try:
        R = cholesky(K, lower=True)
    except LinAlgError:
        return 1e25, np.zeros_like(p)
    w = cho_solve((R, True), y)
    inner = np.outer(w, w) - cho_solve((R, True), np.eye(len(K)))
    slope = np.empty_like(p)
    slope[:n] = -0.5 * np.einsum("ij,ijp->p", inner, dK)
    if model.noise is None:
        slope[n] = -0.5 * noise * np.trace(inner)
    loss = 0.5 * y @ w + np.log(R.diagonal()).sum()
    z = (p - model.centre) / model.spread
    loss += 0.5 * z @ z
    slope += z / model.spread
    return float(loss), slope


def most_probable(
    model: Model, X: Array, y: Array, starts: list[Array], max_iter: int = 60
) -> Array:
    """Parameters of the highest posterior that any of the starts leads to."""
    if not len(model.centre):
        return model.centre
    if not len(X):
        return np.clip(model.centre, *model.bounds.T)
    best, value = np.clip(model.centre, *model.bounds.T), np.inf
    for start in starts:
        end = minimize(
            _loss,
            np.clip(start, *model.bounds.T),
            args=(model, X, y),
            jac=True,
            method="L-BFGS-B",
            bounds=model.bounds,
            options={"maxiter": max_iter},
        )
        if end.fun < value and np.isfinite(end.x).all():
            best, value = end.x, end.fun
    return np.asarray(best)


def slice_samples(
    model: Model, X: Array, y: Array, start: Array, count: int, rng: np.random.Generator
) -> list[Array]:
    """Draws from the posterior of the parameters, by slices along random directions."""
    if not len(model.centre):
        return [model.centre] * count
    low, high = model.bounds.T
    p = np.clip(start, low, high)
    value = -_loss(p, model, X, y)[0] if len(X) else _log_prior(model, p)
    draws = []
    for step in range(5 * count + 5):
        level = value + np.log(1.0 - rng.random())
        direction = rng.standard_normal(len(p))
        direction /= np.linalg.norm(direction)
        left = -2.0 * rng.random()
        right = left + 2.0
        for _ in range(60):
            t = rng.uniform(left, right)
            q = p + t * direction
            if (q >= low).all() and (q <= high).all():
                there = -_loss(q, model, X, y)[0] if len(X) else _log_prior(model, q)
                if there > level:
                    p, value = q, there
                    break
            left, right = (t, right) if t < 0.0 else (left, t)
        if step >= 5 and (step - 5) % 5 == 4:
            draws.append(p.copy())
    return draws


def _log_prior(model: Model, p: Array) -> float:
    z = (p - model.centre) / model.spread
    return float(-0.5 * z @ z)
