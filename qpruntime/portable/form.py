"""What a likelihood computes in plain operations; each is in a module beside this one."""

from __future__ import annotations

from typing import Any

from qpruntime.likelihoods import Likelihood
from qpruntime.portable.nodes import Sums
from qpruntime.portable.normal import Normal
from qpruntime.portable.operations import Operations
from qpruntime.portable.spline import Spline

__all__ = ["Form"]


class Form:
    """What one likelihood computes of N(mu, sigma^2) and y, arrays of one shape and type.

    An observation of several numbers is a tuple of arrays.

    Parameters
    ----------
    ops : Operations
    likelihood : Likelihood
    """

    def __init__(self, ops: Operations, likelihood: Likelihood) -> None:
        self.ops, self.normal = ops, Normal(ops)
        self.parameters = dict(likelihood.parameters)

    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        """Log Z, mean and variance of the tilted density."""
        raise NotImplementedError

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        """E log p(y|f)."""
        raise NotImplementedError

    def ratio(self, spline: Spline, mu: Any, sigma: Any, y: Any) -> Any:
        """sigma*/sigma_EP by the likelihood's compact table; NaN where that has no row."""
        raise NotImplementedError
