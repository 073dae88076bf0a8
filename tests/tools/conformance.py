"""What holds of every registered likelihood, by its reference values and its own log density.

A check takes a likelihood and raises `AssertionError`. What a likelihood does not declare is not
asked for. Nothing here knows a likelihood by name.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import gammaln, log_ndtr

from qpruntime import InputError, Likelihood, likelihoods
from qpruntime.projection.projector import project_arrays
from tests.tools.oracle import NODES, REFERENCE, WEIGHTS

STEPS = 1.15 ** -np.arange(260.0)
F = np.array([-30.0, -4.0, -1.0, -0.2, 0.3, 1.0, 7.0])


class Reference(NamedTuple):
    """Columns of one reference CSV, as float64 arrays; `y` has shape (N, C) if it is of several."""

    mu: np.ndarray
    sigma: np.ndarray
    y: np.ndarray
    log_z: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    sigma_star: np.ndarray


def reference(name: str, folder: Path = REFERENCE) -> Reference:
    """Read ``NAME.csv``."""
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = csv.reader(file)
        header, names = tuple(next(rows)), Reference._fields
        columns = np.array([[float(v) for v in row] for row in rows]).T
    assert header[:2] + header[-4:] == names[:2] + names[3:]
    y = columns[2:-4].T
    return Reference(*columns[:2], y[:, 0] if y.shape[1] == 1 else y, *columns[-4:])


def expectation(log_p, mean, std, marks=()):
    """E log p under N(mean, std^2), and by Stein's identities its derivatives.

    Gauss-Legendre panels that shrink towards 0, where log p may be singular, and to the mean.
    """
    reach = 12.0 * std
    edges = np.concatenate(
        [[c, *(c + reach * STEPS), *(c - reach * STEPS)] for c in (0.0, mean, *marks)]
    )
    edges = np.unique(edges[np.abs(edges - mean) <= reach])
    f = edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1.0 + NODES)
    t = (f - mean) / std
    weight = 0.5 * np.diff(edges)[:, None] * WEIGHTS * np.exp(-0.5 * t * t)
    weight *= log_p(f) / (std * np.sqrt(2 * np.pi))
    slope, curvature = np.sum(weight * t) / std, -np.sum(weight * (t * t - 1.0)) / std**2
    return np.sum(weight), slope, curvature


def outcomes(r: Reference) -> np.ndarray:
    """Some of the observations there are reference values for."""
    seen = np.unique(r.y, axis=0)
    return seen[:: max(1, len(seen) // 4)]


def check_contract(own: Likelihood, r: Reference) -> None:
    """Its name finds it; it takes the observations of its references and refuses what is none."""
    assert likelihoods.get(own.name) is own
    assert likelihoods.is_registered(own)
    assert own.outcomes
    np.testing.assert_array_equal(own.validate(r.y), r.y)
    for wrong in (np.nan, 1j, "a", None):
        with pytest.raises(InputError):
            own.validate([wrong])


def check_projections(own: Likelihood, r: Reference) -> None:
    """Moments and sigma* are those of the references.

    Limits as in `test_registry` and `test_sigma_star_kernels`: a mean near zero is as exact as the
    standard deviation.
    """
    ep, qp = (
        project_arrays(own, r.mu, r.sigma, r.y, method=m, table="exact") for m in ("ep", "qp")
    )
    std = np.sqrt(r.variance)
    for got in (ep, qp):
        np.testing.assert_allclose(got.log_z, r.log_z, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose((got.mean - r.mean) / (np.abs(r.mean) + std), 0.0, atol=1e-10)
    np.testing.assert_allclose(ep.std, std, rtol=1e-10)
    np.testing.assert_allclose(qp.std, r.sigma_star, rtol=1e-9)


def check_fast_paths(own: Likelihood, r: Reference) -> None:
    """Moments and frames say what the log density alone does, by the adaptive rule."""
    if own.moments is None and own.frame is None:
        return
    plain = replace(own, moments=None, frame=None, powers=None)
    near = np.flatnonzero((r.sigma > 0.05) & (r.sigma < 20.0) & (np.abs(r.mu) < 10.0))[:8]
    assert near.size
    fast, slow = (
        project_arrays(k, r.mu[near], r.sigma[near], r.y[near], method="qp", table="exact")
        for k in (own, plain)
    )
    # The rule of user's densities promises 1e-8, and has 1e-10 in these cavities.
    np.testing.assert_allclose(fast.log_z, slow.log_z, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fast.std, slow.std, rtol=1e-8)
    if own.powers and own.powers.moments and own.moments:
        holding, y = own.observing(r.y)
        for i in near:
            at = r.mu[i], r.sigma[i], y[i], holding.theta
            np.testing.assert_allclose(own.powers.moments(*at, 1.0), own.moments(*at), rtol=1e-9)


def check_claims(own: Likelihood, r: Reference) -> None:
    """Mirror, location, evenness and log-concavity hold of values of the log density.

    What is even for every y says so; what is for some y alone, as noise for y = 0, does not.
    """
    line = np.linspace(-6.0, 6.0, 49)
    both = [(own.log_prob(line, y), own.log_prob(-line, y)) for y in outcomes(r)]
    assert own.even == all(np.allclose(*pair, rtol=1e-13, atol=0.0) for pair in both)
    for y in outcomes(r):
        log_p = own.log_prob(line, y)
        if own.mirror:
            np.testing.assert_allclose(own.log_prob(-line, -y), log_p, rtol=1e-13)
        if own.location:
            np.testing.assert_allclose(own.log_prob(line + 0.5, y + 0.5), log_p, rtol=1e-12)
        if own.log_concave:
            with np.errstate(invalid="ignore"):
                bend = log_p[2:] + log_p[:-2] - 2.0 * log_p[1:-1]
            assert not (bend > 1e-9 * (1.0 + np.abs(log_p[1:-1]))).any()


def check_expected(own: Likelihood, r: Reference) -> None:
    """What VB expects is the integral of the log density, and its derivatives."""
    if own.expected is None:
        return
    for y in outcomes(r):
        if not np.isfinite(own.log_prob(F, y)).all():
            continue  # where it is impossible there is nothing to expect
        for mean, std in ((0.4, 0.3), (-1.0, 1.0), (3.0, 2.0)):
            holding, number = own.observing(y)
            got = own.expected(mean, std, float(number), holding.theta)
            marks = (y,) if own.location else ()
            wanted = expectation(lambda f, y=y: own.log_prob(f, y), mean, std, marks)
            # Stein's identities cancel log p at the mean, once over std and once over std^2.
            lost = 3e-13 * max(1.0, abs(wanted[0])) / std ** np.arange(3.0)
            assert np.all(np.abs(np.subtract(got, wanted)) <= 1e-9 * np.abs(wanted) + lost + 1e-11)


def check_link(own: Likelihood, r: Reference) -> None:
    """Link and score are the probabilities of a label."""
    if own.link is not None:
        f = np.sort(F)
        found = own.link(f)
        np.testing.assert_allclose(np.log(found), own.log_prob(f, 1.0), rtol=1e-12, atol=1e-15)
        assert (np.diff(found) > 0.0).all()
    if own.score is not None:
        some = (r.y == 1.0) & (r.log_z > -30.0)
        got = log_ndtr(own.score(r.mu[some], r.sigma[some] ** 2))
        np.testing.assert_allclose(got, r.log_z[some], rtol=1e-9, atol=1e-300)


def check_rate(own: Likelihood, r: Reference) -> None:
    """Given f a count is Poisson of the rate; mean, gamma variable and exposures are the rate's."""
    link = own.rate
    if link is None:
        return
    for rate in (0.3, 2.0, 40.0):
        f = link.latent(rate)
        y = np.array([0.0, 1.0, 7.0])
        expected = y * np.log(rate) - rate - gammaln(y + 1.0)
        np.testing.assert_allclose(own.log_prob(f, y), expected, rtol=1e-12, atol=1e-12)
        slope, shift = link.exposed(np.array([2.5]))
        np.testing.assert_allclose(slope * f + shift, link.latent(2.5 * rate), rtol=1e-14)
    mean, variance = np.array([0.3, 1.2]), np.array([0.2, 0.05])
    g, weights = link.distribution(mean, variance).nodes()
    average, scale = link.gamma(mean, variance)
    np.testing.assert_allclose((g * weights).sum(axis=1), average, rtol=1e-12)
    np.testing.assert_allclose(link.mean_rate(mean, variance), average, rtol=1e-15)
    spread = ((g - average[:, None]) ** 2 * weights).sum(axis=1)
    np.testing.assert_allclose(average * scale, spread, rtol=1e-10)
    below, above = (link.distribution(mean, variance).tail(g, upper) for upper in (False, True))
    np.testing.assert_allclose(below + above, 1.0, rtol=1e-14)


def check_reduction(own: Likelihood, r: Reference) -> None:
    """A cavity has the coordinates that it is the cavity of."""
    red = own.reduction
    if red is None:
        return
    for row in (0, len(red.outcomes) - 1):
        for u in (0.0,) if red.u is None else red.u.nodes()[1:-1:16]:
            for v in red.v.nodes()[1:-1:16]:
                mu, sigma, y = red.cavity(row, u, v)
                # Where a coordinate ends its rounding is magnified by what leads there.
                found = red.coordinates(mu, sigma, y, own.theta)
                np.testing.assert_allclose(found, (row, u, v), rtol=1e-9, atol=1e-7)


CHECKS: tuple[Callable[[Likelihood, Reference], None], ...] = (
    *(check_contract, check_projections, check_fast_paths, check_claims, check_expected),
    *(check_link, check_rate, check_reduction),
)


def conforms(own: Likelihood, folder: Path = REFERENCE) -> None:
    """Run every check on a registered likelihood."""
    r = reference(own.name, folder)
    for check in CHECKS:
        check(own, r)
