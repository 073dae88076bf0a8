"""The result of inference on a sparse precision: a `Posterior` that knows its latent values."""

from __future__ import annotations

from dataclasses import dataclass

from qpruntime.arrays import Array
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.precision.gradient import Slope, slope_of

__all__ = ["PrecisionPosterior"]


@dataclass(frozen=True, eq=False, repr=False)
class PrecisionPosterior(Posterior):
    """Gaussian approximation of x ~ N(0, Q^-1) and of eta = offset + A x, seen at N rows.

    Attributes and methods are those of `qpruntime.Posterior`; `mean` and `variance` are those of
    eta at the rows. ``latent()`` has means and variances of x, ``sample()`` without points draws x,
    and `predict` and `sample` take rows of A, with ``mean=`` for their offsets.
    ``evidence_gradient(dQ)`` takes a sparse change of Q, or a list of them.
    """

    @property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,), at EP's fixed point."""
        found: Array = self._solution.solved.weights
        return found

    def slope(self) -> Slope:
        """What a change of Q is multiplied by: posterior covariance on Q's pattern, mean of x.

        For dQ on that pattern the log evidence changes by ``(tr(S0 dQ) - slope.against(dQ)) / 2``,
        where tr(S0 dQ), with the prior covariance S0, is minus the change of log |Q|, or with a
        constraint that of ``log_det`` of `infer_precision`.
        """
        return slope_of(self._solution.solved)
