"""L_p projections against closed forms, optimality conditions in mpmath, brute force and p = 2."""

import math
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.optimize import minimize
from scipy.special import ndtri

from qpruntime import GPClassifier, infer, likelihoods, project
from qpruntime._numba import INTERPRETED
from qpruntime._pointers import SPLIT, Pointer
from qpruntime.likelihoods.base import Likelihood
from qpruntime.quadrature import wasserstein_kernels
from qpruntime.quadrature.adaptive_kernels import look_around, quantile_nodes
from qpruntime.quadrature.sigma_star_kernels import Raised
from qpruntime.quadrature.wasserstein_kernels import Law, jacobi_rules
from tests.tools.cases import every_case, refuses


def user_made(split):
    return Likelihood("own", "any", Pointer(split, SPLIT), np.asarray)


SPLITS = {
    **{name: likelihoods.get(name) for name in ("probit", "heaviside", "poisson")},
    "student": user_made(lambda f, y, theta: (-1.5 * math.log1p(0.5 * ((f - y) / 0.1) ** 2), 0.0)),
    "laplace": user_made(lambda f, y, theta: (-abs(f - y), 0.0)),
    "gaussian": user_made(lambda f, y, theta: (-0.5 * ((f - y) / 0.7) ** 2, 0.0)),
}
# With one mode and two, with a jump and a kink, one of them far out in its tail.
CAVITIES = [
    *(("probit", -3.0, 10.0, 1.0), ("probit", -50.0, 2.0, 1.0), ("heaviside", -5.0, 1.0, 1.0)),
    *(("poisson", 0.2, 5.0, 4.0), ("student", 0.0, 1.0, 5.0), ("laplace", 0.0, 1.0, 0.3)),
]


@pytest.mark.interpreted
@every_case("p", [1.0, 1.3, 2.0, 3.7, 10.0])
def test_gaussian_densities_are_their_own_projection(p):
    mu, sigma, y = 0.5, 2.0, 1.0
    mean, std = project(SPLITS["gaussian"], mu, sigma, y, method="wp", p=p)
    variance = 1.0 / (sigma**-2 + 0.7**-2)
    assert mean == pytest.approx(variance * (mu / sigma**2 + y / 0.49), rel=1e-12)
    assert std == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.interpreted
@every_case(("name", "mu", "sigma", "y"), CAVITIES[:: 2 if INTERPRETED else 1])
def test_p_of_two_is_quantile_propagation(name, mu, sigma, y):
    mean, std = project(SPLITS[name], mu, sigma, y, method="wp", p=2)
    qp_mean, qp_std = project(SPLITS[name], mu, sigma, y, table="exact")
    assert mean == pytest.approx(qp_mean, rel=1e-11, abs=1e-11 * qp_std)
    assert std == pytest.approx(qp_std, rel=1e-11)
    # And nothing jumps there.
    near, wide = project(SPLITS[name], mu, sigma, y, method="wp", p=2.0 + 1e-7)
    assert near == pytest.approx(mean, rel=1e-6, abs=1e-6 * std)
    assert wide == pytest.approx(std, rel=1e-6)


def gradient(mu, sigma, m, s, p):
    """E |eps|^(p - 1) sgn(eps) (1, z), split at the roots of eps, over E |eps|^(p - 1).

    The map z -> f is that of the heaviside's tilted density for y = 1, in mpmath.
    """
    share = mp.ncdf(mpf(mu) / sigma)

    def eps(z):
        return mu + sigma * mp.sqrt(2) * mp.erfinv(1 - 2 * (mp.ncdf(-z) * share)) - m - s * z

    grid = [mpf(k) / 4 - 7 for k in range(57)]
    signs = [mp.sign(eps(z)) for z in grid]
    changes = [k for k in range(56) if signs[k] != signs[k + 1]]
    roots = [mp.findroot(eps, (grid[k], grid[k + 1]), solver="anderson") for k in changes]
    total = mp.zeros(3, 1)
    for a, b in pairwise([mpf(-11), *roots, mpf(11)]):
        points = [a, *(c for c in (-4, 0, 4) if a < c < b), b]
        if p == 1:
            size, slope = mp.ncdf(b) - mp.ncdf(a), mp.npdf(a) - mp.npdf(b)
        else:
            size, slope = (
                mp.quad(lambda z, k=k: abs(eps(z)) ** (p - 1) * mp.npdf(z) * z**k, points)
                for k in (0, 1)
            )
        sign = mp.sign(eps((a + b) / 2 if b < 11 else a + 1))
        total += mp.matrix([sign * size, sign * slope, size])
    return np.array([float(v / total[2]) for v in total[:2]])


