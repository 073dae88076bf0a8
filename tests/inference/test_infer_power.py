"""Power EP and weighted observations against dense algebra, dropped rows and quadrature."""

import numpy as np
import pytest
from scipy.special import log_ndtr

from qpruntime import infer
from tests.tools import oracle
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import RBFData


@pytest.fixture(scope="module")
def toy():
    return RBFData(12, seed=5)


@pytest.mark.interpreted
@every_case("order", ["sequential", "parallel"])
@every_case(("power", "heavy"), [(1.0, 2.5), (0.5, 1.0), (0.3, 0.4)])
def test_fixed_point_of_power_ep(toy, order, power, heavy):
    weights = np.where(np.arange(12) % 3 == 0, heavy, 1.0)
    post = infer(toy.K, toy.y, method="ep", power=power, weights=weights, order=order, tol=1e-11)
    assert post.converged
    # The tilted moments are the marginal's: that is the fixed point.
    log_z, centre, precision = oracle.check_fixed_point(
        post, lambda f, i: weights[i] * log_ndtr(toy.y[i] * f), 1e-9, power=power
    )
    tau, nu = post.sites
    S = np.linalg.inv(np.linalg.inv(toy.K) + np.diag(tau))
    mean = S @ nu
    np.testing.assert_allclose(post.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(post.variance, S.diagonal(), rtol=1e-8)
    # The site's normaliser to the power: Z over that of the Gaussian product.
    gauss = -0.5 * np.log1p(power * tau / precision) + 0.5 * mean**2 / post.variance
    gauss -= 0.5 * centre**2 * precision
    log_evidence = np.sum(log_z - gauss) / power
    sign, log_det = np.linalg.slogdet(np.eye(12) + toy.K * tau)
    log_evidence += 0.5 * nu @ mean - 0.5 * log_det
    assert sign == 1.0
    assert post.log_evidence == pytest.approx(log_evidence, rel=1e-9)


@pytest.mark.interpreted
@every_case("method", ["ep", "qp"])
@every_case("order", ["sequential", "parallel"])
def test_weight_zero_drops_the_observation(toy, method, order):
    keep = np.arange(12) % 4 != 1
    options = {"method": method, "order": order, "tol": 1e-11}
    dropped = infer(toy.K, toy.y, weights=keep.astype(float), **options)
    without = infer(toy.K[np.ix_(keep, keep)], toy.y[keep], **options)
    np.testing.assert_array_equal(dropped.sites.tau[~keep], 0.0)
    np.testing.assert_allclose(dropped.sites.tau[keep], without.sites.tau, rtol=1e-8, atol=1e-11)
    assert dropped.log_evidence == pytest.approx(without.log_evidence, rel=1e-10)
    # What is left out is predicted by the others.
    mean, variance = without.predict(toy.K[np.ix_(~keep, keep)], toy.K.diagonal()[~keep])
    expected = log_ndtr(toy.y[~keep] * mean / np.sqrt(1.0 + variance))
    np.testing.assert_allclose(dropped.loo()[~keep], expected, rtol=1e-8)


def test_powers_of_a_likelihood_with_two_peaks(toy):
    # Counts with the square link: not log-concave, and powers of it have no closed moments.
    y, weights = np.arange(12) % 4, np.where(np.arange(12) % 3 == 0, 2.5, 1.0)
    post = infer(toy.K, y, "poisson", "ep", mean=1.0, weights=weights, power=0.7, tol=1e-10)
    assert post.converged
    oracle.check_fixed_point(
        post, lambda f, i: weights[i] * oracle.poisson(f, y[i]), 1e-8, power=0.7
    )


@pytest.mark.parametrize("name", ["probit", "poisson-exp"])
def test_power_to_zero_is_the_variational_gaussian(toy, name):
    # T. Minka, Divergence measures and message passing (2005): KL(q||p) is the limit. VB maximises
    # its bound by other formulas altogether; what a power leaves is proportional to it.
    y = toy.y if name == "probit" else np.arange(12) % 4
    bound = infer(toy.K, y, name, "vb", tol=1e-8)
    post = infer(toy.K, y, name, "ep", power=1e-5, tol=1e-8, max_sweeps=300)
    assert post.log_evidence == pytest.approx(bound.log_evidence, abs=2e-6)
    np.testing.assert_allclose(post.mean, bound.mean, atol=2e-6)
    np.testing.assert_allclose(post.variance, bound.variance, rtol=1e-5)


@every_case(
    ("options", "words"),
    [
        ({"power": 0.0}, r"power must be in \(0, 1\]"),
        ({"power": 1.5}, "power must be in"),
        ({"weights": [1.0]}, r"weights must have shape \(12,\)"),
        ({"weights": [-1.0] * 12}, "must not be negative, got -1"),
        ({"weights": [np.nan] * 12}, r"weights\[0\] is nan"),
        ({"weights": [2.0] * 12, "method": "vb"}, "vb"),
    ],
)
def test_refuses(toy, options, words):
    refuses(words, infer, toy.K, toy.y, **options)
