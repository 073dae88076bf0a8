"""Protocol of a fitted estimator for criticism, displays and exports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.estimators.process import Process
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.settings import Slopes
from qpruntime.likelihoods import Likelihood

__all__ = ["FittedModel"]


class FittedModel(Protocol):
    """A fitted estimator of one or several latent Gaussian processes.

    Kernels, posteriors and integrated hyper-parameters are tuples of one for each process if there
    are several.
    """

    @property
    def kernel_(self) -> Kernel | tuple[Kernel, ...]:
        """Kernel with its fitted parameters."""

    @property
    def posterior_(self) -> Posterior | tuple[Posterior, ...] | ClassPosterior:
        """Posterior at the rows of the fit."""

    @property
    def integrated_(self) -> Integrated | tuple[Integrated, ...] | None:
        """Nodes of the hyper-parameters, if they were integrated."""

    @property
    def X_train_(self) -> Array:
        """Rows of the fit as the kernel takes them, (N, d); empty if the model needs none."""

    @property
    def slopes_(self) -> Slopes | None:
        """Observed signs of slopes."""

    @property
    def n_features_in_(self) -> int:
        """Number of columns of `X`."""

    @property
    def method(self) -> str:
        """Inference of the final posterior."""

    @property
    def tol(self) -> float:
        """Tolerance of every run of EP or QP."""

    @property
    def fitted_likelihood(self) -> Likelihood | None:
        """Likelihood with its fitted parameters; None if it is known from a table alone."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> FittedModel:
        """Fit hyper-parameters and posterior."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name."""

    def validate_points(self, X: ArrayLike) -> Array:
        """Validate points to predict at, shape (T, d)."""

    def kernel_inputs(self, points: Array) -> Array:
        """Return the points as the kernel takes them."""

    def prior_means(self, points: Array) -> Sequence[Array | float]:
        """Return the prior means of all processes at points, each a number or (T,)."""

    def latent_units(self) -> tuple[float, float]:
        """Return the shift and the unit between ``latent`` and the posterior's latent function."""

    def processes(self) -> list[Process]:
        """Return the fitted processes."""

    def restore_covariances(self) -> list[Process]:
        """Return the processes with prior covariances that a pickle left out."""

    def latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return latent means and variances at `X`."""

    def sample_latent(
        self, X: ArrayLike, n: int = 1, random_state: int | np.random.Generator | None = None
    ) -> Array:
        """Draw the latent function at `X` jointly, shape (n, T) or (n, T, K)."""

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict a label, or the mean of an observation, at each point."""
