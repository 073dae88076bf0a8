"""Surrogates: Gaussian processes with data of their own, and how kernel and noise are learnt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime._validation import finite, number, real
from qpruntime.errors import InputError, NumericalError
from qpruntime.kernels.default import Belief, default_kernel as learnt_kernel
from qpruntime.kernels.registry import parts_of

__all__ = [
    "Model",
    "Models",
    "Surrogate",
    "SurrogateData",
    "default_kernel",
    "most_probable",
    "noise_variance",
    "points",
    "slice_samples",
    "units",
]

#: Noise of noise-free data, relative to the prior variance: 1e-16 times the condition
#: number of K is what is lost.
_LEAST_NOISE = 1e-10


def noise_variance(noise: object) -> float:
    """Return the variance of a function's noise, or raise `InputError`."""
    variance = number(noise, "noise")
    if variance < 0.0:
        raise InputError(f"noise is a variance: it must not be negative, got {variance:g}")
    return variance


def points(X: object, name: str, d: int | None = None) -> Array:
    """Return finite points as an array of shape (T, d), or raise `InputError`."""
    values = real(X, name)
    if values.ndim != 2 or (d is not None and values.shape[1] != d):
        wanted = f"(T, {d})" if d is not None else "(T, d), one row a point"
        raise InputError(f"{name} must have shape {wanted}, got {values.shape}")
    if not np.isfinite(values).all():
        raise InputError(f"{name} must be finite; leave out what is missing")
    return values


