"""The joint posterior of the latent functions of C classes, by inducing points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.classes.probabilities import log_probabilities
from qpruntime.inference.classes.sparse.stored import PointSolution

__all__ = ["SparseClassPosterior"]


@dataclass(frozen=True, eq=False, repr=False)
class SparseClassPosterior(ClassPosterior):
    """Gaussian approximation of the posterior of C latent functions, by M inducing points each.

    Attributes are those of `ClassPosterior`; the log evidence is that of FITC's covariances.
    Predictions take points themselves. There are no corrections, and no slope of the evidence.
    Pickles leave `covariance` out.

    Attributes
    ----------
    kernels : tuple of scikit-learn kernel
        One for all classes, or one of each.
    Z : ndarray, shape (M, d)
    """

    _solution: PointSolution = field(kw_only=True)  # type: ignore[assignment]

    @property
    def kernels(self) -> tuple[Any, ...]:
        """Kernel of all classes, or those of each."""
        return tuple(one.kernel for one in self._solution.kept.inducing)

    @property
    def Z(self) -> Array:
        """Inducing points, shape (M, d)."""
        return self._solution.kept.inducing[0].Z

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:  # type: ignore[override]
        """Latent means (T, C) and covariances (T, C, C) at points.

        Parameters
        ----------
        X : array-like, shape (T, d)

        Raises
        ------
        InputError
            If these are no such points.
        """
        return self._solution.kept.predict(self._solution.at(X))

    def predict_log_proba(  # type: ignore[override]
        self, X: ArrayLike, *, correction: Literal["ratio"] | None = None
    ) -> Array:
        """Log probabilities of all classes at T points, shape (T, C); see `ClassPosterior`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        correction : None
            There is none by inducing points.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        if correction is not None:
            raise InputError(
                f"correction={correction!r} takes a covariance matrix: use infer_classes, or leave "
                "it out"
            )
        return log_probabilities(*self.predict(X))

    def on(self, kernels: tuple[Any, ...], unscaled: Callable[[Array], Array]) -> Self:
        """Return the same in other units: with these kernels, and inducing points `unscaled`."""
        return replace(self, _solution=self._solution.on(kernels, unscaled))
