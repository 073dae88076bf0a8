"""Data drawn from a fitted model: a latent function of its prior, and observations of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.over_nodes import only_mode
from qpruntime.estimators.predictive.density import log_density
from qpruntime.estimators.predictive.links import LINKS
from qpruntime.inference.infer import infer
from qpruntime.inference.joint import draws

__all__ = ["Drawn", "observed"]

#: Tries to draw labels of two classes.
_TRIES = 100


class Drawn:
    """A fitted model of one latent function, as a source of data at N rows.

    Parameters
    ----------
    model : fitted estimator
    prior : ndarray, shape (N,)
        Prior mean of the latent function.
    inputs : ndarray, shape (N, d)
        Rows as the kernel takes them.
    exposure : ndarray, shape (N,), or None
        Of counts.
    """

    def __init__(self, model: Any, prior: Array, inputs: Array, exposure: Array | None) -> None:
        only_mode(model, "data are drawn")
        self.model, self.exposures = model, () if exposure is None else (exposure,)
        self.K, self.prior = model.kernel_(inputs), prior
        self.slope, self.shift = np.ones(len(prior)), np.zeros(len(prior))
        if exposure is not None:
            slope, shift = LINKS[model.link_].exposed(exposure)
            self.slope, self.shift = self.slope * slope, self.shift + shift

    @property
    def likelihood(self) -> Any:
        """Likelihood of the observations, with the parameters of the fit."""
        model = self.model
        return model._likelihood_ if isinstance(model, GPClassifier) else model.likelihood_

    def once(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A latent function (N,), and encoded observations of it (N,).

        Raises
        ------
        InputError
            If 100 draws in a row had labels of one class.
        """
        for _ in range(_TRIES):
            f = draws(self.prior, self.K, 1, rng)[0]
            y = observed(self.model, self.slope * f + self.shift, rng)
            if not isinstance(self.model, GPClassifier) or abs(y.sum()) < y.size:
                return f, y
        raise InputError(
            f"{_TRIES} draws in a row had labels of one class: the prior is nearly sure of it"
        )

    def inferred(self, y: Array) -> tuple[Array, Array]:
        """Posterior means and variances of f at the rows, with the fit's own prior and noise."""
        model, mean = self.model, self.slope * self.prior + self.shift
        K = self.K * self.slope * self.slope[:, None]
        # Coordinates of the engine: slope f + shift.
        post = infer(K, y, self.likelihood, method=model.method, mean=mean, tol=model.tol)
        return (post.mean - self.shift) / self.slope, post.variance / self.slope**2

    def raw(self, f: Array) -> Array:
        """Latent values in units of the data."""
        centre, unit = self.model._units()
        return np.asarray(centre + unit * f)

    def outcomes(self, y: Array) -> Any:
        """Observations as the estimator is given them."""
        if isinstance(self.model, GPClassifier):
            return self.model.classes_[(y > 0.0).astype(int)]
        return self.raw(y)


def observed(model: Any, f: Array, rng: np.random.Generator) -> Array:
    """Draw encoded observations of latent values (N,) that have taken in the exposure."""
    if isinstance(model, GPClassifier):
        own = model._likelihood_
        if own is None:
            raise InputError("the likelihood of this model is known from a table alone: no draws")
        # Not every likelihood of labels has a link; p(+1|f) is its normaliser where f is certain.
        p = np.exp(log_density(own, f, np.zeros(f.size), np.ones(f.size)))
        return np.where(rng.uniform(size=f.size) < p, 1.0, -1.0)
    own = model.likelihood_
    if own.given is None:
        raise InputError(f"likelihood {own.name!r} has no draws: it is known by its density alone")
    given = own.given(f, own.theta)
    drawn: Array = np.asarray(given.rvs(size=f.shape, random_state=rng), dtype=float)
    return drawn
