"""Where observations lie in leave-one-out predictions, and drawn values in posteriors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from criticism.conftest import COUNTS, EXPOSURE, KERNEL, NUMBERS, X
from scipy import stats
from scipy.integrate import quad
from scipy.special import stdtr

from qpruntime import GPPoissonRegressor, GPRobustRegressor, InputError, check_calibration
from qpruntime.criticism import pit
from qpruntime.criticism.draws import Drawn, observed
from qpruntime.criticism.pit import left_out_moments, student_t_mass
from qpruntime.estimators.predictive.density import count_mass, log_density


@pytest.mark.parametrize("nu", [1.0, 2.5, 4.0, 30.0, 300.0])
def test_mass_of_a_t_and_a_normal(nu):
    # Gaps in the tails, variances from none to much: by quadrature of the normal over the t.
    cases = [(0.3, 0.5, 0.7), (-8.0, 1e-8, 0.5), (-6.0, 4.0, 0.01), (3.0, 1.0, 2.0)]
    for gap, variance, scale in cases:
        found = student_t_mass(np.array([gap]), np.array([variance]), nu, scale)[0]
        std = math.sqrt(variance)

        def density(z, gap=gap, std=std, scale=scale):
            return stdtr(nu, (gap - std * z) / scale) * stats.norm.pdf(z)

        middle = np.clip(gap / std, -12.0, 12.0)
        expected = quad(density, -12.0, 12.0, points=[middle], limit=400, epsabs=0, epsrel=1e-11)[0]
        assert found == pytest.approx(expected, rel=2e-9)


def test_mass_of_counts_is_the_sum_of_probabilities():
    mean, variance = np.array([0.3, -1.0, 3.0]), np.array([0.5, 2.0, 0.01])
    y = np.array([2.0, 0.0, 25.0])
    for known in ({"link": "exp"}, {"link": "square"}, {"link": "exp", "dispersion": 3.0}):
        found = count_mass(mean, variance, y, **known)
        for i in range(3):
            upto = np.arange(y[i] + 1.0)
            like = {"exp": "poisson-exp", "square": "poisson"}[known["link"]]
            if "dispersion" in known:
                from qpruntime.likelihoods import get

                like = get("negative-binomial", dispersion=3.0)
            moments = (np.full(upto.size, one[i]) for one in (mean, variance))
            each = log_density(like, *moments, upto)
            assert found[i] == pytest.approx(np.exp(each).sum(), rel=1e-9)
        assert (count_mass(mean, variance, y - 100.0, **known) == 0.0).all()


@pytest.mark.parametrize("options", [{}, {"inducing": 12}, {"solver": "markov"}])
def test_cavities_are_those_of_every_engine(options):
    for link in ("exp", "square"):
        model = GPPoissonRegressor(KERNEL, link=link, optimize=False, **options)
        model.fit(X, COUNTS, EXPOSURE)
        rows = np.arange(60)[::2]
        found = log_density(
            model.likelihood_, *left_out_moments(model.posterior_, rows), COUNTS[rows]
        )
        np.testing.assert_allclose(found, model.posterior_.loo(rows), rtol=1e-9, atol=1e-11)
        if options:
            with pytest.raises(InputError, match="pass y"):
                pit(model)
        u = pit(model, COUNTS, random_state=1)
        assert ((u > 0.0) & (u < 1.0)).all()


def test_ranks_are_uniform_where_the_model_is_right(counts, numbers, labels):
    for model in (counts, numbers):
        u = pit(model, random_state=0)
        assert stats.kstest(u, "uniform").pvalue > 0.01
    np.testing.assert_allclose(u[[5, 2]], pit(numbers, rows=[5, 2]), rtol=1e-12)
    np.testing.assert_array_equal(pit(numbers), pit(numbers, NUMBERS))
    wide = GPRobustRegressor(KERNEL, scale=8.0, method="ep", optimize=False).fit(X, NUMBERS)
    assert stats.kstest(pit(wide), "uniform").pvalue < 1e-3
    with pytest.raises(InputError, match="CalibrationDisplay"):
        pit(labels)


def test_drawn_observations_have_the_law_of_the_likelihood(labels, counts, numbers):
    rng, n = np.random.default_rng(2), 40_000
    f = np.full(n, 0.4)
    share = 2.0 * stats.norm.cdf(0.4) - 1.0
    assert observed(labels, f, rng).mean() == pytest.approx(share, abs=0.02)
    y = observed(counts, f, rng)
    assert (y.mean(), y.var()) == pytest.approx((math.exp(0.4), math.exp(0.4)), rel=0.03)
    t = (observed(numbers, f, rng) - 0.4) / numbers.likelihood_.parameters["scale"]
    assert stats.kstest(t, "t", (numbers.nu_,)).pvalue > 1e-3


@pytest.mark.parametrize("which", ["labels", "counts"])
def test_calibration_sees_posteriors_that_are_too_narrow(which, request, monkeypatch):
    model = request.getfixturevalue(which)
    found = check_calibration(model, 40, random_state=3)
    assert found.words == ()
    assert found.ranks.shape == (40, 30)
    assert abs(found.spread - 1.0) < 0.1
    assert abs(found.coverage - 0.9) < 0.05
    right = Drawn.inferred

    def narrow(self, y):
        mean, variance = right(self, y)
        return mean, variance / 1.5**2

    monkeypatch.setattr(Drawn, "inferred", narrow)
    again = check_calibration(model, 40, random_state=3)
    assert again.spread == pytest.approx(1.5 * found.spread, rel=1e-12)
    assert "narrow" in again.words[0]

    def low(self, y):
        mean, variance = right(self, y)
        return mean - 1.0, variance

    monkeypatch.setattr(Drawn, "inferred", low)
    assert "below" in check_calibration(model, 40, random_state=3).words[0]


def test_calibration_of_the_whole_chain(numbers):
    found = check_calibration(numbers, 10, learn=True, random_state=0)
    assert found.learnt
    assert abs(found.bias) < 5.0 * found.bias_se
    assert 0.7 < found.spread < 1.5


def test_calibration_refuses(labels):
    three = type(labels)(KERNEL, optimize=False).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    with pytest.raises(InputError, match="several classes"):
        check_calibration(three)
    with pytest.raises(InputError, match="at least 10"):
        check_calibration(labels, 3)
    thinned = type(labels)(KERNEL, optimize=False, inducing=8).fit(X, labels.predict(X))
    with pytest.raises(InputError, match="pass X"):
        check_calibration(thinned)
    assert check_calibration(thinned, 10, X=X, random_state=0).ranks.shape == (10, 30)
