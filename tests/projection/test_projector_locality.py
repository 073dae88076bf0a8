"""Theorems 3 and 4 of the paper in two dimensions: what a local update is optimal for.

q(f) is proportional to t(f_1) N(f | m, S). The theorems say that the Gaussian nearest to q in W_2
keeps the cavity's conditional f_2 | f_1 = N(a f_1 + b, s^2) and has the one-dimensional projection
of q_1 as its f_1, so that sites are univariate.

What their proof minimises is Eq. (10), in which the conditionals are coupled for given (f_1, f'_1):
f_2 sees f'_1 only through f_1. For that distance the theorems hold, exactly. It is an upper bound
of W_2: a coupling may also be chosen by f_2. The coupling at the claimed optimum,
T(f) = (g(f_1), f_2 + a (g(f_1) - f_1)), is the best of all only if its Jacobian is symmetric, that
is if a = 0 or g' = 1: no correlation, or a Gaussian q. Otherwise some coupling has a larger
E <f, f'> than tr S' (the value at T), and the claimed Gaussian, stretched by E <f, f'>/tr S' about
its mean, is nearer. The distance of the true optimum from the local one is measured here:
sizeable for a hard edge and strong correlation, a rounding error in practice for probit.
"""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import ndtr, ndtri, ndtri_exp
from scipy.stats import norm

from qpruntime import project
from tests.tools.cases import every_case
from tests.tools.transport import Plane

Z, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MU, SIGMA = 0.3, 1.2  # the cavity of f_1


def quantile(z):
    """F^-1(Phi(z)) of N(MU, SIGMA^2) above 0, from the upper tails."""
    return MU - SIGMA * ndtri_exp(np.log(ndtr(MU / SIGMA)) + norm.logsf(z))


def claimed(a, b, s, mean, std):
    """Mean and Cholesky factor of N(f_1 | mean, std^2) N(f_2 | a f_1 + b, s^2)."""
    return np.array([mean, a * mean + b, std, a * std, s])


def nested(p, a, b, s):
    """Eq. (10) for the Gaussian `p`, by quadrature over the monotone coupling of f_1 and f'_1."""
    f1, g1 = quantile(Z), p[0] + p[2] * Z
    # Conditionals are N(a f_1 + b, s^2) and N(p_1 + p_3 z, p_4^2): W_2^2 of two normals.
    means = (a * f1 + b - p[1] - p[3] * Z) ** 2
    return WEIGHTS @ ((f1 - g1) ** 2 + means) + (s - p[4]) ** 2


CONDITIONALS = [(0.0, 0.0, 0.7), (1.0, -0.4, 0.7), (-2.5, 1.0, 0.2), (0.3, 0.0, 3.0)]


@every_case("conditional", CONDITIONALS)
def test_nested_distance_has_its_minimum_where_the_theorem_says(conditional):
    a, b, s = conditional
    best = claimed(a, b, s, *project("heaviside", MU, SIGMA, 1))
    found = minimize(
        nested, best + np.array([0.2, -0.3, 0.3, -0.2, 0.3]), args=conditional, tol=1e-12
    )
    # The objective is quadratic; differences of it give the minimiser to the root of rounding.
    np.testing.assert_allclose(found.x, best, atol=1e-6)
    # Eq. (22): (1 + a^2) (tilted variance - sigma*^2).
    _, ep = project("heaviside", MU, SIGMA, 1, method="ep")
    value = (1.0 + a * a) * (ep**2 - best[2] ** 2)
    np.testing.assert_allclose(nested(best, *conditional), value, rtol=1e-7)
    rng = np.random.default_rng(0)
    for direction in [*np.eye(5), *rng.standard_normal((20, 5))]:
        for step in (1e-3, -1e-3, 0.1, -0.1):
            assert nested(best + step * direction, *conditional) > value + 0.5e-7


def test_monotone_coupling_is_best_among_those_of_f1():
    # Brute force over all couplings of atoms, at Gaussians other than the best.
    u = (np.arange(150) + 0.5) / 150.0
    z = ndtri(u)
    f1 = quantile(z)
    for a, b, s in CONDITIONALS:
        p = claimed(a, b, s, 0.9, 0.5) + np.array([0.1, 0.2, 0.1, 0.05, -0.1])
        cost = (f1[:, None] - p[0] - p[2] * z) ** 2
        cost += (a * f1[:, None] + b - p[1] - p[3] * z) ** 2
        rows, columns = linear_sum_assignment(cost)
        np.testing.assert_allclose(
            cost[rows, columns].sum(), np.trace(cost), rtol=1e-12, err_msg="not monotone"
        )


