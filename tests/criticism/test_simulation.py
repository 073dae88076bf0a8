"""Where observations lie in leave-one-out predictions, and drawn values in posteriors."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import stdtr

import qpruntime as qp
from qpruntime.criticism import leave_one_out, pit, simulation, to_arviz
from qpruntime.criticism.loo import left_out_moments
from qpruntime.criticism.simulation import Calibration, Drawn, drawn_outcomes
from qpruntime.predictive.density import log_density
from tests.criticism.conftest import COUNTS, EXPOSURE, KERNEL, NUMBERS, X
from tests.tools.cases import refuses


@pytest.mark.parametrize("options", [{}, {"inducing": 12}, {"solver": "markov"}])
def test_cavities_are_those_of_every_engine(options):
    for link in ("exp", "square"):
        model = qp.GPPoissonRegressor(KERNEL, link=link, optimize=False, **options)
        model.fit(X, COUNTS, EXPOSURE)
        rows = np.arange(60)[::2]
        moments = left_out_moments(model.posterior_, rows)
        found = log_density(model.likelihood_, *moments, COUNTS[rows])
        np.testing.assert_allclose(found, model.posterior_.loo(rows), rtol=1e-9, atol=1e-11)
        if options:
            refuses("pass y", pit, model)
        u = pit(model, COUNTS, random_state=1)
        assert ((u > 0.0) & (u < 1.0)).all()


def test_ranks_are_uniform_where_the_model_is_right(counts, numbers, labels):
    for model in (counts, numbers):
        u = pit(model, random_state=0)
        assert stats.kstest(u, "uniform").pvalue > 0.01
    np.testing.assert_allclose(u[[5, 2]], pit(numbers, rows=[5, 2]), rtol=1e-12)
    np.testing.assert_array_equal(pit(numbers), pit(numbers, NUMBERS))
    # Of one row, by the sum of probabilities and by quadrature of the density.
    mean, variance = left_out_moments(counts.posterior_, np.array([7]))
    upto = np.arange(COUNTS[7] + 1.0)
    moments = (np.full(upto.size, one[0]) for one in (mean, variance))
    each = np.exp(log_density("poisson-exp", *moments, upto))
    u = np.array([pit(counts, rows=[7], random_state=seed)[0] for seed in range(200)])
    assert (u > each[:-1].sum()).all()
    assert (u < each.sum()).all()
    assert u.mean() == pytest.approx(each.sum() - 0.5 * each[-1], abs=0.1 * each[-1])
    at, span = left_out_moments(numbers.posterior_, np.array([7]))
    seen = (NUMBERS[7] - numbers._centre_) / numbers._unit_
    known = numbers.likelihood_.parameters

    def density(z):
        gap = (seen - at[0] - np.sqrt(span[0]) * z) / known["scale"]
        return stdtr(known["nu"], gap) * stats.norm.pdf(z)

    expected = quad(density, -12.0, 12.0, limit=400, epsabs=0.0, epsrel=1e-10)[0]
    assert pit(numbers, rows=[7])[0] == pytest.approx(expected, rel=1e-8)
    wide = qp.GPRobustRegressor(KERNEL, noise_bounds={"start": 8.0}, method="ep", optimize=False)
    wide.fit(X, NUMBERS)
    assert stats.kstest(pit(wide), "uniform").pvalue < 1e-3
    refuses("CalibrationDisplay", pit, labels)


def test_drawn_observations_have_the_law_of_the_likelihood(labels, counts, numbers):
    rng, n = np.random.default_rng(2), 40_000
    f = np.full(n, 0.4)
    share = 2.0 * stats.norm.cdf(0.4) - 1.0
    assert drawn_outcomes(labels, f, rng).mean() == pytest.approx(share, abs=0.02)
    noisy = type(labels)(KERNEL, likelihood="noisy-probit(flip=0.2)", optimize=False)
    share = 2.0 * (0.2 + 0.6 * stats.norm.cdf(0.4)) - 1.0
    got = drawn_outcomes(noisy.fit(X, labels.predict(X)), f, rng).mean()
    assert got == pytest.approx(share, abs=0.02)
    y = drawn_outcomes(counts, f, rng)
    assert (y.mean(), y.var()) == pytest.approx((math.exp(0.4), math.exp(0.4)), rel=0.03)
    t = (drawn_outcomes(numbers, f, rng) - 0.4) / numbers.likelihood_.parameters["scale"]
    assert stats.kstest(t, "t", (numbers.nu_,)).pvalue > 1e-3


@pytest.mark.parametrize("which", ["labels", pytest.param("counts", marks=pytest.mark.slow)])
def test_calibration_sees_posteriors_that_are_too_narrow(which, request, monkeypatch):
    model = request.getfixturevalue(which)
    found = qp.check_calibration(model, 40, random_state=3)
    assert found.words == ()
    assert found.ranks.shape == (40, 30)
    assert abs(found.spread - 1.0) < 0.1
    assert abs(found.coverage - 0.9) < 0.05
    right = Drawn.inferred

    def wrong(shift, factor):
        def inferred(self, y):
            mean, variance = right(self, y)
            return mean - shift, variance / factor**2

        monkeypatch.setattr(Drawn, "inferred", inferred)
        return qp.check_calibration(model, 40, random_state=3)

    again = wrong(0.0, 1.5)
    assert again.spread == pytest.approx(1.5 * found.spread, rel=1e-12)
    assert "narrow" in again.words[0]
    assert "below" in wrong(1.0, 1.0).words[0]


def test_any_likelihood():
    model = qp.GPRegressor(KERNEL, likelihood="gamma", method="ep", optimize=False)
    y = np.random.default_rng(1).gamma(3.0, np.exp(np.sin(X[:, 0])))
    assert stats.kstest(pit(model.fit(X, y), y), "uniform").statistic < 0.5
    assert 0.6 < qp.check_calibration(model, 10, random_state=0).spread < 1.4
    assert len(qp.compare([model, model])) == 2


def test_calibration_of_the_whole_chain(numbers):
    found = qp.check_calibration(numbers, 10, learn=True, random_state=0)
    assert found.learnt
    assert abs(found.bias) < 5.0 * found.bias_se
    assert 0.7 < found.spread < 1.5


def test_observations_of_several_numbers_are_refused():
    times = np.exp(np.sin(X[:, 0]) + 0.3 * np.cos(9.0 * X[:, 0]))
    model = qp.GPSurvival(KERNEL, method="ep", optimize=False)
    model.fit(X, times, event=np.arange(60) % 3 > 0)
    assert np.isfinite(leave_one_out(model).elpd)
    for ask in (pit, qp.check_calibration, to_arviz):
        refuses("'weibull' is 2 numbers", ask, model)
    levels = qp.GPOrdinal(KERNEL, method="ep", optimize=False)
    levels.fit(X, np.digitize(times, [0.7, 1.5]))
    assert set(drawn_outcomes(levels, np.zeros(50), np.random.default_rng(0))) <= {0.0, 1.0, 2.0}


def test_calibration_refuses(labels, monkeypatch):
    three = type(labels)(KERNEL, optimize=False).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    refuses("several classes", qp.check_calibration, three)
    refuses("at least 10", qp.check_calibration, labels, 3)
    thinned = type(labels)(KERNEL, optimize=False, inducing=8).fit(X, labels.predict(X))
    refuses("pass X", qp.check_calibration, thinned)
    assert qp.check_calibration(thinned, 10, X=X, random_state=0).ranks.shape == (10, 30)
    monkeypatch.setattr(simulation, "drawn_outcomes", lambda model, f, rng: np.ones(f.size))
    words = "100 draws in a row had labels of one class"
    refuses(words, qp.check_calibration, labels, 10, random_state=0)


def test_three_standard_errors_are_worth_a_sentence():
    def words(bias, spread):
        return Calibration(np.zeros((2, 2)), bias, 0.1, spread, 0.1, 0.9, 0.01, False).words

    assert words(0.29, 1.29) == words(-0.29, 0.71) == ()
    assert [len(words(0.31, 1.0)), len(words(0.0, 1.31)), len(words(-0.31, 0.69))] == [1, 1, 2]
