"""Logistic: p(y|f) = 1/(1 + exp(-y f)), y in {-1, +1}. Moments by a rule of some fifty nodes."""

from __future__ import annotations

import math

from qpruntime.jit import FRAME, MOMENTS, RAISED_FRAME, RAISED_MOMENTS, SPLIT, Pointer
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.expected import softplus_expected
from qpruntime.likelihoods.observations import signs
from qpruntime.likelihoods.softplus import bend_frame, bend_moments, softplus

__all__ = ["likelihood"]


def _split(f, y, theta):
    return -softplus(-y * f), 0.0


# log p = -log(1 + e^u), u = -y f: the shared form with a = 0 and n = 1.
def _moments(mu, sigma, y, theta):
    log_z, mean, variance = bend_moments(-y * mu, sigma, 0.0, 1.0, 0.0, 0.0)
    return log_z, -y * mean, variance


def _frame(mu, sigma, y, theta):
    centre, width, refine, side = bend_frame(-y * mu, sigma, 0.0, 1.0, 0.0, 0.0)
    return -y * centre, width, refine, side


# To a power w, n is w and u is moved by log w, here and in all likelihoods of the shared form.
def _raised_moments(mu, sigma, y, theta, power):
    log_z, mean, variance = bend_moments(-y * mu, sigma, 0.0, 1.0 / power, math.log(power), 0.0)
    return log_z, -y * mean, variance


def _raised_frame(mu, sigma, y, theta, power):
    centre, width, refine, side = bend_frame(-y * mu, sigma, 0.0, 1.0 / power, math.log(power), 0.0)
    return -y * centre, width, refine, side


def _expected(mean, std, y, theta):
    value, slope, curvature = softplus_expected(-y * mean, std)
    return -value, y * slope, curvature


likelihood = Likelihood(
    name="logistic",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    mirror=True,
    powers=Powers(Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)),
    expected=Pointer(_expected, MOMENTS),
)
