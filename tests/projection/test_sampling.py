"""Projections by sampling: right within standard errors that mean what they say."""

from contextlib import nullcontext

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtri
from scipy.stats import binom, chi2

from qpruntime import InputError, NumericalError, SamplingWarning, project_sampled, project_samples
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.sampling import Site
from tests.tools.cases import every_case, refuses

FIELDS = ("log_z", "mean", "std_ep", "std")


def exact(likelihood, mu, sigma, y):
    qp = project_arrays(likelihood, mu, sigma, y, table="exact")
    ep = project_arrays(likelihood, mu, sigma, y, method="ep")
    return dict(zip(FIELDS, (qp.log_z, qp.mean, ep.std, qp.std), strict=True))


def scores(found, truth):
    """(Estimate - truth)/standard error of every site, for each quantity."""
    return {k: (getattr(found, k) - truth[k]) / getattr(found, f"{k}_error") for k in truth}


def assert_calibrated(z, allowed_bias=0.3):
    """Scores of many seeds: mean near 0, variance near 1 by a chi-squared test at 1e-4 each side.

    Standard errors are themselves estimated, and so up to 10 % off at these sample sizes.
    """
    for name, values in z.items():
        n = values.size
        assert abs(values.mean()) < allowed_bias + 4.0 / np.sqrt(n), name
        low, high = chi2.ppf([1e-4, 1.0 - 1e-4], n - 1) / (n - 1)
        assert 0.8 * low < values.var(ddof=1) < 1.25 * high, name


CAVITIES = [
    *(("probit", 0.0, 1.0, 1.0), ("probit", -8.0, 2.0, 1.0), ("probit", -30.0, 1.0, 1.0)),
    *(("heaviside", -3.0, 1.0, 1.0), ("poisson", 0.1, 1.0, 3.0), ("poisson", 0.0, 10.0, 4.0)),
]


@pytest.mark.slow
@every_case(("likelihood", "mu", "sigma", "y"), CAVITIES)
def test_standard_errors_are_calibrated(likelihood, mu, sigma, y):
    # 80 sites that are one and the same, from one stream of random numbers.
    found = project_sampled(likelihood, np.full(80, mu), sigma, y, n_samples=1500, random_state=5)
    assert_calibrated(scores(found, exact(likelihood, mu, sigma, y)))
    assert found.effective.min() > 300.0


@every_case(
    ("likelihood", "mu", "sigma", "y"),
    [
        *(("probit", -100.0, 1.0, 1.0), ("probit", 1e3, 1e3, -1.0), ("heaviside", -12.0, 1.0, 1.0)),
        *(("poisson", 0.0, 5.0, 900.0), ("poisson", 40.0, 0.01, 2.0), ("probit", 1e-6, 1e-5, 1.0)),
    ],
)
def test_far_from_the_cavity(likelihood, mu, sigma, y):
    found = project_sampled(likelihood, mu, sigma, y, n_samples=20_000, random_state=0)
    for name, z in scores(found, exact(likelihood, mu, sigma, y)).items():
        assert abs(z) < 4.5, name
    assert found.std_error < 0.02 * found.std


def exponential_star():
    """sigma* of the exponential: int I(p) dp/p, F^-1 having the slope 1/(1 - p)."""
    value, _ = quad(lambda t: np.exp(-0.5 * ndtri(np.exp(-t)) ** 2), 1e-12, 200.0, limit=500)
    return value / np.sqrt(2.0 * np.pi)


def test_plain_samples_and_what_bias_is_left():
    rng = np.random.default_rng(1)
    truth = {"mean": 1.0, "std_ep": 1.0, "std": exponential_star()}
    for n in (50, 1000):
        few = pytest.warns(SamplingWarning, match="effective sample size is 50")
        with few if n == 50 else nullcontext():
            found = project_samples(rng.exponential(size=(n, 600)))
        assert found.mean.shape == (600,)
        assert np.isnan(found.log_z).all()
        # Measured over 4000 samples: -0.33/n, and -1.6/n to -2.4/n without the correction. The
        # mean of 600 samples is known to 4 of its standard errors of 1.1/sqrt(600 n).
        assert abs(found.std.mean() / truth["std"] - 1.0) < 0.5 / n + 4.0 * 1.1 / np.sqrt(600.0 * n)
    assert_calibrated(scores(found, truth))


def test_the_staircase_by_hand():
    with pytest.warns(SamplingWarning):
        found = project_samples([0.0, 1.0, 3.0], [1.0, 2.0, 1.0])
    # Masses 1/4, 1/2, 1/4: gaps at F = 1/4 and 3/4; mean 5/4.
    mean = 1.25
    assert found.std > 3.0 * np.exp(-0.5 * ndtri(0.25) ** 2) / np.sqrt(2.0 * np.pi)
    w = np.array([0.25, 0.5, 0.25])
    d = np.array([0.0, 1.0, 3.0]) - mean
    np.testing.assert_allclose(found.mean, mean + w**2 @ d)
    np.testing.assert_allclose(found.std_ep, np.sqrt(w @ d**2 / (1.0 - w @ w)))
    np.testing.assert_allclose(found.effective, 1.0 / (w @ w))


def test_order_ties_shift_and_scale_do_not_matter():
    rng = np.random.default_rng(2)
    x, w = np.round(rng.standard_normal(500), 1), rng.random(500)
    base, turn = project_samples(x, w), rng.permutation(500)
    moved = project_samples(1e6 + 1e-3 * x[turn], 7.0 * w[turn])
    np.testing.assert_allclose(moved.std, 1e-3 * base.std, rtol=1e-6)
    np.testing.assert_allclose(moved.std_error, 1e-3 * base.std_error, rtol=1e-6)
    np.testing.assert_allclose(moved.mean, 1e6 + 1e-3 * base.mean, rtol=1e-12)
    double = project_samples(np.append(x, 99.0), np.append(w, 0.0))
    np.testing.assert_allclose(double.std, base.std, rtol=1e-12)


