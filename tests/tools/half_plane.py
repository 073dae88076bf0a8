"""Cavities over the half-plane and observations of every likelihood, in plain operations."""

import numpy as np

from qpruntime import likelihoods
from qpruntime.interop.array_formulas import FORMS
from qpruntime.likelihoods.responses import counts, signs

NAMES = (*FORMS, "student-t(nu=4, scale=0.1)", "negative-binomial(dispersion=50)")
#: An ordinary observation of each kind.
ORDINARY = {"labels": -1.0, "counts": 3.0, "pairs": np.array([2.0, 7.0]), "numbers": 0.3}


def kind_of(name):
    """Return the kind of observations that a likelihood takes."""
    likelihood = likelihoods.get(name)
    if likelihood.validate is signs:
        return "labels"
    if likelihood.validate is counts:
        return "counts"
    return "pairs" if likelihood.columns == 2 else "numbers"


def observation_of(name):
    """Return an ordinary observation of a likelihood."""
    return ORDINARY[kind_of(name)]


def cavities(name, n=600):
    """Widths from 1e-3 to 1e3, means to many of them, observations of the kind."""
    kind, rng = kind_of(name), np.random.default_rng(11)
    sigma = 10.0 ** rng.uniform(-3.0, 3.0, n)
    mu = rng.standard_normal(n) * 10.0 ** rng.uniform(-1.0, 1.5, n) * np.sqrt(np.maximum(sigma, 1))
    trials = np.floor(10.0 ** rng.uniform(0.0, 3.0, n))
    if kind == "labels":
        return mu, sigma, rng.choice([-1.0, 1.0], n)
    if kind == "counts":
        return np.clip(mu, -60.0, 60.0), sigma, trials - 1.0
    if kind == "pairs":
        y = np.stack([np.floor(trials * rng.uniform(0.0, 1.0, n)), trials], axis=-1)
        return np.clip(mu, -60.0, 60.0), sigma, y
    return mu, sigma, 2.0 * rng.standard_normal(n)
