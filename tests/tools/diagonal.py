"""A second solver: independent latent values, each site a problem of its own."""

import numpy as np

from qpruntime.inference.parallel_updates import propose_all, propose_matched
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.solver_protocol import PredictiveState, Prior, Pullback, Solved
from qpruntime.learning.objective import Family


class DiagonalPrior(Prior):
    """Independent latent values with these variances and means, both of shape (N,)."""

    covariance = variance = mean = None

    def __init__(self, variance, mean):
        self.variance, self.mean = variance, mean

    def factor(self, sites):
        return DiagonalSolved(self, sites)

    def draw(self, rng):
        return self.mean + np.sqrt(self.variance) * rng.standard_normal(self.mean.size)


class DiagonalSolved(Solved):
    """Scalar updates, N times; one after the other is all at once here."""

    def __init__(self, prior, sites):
        self._prior, self._sites = prior, sites
        self._growth = 1.0 + prior.variance * sites.tau
        if not (self._growth > 0.0).all():
            raise ImproperPosterior("a negative site precision outweighs the prior")

    @property
    def weights(self):
        return (self._sites.nu - self._sites.tau * self._prior.mean) / self._growth

    @property
    def mean(self):
        return self._prior.mean + self._prior.variance * self.weights

    @property
    def log_det(self):
        return float(np.log(self._growth).sum())

    def marginals(self):
        return self._prior.variance / self._growth, 1.0 / self._growth

    def relocate(self, nu):
        self._sites = Sites(self._sites.tau, nu)

    def propose(self, asked, marginals, sites, steps, counts):
        return propose_matched(self, asked, marginals, sites, steps, counts)

    def sweep(self, asked, sites, damping, visits, counts):
        here = Marginals(self.mean, *self.marginals(), self.weights)
        changes = propose_all(asked, asked.rules(), here, sites, counts)
        return here.variance, damping * changes.tau, damping * changes.nu

    def discard(self):
        pass

    def keep(self):
        return DiagonalKept(self.weights, self._prior.variance)

    def slope(self):
        return 0.5 * (self.weights**2 - self._sites.tau / self._growth)

    def pullback(self, marginals):
        return DiagonalPullback(self, marginals)


class DiagonalPullback(Pullback):
    """With v = V/(1 + V tau) and mean = v (m/V + nu), for prior variance V and prior mean m."""

    def __init__(self, solved, marginals):
        self._variance, self._kept = marginals
        self._mean, self._weights = solved.mean, solved.weights

    def to_sites(self, by_variance, by_mean):
        v = self._variance
        return np.array([-v * v * by_variance - v * self._mean * by_mean, v * by_mean])

    def to_prior(self, by_variance, by_mean):
        return self._kept**2 * by_variance + self._kept * self._weights * by_mean


class DiagonalKept(PredictiveState):
    """Predicts the latent values it was given, by their numbers."""

    weights = None

    def __init__(self, weights, variance):
        self.weights, self._variance = weights, variance

    def predict(self, numbers, variance, mean=0.0):
        return mean + (self._variance * self.weights)[numbers], variance

    def evidence_gradient(self, change):
        raise NotImplementedError


class DiagonalFamily(Family):
    """Prior variances exp(theta) times a profile (N,)."""

    theta, bounds = np.zeros(1), np.log([[1e-3, 1e3]])

    def __init__(self, profile, mean):
        self._profile, self._mean = profile, mean

    def at(self, theta):
        self._prior = DiagonalPrior(np.exp(theta[0]) * self._profile, self._mean)
        return self._prior

    def contract(self, slope):
        return np.array([slope @ self._prior.variance])
