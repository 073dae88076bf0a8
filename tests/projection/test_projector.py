"""The projector: sources, dispatch, and where it looks."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import ndtr, ndtri, ndtri_exp
from scipy.stats import norm

from qpruntime import InputError, NumericalError, TableError, project
from qpruntime._numba import INTERPRETED
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import unit_normal

pytestmark = pytest.mark.interpreted
EXACT = {"table": "exact"}


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_broadcasting(method):
    mu, sigma, y = np.array([[-1.0], [0.5]]), np.array([0.3, 1.0, 4.0]), -1
    mean, std = project("probit", mu, sigma, y, method=method, **EXACT)
    assert mean.shape == std.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = project("probit", mu[i, 0], sigma[j], y, method=method, **EXACT)
            assert [v.shape for v in one] == [(), ()]
            assert one == (mean[i, j], std[i, j])
    assert project("probit", 0.0, 1.0, np.ones((2, 0, 3)))[0].shape == (2, 0, 3)


def test_input_types():
    expected = project("probit", [0.0, 1.0], [1.0, 2.0], [1.0, -1.0], **EXACT)
    frozen = np.array([0.0, 1.0])
    frozen.flags.writeable = False
    for mu, sigma, y in (
        ([0, 1], (1, 2), [1, -1]),
        (np.array([0, 1], dtype=np.float32), np.array([1, 2], dtype=np.int8), [True, -1]),
        (frozen, np.array([1.0, 9.0, 2.0])[::2], np.array([1, -1], dtype=object)),
    ):
        got = project("probit", mu, sigma, y, **EXACT)
        np.testing.assert_array_equal(got, expected)
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    got, plain = (project("probit", a, 1.0, 1, **EXACT) for a in (fortran, fortran.copy("C")))
    np.testing.assert_array_equal(got, plain)


@every_case(
    ("arguments", "error", "words"),
    [
        *(
            ({"sigma": [1.0, sigma], "method": method}, InputError, "sigma is a standard deviation")
            for sigma in (0.0, -0.0, -1.0, np.nan, np.inf, -np.inf)
            for method in ("ep", "qp")
        ),
        *(({"mu": [mu, 0.0]}, InputError, "mu must be finite") for mu in (np.nan, np.inf, -np.inf)),
        ({"likelihood": "probits"}, InputError, "unknown likelihood 'probits'"),
        ({"method": "vb"}, InputError, "method must be one of"),
        ({"method": None}, InputError, "method must be one of"),
        ({"table": 3}, InputError, "table must be None"),
        ({"table": "no-such-table"}, TableError, "no table 'no-such-table'"),
        ({"table": "no/such/table.h5"}, TableError, "no table at no/such/table.h5"),
        ({"y": 0}, InputError, "labels must be -1 or"),
        ({"y": "yes"}, InputError, "labels must be -1 or"),
        ({"mu": "zero"}, InputError, "mu must be an array of real numbers"),
        ({"mu": [0.0, 1.0], "sigma": [1.0, 2.0, 3.0]}, InputError, "must broadcast, got shapes"),
    ],
)
def test_refuses(arguments, error, words, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    given = {"likelihood": "probit", "mu": 0.0, "sigma": 1.0, "y": 1} | arguments
    refuses(words, project, error=error, **given)


@pytest.mark.skipif(INTERPRETED, reason="plain Python raises where compiled code overflows to inf")
@every_case("sigma", [1e160, 1e-200])
@every_case("method", ["ep", "qp"])
def test_beyond_double_precision_is_said(sigma, method):
    given = "probit", 0.0, [1.0, sigma], 1
    refuses("leaves double precision", project, *given, method=method, error=NumericalError)


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
    start = best + np.array([0.2, -0.3, 0.3, -0.2, 0.3])
    found = minimize(nested, start, args=conditional, tol=1e-12)
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
