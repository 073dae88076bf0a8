"""One site of a likelihood, as samples of its cavity are weighted by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.projection.estimates import Estimates, estimate

__all__ = ["Site"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

# Proposals: this share of the cavity itself keeps every weight below likelihood/_SHARE; the rest
# is a Student t around the tilted density, found in a few rounds of pilot draws.
_SHARE = 0.2
_FREEDOM = 5.0
_ROUNDS = 12


@dataclass
class Site:
    """One tilted density, and a Student t that is moved to it."""

    log_prob: Callable[..., Any]
    mu: float
    sigma: float
    y: float

    def log_tilted(self, f: Array) -> Array:
        value = np.asarray(self.log_prob(f, self.y), dtype=float)
        if value.shape != f.shape:
            raise InputError(
                f"log_prob must return shape {f.shape} for f of that shape, got {value.shape}"
            )
        wrong = np.isnan(value) | (value == np.inf)
        if wrong.any():
            raise NumericalError(
                f"log_prob is {value[wrong][0]} at f = {f[wrong][0]:g}, y = {self.y:g}; "
                "return -inf where there is no density"
            )
        z = (f - self.mu) / self.sigma
        return value - 0.5 * z * z - math.log(self.sigma) - _HALF_LOG_2PI

    def propose(self, n: int, centre: float, scale: float, rng: np.random.Generator) -> Any:
        """Draw from the mixture; return (f, log weights) for the tilted density."""
        own = rng.random(n) < _SHARE
        near = centre + scale * rng.standard_t(_FREEDOM, n)
        f = np.where(own, self.mu + self.sigma * rng.standard_normal(n), near)
        cavity = math.log(_SHARE / self.sigma) - 0.5 * ((f - self.mu) / self.sigma) ** 2
        t = -0.5 * (_FREEDOM + 1.0) * np.log1p(((f - centre) / scale) ** 2 / _FREEDOM)
        t += math.log((1.0 - _SHARE) / scale) - 0.5 * math.log(_FREEDOM * math.pi)
        t += float(gammaln(0.5 * (_FREEDOM + 1.0)) - gammaln(0.5 * _FREEDOM))
        return f, self.log_tilted(f) - np.logaddexp(cavity - _HALF_LOG_2PI, t)

    def project(self, n: int, rng: np.random.Generator) -> Estimates:
        centre, scale = self.mu, self.sigma
        for _ in range(_ROUNDS):
            f, log_w = self.propose(max(n // 10, 50), centre, scale, rng)
            best = log_w.max()
            if best == -np.inf:
                scale *= 4.0  # nothing found: look further
                continue
            w = np.exp(log_w - best)
            w /= w.sum()
            few = 1.0 / (w @ w)
            if few < 10.0:
                # Too few draws carry the weight: climb to the best, and keep looking around it.
                moved = abs(f[log_w.argmax()] - centre)
                centre = float(f[log_w.argmax()])
                scale = max(moved, 0.5 * scale) if moved > 0.1 * scale else 0.5 * scale
                continue
            centre = float(w @ f)
            scale = float(np.sqrt(w @ (f - centre) ** 2))
            if few > 0.4 * f.size:
                break
        f, log_w = self.propose(n, centre, scale, rng)
        best = log_w.max()
        if best == -np.inf:
            raise NumericalError(
                f"none of {n} draws around the cavity N({self.mu:g}, {self.sigma:g}^2) has any "
                f"likelihood for y = {self.y:g}; move the cavity or check the likelihood"
            )
        w = np.exp(log_w - best)
        found = estimate(f, w)
        mean_w = w.mean()
        variance = float(np.mean((w / mean_w - 1.0) ** 2)) / (n - 1)
        return found._replace(
            # The logarithm of a mean is low by half its relative variance.
            log_z=best + math.log(mean_w) + 0.5 * variance,
            log_z_error=math.sqrt(variance),
        )