@every_case("conditional", CONDITIONALS)
def test_couplings_that_see_f2_can_be_better(conditional):
    """First variation of E <f, f'> along a flow that keeps f' normal: a s E (kappa' - sigma*)^2.

    f = (kappa(z_1), a kappa(z_1) + b + s z_2), f' = mean + L z and kappa = F^-1(Phi). The field
    v = (-z_2 h, z_1 h - h'), h = kappa'(z_1) - sigma*, keeps the standard normal of z as it is.
    """
    a, b, s = conditional
    _, star = project("heaviside", MU, SIGMA, 1)
    z1, z2 = Z[:, None], Z[None, :]
    weights = WEIGHTS[:, None] * WEIGHTS
    f1 = quantile(z1)
    tail = ndtr(MU / SIGMA) * norm.sf(z1)  # of the cavity beyond f_1
    slope = SIGMA * tail / norm.sf(z1) * norm.pdf(z1) / norm.pdf(ndtri(tail))
    x = (f1 - MU) / SIGMA
    # kappa'' = kappa' (x kappa'/SIGMA - z_1), as kappa' = const phi(z_1)/phi(x).
    h, dh = slope - star, slope * (x * slope / SIGMA - z1)
    v1, v2 = -z2 * h, z1 * h - dh
    # v keeps the normal: its mean product with any gradient vanishes.
    for d1, d2 in (
        (1.0, 0.0),
        (z1, 0.0),
        (z2, z1),
        (3.0 * z1**2 * z2, z1**3),
        (z2**2, 2 * z1 * z2),
    ):
        assert abs(np.sum(weights * (v1 * d1 + v2 * d2))) < 1e-8
    f2 = a * f1 + b + s * z2
    variation = np.sum(weights * (f1 * star * v1 + f2 * (a * star * v1 + s * v2)))
    expected = a * s * (WEIGHTS @ h[:, 0] ** 2)
    np.testing.assert_allclose(variation, expected, rtol=1e-6, atol=1e-8)
    assert (abs(expected) > 1e-3) == (a != 0.0)


def plane(n, eps, a, s, likelihood):
    """Discretise q with f_1 from N(0, 1) tilted by the likelihood; return it and the claim."""
    mean, std = project(likelihood, 0.0, 1.0, 1)
    _, ep = project(likelihood, 0.0, 1.0, 1, method="ep")
    wide = np.hypot(a * ep, s)
    x1 = np.linspace(min(mean - 5.0 * std, -0.5), mean + 6.0 * std, n)
    x2 = a * mean + np.linspace(-6.0, 6.0, n) * wide
    edges = np.append(1.5 * x1[0] - 0.5 * x1[1], x1 + 0.5 * (x1[1] - x1[0]))
    if likelihood == "heaviside":  # mass of cells, some of them cut by the edge
        first = np.diff(2.0 * np.maximum(ndtr(edges) - 0.5, 0.0))
    else:
        first = ndtr(x1) * norm.pdf(x1)
    source = first[:, None] * np.exp(-0.5 * ((x2 - a * x1[:, None]) / s) ** 2)
    local = (1.0 + a * a) * (ep**2 - std**2)
    return Plane(x1, x2, source, eps), claimed(a, 0.0, s, mean, std), local


def test_without_correlation_the_claim_is_nearest():
    grid, best, local = plane(80, 0.1, 0.0, 0.7, "heaviside")
    value, _ = grid.gaussian(best)
    found = grid.nearest(best + np.array([0.05, 0.05, 0.05, 0.1, -0.1]))
    # A grid step of 0.06 moves means and widths by its square; regularisation by as much.
    np.testing.assert_allclose(found.x, best, atol=3e-3)
    np.testing.assert_allclose(value, local, atol=0.1 * local)
    for direction in np.eye(5):
        for step in (0.05, -0.05):
            assert grid.gaussian(best + step * direction)[0] > value + 1e-4


def test_with_correlation_the_claim_is_near_the_nearest():
    grid, best, local = plane(80, 0.1, 1.0, 0.7, "heaviside")
    value, _ = grid.gaussian(best)
    # A better coupling than that of the proof.
    assert value < 0.7 * local
    # Hence the stretched claim is nearer, by (gain/2)^2/tr S' if nothing but the size moves.
    size = best[2] ** 2 + best[3] ** 2 + best[4] ** 2
    stretch = 1.0 + 0.5 * (local - value) / size
    stretched = grid.gaussian(np.append(best[:2], best[2:] * stretch))[0]
    gain = (0.5 * (local - value)) ** 2 / size
    np.testing.assert_allclose(value - stretched, gain, rtol=0.3)
    found = grid.nearest(best)
    assert 0.005 * value < value - found.fun < 0.02 * value
    slope, std2 = found.x[3] / found.x[2], found.x[4]
    assert 1.04 < slope < 1.07
    assert 0.68 < std2 < 0.695
    np.testing.assert_allclose(found.x[2], best[2], rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "a", "s", "slope", "spread"),
    # Measured with 80 to 200 points and eps from 0.1 to 0.02: stable in the digits of the test.
    [
        ("heaviside", 1.0, 0.7, 1.057, 0.985),
        ("heaviside", 1.0, 0.2, 1.015, 0.983),
        ("probit", 1.0, 0.7, 1.0, 1.0),
    ],
)
def test_how_far_the_nearest_is(likelihood, a, s, slope, spread):
    grid, best, local = plane(100, 0.05, a, s, likelihood)
    found = grid.nearest(best)
    value, _ = grid.gaussian(best)
    assert value < local
    assert found.fun <= value
    np.testing.assert_allclose(found.x[3] / found.x[2], slope * a, rtol=3e-3)
    np.testing.assert_allclose(found.x[4], spread * s, rtol=5e-3)
    np.testing.assert_allclose(found.x[2], best[2], rtol=5e-3)
