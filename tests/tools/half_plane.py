"""Cavities over the half-plane and observations of every likelihood, in plain operations."""

import numpy as np

from qpruntime import likelihoods
from qpruntime.interop.array_api import FORMS

NAMES = (*FORMS, "student-t(nu=4, scale=0.1)", "negative-binomial(dispersion=50)")
LABELS = ("heaviside", "logistic", "probit")
COUNTS = ("negative-binomial", "poisson", "poisson-exp")


def cavities(name, n=600):
    """Widths from 1e-3 to 1e3, means to many of them, observations of the kind."""
    name, rng = likelihoods.get(name).name, np.random.default_rng(11)
    sigma = 10.0 ** rng.uniform(-3.0, 3.0, n)
    mu = rng.standard_normal(n) * 10.0 ** rng.uniform(-1.0, 1.5, n) * np.sqrt(np.maximum(sigma, 1))
    trials = np.floor(10.0 ** rng.uniform(0.0, 3.0, n))
    if name in LABELS:
        return mu, sigma, rng.choice([-1.0, 1.0], n)
    if name in COUNTS:
        return np.clip(mu, -60.0, 60.0), sigma, trials - 1.0
    if name == "binomial":
        y = np.stack([np.floor(trials * rng.uniform(0.0, 1.0, n)), trials], axis=-1)
        return np.clip(mu, -60.0, 60.0), sigma, y
    return mu, sigma, 2.0 * rng.standard_normal(n)
