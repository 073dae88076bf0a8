"""A likelihood for GPyTorch whose integrals are those of `qpruntime.torch.functions`."""

from __future__ import annotations

from typing import NoReturn

import torch

from qpruntime._formatting import install_hint

try:
    from gpytorch.distributions import MultivariateNormal
    from gpytorch.likelihoods import Likelihood
except ImportError as error:
    raise ImportError(
        f"this likelihood needs GPyTorch: {install_hint('gpytorch')} ({error})"
    ) from error

from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood as OwnLikelihood
from qpruntime.torch import functions

__all__ = ["CertifiedLikelihood"]


class CertifiedLikelihood(Likelihood):
    """E log p(y|f) and log E p(y|f) of a likelihood of the package, for GPyTorch's objectives.

    Parameters
    ----------
    likelihood : str or Likelihood
        For example ``"student-t(nu=4, scale=0.1)"``. Its parameters are fixed.

    Notes
    -----
    `VariationalELBO` takes `expected_log_prob`, `PredictiveLogLikelihood` takes `log_marginal`.
    Neither is 20-point Gauss-Hermite quadrature, which GPyTorch has for most likelihoods.
    """

    def __init__(self, likelihood: str | OwnLikelihood) -> None:
        super().__init__()
        self.functions = functions(likelihood)

    def expected_log_prob(
        self,
        observations: torch.Tensor,
        function_dist: MultivariateNormal,
        *args: object,
        **kwargs: object,
    ) -> torch.Tensor:
        """E log p(y|f) of every observation, under the marginals of `function_dist`."""
        return self.functions.expected_log_prob(*_marginals(function_dist), observations)

    def log_marginal(
        self,
        observations: torch.Tensor,
        function_dist: MultivariateNormal,
        *args: object,
        **kwargs: object,
    ) -> torch.Tensor:
        """Log E p(y|f) of every observation, under the marginals of `function_dist`."""
        return self.functions.log_predictive(*_marginals(function_dist), observations)

    def forward(self, function_samples: torch.Tensor, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: no distribution of observations is made of samples of f.

        Raises
        ------
        InputError
        """
        raise InputError(
            "CertifiedLikelihood gives densities, not samples: use log_marginal, or "
            "functions.moments of the latent values"
        )


def _marginals(distribution: MultivariateNormal) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and standard deviations."""
    return distribution.mean, distribution.variance.sqrt()
