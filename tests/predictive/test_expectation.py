"""Distributions of y under normal latent values: their tails, quantiles, and what these cost."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from qpruntime import likelihoods
from qpruntime.likelihoods.distributions import NegativeBinomialResponse
from qpruntime.predictive import expectation
from tests.tools.cases import every_case

#: Mean and standard deviation of f, dispersion and probability of 0.
CASES = [(0.7, 2.4, 4.1, 0.25), (-1.0, 0.7, 0.9, 0.19), (1.2, 1.2, 0.02, 0.14)]
LEVELS = np.array([0.01, 0.1, 0.25, 0.5, 0.9, 0.99])


def masses(name, mean, std, dispersion, zeros, counts):
    """Probabilities of counts, summed over a fine rule of log rates that SciPy does not see."""
    z = np.linspace(-9.0, 9.0, 601)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    rate = np.exp(mean + std * z)[:, None]
    pmf = stats.nbinom.pmf(counts, dispersion, dispersion / (dispersion + rate))
    if name == "hurdle":
        pmf /= -np.expm1(-dispersion * np.log1p(rate / dispersion))
        pmf[:, 0] = 0.0
    mass = (1.0 - zeros) * (weights @ pmf)
    mass[0] += zeros
    return mass


@pytest.fixture
def evaluations(monkeypatch):
    """Numbers of latent values of the distributions that were built."""
    sizes, build = [], expectation._given

    def counted(likelihood, f, *rest):
        sizes.append(f.size)
        return build(likelihood, f, *rest)

    monkeypatch.setattr(expectation, "_given", counted)
    return sizes


@every_case("name", ["hurdle", "zero-inflated"])
@every_case(("mean", "std", "dispersion", "zeros"), CASES)
def test_quantiles_of_counts_with_extra_zeros(
    name, mean, std, dispersion, zeros, evaluations, monkeypatch
):
    """Quantiles are those of summed masses, with few distributions and none frozen."""

    def refuse(*args, **options):
        raise AssertionError("a distribution was frozen")

    monkeypatch.setattr(stats.rv_discrete, "freeze", refuse)
    likelihood = likelihoods.get(name, dispersion=dispersion, zeros=zeros)
    found = expectation.quantiles(likelihood, np.array([mean]), np.array([std**2]), LEVELS)[0]
    # Brackets from latent values at 8.8 deviations took up to 282 distributions and 45 000 values.
    assert len(evaluations) <= 130
    assert sum(evaluations) <= 22_000
    evaluations.clear()
    monkeypatch.undo()
    below = np.cumsum(masses(name, mean, std, dispersion, zeros, np.arange(1000.0)))
    np.testing.assert_array_equal(found, np.searchsorted(below, LEVELS))


@every_case("upper", [False, True])
def test_probabilities_below_the_mass_beyond_the_nodes_end_early(upper, evaluations):
    """A tail of 1e-42 is lost in the nodes left out; halving to the end took 172 033 values."""
    likelihood = likelihoods.get("hurdle", dispersion=0.88, zeros=0.19)
    p = expectation.cdf(likelihood, np.array([0.13]), np.array([0.48]), np.array([65536.0]), upper)
    assert p == pytest.approx(0.0 if upper else 1.0, abs=1e-15)
    assert sum(evaluations) < 1000


@every_case("upper", [False, True])
@every_case(
    ("rate", "dispersion", "y"),
    [(1e-12, 2.0, 0), (1e-9, 0.02, 3), (3.0, 0.02, 2), (40.0, 7.0, 90), (2.0, 1e6, 1)],
)
def test_tails_of_negative_binomial_counts_keep_their_digits(rate, dispersion, y, upper):
    with mpmath.workdps(60):
        r, m = mpmath.mpf(dispersion), mpmath.mpf(rate)
        below = mpmath.fsum(
            mpmath.rf(r, k) / mpmath.factorial(k) * (m / (m + r)) ** k * (r / (m + r)) ** r
            for k in range(y + 1)
        )
        expected = float(1 - below if upper else below)
    counts = NegativeBinomialResponse(np.array([rate]), dispersion)
    for at in (y, y + 0.5):
        np.testing.assert_allclose((counts.sf if upper else counts.cdf)(at), expected, rtol=1e-12)
    assert (counts.sf if upper else counts.cdf)(-1.0) == (1.0 if upper else 0.0)
    np.testing.assert_allclose(counts.mean(), rate)
    np.testing.assert_allclose(counts.var(), rate + rate**2 / dispersion)
