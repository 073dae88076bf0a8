"""Formulas in plain operations, by NumPy: equal to the kernels over the half-plane; refusals."""

import numpy as np
import pytest

from qpruntime import Likelihood, NumericalError, functions, likelihoods
from qpruntime.interop.array_api import PortableFunctions
from qpruntime.interop.array_formulas import FORMS, _weights
from qpruntime.projection.interpolation import quintic_weights
from tests.tools.cases import every_case, refuses
from tests.tools.half_plane import NAMES, cavities
from tests.tools.numpy_library import NumPy


def same(got, want, rtol=1e-9, atol=0.0):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@every_case("name", NAMES)
def test_equal_to_the_kernels(name):
    mu, sigma, y = cavities(name)
    ours, core = PortableFunctions(NumPy(), name), functions(name)
    with np.errstate(all="ignore"):  # branches that are not taken
        log_z, (mean, std) = ours.log_partition(mu, sigma, y), ours.moments(mu, sigma, y)
        expected = ours.expected_log_prob(mu, sigma, y)
    same(log_z, core.log_predictive(mu, sigma, y), atol=1e-12)
    want = core.moments(mu, sigma, y)
    same((mean - want.mean) / (want.std + np.abs(want.mean)), 0.0, atol=1e-9)
    same(std, want.std)
    # Beyond e^700 nothing is said.
    closed = core.expected_log_prob(mu, sigma, y)
    kept = ~(closed < -1e290) | np.isinf(closed)
    same(expected[kept], closed[kept], atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@every_case(
    ("name", "y"),
    [
        *(("binomial", [2.0, 7.0]), ("binomial", [0.0, 4.0]), ("student-t", 0.3)),
        *((name, y) for name in ("logistic", "probit") for y in (1.0, -1.0)),
        *((name, y) for name in ("poisson", "poisson-exp") for y in (0.0, 3.0)),
        *(("negative-binomial", y) for y in (0.0, 2.0)),
    ],
)
def test_wide_cavities_far_away_are_those_of_the_kernels(name, y):
    # A likelihood sixty deviations away may be flat, or a cliff far from its mean.
    apart, sigma = np.meshgrid([-60.0, -10.0, -3.0, 0.0, 3.0, 10.0, 60.0], 10.0 ** np.arange(-3, 7))
    mu, sigma = (apart * sigma).ravel(), sigma.ravel()
    ours, core = PortableFunctions(NumPy(), name), functions(name)
    for m, s in zip(mu, sigma, strict=True):
        try:
            log_z, moments = core.log_partition(m, s, y), core.moments(m, s, y)
        except NumericalError:
            continue
        with np.errstate(all="ignore"):  # branches that are not taken
            found, (mean, std) = ours.log_partition(m, s, y), ours.moments(m, s, y)
        assert found == pytest.approx(log_z, rel=1e-8, abs=1e-8), (m, s)
        assert abs(mean - moments.mean) < 1e-8 * (moments.std + abs(moments.mean)), (m, s)
        assert std == pytest.approx(moments.std, rel=1e-7), (m, s)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@every_case("name", ["heaviside", "poisson", "probit"])
def test_the_table_is_looked_up(name):
    mu, sigma, y = cavities(name)
    with np.errstate(all="ignore"):
        found = PortableFunctions(NumPy(), name).sigma_star(mu, sigma, y)
    want = functions(name).sigma_star(mu, sigma, y)
    missing = np.isnan(found)
    assert not missing[y <= 500].any()
    assert missing.any() == (name == "poisson")
    same(found[~missing], want[~missing], rtol=1e-11)


def test_every_likelihood_has_a_form_and_weights_are_those_of_the_kernels():
    t = np.linspace(0.0, 1.0, 7)
    same(np.array(_weights(t)).T, [quintic_weights(v) for v in t], rtol=1e-14, atol=1e-17)
    assert set(FORMS) == set(likelihoods.names())


def test_refusals():
    own = Likelihood.from_log_prob(lambda f, y: -abs(f - y), name="own-portable")
    refuses("has no formulas in plain operations; there are", PortableFunctions, NumPy(), own)
    heavy, probit = (PortableFunctions(NumPy(), name) for name in ("student-t", "probit"))
    refuses(r"'student-t.* has no compact table", heavy.sigma_star, 0.0, 1.0, 0.3)
    refuses("must be True or False", probit.moments, 0.0, 1.0, 1.0, derivatives=1)
