"""Poisson with the exponential link: counts of rate e^f, log p = y f - e^f - log y!."""

from __future__ import annotations

import math

from qpruntime.jit import FRAME, MOMENTS, RAISED_FRAME, RAISED_MOMENTS, SPLIT, Pointer, kernel
from qpruntime.likelihoods.bend import bent, bent_frame, bent_moments
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.observations import LARGEST_COUNT, counts
from qpruntime.likelihoods.series import log_peak

__all__ = ["likelihood"]


@kernel
def shape(y):
    """The limit of the shared form for n without bound, with a = y."""
    return 1.0, y, 0.0, 0.0, (math.log(y) if y > 0.0 else 0.0), log_peak(y)


def _split(f, y, theta):
    return bent(f, shape(y)), 0.0


def _moments(mu, sigma, y, theta):
    return bent_moments(mu, sigma, shape(y), 1.0)


def _frame(mu, sigma, y, theta):
    return bent_frame(mu, sigma, shape(y), 1.0)


def _raised_moments(mu, sigma, y, theta, power):
    return bent_moments(mu, sigma, shape(y), power)


def _raised_frame(mu, sigma, y, theta, power):
    return bent_frame(mu, sigma, shape(y), power)


def _expected(mean, std, y, theta):
    # Closed: E e^f = exp(mean + variance/2).
    rate = math.exp(min(mean + 0.5 * std * std, 700.0))
    return y * mean - rate - math.lgamma(y + 1.0), y - rate, rate


likelihood = Likelihood(
    name="poisson-exp",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)),
    expected=Pointer(_expected, MOMENTS),
)
