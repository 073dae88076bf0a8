"""Theorems 3 and 4 of the paper in two dimensions: what a local update is optimal for.

q(f) is proportional to t(f_1) N(f | m, S). The theorems say that the Gaussian nearest to q in W_2
keeps the cavity's conditional f_2 | f_1 = N(a f_1 + b, s^2) and has the one-dimensional projection
of q_1 as its f_1, so that sites are univariate.

What their proof minimises is Eq. (10), in which the conditionals are coupled for given (f_1, f'_1):
f_2 sees f'_1 only through f_1. For that distance the theorems hold, exactly. It is an upper bound
of W_2, whose coupling may also depend on f_2: with correlation and a q that is no Gaussian some
coupling is better, and a Gaussian a little wider than the claimed one is nearer.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import ndtr, ndtri, ndtri_exp
from scipy.stats import norm

from qpruntime import project
from tests.tools.cases import every_case
from tests.tools.oracle import unit_normal

Z, WEIGHTS = unit_normal(120)
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
    return WEIGHTS @ ((f1 - g1) ** 2 + (a * f1 + b - p[1] - p[3] * Z) ** 2) + (s - p[4]) ** 2


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
    z = ndtri((np.arange(150) + 0.5) / 150.0)
    f1 = quantile(z)
    for a, b, s in CONDITIONALS:
        p = claimed(a, b, s, 0.9, 0.5) + np.array([0.1, 0.2, 0.1, 0.05, -0.1])
        cost = (f1[:, None] - p[0] - p[2] * z) ** 2
        cost += (a * f1[:, None] + b - p[1] - p[3] * z) ** 2
        rows, columns = linear_sum_assignment(cost)
        got = cost[rows, columns].sum()
        np.testing.assert_allclose(got, np.trace(cost), rtol=1e-12, err_msg="not monotone")
