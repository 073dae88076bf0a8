"""Sites that dominate their marginals: noise far below the prior, where subtractions cancel.

Under noise of a small scale the likelihood of f is a Gaussian about y, up to terms of order
scale^4 in the evidence: normal noise has closed forms in K alone, which is well conditioned here.
"""

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm, t

from qpruntime import NumericalError, infer
from qpruntime.inference.dense.solver import CholeskyFactor
from qpruntime.inference.fixed_point.iterate import ORDERS
from qpruntime.inference.sites import Sites
from tests.tools.cases import refuses

X = np.linspace(-1.0, 1.0, 5)
K = np.exp(-0.5 * ((X[:, None] - X) / 0.5) ** 2)  # condition 22
Y = np.sin(2.0 * X) + 0.3
SCALES = (1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11, 1e-20, 1e-50)
LIKELIHOODS = {"laplace(scale={})": laplace, "student-t(nu=4.0, scale={})": t(4.0)}


def under_normal_noise(cov, y, square):
    """Log evidence, leave-one-out densities, mean and variance in 50 digits."""
    with mp.workdps(50):
        noisy = mp.matrix(cov.tolist()) + mp.mpf(square) * mp.eye(len(cov))
        inverse, y = noisy**-1, mp.matrix(y.tolist())
        weights = inverse * y
        s, unit, n = mp.mpf(square), mp.log(2 * mp.pi), range(len(cov))
        evidence = -((y.T * weights)[0] + mp.log(mp.det(noisy)) + len(cov) * unit) / 2
        own = [inverse[i, i] for i in n]
        loo = [(mp.log(own[i]) - unit - weights[i] ** 2 / own[i]) / 2 for i in n]
        mean = [y[i] - s * weights[i] for i in n]
        variance = [s * (1 - s * own[i]) for i in n]
    return float(evidence), *(np.array(some, dtype=float) for some in (loo, mean, variance))


def square_of(noise, method, scale):
    """Variance of the site that a narrow likelihood is projected to."""
    if method == "ep":
        return noise.var() * scale**2
    sigma, _ = quad(lambda q: 2.0 * noise.ppf(q) * norm.ppf(q), 0.5, 1.0, epsabs=1e-12)
    return (sigma * scale) ** 2


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("order", ORDERS)
def test_noise_of_any_small_scale(name, order):
    # At 1e-8 the evidence was -10 or -8 by the order, and at 1e-6 off by 1e-4: eps tau y^2.
    noise = LIKELIHOODS[name]
    for scale in SCALES:
        evidence, loo, mean, _ = under_normal_noise(K, Y, noise.var() * scale**2)
        for method in ("ep", "qp"):
            post = infer(K, Y, name.format(scale), method, order=order, random_state=0)
            assert post.converged
            # Projections are good to 1e-13, and densities of Student's t by quadrature to 1e-10.
            # What is not normal counts for scale^2 times its excess over the cavity's variance.
            assert post.log_evidence == pytest.approx(evidence, abs=1e-11 + 10.0 * scale**2)
            np.testing.assert_allclose(post.loo(), loo, rtol=1e-10, atol=100.0 * scale**2)
            _, _, _, variance = under_normal_noise(K, Y, square_of(noise, method, scale))
            np.testing.assert_allclose(post.variance, variance, rtol=1e-7 + 1e3 * scale**2)
            # Both methods take over the tilted means.
            np.testing.assert_allclose(post.mean, mean, rtol=1e-14, atol=4e-16 + 1e3 * scale**4)


@pytest.mark.parametrize("order", ORDERS)
def test_dropped_observations_and_a_prior_mean(order):
    # Most rows of the covariance are weak: it is formed as K less what is explained.
    kept, weights = [0, 3], np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    some = K[np.ix_(kept, kept)]
    for scale in SCALES:
        name = f"laplace(scale={scale})"
        post = infer(K, Y, name, "ep", mean=0.7, weights=weights, order=order, random_state=0)
        evidence, _, _, variance = under_normal_noise(some, Y[kept] - 0.7, 2.0 * scale**2)
        assert post.converged
        assert post.log_evidence == pytest.approx(evidence, abs=1e-11 + 10.0 * scale**2)
        np.testing.assert_allclose(post.variance[kept], variance, rtol=1e-7 + 100.0 * scale**2)
        predicted = 0.7 + K[:, kept] @ np.linalg.solve(some, Y[kept] - 0.7)
        np.testing.assert_allclose(post.mean, predicted, rtol=1e-13, atol=1e-14 + 10.0 * scale**2)


def test_powers_have_one_limit():
    # Half a site has a limit of its own, which no scale changes but by scale^2.
    found = [
        infer(K, Y, f"laplace(scale={scale})", "ep", power=0.5, max_sweeps=300).log_evidence
        for scale in (1e-4, 1e-6, 1e-8)
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize("tau", [
    np.array([1e16, 0.0, 0.0, 1e18, 0.0]),
    np.array([1e16, -0.05, 1e-3, 1e18, 1e12]),
    np.array([1e18, -0.05, -0.1, 1e18, 0.0]),
])  # fmt: skip
def test_covariance_and_cavities_of_strong_sites_among_weak_ones(tau):
    with mp.workdps(60):
        exact = (mp.matrix(K.tolist()) ** -1 + mp.diag([mp.mpf(v) for v in tau.tolist()])) ** -1
        kept = [float(1 - mp.mpf(tau[i]) * exact[i, i]) for i in range(5)]
    exact = np.array(exact.tolist(), dtype=float)
    factor = CholeskyFactor(K, Sites(tau, np.zeros(5)), np.zeros(5))
    variance, got = factor.marginals()
    # Relative, entry by entry: the smallest are 1e-18 of the largest.
    np.testing.assert_allclose(got, kept, rtol=1e-12)
    np.testing.assert_allclose(variance, exact.diagonal(), rtol=1e-12)
    np.testing.assert_allclose(factor.covariance().diagonal(), exact.diagonal(), rtol=1e-12)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_sites_that_grow_beyond_numbers_end_in_an_error(order):
    """Steps and their fractions have no cavity any more once a mean is infinite."""
    far, near, own = 1.2964757134982806e8, 1.0165393938129144e9, 1.1467428565150893e9
    other = 1.0553281966875944e8
    K = np.full((6, 6), own)
    K[np.ix_([0, 1, 5], [2, 3, 4])] = K[np.ix_([2, 3, 4], [0, 1, 5])] = far
    K[1, 2:5] = K[2:5, 1] = other
    K[[0, 5], 1] = K[1, [0, 5]] = near
    y = np.repeat([-1.0, 1.0], 3)
    options = {"power": 0.5, "tol": 5e-12, "damping": 0.9686804206748877, "max_sweeps": 20}
    refuses("jitter", infer, K, y, "heaviside", order=order, error=NumericalError, **options)
