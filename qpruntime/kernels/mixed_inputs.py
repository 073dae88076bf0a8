"""Kernels of categories, of equal rows and of selected columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel, StationaryKernelMixin

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import no_kernel, shown
from qpruntime.errors import InputError
from qpruntime.kernels.base import KernelParts

__all__ = ["CATEGORICAL_PARTS", "Categories", "On", "Same", "contracted"]

# --- Kernels of some columns

_OWN = "kernel__"


@restorable("on/1")
class On(Kernel):
    """A kernel that sees some columns only.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Of as many features as there are columns.
    columns : sequence of int
        Numbers of columns, from 0.

    Raises
    ------
    InputError
        When it is called, if a row has no such column.

    See Also
    --------
    qpruntime.kernels.Same, qpruntime.kernels.Categories

    Examples
    --------
    A curve of the first column for each group that the second one names:

    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.kernels import On, Same
    >>> kernel = On(RBF(1.0), [0]) * On(Same(), [1])
    >>> kernel([[0.0, 1.0]], [[0.0, 1.0], [0.0, 2.0]]).tolist()
    [[1.0, 0.0]]
    """

    def __init__(self, kernel: Kernel, columns: Sequence[int]) -> None:
        self.kernel = kernel
        self.columns = columns

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name; `deep` has the kernel's too, as ``kernel__length_scale``."""
        parameters = {"kernel": self.kernel, "columns": self.columns}
        if deep:
            parameters |= {_OWN + name: value for name, value in self.kernel.get_params().items()}
        return parameters

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """Hyper-parameters of the kernel."""
        return [
            Hyperparameter(
                _OWN + parameter.name, parameter.value_type, parameter.bounds, parameter.n_elements
            )
            for parameter in self.kernel.hyperparameters
        ]

    @property
    def theta(self) -> Array:
        """Log parameters of the kernel, shape (p,)."""
        return np.asarray(self.kernel.theta)

    @theta.setter
    def theta(self, theta: Array) -> None:
        self.kernel.theta = theta

    @property
    def bounds(self) -> Array:
        """Their bounds, shape (p, 2)."""
        return np.asarray(self.kernel.bounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, On):
            return False
        return bool(self.kernel == other.kernel) and list(self.columns) == list(other.columns)

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Return k(X, Y), and its gradient too if that is wanted."""
        values = self.kernel(self.of(X), None if Y is None else self.of(Y), eval_gradient)
        return cast("Array | tuple[Array, Array]", values)  # scikit-learn has no types

    def diag(self, X: ArrayLike) -> Array:
        """Return k(x, x), shape (N,)."""
        return np.asarray(self.kernel.diag(self.of(X)))

    def of(self, X: ArrayLike) -> Array:
        """Return these columns of rows, shape (N, columns)."""
        if not isinstance(self.kernel, Kernel):
            raise no_kernel(self.kernel)
        X = np.atleast_2d(X)
        return np.ascontiguousarray(X[:, _checked_columns("On", self.columns, X.shape[1])])

    def is_stationary(self) -> bool:
        """Decide whether it depends on differences of rows alone."""
        return bool(self.kernel.is_stationary())

    def __repr__(self) -> str:
        return f"On({self.kernel}, {shown(list(self.columns))})"


def _checked_columns(kernel: str, columns: Sequence[int | str], width: int) -> NDArray[np.intp]:
    """Return numbers of columns of rows of this width, or raise `InputError`."""
    numbers = np.asarray(columns)
    fits = numbers.ndim == 1 and numbers.size and numbers.dtype.kind in "iu"
    if not fits or numbers.min() < 0 or numbers.max() >= width:
        raise InputError(
            f"columns of {kernel} must be whole numbers from 0 to {width - 1} for rows of {width} "
            f"columns, got {shown(columns)}"
        )
    return numbers


class _OfUnitVariance(StationaryKernelMixin, Kernel):
    """A stationary kernel that is 1 between equal rows."""

    def diag(self, X: ArrayLike) -> Array:
        """Return k(x, x), which is 1, shape (N,)."""
        return np.ones(np.shape(X)[0])


# --- `Same`: 1 for equal rows, 0 elsewhere


@restorable("same/1")
class Same(_OfUnitVariance):
    """The covariance of independent values, one for each distinct row.

    k(x, z) is 1 where x = z, else 0. Unlike white noise it holds between rows of two sets: rows of
    one group share their value. A constant before it is the variance of the values.

    See Also
    --------
    qpruntime.kernels.On, qpruntime.kernels.Categories

    Examples
    --------
    >>> from qpruntime.kernels import Same
    >>> Same()([[1.0], [2.0]], [[2.0]]).tolist()
    [[0.0], [1.0]]
    """

    def __init__(self) -> None:
        """Take no parameters; scikit-learn reads the signature."""

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Return k(X, Y), and its gradient too if that is wanted."""
        X = np.atleast_2d(X)
        K: Array = (cdist(X, X if Y is None else np.atleast_2d(Y), "cityblock") == 0.0).astype(
            float
        )
        return (K, np.empty((len(X), len(X), 0))) if eval_gradient else K

    def __repr__(self) -> str:
        return "Same()"


