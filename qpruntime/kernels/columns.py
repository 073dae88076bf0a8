"""A kernel of some columns of the inputs: sums of such are components, products interact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import no_kernel, shown

__all__ = ["On"]

_OWN = "kernel__"


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
        own = {"kernel": self.kernel, "columns": self.columns}
        if deep:
            own |= {_OWN + name: value for name, value in self.kernel.get_params().items()}
        return own

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """Those of the kernel."""
        return [
            Hyperparameter(_OWN + one.name, one.value_type, one.bounds, one.n_elements)
            for one in self.kernel.hyperparameters
        ]

    @property
    def theta(self) -> Array:
        """Log parameters of the kernel, shape (p,)."""
        theta: Array = self.kernel.theta
        return theta

    @theta.setter
    def theta(self, theta: Array) -> None:
        self.kernel.theta = theta

    @property
    def bounds(self) -> Array:
        """Their bounds, shape (p, 2)."""
        bounds: Array = self.kernel.bounds
        return bounds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, On):
            return False
        return bool(self.kernel == other.kernel) and list(self.columns) == list(other.columns)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        return self.kernel(self.of(X), None if Y is None else self.of(Y), eval_gradient)

    def diag(self, X: Any) -> Array:
        """k(x, x), shape (N,)."""
        found: Array = self.kernel.diag(self.of(X))
        return found

    def of(self, X: Any) -> Array:
        """Return these columns of rows, shape (N, columns)."""
        if not isinstance(self.kernel, Kernel):
            raise no_kernel(self.kernel)
        X, columns = np.atleast_2d(X), np.asarray(self.columns)
        fits = columns.ndim == 1 and columns.size and columns.dtype.kind in "iu"
        if not fits or columns.min() < 0 or columns.max() >= X.shape[1]:
            raise InputError(
                f"columns of On must be whole numbers from 0 to {X.shape[1] - 1} for rows of "
                f"{X.shape[1]} columns, got {shown(self.columns)}"
            )
        return np.ascontiguousarray(X[:, columns])

    def is_stationary(self) -> bool:
        """Whether it depends on differences of rows alone."""
        return bool(self.kernel.is_stationary())

    def __repr__(self) -> str:
        return f"On({self.kernel}, {shown(list(self.columns))})"
