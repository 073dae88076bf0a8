"""Series where digits are lost elsewhere: tiny steps, huge gaps and variances; random series."""

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import ConstantKernel, ExpSineSquared, Matern, WhiteKernel

from qpruntime import QPError, infer_series
from qpruntime.inference.markov.data import SortedSeries
from qpruntime.inference.markov.passes import Rows, noise_slope
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import state_space
from qpruntime.projection.projector import Projector


def correlation(nu, length, step):
    """Matern covariance in the precision of mpmath."""
    x = mp.sqrt(2 * mp.mpf(nu)) * abs(step) / length
    return {0.5: 1, 1.5: 1 + x, 2.5: 1 + x + x * x / 3}[nu] * mp.exp(-x)


def cavities(t, covariance, tau, nu):
    """Cavity means and variances of f, by the inverse of the covariance of y, with 80 digits."""
    n = range(len(t))
    with mp.workdps(80):
        times, tau, nu = ([mp.mpf(float(v)) for v in values] for values in (t, tau, nu))
        S = mp.matrix([[covariance(times[i] - times[j]) for j in n] for i in n])
        inverse = (S + mp.diag([1 / v for v in tau])) ** -1
        weights = inverse * mp.matrix([b / a for a, b in zip(tau, nu, strict=True)])
        # y_i given the others has variance 1/inverse_ii, of which 1/tau_i is its own noise.
        mean = [float(nu[i] / tau[i] - weights[i] / inverse[i, i]) for i in n]
        variance = [float(1 / inverse[i, i] - 1 / tau[i]) for i in n]
    return np.array([mean, variance])


#: Times, variance, and largest site precision: a site outweighs the prior 1e16 times at most.
HARD = {
    "gaps": (np.cumsum([0, 1e6, 0.3, 0, 1e6, 0.2, 1e300, 0.1]), 2.0, 5.0),
    "steps": (np.cumsum([0, 1e-12, 1e-12, 0.5, 1e-12, 0, 1e-6, 0.3]), 2.0, 1e3),
    "steps and precisions": (np.cumsum([0, 1e-12, 1e-12, 0.5, 1e-12, 0, 1e-6, 0.3]), 2.0, 1e10),
    "precisions": (1e-4 * np.arange(8.0), 2.0, 1e16),
    "variance": (np.cumsum([0, 0.1, 0.4, 0.2, 1.0, 0, 0.3, 2.0]), 1e10, 4.0),
    "all": (np.cumsum([0, 1e-12, 1e6, 0.2, 1e-9, 0, 0.3, 5.0]), 1e10, 1.0),
}
#: A few roundings, in standard deviations of a mean and relative to a variance. Means of sums lose
#: more where data contradict each other: rows a step of 1e-12 apart differ by 1e5 deviations.
FACTORED, CONTRADICTED = 1e-13, 1e-7
#: Covariances, which larger states have where sites are below 1e6 times the prior.
PLAIN = 1e-11
PRIORS = {
    "1/2": (Matern(1.0, nu=0.5), lambda x: correlation(0.5, 1, x)),
    "3/2": (Matern(1.0, nu=1.5), lambda x: correlation(1.5, 1, x)),
    "5/2": (Matern(1.0, nu=2.5), lambda x: correlation(2.5, 1, x)),
    "sum": (
        Matern(1.0, nu=2.5) + 0.25 * Matern(4.0, nu=0.5) + ConstantKernel(0.5),
        lambda x: correlation(2.5, 1, x) + correlation(0.5, 4, x) / 4 + mp.mpf(0.5),
    ),
    "product": (
        Matern(1.0, nu=1.5) * Matern(2.0, nu=1.5),
        lambda x: correlation(1.5, 1, x) * correlation(1.5, 2, x),
    ),
}


