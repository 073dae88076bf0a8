"""Projections of a tilted density that can only be sampled, or evaluated up to a constant.

The quantile function of weighted draws x_1 <= ... <= x_n with cumulated weights u_i is a staircase,
for which sigma* = int F^-1(u) Phi^-1(u) du = sum_i I(u_i) (x_{i+1} - x_i), I(p) = phi(Phi^-1(p)).
All results are smooth functions of the weighted empirical distribution. Standard errors therefore
come from influence functions: x - mean, ((x - mean)^2 - v)/(2 sqrt(v)), and for sigma* the H with
H'(x) = Phi^-1(F(x)), each minus its mean.

Use quadrature if the density can be evaluated without noise in one dimension: it is a thousand
times more accurate at the same cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, ndtri

from qpruntime import likelihoods
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array
from qpruntime._validation import broadcast, finite, generator, real, whole
from qpruntime.errors import InputError, NumericalError, SamplingWarning, warn
from qpruntime.likelihoods import Likelihood

__all__ = [
    "SampledProjection",
    "Site",
    "estimate",
    "project_sampled",
    "project_samples",
]

# --- Projections by importance sampling

#: Effective sample size below which standard errors are unreliable.
_LEAST = 100.0


@dataclass(frozen=True)
class SampledProjection:
    """Projected sites and their standard errors, all of one shape.

    Attributes
    ----------
    log_z, mean, std_ep, std : ndarray
        log normaliser (NaN if there were only samples), tilted mean, standard deviation of the
        tilted density and sigma*. Mean and `std` are the QP projection, mean and `std_ep` EP's.
    log_z_error, mean_error, std_ep_error, std_error : ndarray
        Standard errors.
    effective : ndarray
        Effective sample size, (sum w)^2/sum w^2, smaller for correlated samples.
    """

    log_z: Array
    mean: Array
    std_ep: Array
    std: Array
    log_z_error: Array
    mean_error: Array
    std_ep_error: Array
    std_error: Array
    effective: Array


def project_samples(
    samples: ArrayLike, weights: ArrayLike | None = None, *, correlated: bool = False
) -> SampledProjection:
    """Project draws from a tilted density.

    Parameters
    ----------
    samples : array-like, shape (n,) or (n, sites)
        Draws, one column per site; at least two different ones.
    weights : array-like of the same shape, optional
        Importance weights, at least 0, up to a constant.
    correlated : bool
        Whether the draws are a Markov chain in order; standard errors then come from about sqrt(n)
        batch means.

    Returns
    -------
    SampledProjection
        Results of shape () or (sites,). sigma* of n draws is low by about 1.6/n of itself. This
        bias is estimated and subtracted, which leaves 0.3/n: a small part of the standard error,
        0.7/sqrt(n) or more, from n = 50 on.

    Raises
    ------
    InputError
        If the arguments are not usable.

    Warns
    -----
    SamplingWarning
        If the effective sample size is below 100.

    See Also
    --------
    qpruntime.project_sampled, qpruntime.project

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import project_samples
    >>> found = project_samples(np.random.default_rng(0).exponential(size=100_000))
    >>> bool(abs(found.std - 0.9031972856) < 3.0 * found.std_error), bool(found.std_error < 0.005)
    (True, True)
    """
    x = finite(samples, "samples")
    if x.ndim not in (1, 2) or x.shape[0] < 2 or x.size == 0:
        raise InputError(f"samples must have shape (n,) or (n, sites), n >= 2, got {x.shape}")
    w = np.ones(x.shape) if weights is None else finite(weights, "weights", x.shape)
    if (w < 0.0).any():
        raise InputError(f"weights must not be negative, got {w.min():g}")
    columns = zip(x.reshape(len(x), -1).T, w.reshape(len(x), -1).T, strict=True)
    with np.errstate(all="ignore"):
        estimates = [estimate(a, b, correlated) for a, b in columns]
    return _gather(estimates, x.shape[1:], "draw more samples, or thin a chain less")


def project_sampled(
    likelihood: str | Likelihood | Callable[..., Any],
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    *,
    n_samples: int = 20_000,
    random_state: int | np.random.Generator | None = None,
) -> SampledProjection:
    """Project tilted densities by importance sampling.

    A few rounds of `n_samples`/10 pilot draws locate the tilted density. Then `n_samples` draws
    come from a mixture of a Student t there and of the cavity, which bounds the weights.

    Parameters
    ----------
    likelihood : str, Likelihood or callable
        A callable ``log_prob(f, y)`` gets an array f of shape (draws,) and one y, and returns log
        p(y|f) up to a constant, which `log_z` then contains. It may be noisy: if exp(log_prob) is
        an unbiased estimate of the likelihood, results and standard errors stay right.
    mu, sigma, y : array-like
        Cavity mean, cavity standard deviation and observation; they broadcast.
    n_samples : int
        Draws per site, at least 100.
    random_state : int, Generator or None
        Seed; one stream serves all sites in turn.

    Returns
    -------
    SampledProjection
        Results of the broadcast shape.

    Raises
    ------
    InputError
        If an argument is not usable.
    NumericalError
        If no draw has positive likelihood, or one has NaN.

    Warns
    -----
    SamplingWarning
        If the effective sample size is below 100 at some site.

    See Also
    --------
    qpruntime.project_samples, qpruntime.project

    Examples
    --------
    >>> from qpruntime import project_sampled
    >>> found = project_sampled("probit", 0.0, 1.0, 1, random_state=0)
    >>> bool(abs(found.std - 0.825215532) < 3.0 * found.std_error), bool(found.std_error < 0.01)
    (True, True)
    """
    n = whole(n_samples, "n_samples", 100)
    if isinstance(likelihood, (str, Likelihood)):
        known, labels = likelihoods.get(likelihood).observing(y)
        log_prob = known.log_prob
    elif callable(likelihood):
        log_prob, labels = likelihood, real(y, "y")
    else:
        raise InputError(f"likelihood must be a name, a Likelihood or callable, got {likelihood!r}")
    m, s, labels = broadcast(mu=finite(mu, "mu"), sigma=finite(sigma, "sigma"), y=labels)
    if m.size == 0:
        raise InputError(f"no sites to project: mu, sigma and y have shape {m.shape}")
    if not (s > 0.0).all():
        raise InputError(f"sigma is a standard deviation: it must be positive, got {s.min():g}")
    rng = generator(random_state)
    estimates = []
    for i in np.ndindex(m.shape):
        site = Site(log_prob, float(m[i]), float(s[i]), float(labels[i]))
        with np.errstate(all="ignore"):  # what leaves double precision is named by `_gather`
            estimates.append(site.project(n, rng))
    return _gather(
        estimates, m.shape, "raise n_samples, or if the likelihood is noisy make it less so"
    )


def _gather(
    sites: list[SampledProjection], shape: tuple[int, ...], remedy: str
) -> SampledProjection:
    columns = np.array([list(vars(site).values()) for site in sites]).T
    result = SampledProjection(*columns.reshape(-1, *shape))
    if not np.isfinite([result.mean, result.std_ep, result.std]).all():
        raise NumericalError(
            "a projection leaves double precision, whose squares reach from 1e-308 to 1e308: "
            "rescale the latent function"
        )
    least = result.effective.min()
    if least < _LEAST:
        warn(
            f"the effective sample size is {least:.3g}, less than {_LEAST:g}: estimates and their "
            f"standard errors are not to be trusted; {remedy}",
            SamplingWarning,
        )
    return result


# --- One site

# The cavity has this share of the proposals, which keeps every weight below likelihood/_SHARE. The
# others come from a Student t around the tilted density, which pilot draws locate.
_SHARE = 0.2
_FREEDOM = 5.0
_ROUNDS = 12


@dataclass
class Site:
    """One tilted density, and the Student t that is moved to it."""

    log_prob: Callable[..., Any]
    mu: float
    sigma: float
    y: float

    def log_tilted(self, f: Array) -> Array:
        """Return the log of likelihood times cavity at f."""
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
        return value - 0.5 * z * z - math.log(self.sigma) - HALF_LOG_2PI

    def propose(
        self, n: int, centre: float, scale: float, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Draw from the mixture; return (f, log weights) for the tilted density."""
        from_cavity = rng.random(n) < _SHARE
        near = centre + scale * rng.standard_t(_FREEDOM, n)
        f = np.where(from_cavity, self.mu + self.sigma * rng.standard_normal(n), near)
        cavity = math.log(_SHARE / self.sigma) - 0.5 * ((f - self.mu) / self.sigma) ** 2
        t = -0.5 * (_FREEDOM + 1.0) * np.log1p(((f - centre) / scale) ** 2 / _FREEDOM)
        t += math.log((1.0 - _SHARE) / scale) - 0.5 * math.log(_FREEDOM * math.pi)
        t += float(gammaln(0.5 * (_FREEDOM + 1.0)) - gammaln(0.5 * _FREEDOM))
        return f, self.log_tilted(f) - np.logaddexp(cavity - HALF_LOG_2PI, t)

    def project(self, n: int, rng: np.random.Generator) -> SampledProjection:
        """Locate the tilted density by pilot draws, then estimate its projection from n draws."""
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
                # Too few draws have the weight: move to the best draw, and search around it.
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
        projected = estimate(f, w)
        mean_w = w.mean()
        variance = float(np.mean((w / mean_w - 1.0) ** 2)) / (n - 1)
        return replace(
            projected,
            # The logarithm of a mean is low by half its relative variance.
            log_z=best + math.log(mean_w) + 0.5 * variance,
            log_z_error=np.asarray(math.sqrt(variance)),
        )