@pytest.mark.slow
@every_case(
    ("mu", "sigma", "p", "limit"),
    [(0.0, 1.0, 1, 1e-11), (-5.0, 2.0, 1, 1e-11), (1.0, 1.0, 1, 1e-11), (0.0, 1.0, 1.5, 1e-9)],
)
def test_conditions_for_a_minimum(mu, sigma, p, limit):
    mean, std = (float(v) for v in project("heaviside", mu, sigma, 1, method="wp", p=p))
    with mp.workdps(25):
        assert np.abs(gradient(mu, sigma, mean, std, p)).max() < limit
        # What the limit means: a millionth of a deviation is seen.
        assert np.abs(gradient(mu, sigma, mean + 1e-6 * std, std, p)).max() > 1e-7


def brute_force(f, log_q, p, start):
    """Minimise over a fine grid of f: its masses, and their scores by plain sums."""
    q = np.exp(log_q - log_q.max())
    q /= q.sum()
    lower = np.cumsum(q) - 0.5 * q
    upper = np.cumsum(q[::-1])[::-1] - 0.5 * q
    keep = q > 1e-30
    f, q, lower, upper = f[keep], q[keep], lower[keep], upper[keep]
    z = np.where(lower < upper, ndtri(lower), -ndtri(upper))

    def distance(x):
        return q @ np.abs(f - x[0] - x[1] * z) ** p

    scale = start[1]
    options = {"xatol": 1e-9 * scale, "fatol": 1e-14 * scale**p, "maxiter": 4000}
    for _ in range(3):  # the simplex of one run may collapse early
        start = minimize(distance, start, method="Nelder-Mead", options=options).x
    return start, distance


@pytest.mark.slow
@every_case("p", [1.0, 1.5, 4.0])
@every_case(("name", "mu", "sigma", "y"), [c for c in CAVITIES if c[1] > -50.0])
def test_brute_force(name, mu, sigma, y, p):
    likelihood = SPLITS[name]
    mean, std = (float(v) for v in project(likelihood, mu, sigma, y, method="wp", p=p))
    centre, width = (float(v) for v in project(likelihood, mu, sigma, y, method="ep"))
    x = (np.arange(50_000) + 0.5) / 50_000
    f, cell = centre + 28.0 * width * (x - 0.5), 1.0
    if name == "heaviside":  # cells that end where the density does, and are small there
        f, cell = 28.0 * width * x**3, x**2
    log_q = likelihood.log_prob(f, y) - 0.5 * ((f - mu) / sigma) ** 2 + np.log(cell)
    found, distance = brute_force(f, log_q, p, (centre, width))
    # Cells of 5.6e-4 deviations, of second order but for p = 1: a sum of absolute values has its
    # minimum where some of them are 0.
    assert np.abs(found - (mean, std)).max() < (5e-4 if p == 1.0 else 1e-5) * width
    assert distance((mean, std)) <= distance(found) * (1.0 + 1e-6)