def test_cavities_at_the_ends_against_80_digits():
    rng = np.random.default_rng(0)
    for name, (t, variance, most) in HARD.items():
        tau = most * rng.uniform(0.1, 1.0, t.size)
        nu = tau * rng.standard_normal(t.size)
        series = SortedSeries(t, np.ones(t.size), Projector("probit", "ep"), np.zeros(t.size))
        for kind, (kernel, covariance) in PRIORS.items():
            space = state_space(ConstantKernel(variance) * kernel)
            rows = Rows(series, space, Sites(tau.copy(), nu.copy()))
            scale = mp.mpf(variance)
            mean, square = cavities(t, lambda x, c=covariance, s=scale: s * c(x), tau, nu)
            own = space.pair is not None or space.trio is not None
            limit = FACTORED if own or most * variance > 1e7 else PLAIN
            before = []
            for ahead in (True, False):
                rows.run(ahead=not ahead)
                report = np.empty((t.size, 4))
                rows.run(ahead=ahead, report=report)
                case = f"{name}, {kind}, ahead = {ahead}"
                np.testing.assert_allclose(report[:, 1], square, rtol=limit, err_msg=case)
                # Means where they are of the size of the data, not of the prior's deviation.
                off = np.abs(report[:, 0] - mean) / (np.sqrt(square) + np.abs(mean))
                assert off.max() < (FACTORED if own else CONTRADICTED), case
                before.append(report[:, 2:])
            # Both passes report what rows before say, the one back of messages that it found.
            (mean_one, one), (mean_other, other) = (found.T for found in before)
            np.testing.assert_allclose(other, one, rtol=limit, err_msg=f"{name}, {kind}")
            off = np.abs(mean_other - mean_one) / (np.sqrt(one) + np.abs(mean_one))
            assert off.max() < (FACTORED if own else CONTRADICTED), (name, kind)


def test_the_gradient_in_white_noise_under_any_noise_against_50_digits():
    """Of log N(nu/tau; 0, K + w I + 1/tau), which EP's evidence is to sites that are given."""
    rng = np.random.default_rng(3)
    t, y = np.sort(rng.uniform(0.0, 3.0, 7)), rng.standard_normal(7)
    for noise, most in [(1e-14, 1e14), (1e-9, 1e3), (0.3, 1e10), (1e12, 2.0)]:
        tau = most * rng.uniform(0.1, 1.0, 7)
        series = SortedSeries(t, y, Projector("probit", "ep"), np.zeros(7))
        space = state_space(2.0 * Matern(1.0, nu=1.5) + WhiteKernel(noise))
        rows = Rows(series, space, Sites(tau.copy(), tau * y))
        rows.refresh()
        with mp.workdps(50):
            S = mp.matrix(7, 7)
            for i in range(7):
                for j in range(7):
                    S[i, j] = 2 * correlation(1.5, 1, mp.mpf(float(t[i])) - mp.mpf(float(t[j])))
                S[i, i] += mp.mpf(noise) + 1 / mp.mpf(float(tau[i]))
            inverse = S**-1
            beta = inverse * mp.matrix([mp.mpf(float(v)) for v in y])
            right = sum(beta[i] ** 2 - inverse[i, i] for i in range(7)) / 2
        # Of squares of the data and precisions, which have the size of their sum here.
        assert noise_slope(rows, rows.report()) == pytest.approx(float(right), rel=1e-12), noise


def test_the_gradient_in_white_noise_of_rows_that_observe_multiples():
    """Of log N(nu/tau; 0, H (K + w I) H + 1/tau) by dense algebra, H the diagonal of scales."""
    rng = np.random.default_rng(5)
    t, y, h, tau = np.sort(rng.uniform(0.0, 3.0, 9)), *rng.uniform(0.4, 2.5, (3, 9))
    kernel = 2.0 * Matern(1.0, nu=1.5) + WhiteKernel(0.3)
    series = SortedSeries(t, y, Projector("probit", "ep"), np.zeros(9), scale=h)
    rows = Rows(series, state_space(kernel), Sites(tau.copy(), tau * y))
    rows.refresh()
    inverse = np.linalg.inv(kernel(t[:, None]) * np.outer(h, h) + np.diag(1.0 / tau))
    right = 0.5 * np.sum(h**2 * ((inverse @ y) ** 2 - np.diag(inverse)))
    assert noise_slope(rows, rows.report()) == pytest.approx(right, rel=1e-11)