# --- Weighted moments and their standard errors


def estimate(x: Array, weights: Array, correlated: bool = False) -> SampledProjection:
    """Project one weighted sample; log Z is left out."""
    # Samples that weigh less than 1e-300 of the heaviest have no quantile in double precision.
    kept = np.flatnonzero(weights > 1e-300 * weights.max())
    order = kept[np.argsort(x[kept], kind="stable")]
    x, w = x[order], weights[order] / weights.max()
    if x.size == 0 or x[0] == x[-1]:
        raise InputError("a projection needs at least two different samples of positive weight")
    w /= w.sum()
    squares = w * w
    concentration = squares.sum()  # 1 over the effective sample size
    mean = x[0] + w @ (x - x[0])
    d = x - mean
    # The factor is the weighted form of 1/(n - 1).
    variance = (w @ (d * d)) / (1.0 - concentration)
    std_ep = math.sqrt(variance)

    # These are the masses below and above each gap between x_i and x_{i+1}, summed from their own
    # ends.
    gap = np.diff(x)
    below, above = _ends(w)
    z = np.where(below < above, ndtri(below), -ndtri(above))
    density = np.exp(-0.5 * z * z - HALF_LOG_2PI)
    square_below, square_above = _ends(squares)
    # This is the bias of I(F) with the estimated Var F and E F - F: I' = -z, I'' = -1/I. In tails
    # that hold less than one draw the expansion is invalid, but at most I(F) itself can be missing.
    spread = above**2 * square_below + below**2 * square_above
    shift = below * square_above - above * square_below
    bias = -gap @ (z * shift + np.minimum(0.5 * spread / density, density))
    star = float(gap @ density - bias)

    H = np.concatenate([[0.0], np.cumsum(z * gap)])
    influences = np.array([d, (d * d - variance) / (2.0 * std_ep), H - w @ H])
    scaled = np.zeros((3, weights.size))
    scaled[:, order] = w * influences
    errors = np.sqrt(np.sum(scaled**2, axis=1))
    effective = 1.0 / concentration
    if correlated:
        plain, errors = errors, _batch_errors(scaled)
        ratios = plain[errors > 0.0] / errors[errors > 0.0]
        effective *= min(1.0, float(ratios.min(initial=1.0)) ** 2)
    mean += squares @ d  # the ratio of two sums: bias -sum w^2 (x - mean)
    values = np.array([math.nan, mean, std_ep, star, math.nan, *errors, effective])
    return SampledProjection(*values)


def _ends(w: Array) -> tuple[Array, Array]:
    """Return sums up to each entry but the last, and sums of the rest from the other end."""
    return np.cumsum(w)[:-1], np.cumsum(w[::-1])[-2::-1]


def _batch_errors(scaled: Array) -> Array:
    """Return standard errors of row sums from sums over consecutive batches."""
    count = max(2, math.isqrt(scaled.shape[1]))
    sums = np.array([b.sum(axis=1) for b in np.array_split(scaled, count, axis=1)])
    return np.asarray(
        np.sqrt(np.sum((sums - sums.mean(axis=0)) ** 2, axis=0) * count / (count - 1.0))
    )
