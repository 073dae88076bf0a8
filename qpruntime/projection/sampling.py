"""Projections of a tilted density that can only be sampled, or evaluated up to a constant.

The quantile function of weighted draws x_1 <= ... <= x_n with cumulated weights u_i is a staircase,
for which sigma* = int F^-1(u) Phi^-1(u) du = sum_i I(u_i) (x_{i+1} - x_i), I(p) = phi(Phi^-1(p)).
Everything here is a smooth function of the weighted empirical distribution, so standard errors come
from influence functions: x - mean, ((x - mean)^2 - v)/(2 sqrt(v)), and for sigma* the H with
H'(x) = Phi^-1(F(x)), each less its mean.

Quadrature is a thousand times more accurate at the same cost where it can be used. In one
dimension that is wherever the density can be evaluated without noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError, SamplingWarning, warn
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.estimates import Estimates, estimate
from qpruntime.projection.importance import Site
from qpruntime.renamed import renamed
from qpruntime.validation import broadcast, finite, generator, real, whole

__all__ = ["SampledProjection", "project_sampled", "project_samples"]

#: Below this effective sample size standard errors are guesses.
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
        One standard error of each.
    effective : ndarray
        Effective sample size, (sum w)^2/sum w^2, less for correlated samples.
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
        Importance weights, not negative, up to a constant.
    correlated : bool
        Whether the draws are a Markov chain in order: standard errors are then those of about
        sqrt(n) batch means.

    Returns
    -------
    SampledProjection
        Of shape () or (sites,). sigma* of n draws is low by about 1.6/n of itself; that bias is
        estimated and taken out, which leaves 0.3/n: a small part of the standard
        error, 0.7/sqrt(n) or more, from n = 50 on.

    Raises
    ------
    InputError
        If the arguments are not usable.

    Warns
    -----
    SamplingWarning
        If the effective sample size is below 100.

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
        found = [estimate(a, b, correlated) for a, b in columns]
    return _gather(found, x.shape[1:], "draw more samples, or thin a chain less")


@renamed(n="n_samples")
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

    A few rounds of `n_samples`/10 pilot draws find the tilted density; then `n_samples` draws come
    from a mixture of a Student t there and of the cavity, which bounds the weights.

    Parameters
    ----------
    likelihood : str, Likelihood or callable
        A callable ``log_prob(f, y)`` gets an array f of shape (draws,) and one y, and returns
        log p(y|f) up to a constant, which then is in `log_z`. It may be noisy: if exp(log_prob) is
        an unbiased estimate of the likelihood, results and standard errors stay right.
    mu, sigma, y : array-like
        Cavity mean, cavity standard deviation and observation; they broadcast.
    n_samples : int
        Draws per site; 100 at least.
    random_state : int, Generator or None
        Seed; one and the same stream serves all sites in turn.

    Returns
    -------
    SampledProjection
        Of the broadcast shape.

    Raises
    ------
    InputError
        If an argument is not usable.
    NumericalError
        If no draw has any likelihood, or one has NaN.

    Warns
    -----
    SamplingWarning
        If the effective sample size is below 100 at some site.

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
    found = []
    for i in np.ndindex(m.shape):
        site = Site(log_prob, float(m[i]), float(s[i]), float(labels[i]))
        with np.errstate(all="ignore"):  # what leaves double precision is named by `_gather`
            found.append(site.project(n, rng))
    return _gather(found, m.shape, "raise n_samples, or if the likelihood is noisy make it less so")


def _gather(found: list[Estimates], shape: tuple[int, ...], remedy: str) -> SampledProjection:
    columns = np.array(found).T.reshape(len(Estimates._fields), *shape)
    result = SampledProjection(*columns)
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