class Surrogate:
    """A function and what has been observed of it.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Taken as it is; its WhiteKernels are noise.
    X : array-like, shape (n, d)
        Where it was observed; n = 0 leaves the prior.
    y : array-like, shape (n,)
    noise : float
        Variance of the noise, added to that of the kernel.
    mean : float
        Prior mean.

    Attributes
    ----------
    X, y : ndarray
    noise : float
        Variance of the noise, that of the kernel's WhiteKernels included.
    scale : float
        Largest prior variance at the data.

    Raises
    ------
    InputError
        If shapes do not fit, something is not finite, or the noise is negative.

    See Also
    --------
    qpruntime.bayesopt.condition, qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.bayesopt import Surrogate
    >>> X = np.array([[0.1], [0.4], [0.7], [0.9]])
    >>> surrogate = Surrogate(1.0 * RBF(0.3), X, (X[:, 0] - 0.5) ** 2)
    >>> mean, variance = surrogate.predict([[0.5], [3.0]])
    >>> mean.round(2).tolist(), variance.round(2).tolist()
    ([-0.02, 0.0], [0.01, 1.0])
    """

    def __init__(
        self, kernel: Kernel, X: ArrayLike, y: ArrayLike, noise: float = 0.0, mean: float = 0.0
    ) -> None:
        if not hasattr(kernel, "is_stationary"):
            raise InputError(
                f"kernel must be one of sklearn.gaussian_process.kernels, got {kernel!r}"
            )
        self.kernel = kernel
        self.X = points(X, "X")
        self.y = finite(y, "y", (len(self.X),))
        variance = noise_variance(noise)
        self.mean = number(mean, "mean")
        somewhere = self.X[:1] if len(self.X) else np.zeros((1, self.X.shape[1]))
        # A WhiteKernel is on the diagonal of k(X), and not in k(X, Y).
        prior = float(self.covariance(somewhere, somewhere)[0, 0])
        self.noise = variance + max(float(kernel.diag(somewhere)[0]) - prior, 0.0)
        self.scale = max(
            prior, float(np.max(kernel.diag(self.X), initial=0.0)) - self.noise + variance
        )
        self._factorise()

    def _factorise(self) -> None:
        n = len(self.X)
        K = self.covariance(self.X, self.X)
        lift = max(self.noise, _LEAST_NOISE * self.scale)
        for _ in range(8):
            try:
                self._root = cholesky(K + lift * np.eye(n), lower=True) if n else np.zeros((0, 0))
                break
            except LinAlgError:
                lift = max(10.0 * lift, 1e-10 * self.scale)
        else:
            raise NumericalError(
                "the kernel matrix is not positive definite whatever is added to its diagonal: "
                "check the kernel"
            )
        self.lift = lift
        self.weights = self.solve(self.y - self.mean)

    def covariance(self, A: Array, B: Array) -> Array:
        """Prior covariance of the function, without noise, shape (len(A), len(B))."""
        return np.asarray(self.kernel(A, B), dtype=float)

    def prior_variance(self, X: Array) -> Array:
        """Prior variance of the function, without noise, shape (T,)."""
        return np.asarray(self.kernel.diag(X), float) - self._white(X)

    def _white(self, X: Array) -> float:
        first_row = X[:1]
        if not len(first_row):
            return 0.0
        return float(self.kernel.diag(first_row)[0] - self.covariance(first_row, first_row)[0, 0])

    def solve(self, values: Array) -> Array:
        """(K + noise)^-1 times values."""
        return cho_solve((self._root, True), values) if len(self.X) else values

    def whiten(self, X: Array) -> Array:
        """R^-1 k(X_data, X), shape (n, T): posterior covariances are k less products of these."""
        K = self.covariance(self.X, X)
        return solve_triangular(self._root, K, lower=True) if len(self.X) else K

    def posterior_mean(self, X: Array) -> Array:
        """Mean of the function, shape (T,)."""
        if not len(self.X):
            return np.full(len(X), self.mean)
        return self.mean + self.covariance(X, self.X) @ self.weights

    def posterior_variance(self, X: Array, whitened: Array) -> Array:
        """Variance of the function, shape (T,), from `whiten(X)`."""
        explained = np.einsum("nt,nt->t", whitened, whitened)
        return np.asarray(np.maximum(self.prior_variance(X) - explained, 0.0))

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the function, without noise, both of shape (T,)."""
        X_checked = points(X, "X", self.X.shape[1])
        variance = self.posterior_variance(X_checked, self.whiten(X_checked))
        return self.posterior_mean(X_checked), variance

    def joined(self, X: Array, y: Array) -> Surrogate:
        """Return the same function with more observations."""
        more = object.__new__(Surrogate)
        more.__dict__.update(self.__dict__)
        more.X, more.y = np.vstack([self.X, X]), np.concatenate([self.y, y])
        more._factorise()
        return more


# --- From the table of evaluations to surrogates in units of the box, hyper-parameters learnt.

#: Variance of the noise in units of the observations' spread: beyond, nothing is to be seen anyway.
_MOST_NOISE = 1e30


def units(y: Array, constraint: bool) -> tuple[float, float]:
    """Location and scale of observations: mean and standard deviation, or their size.

    Constraints keep their zero, which is their prior mean: before a feasible point is known, what
    is far from the data may be one. The median gap of Gramacy's problem after ten evaluations was
    .004 so, and .05 with the mean of the observations as prior mean (16 seeds).
    """
    if not len(y):
        return 0.0, 1.0
    centre = 0.0 if constraint else float(np.mean(y))
    size = float(np.max(np.abs(y)))
    # Squares of 1e-200 are 0: by a power of two, which rounds nothing.
    power = int(np.frexp(size)[1])
    spread = float(np.ldexp(np.std(np.ldexp(y, -power)), power))
    if constraint:
        # Far from 0 and nearly constant: the prior has to reach there.
        spread = max(spread, size / 3.0)
    if not spread > 1e-12 * size:
        spread = size if size > 0.0 else 1.0
    return centre, spread


class SurrogateData(NamedTuple):
    """Data of one function: its number, points (n, d) of the unit cube, values (n,)."""

    j: int
    U: Array
    y: Array

    @property
    def key(self) -> bytes:
        """Equal for equal data."""
        return self.U.tobytes() + self.y.tobytes()


class Models:
    """Functions of an optimisation, fitted to what is known of each in the unit cube.

    Function K + 1 + j is whether evaluations of function j succeed; its kernel is the default one.

    Attributes
    ----------
    last : list of ndarray or None
        Parameters at which the next fit of each function starts, besides the prior's centre.
    """

    def __init__(
        self, d: int, kernels: Sequence[Kernel | None], noises: Sequence[float | None]
    ) -> None:
        self.d, self.kernels, self.noises = d, list(kernels), list(noises)
        self.last: list[Array | None] = [None] * (2 * len(self.kernels))
        self._fitted: dict[int, tuple[bytes, Array]] = {}

    def model(self, j: int, spread: float) -> Model:
        """Return what is to be learnt of function j, if this is the unit of its observations."""
        has_own_settings = j < len(self.kernels)
        noise = self.noises[j] if has_own_settings else None
        if noise is not None:
            noise = min(noise / spread / spread, _MOST_NOISE)
        kernel = self.kernels[j] if has_own_settings else None
        if kernel is None or isinstance(kernel, str):
            return default_kernel(self.d, noise, kernel or "rbf")
        return given_kernel(kernel, noise)

    def scaled(self, known: SurrogateData) -> tuple[Model, Array, float, float]:
        """Model, observations in units of their spread, and these units."""
        centre, spread = units(known.y, known.j > 0)
        return self.model(known.j, spread), (known.y - centre) / spread, centre, spread

    def parameters(self, known: SurrogateData) -> Array:
        """Return the most probable parameters of a function, kept while the data are the same."""
        j, U, _ = known
        if j in self._fitted and self._fitted[j][0] == known.key:
            return self._fitted[j][1]
        model, z, _, _ = self.scaled(known)
        last = self.last[j]
        starts = [model.centre] if last is None else [last, model.centre]
        # A fit of hundreds of points goes on where the last one ended.
        few = len(U) > 100 and last is not None
        theta = most_probable(model, U, z, starts[:1] if few else starts, 10 if few else 60)
        self._fitted[j] = known.key, theta
        return theta

    def surrogate(self, known: SurrogateData, parameters: Array) -> Surrogate:
        """Return a function with these parameters, in units of its observations' spread."""
        model, z, _, _ = self.scaled(known)
        n = len(model.kernel.theta)
        noise = float(np.exp(parameters[n])) if model.noise is None else model.noise
        kernel = model.kernel.clone_with_theta(parameters[:n])
        return Surrogate(kernel, known.U, z, noise)

    def groups(
        self, data: Sequence[SurrogateData], draws: int, rng: np.random.Generator
    ) -> list[list[Surrogate]]:
        """Surrogates of all functions: one list of the most probable, or so many draws of them."""
        best = [self.parameters(known) for known in data]
        if not draws:
            return [[self.surrogate(known, p) for known, p in zip(data, best, strict=True)]]
        chains = []
        for known, p in zip(data, best, strict=True):
            model, z, _, _ = self.scaled(known)
            chains.append(slice_samples(model, known.U, z, p, draws, rng))
        return [
            [self.surrogate(known, chain[i]) for known, chain in zip(data, chains, strict=True)]
            for i in range(draws)
        ]

    def remember(self, data: Sequence[SurrogateData]) -> None:
        """Start the next fits at those of these data."""
        for j, _, _ in data:
            self.last[j] = self._fitted[j][1]

    # Saved state

    def state(self, data: Sequence[SurrogateData]) -> dict[str, list[list[float] | None]]:
        """Plain values that JSON holds: where fits start, and those that are of these data."""
        fitted: list[list[float] | None] = [None] * len(self.last)
        for known in data:
            if known.j in self._fitted and self._fitted[known.j][0] == known.key:
                fitted[known.j] = self._fitted[known.j][1].tolist()
        return {"last": [None if p is None else p.tolist() for p in self.last], "fitted": fitted}

    def restore(self, state: dict[str, Any], data: Sequence[SurrogateData]) -> None:
        """Become what `state` gave with these data, or raise `ValueError` if it did not."""
        lists = []
        for name in ("last", "fitted"):
            if not isinstance(state[name], list) or len(state[name]) != len(self.last):
                raise ValueError(f"{name} must be a list of {len(self.last)}")
            lists.append([self._read(p, name, j) for j, p in enumerate(state[name])])
        self.last, fitted = lists
        keys = {known.j: known.key for known in data}
        self._fitted = {j: (keys[j], p) for j, p in enumerate(fitted) if p is not None}

    def _read(self, parameters: ArrayLike | None, name: str, j: int) -> Array | None:
        """Parameters of function j, which have to be within their bounds."""
        if parameters is None:
            return None
        bounds = self.model(j, 1.0).bounds
        values = finite(parameters, name, (len(bounds),))
        # Optimisers keep to bounds but for rounding.
        if (values < bounds[:, 0] - 1e-9).any() or (values > bounds[:, 1] + 1e-9).any():
            raise ValueError(f"{name} of function {j} is outside its bounds: {values.tolist()}")
        return values


