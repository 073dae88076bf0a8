"""Likelihoods for GPy whose EP matches QP's moments: quantile propagation on an unmodified GPy.

GPy's EP asks a likelihood for log Z, mean and variance of every tilted density. Here the variance
is sigma*^2, from the certified tables, with ``method="qp"``, or the tilted one with "ep".
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._formatting import install_hint

try:
    from GPy import likelihoods as of_gpy
except ImportError as error:
    raise ImportError(f"these likelihoods need GPy: {install_hint('gpy')} ({error})") from error

from qpruntime._typing import Array, ArrayLike
from qpruntime._validation import choice
from qpruntime.interop.functions import Derivatives, functions
from qpruntime.likelihoods import Likelihood

__all__ = ["QuantileBernoulli", "QuantileLikelihood"]


class _Matched:
    """Base of both: moments of one site, and log predictive densities."""

    def _prepare(self, likelihood: str | Likelihood, method: str) -> None:
        self.functions = functions(likelihood)
        self.method = choice(method, "method", ("ep", "qp"))
        self._log_z = self.functions.kernel("log_partition")
        self._moments = self.functions.kernel("moments")
        self._star = self.functions.kernel("sigma_star")

    def _labels(self, y: ArrayLike) -> Array:
        """GPy's labels are 0 and 1."""
        if self.functions.likelihood.mirror:
            return np.where(np.asarray(y, float) == 0.0, -1.0, y)
        return np.asarray(y, float)

    def moments_match_ep(
        self, Y_i: ArrayLike, tau_i: ArrayLike, v_i: ArrayLike, Y_metadata_i: object = None
    ) -> tuple[float, float, float]:
        """Return Z, mean and variance of what replaces a tilted density.

        Parameters
        ----------
        Y_i : float
            The observation; of labels 0 or -1, and 1.
        tau_i, v_i : float
            Precision of the cavity, and precision times its mean.
        """
        # A label may come as an array of one.
        y = float(np.asarray(self._labels(Y_i)).reshape(-1)[0])
        tau, v = float(np.squeeze(tau_i)), float(np.squeeze(v_i))
        mu, sigma = v / tau, 1.0 / math.sqrt(tau)
        mean, std = self._moments(mu, sigma, y)
        if self.method == "qp":
            std = self._star(mu, sigma, y)
        return math.exp(self._log_z(mu, sigma, y)), mean, std * std

    def log_predictive_density(
        self, y_test: ArrayLike, mu_star: ArrayLike, var_star: ArrayLike, Y_metadata: object = None
    ) -> Array | Derivatives[Array]:
        """Log density of observations whose f ~ N(mu_star, var_star), a variance."""
        y = self._labels(y_test)
        return self.functions.log_predictive(mu_star, np.sqrt(var_star), y)


class QuantileBernoulli(_Matched, of_gpy.Bernoulli):
    """`GPy.likelihoods.Bernoulli` with probit link; its predictions are GPy's.

    Parameters
    ----------
    method : {"qp", "ep"}
    """

    def __init__(self, method: str = "qp") -> None:
        super().__init__()
        self._prepare("probit", method)


class QuantileLikelihood(_Matched, of_gpy.Likelihood):
    """Any likelihood of qpruntime, for GPy's EP and for `log_predictive_density`.

    Parameters
    ----------
    likelihood : str or Likelihood
        Its observations are one number each.
    method : {"qp", "ep"}
    """

    def __init__(self, likelihood: str | Likelihood, method: str = "qp") -> None:
        super().__init__(of_gpy.link_functions.Identity(), "quantile_likelihood")
        self._prepare(likelihood, method)
