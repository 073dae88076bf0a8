"""Fits where slopes of the latent function are observed beside its values: of one sign, it rises.

Riihimäki & Vehtari (2010): at some places a slope is seen to be positive, or negative, by a probit
whose scale is small. Nothing here knows features by name, nor chooses the places.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import warn_unsettled
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.kernels.derivative_covariance import DerivativeRows, contract, covariance
from qpruntime.learning.dense_solver import Dense
from qpruntime.learning.objective import Family, KernelParameters, Objective, settle_fast
from qpruntime.learning.settings import Data, Slopes
from qpruntime.projection.projector import Projector
from qpruntime.projection.sign_observations import encoded, signed

__all__ = [
    "GivenSlopes",
    "SlopeFamily",
    "WithSlopes",
    "and_slopes",
    "joint_covariance",
    "with_slopes",
]

# Derivatives make K ill-conditioned, so their variances are raised by this share.
_JITTER = 1e-8
# Number of N x N arrays of a fit: pairs and their derivatives, K, a factor, its inverse, the slope.
_N_ARRAYS = 14.0


def with_slopes(data: Data, slopes: Slopes, signs: Array) -> Data:
    """Return the data with these slopes, of signs -1 and +1, as rows after the others."""
    more, n = len(signs), len(data.y)
    weights = data.weights
    return replace(
        data,
        y=np.concatenate([data.y, signs]),
        prior=np.concatenate([data.prior, np.zeros(more)]),
        weights=None if weights is None else np.concatenate([weights, np.ones(more)]),
        scale=slopes.scales(n, data.scale),
        slopes=slopes,
    )


def and_slopes(data: Data, slopes: Slopes, signs: Array) -> Data:
    """Return the data with further slopes after the existing ones."""
    assert data.slopes is not None
    assert data.scale is not None
    extended = with_slopes(replace(data, slopes=None), slopes, signs)
    scale = np.concatenate([data.scale, slopes.times])
    return replace(extended, scale=scale, slopes=data.slopes.joined(slopes))


def joint_covariance(kernel: Kernel, rows: DerivativeRows, scale: Array) -> Array:
    """Return the covariance of the observed values and slopes."""
    K = covariance(kernel, rows)
    K.flat[:: len(K) + 1] *= 1.0 + _JITTER * (rows.feature >= 0)
    K *= np.outer(scale, scale)
    return K


class SlopeFamily(KernelParameters, Family):
    """Priors of values and slopes of f, whose covariance is a kernel's.

    Parameters
    ----------
    kernel : scikit-learn kernel
    rows : DerivativeRows
    mean : ndarray, shape (N + M,)
        Prior mean of the observed values and slopes.
    scale : ndarray, shape (N + M,)
    own_signs : bool
        True if slopes are observed by the likelihood of the values, False if by the probit.
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: DerivativeRows,
        mean: Array,
        scale: Array,
        own_signs: bool = True,
    ) -> None:
        self._kernel, self._rows, self._mean, self._scale = kernel, rows, mean, scale
        self._at, self._own_signs = kernel, own_signs

    @property
    def count(self) -> int:
        """Number of slopes."""
        return int((self._rows.feature >= 0).sum())

    def slopes_alone(self) -> SlopeFamily:
        """Return the same family without the function values."""
        is_slope = self._rows.feature >= 0
        slope_rows = DerivativeRows(self._rows.points[is_slope], self._rows.feature[is_slope])
        return SlopeFamily(self._kernel, slope_rows, self._mean[is_slope], self._scale[is_slope])

    def observed(self, y: Array, projector: Projector) -> tuple[Array, Projector]:
        """Return observations and projector of values and slopes together."""
        if self._own_signs:
            return y, projector
        split = len(y) - self.count
        labels = np.concatenate([y[:split], encoded(y[split:])])
        # A table belongs to a single likelihood.
        return labels, Projector(signed(projector.likelihood), projector.method, "exact")

    def signs_alone(self, y: Array, projector: Projector) -> tuple[Array, Projector]:
        """Return observations and projector of the slopes alone."""
        signs_projector = projector if self._own_signs else Projector("probit", projector.method)
        return y[len(y) - self.count :], signs_projector

    def at(self, theta: Array) -> DensePrior:
        """Return the prior of these parameters."""
        self._at = self._kernel.clone_with_theta(theta)
        return DensePrior(joint_covariance(self._at, self._rows, self._scale), self._mean)

    def contract(self, slope: Array) -> Array:
        """Turn a slope by the prior into that by theta."""
        slope *= np.outer(self._scale, self._scale)
        slope.flat[:: len(slope) + 1] *= 1.0 + _JITTER * (self._rows.feature >= 0)
        return contract(self._at, self._rows, slope)


class GivenSlopes(Objective):
    """The evidence of the values given the slopes: log Z of both, less that of slopes alone.

    Signs of slopes are a part of the prior. The evidence of both is higher the more probable they
    are before any value, and so the smoother the function: length-scales would be too long.
    """

    def __init__(self, family: SlopeFamily, y: Array, projector: Projector, *options: Any) -> None:
        super().__init__(family, *family.observed(y, projector), *options)
        tol, max_sweeps = options[:2]
        signs = family.signs_alone(y, projector)
        self._alone = Objective(family.slopes_alone(), *signs, tol, max_sweeps)

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Return the evidence of the values given the slopes, and its derivatives by theta."""
        value, slope = super().evaluate(theta)
        kernel_theta = theta[: theta.size - len(self.learn)]
        slope_evidence, slope_gradient = self._alone.evaluate(kernel_theta)
        slope[: kernel_theta.size] -= slope_gradient
        return value - slope_evidence, slope


class WithSlopes(Dense):
    """The solver of covariance matrices of values and slopes."""

    @property
    def objective(self) -> type[Objective]:
        """Objective to be maximised: the evidence is that given the slopes."""
        objective = super().objective
        return GivenSlopes if objective is Objective else objective

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if the matrices of values and slopes exceed the memory."""
        require(
            squares(n, _N_ARRAYS),
            f"a fit of N = {n} rows with slopes",
            "leave out monotone, or rows: every slope is a row more",
        )

    def family(self, kernel: Kernel, data: Data) -> SlopeFamily:  # type: ignore[override]
        """Return the family of priors of values and slopes."""
        assert data.slopes is not None
        assert data.scale is not None
        rows = data.slopes.asked(data.X)
        return SlopeFamily(kernel, rows, data.observed_prior, data.scale, data.own_signs)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> Posterior:
        """Return the posterior of values and slopes."""
        settings = self.settings
        family = self.family(kernel, data)
        y, projector = family.observed(data.y, data.projector)
        problem = Problem(family.at(kernel.theta), y, projector, weights=data.weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, len(data.y), of_estimator=True)
        return summarise(problem, end)