# --- Hyper-parameters of one function: the most probable ones, or draws by slice sampling.

#: Prior of the default kernel, in units of the box and of the observations' spread: medians and
#: standard deviations of logarithms.
_LENGTH, _LENGTH_SD = 0.3, 1.0
_VARIANCE, _VARIANCE_SD = 1.0, 1.0
_NOISE, _NOISE_SD = 1e-5, 2.5
#: Variance of the noise is bounded: below, nothing is gained but rounding.
_NOISE_BOUNDS = np.log([1e-8, 1.0])


class Model(NamedTuple):
    """Unknowns of a fit: a kernel, whose theta has a normal prior or none, and perhaps the noise.

    centre, spread: of theta, and of the log noise last if it is learnt; infinite spread is flat.
    shape: "rbf" or "matern" of the default kernel, whose slopes are at hand; "" of any other.
    """

    kernel: Kernel
    noise: float | None
    centre: Array
    spread: Array
    bounds: Array
    shape: str = ""


def default_kernel(d: int, noise: float | None, shape: str = "rbf") -> Model:
    """Return a constant times RBF or Matern 5/2, with a length-scale for each variable."""
    length = _LENGTH * float(np.sqrt(d))
    kernel, prior = learnt_kernel(
        Belief(_VARIANCE, 1e-3, 1e3, _VARIANCE, _VARIANCE_SD),
        Belief(length, 1e-2, 1e2, length, _LENGTH_SD),
        smooth=shape == "rbf",
        features=d,
    )
    return _with_noise(kernel, noise, prior.mean, prior.deviation)._replace(shape=shape)


