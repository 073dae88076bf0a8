"""An integrator for GPJax whose integrals are those of `qpruntime.jax.functions`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qpruntime._formatting import install_hint

try:
    from gpjax.integrators import AbstractIntegrator
except ImportError as error:
    raise ImportError(f"this integrator needs GPJax: {install_hint('gpjax')} ({error})") from error

from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.jax import functions
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.responses import signs

__all__ = ["CertifiedIntegrator"]


class CertifiedIntegrator(AbstractIntegrator):
    """E log p(y|f) of a likelihood of the package, in place of Gauss-Hermite quadrature.

    Hand it to a likelihood of GPJax that has the same density,
    ``Bernoulli(integrator=CertifiedIntegrator("probit"))``; variational objectives ask it for each
    row.

    Parameters
    ----------
    likelihood : str or Likelihood
        For example ``"student-t(nu=4, scale=0.1)"``. Its parameters are fixed.

    Raises
    ------
    InputError
        If the likelihood is not one of the package.
    """

    def __init__(self, likelihood: str | Likelihood) -> None:
        self.functions = functions(likelihood)
        # GPJax has labels as 0 and 1, and this package as -1 and +1.
        self._signs = self.functions.likelihood.validate is signs

    def integrate(
        self, fun: object, y: jax.Array, mean: jax.Array, variance: jax.Array, likelihood: object
    ) -> jax.Array:
        """E log p(y|f) for f ~ N(mean, variance), shape (N,).

        Parameters
        ----------
        fun, likelihood
            Of GPJax, which would be looked at in points; the package's own formulas are taken.
        y, mean, variance : array, shape (N, 1)

        Raises
        ------
        InputError
            If there are several numbers a row.
        """
        n = jnp.shape(y)[0]
        if any(jnp.size(a) != n for a in (y, mean, variance)):
            shapes = tuple(jnp.shape(a) for a in (y, mean, variance))
            raise InputError(
                f"y, mean and variance must have one number a row, got shapes {shown(shapes)}"
            )
        y, mean, variance = (jnp.reshape(a, (n,)) for a in (y, mean, variance))
        if self._signs:
            y = jnp.where(y > 0.0, 1.0, -1.0)
        return self.functions.expected_log_prob(mean, jnp.sqrt(variance), y)
