"""A fitted Gaussian process: its latent values at new points, and what corrections take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.inference.corrections.corrected import Correction
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.solution_protocol import Solution
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance
from qpruntime.learning.inputs import Slopes
from qpruntime.learning.solvers import joint_covariance

__all__ = ["Process", "all_of", "commit", "draft_of", "one_or_all", "one_or_columns", "renewed"]


@dataclass(frozen=True)
class Process:
    """A posterior with the kernel and the inputs (N, d) of its prior.

    Observed values are `slope` times the latent values, then `slopes` of the latent function. Prior
    means belong to these values.
    """

    posterior: Posterior
    kernel: Kernel
    X_train: Array
    slope: Array | None = None
    slopes: Slopes | None = None

    def at(self, points: Array, prior: ArrayLike) -> tuple[Array, Array]:
        """Return latent mean and variance at points (T, d), for these prior means (T,)."""
        mean, variance = self.posterior.predict(*self._prediction_arguments(points), mean=prior)
        return mean, variance

    def corrected(
        self, points: Array, prior: ArrayLike, correction: Correction
    ) -> CorrectedMarginals:
        """Return corrected marginals at points (T, d), for these prior means (T,)."""
        # A fixed seed gives all blocks of points the same chains.
        return self.posterior.marginals(
            *self._prediction_arguments(points), mean=prior, correction=correction, random_state=0
        )

    def jointly(self, points: Array, prior: ArrayLike) -> tuple[Array, Array]:
        """Return latent means (T,) and covariances (T, T) at points, for these prior means."""
        return self.posterior.joint(*self._several(points), mean=prior)

    def draws(self, points: Array, prior: ArrayLike, count: int, rng: np.random.Generator) -> Array:
        """Draw the latent function jointly at points (T, d), shape (count, T)."""
        return self.posterior.sample(
            *self._several(points), n_samples=count, random_state=rng, mean=prior
        )

    def _several(self, points: Array) -> tuple[Array, ...]:
        """Return the posterior's arguments for joint predictions at points (T, d)."""

        def crossed() -> tuple[Array, Array]:
            return self.crossed(points)[0], self.kernel(points)

        solution: Solution = solution_of(self.posterior)
        return solution.inputs(points, crossed)

    def _prediction_arguments(self, points: Array) -> tuple[Array, ...]:
        """Return the posterior's arguments for predictions at points (T, d)."""
        solution: Solution = solution_of(self.posterior)
        return solution.inputs(points, partial(self.crossed, points))

    def crossed(self, points: Array) -> tuple[Array, Array]:
        """Return prior covariances with observed values (T, N), and prior variances (T,)."""
        if self.slopes is not None:
            rows = self.slopes.asked(self.X_train)
            K_star = covariance(self.kernel, DerivativeRows.values(points), rows)
            K_star *= self.slopes.scales(len(self.X_train), self.slope)
            return K_star, self.kernel.diag(points)
        K_star = self.kernel(points, self.X_train)
        if self.slope is not None:
            K_star *= self.slope
        return K_star, self.kernel.diag(points)

    def covariance(self) -> Array:
        """Return the prior covariance (N, N) of observed values."""
        if self.slopes is not None:
            scale = self.slopes.scales(len(self.X_train), self.slope)
            return joint_covariance(self.kernel, self.slopes.asked(self.X_train), scale)
        K: Array = self.kernel(self.X_train)
        if self.slope is not None:
            K *= self.slope
            K *= np.broadcast_to(self.slope, len(K))[:, None]
        return K


Item = TypeVar("Item")


def all_of(value: Item | tuple[Item, ...]) -> tuple[Item, ...]:
    """Return what `one_or_all` was given."""
    return value if isinstance(value, tuple) else (value,)


def one_or_all(items: Sequence[Item]) -> Item | tuple[Item, ...]:
    """Return the items as a tuple, or the one item itself."""
    return items[0] if len(items) == 1 else tuple(items)


def one_or_columns(items: Sequence[Array]) -> Array:
    """Return columns (T, K), or the one of shape (T,) itself."""
    return items[0] if len(items) == 1 else np.column_stack(items)


# --- Atomic fits: `fit` works on a draft, which is taken over at its end -------------------------

Model = TypeVar("Model")


def draft_of(model: Model) -> Model:
    """Return a copy with the parameters and nothing of a fit."""
    draft = object.__new__(type(model))
    draft.__dict__ = _by_kind(model, fitted=False)
    return draft


def commit(model: Model, draft: Model) -> Model:
    """Take over what was fitted, in place of all that an earlier fit has left."""
    whole = _by_kind(model, fitted=False) | _by_kind(draft, fitted=True)
    model.__dict__ = whole  # one instruction, which no signal divides
    return model


def renewed(model: Model, changed: dict[str, Any]) -> Model:
    """Take over some of what was fitted."""
    model.__dict__ = vars(model) | changed
    return model


def _by_kind(model: object, fitted: bool) -> dict[str, Any]:
    """Return the attributes that a fit sets, whose names end in an underscore, or all others."""
    return {name: value for name, value in vars(model).items() if name.endswith("_") == fitted}