@every_case("p", [1.0, 1.5, 2.0, 3.0, 7.0])
@every_case(("name", "mu", "sigma", "y"), [CAVITIES[2], CAVITIES[4]])
def test_derivatives(name, mu, sigma, y, p):
    likelihood, order = SPLITS[name], max(p, 2.0)
    raised = Raised(likelihood.split.handle, 1.0, y, likelihood.theta)
    marks, degree = np.array([0.0, y]), 2 * math.ceil(order / 2.0)
    found = quantile_nodes(raised, mu, sigma, marks, order, degree)[3]
    panels = wasserstein_kernels.standardise(found.d, found.p, found.z)[3:]
    law, e, products = Law(p, jacobi_rules(p), 0.0), np.empty(16), np.empty(16)

    def objective(a, b):
        sums = np.empty(6)
        wasserstein_kernels.objective(*panels, a, b, law, sums, e, products)
        return sums

    h, a, b = 1e-5, 0.1, 0.9
    sums = objective(a, b)
    by_a = (objective(a + h, b) - objective(a - h, b)) / (2.0 * h)
    by_b = (objective(a, b + h) - objective(a, b - h)) / (2.0 * h)
    np.testing.assert_allclose(sums[1:3], (by_a[0], by_b[0]), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sums[3:5], (by_a[1], by_a[2]), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sums[4:6], (by_b[1], by_b[2]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("p", [1.0, 1.7, 10.0])
def test_scales(p):
    # The heaviside has no scale of its own.
    mean, std = project("heaviside", -2.0, 1.0, 1, method="wp", p=p)
    for scale in (1e-6, 1e8):
        wide = project("heaviside", -2.0 * scale, scale, 1, method="wp", p=p)
        np.testing.assert_allclose(wide, (mean * scale, std * scale), rtol=1e-9)


RNG = np.random.default_rng(0)
X = np.sort(RNG.normal(size=20)) * 2.0
K = 4.0 * np.exp(-0.5 * (X[:, None] - X) ** 2)
LABELS = np.where(np.sin(2.0 * X) + 0.4 * RNG.normal(size=20) > 0.0, 1, -1)


@pytest.mark.parametrize(
    ("likelihood", "p"),
    [pytest.param("probit", 1.0, marks=pytest.mark.slow), ("probit", 3.0), ("poisson", 1.5)],
)
def test_fixed_point(likelihood, p):
    y = LABELS
    options = {"likelihood": likelihood, "method": "wp", "p": p, "tol": 1e-9}
    if likelihood == "poisson":
        y, options["mean"] = (y + 1) * 2, 3.0
    orders = "sequential", "parallel", "random"
    ends = [infer(K, y, order=order, random_state=1, **options) for order in orders]
    for post in ends:
        assert post.converged
        np.testing.assert_allclose(post.mean, ends[0].mean, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(post.variance, ends[0].variance, rtol=1e-7)
        cavity_tau = 1.0 / post.variance - post.sites.tau
        cavity = (post.mean / post.variance - post.sites.nu) / cavity_tau
        # Marginals are the projections of their cavities.
        mean, std = project(likelihood, cavity, cavity_tau**-0.5, y, method="wp", p=p)
        np.testing.assert_allclose(post.mean, mean, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(post.variance, std**2, rtol=1e-7)
        # log Z and leave-one-out densities are those of the cavities, whatever the method.
        assert np.isfinite(post.log_evidence)
        assert post.loo().shape == (20,)


def test_powers():
    # A likelihood to the power 1/2 twice over is the likelihood.
    twice = np.repeat(np.repeat(K, 2, 0), 2, 1) + 1e-9 * np.eye(40)
    whole = infer(K, LABELS, method="wp", p=1.5, power=0.5, tol=1e-9)
    halves = infer(
        twice, np.repeat(LABELS, 2), method="wp", p=1.5, weights=np.full(40, 0.5), tol=1e-9
    )
    np.testing.assert_allclose(halves.mean[::2], whole.mean, rtol=1e-3, atol=1e-3)


def test_classifier():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 2))
    y = x[:, 0] + 0.3 * rng.normal(size=30) > 0.0
    clf = GPClassifier(method="wp", p=1.0).fit(x, y)
    qp = GPClassifier().fit(x, y)
    np.testing.assert_allclose(clf.predict_proba(x), qp.predict_proba(x), atol=0.05)
    assert np.abs(clf.predict_proba(x) - qp.predict_proba(x)).max() > 1e-6
    refuses('optimize="loo" needs', GPClassifier(method="wp", p=1.0, optimize="loo").fit, x, y)


@every_case(
    ("options", "words"),
    [
        ({"method": "wp"}, 'method "wp" needs p'),
        ({"method": "wp", "p": 0.99}, "p must be from 1, .* got 0.99"),
        ({"method": "wp", "p": 10.01}, "p must be from 1, .* to 10, .* got 10.01"),
        ({"method": "wp", "p": math.nan}, "p must be"),
        ({"method": "wp", "p": "two"}, "p must be"),
        ({"method": "qp", "p": 2.0}, "takes none"),
        ({"method": "ep", "p": 2.0}, "takes none"),
    ],
)
def test_refuses(options, words):
    refuses(words, project, "probit", 0.0, 1.0, 1, **options)
    refuses(words, infer, np.eye(1), [1], **options)


@pytest.mark.parametrize("p", [1.0, 1.05, 1.5])
def test_newton_and_enclosures_agree(p):
    """Where second derivatives vanish or jump Newton's method says so: enclosures take over."""
    theta, _, _, split, _, (_, _, landmark, *_) = likelihoods.get("probit").functions(powers=True)
    rules = wasserstein_kernels.parameters(p)[1:].reshape((6, -1))
    rng, settled = np.random.default_rng(5), 0
    for _ in range(20 if p == 1.0 else 5):
        k, sigma = rng.uniform(-8.0, 8.0), 10.0 ** rng.uniform(-1.0, 4.0)
        marks = look_around(landmark, 1.0, theta)
        found = quantile_nodes(Raised(split, 1.0, 1.0, theta), k * sigma, sigma, marks, 2.0, 2)[3]
        _, _, start, panels, places = wasserstein_kernels.standardise(found.d, found.p, found.z)
        status, a, b, value, _ = wasserstein_kernels.minimise(panels, places, start, p, rules)
        again_a, again_b, least = wasserstein_kernels.enclose(panels, places, start, p, rules)
        # Of convex functions of two variables a smaller value is a better answer.
        assert least <= value * (1.0 + 1e-9)
        if status == 0:
            settled += 1
            np.testing.assert_allclose([again_a, again_b], [a, b], rtol=0.0, atol=1e-11)
    assert settled > 0