def test_a_chain_has_larger_errors_which_are_those_of_its_batch_means():
    steps = np.random.default_rng(3).standard_normal((4000, 100))
    x = np.empty_like(steps)
    x[0] = steps[0]
    for i in range(1, len(x)):
        x[i] = 0.9 * x[i - 1] + np.sqrt(1.0 - 0.81) * steps[i]
    truth = {"mean": 0.0, "std_ep": 1.0, "std": 1.0}
    chain = project_samples(x, correlated=True)
    # 63 batches of 63 draws, correlation time 19: errors of batch means are 14 % short.
    for values in scores(chain, truth).values():
        assert 0.85 < values.std() < 1.45
    assert scores(project_samples(x), truth)["mean"].std() > 3.0
    assert np.median(chain.effective) < 600.0
    x = np.random.default_rng(5).standard_normal(400)
    found = project_samples(x, correlated=True)
    # 20 batches of 20; the influence of a draw on the variance is its square about the mean.
    for values, error in (
        (x, found.mean_error),
        ((x - x.mean()) ** 2 / (2.0 * found.std_ep), found.std_ep_error),
    ):
        batches = values.reshape(20, 20).mean(axis=1)
        assert error == pytest.approx(batches.std(ddof=1) / np.sqrt(20.0), rel=1e-10)


def test_the_log_of_a_mean_is_low_and_raised():
    """Weights 1 or 3 with probability 1/2: the expected estimate, by summing over all counts."""

    class Fixed(Site):
        def propose(self, n, centre, scale, rng):
            return np.linspace(-1.0, 1.0, n), np.log(np.where(np.arange(n) < self.y, 3.0, 1.0))

    rng, count = np.random.default_rng(0), np.arange(101)
    found = [Fixed(None, 0.0, 1.0, k).project(100, rng).log_z for k in count]
    # Left alone it is low by 1/800.
    assert binom.pmf(count, 100, 0.5) @ found == pytest.approx(np.log(2.0), abs=5e-5)


def test_a_noisy_likelihood():
    rng = np.random.default_rng(4)

    def noisy(f, y):
        """Unbiased: the factor is gamma with mean 1."""
        return log_ndtr(y * f) + np.log(rng.gamma(4.0, 0.25, f.shape))

    found = project_sampled(noisy, np.full(60, -1.0), 2.0, 1.0, n_samples=2000, random_state=7)
    assert_calibrated(scores(found, exact("probit", -1.0, 2.0, 1.0)))


def test_likelihoods_of_every_kind_and_seeds():
    truth = exact("probit", 0.3, 1.0, 1.0)
    for likelihood, more in [
        ("probit", 0.0),
        (Likelihood.from_log_prob(lambda f, y: log_ndtr(y * f), name="mine"), 0.0),
        (lambda f, y: log_ndtr(y * f) + 700, 700.0),
    ]:
        found = project_sampled(likelihood, 0.3, 1.0, 1, n_samples=3000, random_state=8)
        assert found.std.shape == ()
        for name, z in scores(found, {**truth, "log_z": truth["log_z"] + more}).items():
            assert abs(z) < 4.0, name
    again = project_sampled("probit", [0.3, 1.0], 1.0, [1, -1], n_samples=500, random_state=8)
    same = project_sampled("probit", [0.3, 1.0], 1.0, [1, -1], n_samples=500, random_state=8)
    np.testing.assert_array_equal(again.std, same.std)
    assert again.std.shape == (2,)


def test_too_few_effective_samples_warn():
    def noise(f, y):
        return 20.0 * np.random.default_rng(9).standard_normal(f.shape)

    with pytest.warns(SamplingWarning, match=r"effective sample size is .*raise n"):
        project_sampled(noise, 0.0, 1.0, 1.0, n_samples=200, random_state=9)


def impossible(f, y):
    return f * 0.0 - np.inf


@every_case(
    ("call", "error", "message"),
    [
        (lambda: project_samples([1.0]), InputError, "n >= 2"),
        (lambda: project_samples(np.ones((2, 2, 2))), InputError, "n >= 2"),
        (lambda: project_samples([1.0, np.nan]), InputError, "finite"),
        (lambda: project_samples([1.0, 2.0], [1.0, -1.0]), InputError, "not be negative"),
        (lambda: project_samples([1.0, 2.0], [1.0]), InputError, "shape"),
        (lambda: project_samples([1.0, 1.0]), InputError, "two different"),
        (lambda: project_samples([1.0, 2.0], [0.0, 0.0]), InputError, "two different"),
        (lambda: project_sampled("probit", 0.0, 0.0, 1), InputError, "must be positive"),
        (lambda: project_sampled("probit", np.inf, 1.0, 1), InputError, "finite"),
        (lambda: project_sampled("probit", 0.0, 1.0, 3), InputError, "labels"),
        (lambda: project_sampled("probit", 0.0, 1.0, 1, n_samples=5), InputError, "at least 100"),
        (lambda: project_sampled(3, 0.0, 1.0, 1), InputError, "callable"),
        (lambda: project_sampled(lambda f, y: 0.0, 0.0, 1.0, 1), InputError, "must return shape"),
        (lambda: project_sampled(lambda f, y: f * np.nan, 0.0, 1.0, 1), NumericalError, "nan at"),
        (lambda: project_sampled(impossible, 0.0, 1.0, 1), NumericalError, "none of 20000 draws"),
    ],
)
def test_what_is_refused(call, error, message):
    refuses(message, call, error=error)
