"""Latent components and sample paths."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Product, Sum

from qpruntime._memory import in_blocks, require, squares
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import is_integrated, nodes_of
from qpruntime.estimators.parameters import Parameters
from qpruntime.estimators.process import Process
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.posterior import SparseSolution
from qpruntime.kernels.random_features import PriorDraws

__all__ = ["FEATURES", "Components", "LatentPaths", "components_of", "parts_of_sum"]

# --- Additive components -------------------------------------------------------------------------


class Components(NamedTuple):
    """Parts of a latent function at T points.

    Attributes
    ----------
    names : tuple of str
        Of the k kernels that are added, as they show themselves.
    mean, variance : ndarray, shape (T, k)
        Of each part; the means and the offset add up to those of ``latent``. Parts depend on each
        other, so that variances do not add up.
    offset : ndarray, shape (T,)
        What is no part: the prior mean, and means of parts that were taken off.

    See Also
    --------
    qpruntime.GPClassifier.components, qpruntime.kernels.On

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import GPRegressor
    >>> from qpruntime.kernels import On
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2.0, 2.0, (40, 2))
    >>> y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=40)
    >>> kernel = 1.0 * On(RBF(1.0), [0]) + 1.0 * On(RBF(1.0), [1])
    >>> parts = GPRegressor(kernel).fit(X, y).components([[1.0, 0.0], [1.0, 1.0]])
    >>> parts.mean.shape, bool(np.isclose(parts.mean[0, 0], parts.mean[1, 0]))
    ((2, 2), True)
    """

    names: tuple[str, ...]
    mean: Array
    variance: Array
    offset: Array


def parts_of_sum(kernel: Kernel) -> list[Kernel]:
    """Return the summands of a kernel from left to right, each with the constant before its sum."""
    if isinstance(kernel, Sum):
        return parts_of_sum(kernel.k1) + parts_of_sum(kernel.k2)
    if isinstance(kernel, Product) and isinstance(kernel.k1, ConstantKernel):
        inside = parts_of_sum(kernel.k2)
        return [kernel] if len(inside) == 1 else [Product(kernel.k1, part) for part in inside]
    return [kernel]


def components_of(
    process: Process, points: Array, prior: ArrayLike, centred: bool = False
) -> Components:
    """Return the parts of a fitted process at points (T, d), of these prior means.

    Parts that are centred have a mean of 0 over the rows of the fit, and the offset has the rest.

    Raises
    ------
    InputError
        If its posterior is not one of covariance matrices.
    """
    if solution_of(process.posterior).name != "dense":
        raise InputError(
            "components need a covariance matrix, and this model was fitted as a series or "
            'with inducing points: fit it with solver="dense" and inducing=None'
        )
    parts = parts_of_sum(process.kernel)
    processes = [replace(process, kernel=part) for part in parts]
    middles = [_Middle.of(part_process) if centred else None for part_process in processes]

    def moments(block: slice) -> tuple[Array, Array]:
        parts_at = [
            part_process.at(points[block], 0.0)
            if middle is None
            else middle.away(part_process, points[block])
            for part_process, middle in zip(processes, middles, strict=True)
        ]
        return np.column_stack([m for m, _ in parts_at]), np.column_stack([v for _, v in parts_at])

    mean, variance = in_blocks(moments, len(points), len(process.X_train))
    offset = np.array(np.broadcast_to(np.asarray(prior, dtype=float), len(points)))
    offset += sum(middle.mean for middle in middles if middle is not None)
    return Components(tuple(str(part) for part in parts), mean, variance, offset)


@dataclass(frozen=True)
class _Middle:
    """The mean of one part over the rows of the fit.

    Attributes
    ----------
    crossed : ndarray, shape (N,)
        Its prior covariances with what was observed.
    variance, mean : float
        Prior variance, and posterior mean.
    """

    crossed: Array
    variance: float
    mean: float

    @classmethod
    def of(cls, part: Process) -> _Middle:
        """Return the mean of the part of a process."""
        X = part.X_train
        crossed = part.crossed(X)[0].mean(axis=0)
        variance = float(part.kernel(X, X).mean())
        mean = part.posterior.predict(crossed[None], np.array([variance]), mean=0.0)[0]
        return cls(crossed, variance, float(mean[0]))

    def away(self, part: Process, points: Array) -> tuple[Array, Array]:
        """Return the mean and variance of the part at points, less this mean."""
        crossed, variance = part.crossed(points)
        variance = variance - 2.0 * part.kernel(points, part.X_train).mean(axis=1) + self.variance
        return part.posterior.predict(crossed - self.crossed, np.maximum(variance, 0.0), mean=0.0)


# --- Sample paths --------------------------------------------------------------------------------

#: Pairs of cosine and sine of the prior.
FEATURES = 2000
_WHITE = 1e-9


class LatentPaths:
    """Functions drawn from the posterior of the latent function: call it with points.

    `sample_paths` of estimators returns it. A function is the same whenever and in whatever
    pieces it is evaluated. Near the data its distribution is the posterior. Far from them, 2000
    random cosines and sines replace the prior; their covariances are right to some hundredths of
    the variance. They have few fast waves: between rows of nearly no noise the functions of a rough
    kernel agree more than they should, by 1e-5 of its standard deviation.
    If hyper-parameters were integrated, each function has those of one node, drawn by its weight.

    See Also
    --------
    qpruntime.GPClassifier.sample_latent

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> model = GPRegressor().fit(X, np.sin(X[:, 0]))
    >>> paths = model.sample_paths(3, random_state=0)
    >>> paths([[1.5], [4.5]]).round(1).tolist()
    [[1.0, -1.0], [1.0, -1.0], [1.0, -1.0]]
    """

    def __init__(self, model: Parameters, n: int, rng: np.random.Generator) -> None:
        # The model is kept as it is now: a later fit sets other attributes.
        self._model = copy.copy(model)
        self._count = n
        #: Each process has a list of models, the numbers of their functions, and the draws.
        self._parts: list[list[tuple[Any, NDArray[np.intp], _Draw]]] = []
        if not is_integrated(model):
            every = np.arange(n)
            self._parts = [[(self._model, every, _Draw(o, n, rng))] for o in model._separate()]
            return
        for weights, models in nodes_of(self._model):
            node = rng.choice(len(weights), size=n, p=weights)
            part = []
            for j in np.unique(node):
                functions = np.flatnonzero(node == j)
                (process,) = models[j]._separate()
                part.append((models[j], functions, _Draw(process, functions.size, rng)))
            self._parts.append(part)

    def __len__(self) -> int:
        """Return the number of functions."""
        return self._count

    def __call__(self, X: ArrayLike) -> Array:
        """All functions at `X` (T, d), shape (n, T), or (n, T, K) of K processes.

        Values are in the units of ``latent``.
        """
        model = self._model
        points = model.validate_points(X)
        inputs, priors = model.kernel_inputs(points), model.prior_means(points)
        centre, unit = model.latent_units()
        paths = []
        for part, prior in zip(self._parts, priors, strict=True):
            f = np.empty((self._count, len(points)))
            for _, functions, draw in part:
                f[functions] = draw(inputs).T
            paths.append(centre + unit * (f + prior))
        return paths[0] if len(paths) == 1 else np.stack(paths, axis=2)


class _Draw:
    """Functions of one process, without its prior mean."""

    def __init__(self, process: Process, n: int, rng: np.random.Generator) -> None:
        solution = solution_of(process.posterior)
        if solution.name not in ("dense", "inducing") or process.slopes is not None:
            raise InputError(
                "paths can be drawn from models fitted by the dense engine or inducing points, "
                'without monotone=: fit with solver="dense", or use sample_latent'
            )
        self.process = process
        self.dense = solution.name == "dense"
        self.inducing = None if self.dense else solution.inducing
        at = process.X_train if self.dense else solution.Z
        self.prior = PriorDraws(process.kernel, at.shape[1], n, rng, FEATURES)
        variance = self.prior.diag(at[:1])
        if (process.kernel.diag(at[:1]) - variance > _WHITE * variance).any():
            raise InputError(
                "white noise of the kernel cannot be drawn as a function: learn noise by the "
                "likelihood, or use sample_latent"
            )
        p, z = self.prior(at), rng.standard_normal((len(at), n))
        if self.dense:
            slope = 1.0 if process.slope is None else np.reshape(process.slope, (-1, 1))
            self.weights = dense_weights(process, slope * p, z)
        else:
            self.weights = inducing_weights(solution, p, z)

    def __call__(self, inputs: Array) -> Array:
        """All functions at inputs (T, d), shape (T, n)."""

        def of(block: slice) -> Array:
            points = inputs[block]
            if self.inducing is None:
                known, _ = self.process.crossed(points)
            else:
                known, _ = self.inducing.features(points)
            return self.prior(points) + known @ self.weights

        return in_blocks(of, len(inputs), max(self.prior.features, len(self.weights)))


def dense_weights(process: Process, p: Array, z: Array) -> Array:
    """Return the weights of prior covariances with the rows, shape (N, n).

    Parameters
    ----------
    process : Process
        Of a posterior of the dense engine.
    p : ndarray, shape (N, n)
        Draws of the prior of what was observed, without its mean.
    z : ndarray, shape (N, n)
        Unit normal draws.
    """
    post = process.posterior
    tau = post.sites[0]
    N = tau.size
    require(squares(N, 3.0), f"paths of a model of {N} rows", "use inducing=100")
    K = process.covariance()
    root = np.sqrt(np.maximum(tau, 0.0))[:, None]
    B = cho_factor(np.eye(N) + root * K * root.T, lower=True, overwrite_a=True)
    # The weights of the posterior mean, which sites of noise-free rows do not give: the mean is
    # known to rounding, and their precision times that is anything.
    weights = solution_of(post).kept.weights
    path_weights: Array = weights[:, None] - root * cho_solve(B, root * p + z)
    below = np.flatnonzero(tau < 0.0)
    if below.size:
        # (C^-1 - |T|)^-1 = C + C (|T|^-1 - C)^-1 C, of the covariance C that the others leave.
        known = cho_solve(B, root * K[:, below])
        reduced = K[np.ix_(below, below)] - (root * K[:, below]).T @ known
        factor = np.linalg.cholesky(np.diag(-1.0 / tau[below]) - reduced)
        more = solve_triangular(factor, z[below], lower=True, trans=1)
        path_weights[below] += more
        path_weights -= root * (known @ more)
    return path_weights


def inducing_weights(solution: SparseSolution, p: Array, z: Array) -> Array:
    """Return the weights of features of points, shape (M, n).

    The features have unit prior precision and posterior precision B. Along its eigenvectors of
    value b the draw of the prior is taken back by 1 - 1/b, and noise of variance
    (1 - 1/b)/b is left; below 1 nothing is known, and 1/b - 1 is added.

    Parameters
    ----------
    solution : SparseSolution
    p : ndarray, shape (M, n)
        Draws of the prior at the inducing inputs, without its mean.
    z : ndarray, shape (M, n)
        Unit normal draws.
    """
    b, U = np.linalg.eigh(solution.root @ solution.root.T)
    removed = np.maximum(1.0 - 1.0 / b, 0.0)
    remaining = np.where(b >= 1.0, removed / b, 1.0 / b - 1.0)
    projected = U.T @ solve_triangular(solution.inducing.L, p, lower=True)
    return solution.weights[:, None] + U @ (
        np.sqrt(remaining)[:, None] * z - removed[:, None] * projected
    )