def given_kernel(kernel: Kernel, noise: float | None) -> Model:
    """Return a user's kernel, all values within its bounds equally probable."""
    n = len(kernel.theta)
    return _with_noise(kernel, noise, kernel.theta.copy(), np.full(n, np.inf))


def _with_noise(kernel: Kernel, noise: float | None, centre: Array, spread: Array) -> Model:
    bounds = np.reshape(kernel.bounds, (-1, 2)) if len(centre) else np.zeros((0, 2))
    if noise is None:
        centre = np.append(centre, np.log(_NOISE))
        spread = np.append(spread, _NOISE_SD)
        bounds = np.vstack([bounds, _NOISE_BOUNDS])
    return Model(kernel, noise, centre, spread, bounds)


class _Loss:
    """Minus log posterior of the parameters, and its gradient, for one set of data."""

    def __init__(self, model: Model, X: Array, y: Array) -> None:
        self.model, self.X, self.y = model, X, y
        self._n = len(model.kernel.theta)  # slow to ask for
        self._shape = parts_of(model.kernel.k2).shape if model.shape else None
        require(
            squares(len(X), X.shape[1] + 2.0),
            f"a model of {len(X)} evaluations of {X.shape[1]} variables",
            "tell fewer evaluations",
        )
        self._squares = (X[:, None] - X) ** 2

    def __call__(self, p: Array) -> tuple[float, Array]:
        model = self.model
        z = (p - model.centre) / model.spread
        if not len(self.X):
            return float(0.5 * z @ z), z / model.spread
        n = self._n
        K, slopes = self._known(p[:n]) if model.shape else self._any(p[:n])
        noise = np.exp(p[n]) if model.noise is None else model.noise
        K.flat[:: len(K) + 1] += noise + 1e-10 * K.diagonal().max()
        R, failed = dpotrf(K, lower=1, overwrite_a=0, clean=1)
        if failed:
            return 1e25, np.zeros_like(p)
        w = dpotrs(R, self.y, lower=1)[0]
        inverse = dpotri(R, lower=1)[0]
        inverse = inverse + np.tril(inverse, -1).T
        inner = np.outer(w, w) - inverse
        slope = np.empty_like(p)
        slope[:n] = -0.5 * slopes(inner)
        if model.noise is None:
            slope[n] = -0.5 * noise * np.trace(inner)
        loss = 0.5 * self.y @ w + np.log(R.diagonal()).sum() + 0.5 * z @ z
        return float(loss), slope + z / model.spread

    def _any(self, theta: Array) -> tuple[Array, Callable[[Array], Array]]:
        """K, and sums of a matrix times the slopes of K."""
        K, dK = self.model.kernel.clone_with_theta(theta)(self.X, eval_gradient=True)
        return K, lambda inner: np.einsum("ij,ijp->p", inner, dK)

    def _known(self, theta: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Return the same for the default kernels, in a tenth of the time."""
        variance, scales = np.exp(theta[0]), np.exp(-2.0 * theta[1:])
        r2 = self._squares @ scales
        assert self._shape is not None
        value, steep = self._shape(self.model.kernel.k2, r2, True)
        value *= variance
        if steep is not value:
            steep *= variance
        K, before = value.copy(), value

        def slopes(inner: Array) -> Array:
            by_length = np.tensordot(inner * steep, self._squares, axes=2) * scales
            return np.concatenate([[np.sum(inner * before)], by_length])

        return K, slopes


def most_probable(
    model: Model, X: Array, y: Array, starts: list[Array], max_iter: int = 60
) -> Array:
    """Parameters of the highest posterior that any of the starts leads to."""
    if not len(model.centre):
        return model.centre
    if not len(X):
        return np.clip(model.centre, *model.bounds.T)
    best, value, loss = np.clip(model.centre, *model.bounds.T), np.inf, _Loss(model, X, y)
    for start in starts:
        end = minimize(
            loss,
            np.clip(start, *model.bounds.T),
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
    loss = _Loss(model, X, y)
    p = np.clip(start, low, high)
    value = -loss(p)[0]
    draws = []
    for step in range(5 * count + 5):
        level = value + np.log(1.0 - rng.random())
        direction = rng.standard_normal(len(p))
        direction /= np.linalg.norm(direction)
        lower = -2.0 * rng.random()
        upper = lower + 2.0
        for _ in range(60):
            t = rng.uniform(lower, upper)
            q = p + t * direction
            if (q >= low).all() and (q <= high).all():
                candidate = -loss(q)[0]
                if candidate > level:
                    p, value = q, candidate
                    break
            lower, upper = (t, upper) if t < 0.0 else (lower, t)
        if step >= 5 and (step - 5) % 5 == 4:
            draws.append(p.copy())
    return draws
