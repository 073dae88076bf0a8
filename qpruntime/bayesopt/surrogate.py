"""One unknown function: a Gaussian process with its own data, kernel, noise and prior mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import finite, number, real
from qpruntime.errors import InputError, NumericalError

__all__ = ["Surrogate", "points"]

#: Noise of noise-free data, relative to the prior variance: 1e-16 times the condition
#: number of K is what is lost.
_LEAST_NOISE = 1e-10


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
        variance = number(noise, "noise")
        if variance < 0.0:
            raise InputError(f"noise is a variance: it must not be negative, got {variance:g}")
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

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the function, without noise, both of shape (T,)."""
        X_checked = points(X, "X", self.X.shape[1])
        Z = self.whiten(X_checked)
        variance = self.prior_variance(X_checked) - np.einsum("nt,nt->t", Z, Z)
        return self.posterior_mean(X_checked), np.maximum(variance, 0.0)

    def joined(self, X: Array, y: Array) -> Surrogate:
        """Return the same function with more observations."""
        more = object.__new__(Surrogate)
        more.__dict__.update(self.__dict__)
        more.X, more.y = np.vstack([self.X, X]), np.concatenate([self.y, y])
        more._factorise()
        return more