def drawn(rng):
    """A series of anything that is allowed, and how to infer from it."""
    n = int(rng.integers(1, 40))
    kind = rng.integers(4)
    t = rng.uniform(0.0, 10.0 ** rng.uniform(-3, 4), n)
    if kind == 1:
        t = np.round(t)
    if kind == 2:
        t += 10.0 ** rng.uniform(3, 9)
    if kind == 3:
        t = np.cumsum(10.0 ** rng.uniform(-12, 6, n))
    length, variance = 10.0 ** rng.uniform(-2, 3), 10.0 ** rng.uniform(-3, 6)
    kernel = variance * Matern(length, nu=rng.choice([0.5, 1.5, 2.5]))
    if rng.random() < 0.3:
        kernel = kernel + WhiteKernel(10.0 ** rng.uniform(-3, 1))
    if rng.random() < 0.2:
        kernel = kernel + 1.0 * Matern(length * 3.0, nu=0.5)
    if rng.random() < 0.1:
        kernel = kernel * ExpSineSquared(2.0, length)
    likelihood = rng.choice(["probit", "logistic", "poisson-exp", "laplace"])
    y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    if likelihood == "poisson-exp":
        y = rng.poisson(10.0 ** rng.uniform(-1, 2), n).astype(float)
    if likelihood == "laplace":
        y = rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 2)
    y[rng.random(n) < 0.1] = np.nan
    return t, y, kernel, str(likelihood), str(rng.choice(["ep", "qp"]))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_what_a_message_says_may_underflow(nu):
    """One observation so long after that the precision of its message is subnormal."""
    post = infer_series([0.0], [30.0], Matern(1.0, nu=nu), "poisson-exp")
    mean, variance = np.array(
        [post.predict([-x / np.sqrt(2.0 * nu)]) for x in np.linspace(300.0, 380.0, 161)]
    ).T[0]
    assert (np.abs(mean) < 1e-100).all()
    np.testing.assert_array_equal(variance, 1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
def test_ten_thousand_random_series_are_never_nan():
    # Errors: y of NaN alone, states above 64, and poisson-exp under variances of 1e6.
    rng, count = np.random.default_rng(1), 10_000
    done, settled = 0, 0
    for k in range(count):
        t, y, kernel, likelihood, method = drawn(rng)
        try:
            post = infer_series(t, y, kernel, likelihood, method)
            mean, variance = post.predict(np.concatenate([t, [t.min() - 1.0, t.max() + 1e5]]))
        except QPError:
            continue
        numbers = [post.mean, post.variance, *post.sites, post.loo(), mean, variance]
        assert all(np.isfinite(values).all() for values in numbers), k
        assert (post.variance > 0.0).all(), k
        assert (variance >= 0.0).all(), k
        assert np.isfinite(post.log_evidence), k
        done += 1
        settled += post.converged
    assert done > 0.9 * count
    assert settled > 0.9 * done


@pytest.mark.parametrize("name", ["laplace(scale={})", "student-t(nu=4.0, scale={})"])
def test_evidence_under_noise_far_below_the_prior(name):
    """It tends to that of y under the prior, from which it differs by terms of scale^2."""
    t = np.linspace(-3.0, 3.0, 5)
    y = np.sin(2.0 * t)
    # In factors of two numbers, and in those of any size.
    for kernel in (2.0 * Matern(1.0, nu=1.5), Matern(1.0, nu=2.5) + 0.5 * Matern(2.0, nu=1.5)):
        exact = multivariate_normal(np.zeros(5), kernel(t[:, None])).logpdf(y)
        for scale in (1e-6, 1e-8, 1e-10):
            post = infer_series(t, y, kernel, name.format(scale), "ep")
            assert post.converged
            assert post.log_evidence == pytest.approx(exact, rel=1e-10)
