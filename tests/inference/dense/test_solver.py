"""Posterior linear algebra against dense inverses: strong, weak, absent and negative sites."""

import mpmath as mp
import numpy as np
import pytest

from qpruntime import NumericalError
from qpruntime.inference.dense.blas import inverse_triangle
from qpruntime.inference.dense.solver import CholeskyFactor
from qpruntime.inference.sites import ImproperPosterior, Sites
from tests.tools.cases import every_case, refuses

pytestmark = pytest.mark.interpreted
N = 12
RNG = np.random.default_rng(4)
X = RNG.standard_normal((N, 2))
GRAM = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
NU = RNG.standard_normal(N)
PRIOR = RNG.standard_normal(N)

PRECISIONS = {
    "moderate": RNG.uniform(0.1, 3.0, N),
    "weak": 10.0 ** RNG.uniform(-12, -5, N),
    "strong": 10.0 ** RNG.uniform(3, 9, N),
    "mixed": 10.0 ** RNG.uniform(-9, 6, N),
    "absent": np.zeros(N),
    "some absent": np.where(np.arange(N) % 3, 0.7, 0.0),
    "one negative": np.where(np.arange(N) == 5, -0.2, 1.0),
    "some negative": np.where(np.arange(N) % 4 == 0, -0.05, 0.5),
    "all negative": np.full(N, -0.01),
}


def exact(K, tau, nu, prior):
    with mp.workdps(60):
        k, t = mp.matrix(K.tolist()), mp.diag([mp.mpf(v) for v in tau.tolist()])
        a = mp.eye(len(K)) + k * t
        inverse = a**-1
        covariance = inverse * k
        shift = mp.matrix((nu - tau * prior).tolist())
        mean = covariance * shift
        found = {"covariance": covariance, "inner": t * inverse}
        found = {name: np.array(part.tolist(), dtype=float) for name, part in found.items()}
        found["mean"] = prior + np.array(list(mean), dtype=float)
        found["weights"] = np.array(list(shift - t * mean), dtype=float)
        return found | {"log_det": float(mp.log(mp.det(a)))}


@every_case("scale", [1e-4, 1.0, 1e5])
@every_case("name", PRECISIONS)
def test_against_dense_algebra(name, scale):
    K, tau = scale * GRAM, PRECISIONS[name] / scale  # the same problem in other units
    nu, prior = NU / np.sqrt(scale), PRIOR * np.sqrt(scale)
    factor, expected = CholeskyFactor(K, Sites(tau, nu), prior), exact(K, tau, nu, prior)
    # B has a condition of up to lambda_max tau_max: 1e10 for strong sites of nearby points. The
    # variance of a weak site amid strong ones is what K - V'V leaves of K: 1e-15 of the prior.
    covariance = factor.covariance()
    limit = 1e-12 * scale
    np.testing.assert_allclose(covariance, expected["covariance"], rtol=1e-9, atol=limit)
    wanted = np.diag(expected["covariance"])
    # Marginals have two ways, by what is at hand.
    for found in (factor, CholeskyFactor(K, Sites(tau, nu), prior)):
        np.testing.assert_allclose(found.marginals()[0], wanted, rtol=1e-10, atol=limit)
    np.testing.assert_allclose(factor.log_det, expected["log_det"], rtol=1e-11, atol=1e-12)
    # The mean is prior + K weights, which cancel where strong sites hold it: 1e-16 times 1e9.
    size = np.abs(prior).max()
    np.testing.assert_allclose(factor.mean, expected["mean"], rtol=1e-8, atol=1e-8 * size)
    inner = expected["inner"]
    np.testing.assert_allclose(factor.inner(), inner, rtol=1e-8, atol=1e-9 * np.abs(inner).max())
    star = K[:4] * 0.5
    expected_gain = np.einsum("ij,jk,ik->i", star, inner, star)
    np.testing.assert_allclose(factor.reduction(star), expected_gain, rtol=1e-7, atol=limit)


def test_improper_posteriors_and_priors_are_refused():
    def refused(words, K, tau, error=ImproperPosterior):
        refuses(words, CholeskyFactor, K, Sites(tau, NU), PRIOR, error=error)

    refused("3 negative site precisions", GRAM, np.where(np.arange(N) % 4 == 0, -2.0, 0.5))
    # Just on either side of the limit 1/lambda_max for equal precisions.
    limit = 1.0 / np.linalg.eigvalsh(GRAM)[-1]
    CholeskyFactor(GRAM, Sites(np.full(N, -limit * (1 - 1e-9)), NU), PRIOR)
    refused("12 negative site precisions", GRAM, np.full(N, -limit * (1 + 1e-9)))
    refused("not positive definite", GRAM - 2.0, np.full(N, 10.0), NumericalError)


@every_case("n", [1, 63, 64, 65, 199, 200, 399, 400])
def test_inverse_of_a_triangle(n):
    matrix = np.tril(np.random.default_rng(n).standard_normal((n, n)), -1) / np.sqrt(n)
    matrix[np.diag_indices(n)] = np.linspace(1.0, 3.0, n)
    inverse = np.tril(inverse_triangle(np.asfortranarray(matrix)))
    np.testing.assert_allclose(inverse @ matrix, np.eye(n), atol=1e-13 * n)


@pytest.mark.parametrize("name", ["moderate", "one negative", "some absent"])
def test_slope_of_the_evidence(name):
    factor = CholeskyFactor(GRAM, Sites(PRECISIONS[name], NU), PRIOR)
    expected = exact(GRAM, PRECISIONS[name], NU, PRIOR)
    slope = 0.5 * (np.outer(expected["weights"], expected["weights"]) - expected["inner"])
    np.testing.assert_allclose(factor.slope(), slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["moderate", "one negative"])
def test_mean_before_and_after_the_inverse_and_after_giving_memory_back(name):
    sites, moved = Sites(PRECISIONS[name], NU), NU + 1.0
    expected = exact(GRAM, PRECISIONS[name], moved, PRIOR)["mean"]
    before, after, late = (CholeskyFactor(GRAM, sites, PRIOR) for _ in range(3))
    after.marginals()
    for factor in (before, after, late):
        factor.relocate(moved)
    late.covariance(last=True)
    for factor in (before, after, late):
        np.testing.assert_allclose(factor.mean, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["moderate", "some negative", "some absent"])
def test_mean_under_a_vast_prior(name):
    # What is written as a difference of two terms of size K keeps none of its digits here.
    K, tau = 1e12 * GRAM, np.where(PRECISIONS[name] < 0.0, -1e-13, PRECISIONS[name])
    nu = np.where(tau > 0.0, NU, 0.0)
    expected = exact(K, tau, nu, PRIOR)
    factor = CholeskyFactor(K, Sites(tau, nu), PRIOR)
    std = np.sqrt(np.diag(expected["covariance"]))
    np.testing.assert_allclose(factor.mean / std, expected["mean"] / std, rtol=0.0, atol=1e-4)
    # With L^-1 at hand it goes another way.
    factor.upper_inverse()
    factor.relocate(nu)
    np.testing.assert_allclose(factor.mean / std, expected["mean"] / std, rtol=0.0, atol=1e-4)
