"""Poisson with the exponential link: counts of rate e^f, log p = y f - e^f - log y!."""

from __future__ import annotations

import math

from qpruntime.jit import FRAME, MOMENTS, RAISED_FRAME, RAISED_MOMENTS, SPLIT, Pointer
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.expected import poisson_exp_expected
from qpruntime.likelihoods.observations import LARGEST_COUNT, counts
from qpruntime.likelihoods.softplus import bend_frame, bend_moments, bend_value, log_peak

__all__ = ["likelihood"]


def _split(f, y, theta):
    top = math.log(y) if y > 0.0 else 0.0
    return bend_value(f, y, 0.0, 0.0, top) + log_peak(y), 0.0


def _moments(mu, sigma, y, theta):
    top = math.log(y) if y > 0.0 else 0.0
    log_z, mean, variance = bend_moments(mu, sigma, y, 0.0, 0.0, top)
    return log_z + log_peak(y), mean, variance


def _frame(mu, sigma, y, theta):
    top = math.log(y) if y > 0.0 else 0.0
    return bend_frame(mu, sigma, y, 0.0, 0.0, top)


# To a power w, log p is w (y f - e^f) plus a constant: y becomes w y, and f is moved by log w.
def _raised_moments(mu, sigma, y, theta, power):
    top = math.log(y) if y > 0.0 else 0.0
    log_z, mean, variance = bend_moments(mu, sigma, power * y, 0.0, math.log(power), top)
    return log_z + power * log_peak(y), mean, variance


def _raised_frame(mu, sigma, y, theta, power):
    top = math.log(y) if y > 0.0 else 0.0
    return bend_frame(mu, sigma, power * y, 0.0, math.log(power), top)


likelihood = Likelihood(
    name="poisson-exp",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)),
    expected=Pointer(poisson_exp_expected, MOMENTS),
)