# --- `Categories`


@restorable("categories/1")
class Categories(_OfUnitVariance):
    """The covariance of levels: two that differ are alike by exp(-dissimilarity).

    k(x, z) = exp(-sum_j w_j [x_j != z_j]) over some columns. Their numbers are names of levels, so
    distances between them have no meaning. A level that no row of the fit has differs from all
    others by the same similarity. One column gives compound symmetry.

    Parameters
    ----------
    columns : sequence of int or str
        Columns of levels, by their numbers from 0; by names, if an estimator is fitted with it to a
        data frame.
    dissimilarity : float or array-like, shape (q,)
        w, the negative logarithm of the correlation of two levels: one for all columns, or one for
        each.
    dissimilarity_bounds : pair of floats or "fixed"
        Between what it is learnt.

    Raises
    ------
    InputError
        When it is called, if a row has no such column, or dissimilarities are not one for each.

    See Also
    --------
    qpruntime.kernels.On, qpruntime.kernels.Same

    References
    ----------
    The kernel that is one number for equal levels and another for others is that of Pinheiro and
    Bates, 1996, Section 2; in Gaussian processes of Roustant et al., 2020, Section 2.

    Examples
    --------
    A curve for each level of the second column; curves of two levels are correlated by exp(-0.5):

    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.kernels import Categories, On
    >>> kernel = On(RBF(1.0), [0]) * Categories([1], 0.5)
    >>> kernel([[0.0, 1.0]], [[0.0, 1.0], [0.0, 2.0]]).round(4).tolist()
    [[1.0, 0.6065]]
    """

    def __init__(
        self,
        columns: Sequence[int | str],
        dissimilarity: ArrayLike = 1.0,
        dissimilarity_bounds: ArrayLike = (1e-6, 1e2),
    ) -> None:
        self.columns = columns
        self.dissimilarity = dissimilarity
        self.dissimilarity_bounds = dissimilarity_bounds

    @property
    def hyperparameter_dissimilarity(self) -> Hyperparameter:
        """Hyper-parameter in the form of scikit-learn."""
        count = np.size(self.dissimilarity)
        shape = () if np.ndim(self.dissimilarity) == 0 else (count,)
        return Hyperparameter("dissimilarity", "numeric", self.dissimilarity_bounds, *shape)

    @property
    def similarity(self) -> Array:
        """Correlation of two levels, of each column, shape (q,)."""
        return np.exp(-self._weights())

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Return k(X, Y), and its gradient too if that is wanted."""
        X = np.atleast_2d(X)
        Z = X if Y is None else np.atleast_2d(Y)
        self._check(X)
        weights = self._weights()
        K = np.zeros((len(X), len(Z)))
        for weight, j in zip(weights, self.columns, strict=True):
            K -= weight * _differ(X, Z, j)
        np.exp(K, out=K)
        if not eval_gradient:
            return K
        if self.hyperparameter_dissimilarity.fixed:
            return K, np.empty((*K.shape, 0))
        slopes = [
            -weight * K * _differ(X, X, j) for weight, j in zip(weights, self.columns, strict=True)
        ]
        if self._one:
            slopes = [np.sum(slopes, axis=0)]
        return K, np.stack(slopes, axis=2)

    @property
    def _one(self) -> bool:
        return np.ndim(self.dissimilarity) == 0

    def _weights(self) -> Array:
        weights = np.asarray(self.dissimilarity, dtype=float)
        if weights.ndim and weights.shape != (len(self.columns),):
            raise InputError(
                f"dissimilarity of Categories must be one number, or {len(self.columns)} for as "
                f"many columns, got {shown(self.dissimilarity)}"
            )
        return np.broadcast_to(weights, (len(self.columns),))

    def _check(self, X: Array) -> None:
        columns = np.asarray(self.columns)
        if columns.dtype.kind in "UO":
            raise InputError(
                f"columns of Categories are names, {shown(self.columns)}: fit an estimator with it "
                "to a data frame, or give their numbers from 0"
            )
        _checked_columns("Categories", self.columns, X.shape[1])

    def __repr__(self) -> str:
        weights = np.array2string(np.asarray(self.dissimilarity, dtype=float), precision=3)
        return f"Categories({shown(list(self.columns))}, dissimilarity={weights})"


def contracted(kernel: Categories, X: Array, Z: Array, W: Array) -> Array:
    """Return sum_ij W_ij dlog k(x_i, z_j)/dtheta (p,), of free log dissimilarities theta."""
    if kernel.hyperparameter_dissimilarity.fixed:
        return np.zeros(0)
    pairs = zip(kernel._weights(), kernel.columns, strict=True)
    slopes = np.array([-weight * float(np.vdot(W, _differ(X, Z, j))) for weight, j in pairs])
    return slopes.sum(keepdims=True) if kernel._one else slopes


def _differ(X: Array, Z: Array, j: int | str) -> NDArray[np.bool_]:
    column = int(j)
    return np.asarray(X[:, column, None] != Z[:, column])


CATEGORICAL_PARTS = KernelParts(levels="dissimilarity")
