"""Mixtures over trends and with a timetable: weights, moments, quantiles and densities."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import logsumexp

from qpruntime import load
from qpruntime.forecasting import GPForecaster, GPPanelForecaster, backtest
from qpruntime.forecasting.averaging import WeightedStructures, timetable_of, weight_after
from qpruntime.forecasting.structure import ahead_of
from qpruntime.forecasting.trial import evidence
from tests.tools.cases import every_case

BARE = {"seasons": (), "noise": False, "drift": False, "outliers": False, "integrate": "mode"}
RNG = np.random.default_rng(8)
REALS = 20.0 + np.cumsum(0.3 + RNG.normal(size=60)) + RNG.normal(size=60)
COUNTS = RNG.poisson(np.exp(1.5 + 0.01 * np.arange(60.0)))
LEVELS = np.arange(1, 100) / 100.0


def fitted(y, family, **more):
    return GPForecaster(**{**BARE, "trend": "average", "family": family, **more}).fit(y)


@pytest.fixture(scope="module")
def reals():
    return fitted(REALS, "gaussian")


@pytest.fixture(scope="module", params=["gaussian", "poisson"])
def both(request):
    """A mixture, and forecasters with one of its members each."""
    if request.param == "gaussian":
        model = request.getfixturevalue("reals")
    else:
        model = fitted(COUNTS, "poisson")
    taken = [WeightedStructures((member,), np.ones(1), None) for member in model.members_]
    single = {one.members[0].structure.trend: copy.copy(model)._taken(one) for one in taken}
    return model, single


#: Trends that rise, and noise, have so much to gain.
PRICES = {"level": 0.0, "line": 1.0, "slope": 6.0, "damped": 1.0}


def test_weights_are_evidences(both):
    model, single = both
    assert len(single) > 1
    y = REALS if model.family_ == "gaussian" else COUNTS
    evidences = np.array([one.model_.log_evidence_ - PRICES[k] for k, one in single.items()])
    weights = np.array(list(model.trends_.values()))
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)
    assert (np.diff(weights) <= 0.0).all()
    # All are fitted in one unit, which cancels in differences.
    np.testing.assert_allclose(np.diff(np.log(weights)), np.diff(evidences), rtol=1e-9, atol=1e-9)
    assert evidences.max() - evidences.min() < 4.0
    for name, price in PRICES.items():
        exact = fitted(y, model.family_, trend=name).model_.log_evidence_
        if name in single:
            # A trial ends near the mode of evidence times prior, of which this is a factor.
            assert single[name].model_.log_evidence_ == pytest.approx(exact, abs=0.02)
        else:
            assert exact - price < evidences.max() - 4.0
    assert model.trend_ == next(iter(model.trends_))
    assert model.model_ is model.members_[0].model


def test_noise_is_averaged_too_and_the_heaviest_is_integrated():
    y = REALS[:30]
    model = GPForecaster((), family="gaussian", drift=False, outliers=False).fit(y)
    structures = [member.structure for member in model.members_]
    assert {structure.noise for structure in structures} == {False, True}
    assert len({structure.trend for structure in structures}) > 1
    known = model._read(y, None, None, None)
    worth = [
        0.5 * (evidence(member, known) - PRICES[member.structure.trend] - member.structure.noise)
        for member in model.members_
    ]
    np.testing.assert_allclose(np.log(model.weights_), worth - logsumexp(worth), rtol=1e-9)
    sums = dict.fromkeys(model.trends_, 0.0)
    for structure, weight in zip(structures, model.weights_, strict=True):
        sums[structure.trend] += weight
    assert model.trends_ == pytest.approx(sums, rel=1e-12)
    assert model.members_[0].model.state_.count > 1
    assert {member.model.state_.count for member in model.members_[1:]} == {1}


def test_short_series_without_seasons_are_averaged():
    bare = {**BARE, "family": "gaussian"}
    assert len(GPForecaster(**bare).fit(REALS[:39]).trends_) > 1
    assert len(GPForecaster(**bare).fit(REALS[:40]).trends_) == 1
    assert len(GPForecaster(**{**bare, "seasons": [4]}).fit(REALS[:39]).trends_) == 1
    assert len(GPForecaster(**bare, trend="level").fit(REALS[:39]).trends_) == 1


def test_means_and_densities_are_weighted(both):
    model, single = both
    weights, moved = (np.array(list(model.trends_.values())) for _ in range(2))
    moved[-1] *= 1.001
    means = np.array([one.predict(8) for one in single.values()])
    np.testing.assert_allclose(model.predict(8), weights @ means, rtol=0.0, atol=1e-9)
    assert np.abs(model.predict(8) - moved @ means / moved.sum()).max() > 1e-6
    y = np.round(model.predict(8))
    each = np.array([one.predict_log_density(y, 8) for one in single.values()])
    found = model.predict_log_density(y, 8)
    np.testing.assert_allclose(found, logsumexp(each, axis=0, b=weights[:, None]), rtol=1e-10)
    other = logsumexp(each, axis=0, b=moved[:, None] / moved.sum())
    assert np.abs(found - other).max() > 1e-6


def test_quantiles_are_those_of_draws(both):
    model, single = both
    rng, number = np.random.default_rng(0), 200_000
    found = model.predict_quantiles(8, q=LEVELS)
    assert (np.diff(found, axis=1) >= 0.0).all()
    weights = np.array(list(model.trends_.values()))
    chosen = rng.choice(len(weights), number, p=weights)
    draws = np.empty((8, number))
    for k, one in enumerate(single.values()):
        rows = np.flatnonzero(chosen == k)
        ahead = one._ahead(8, None, None, None)
        mean, variance, shares = ahead.mixture
        part = rng.choice(len(shares), rows.size, p=shares)
        f = rng.normal(mean[part], np.sqrt(variance[part])).T
        if model.family_ == "poisson":
            draws[:, rows] = rng.poisson(np.exp(f))
        else:
            scales = np.array([one.parameters["scale"] for one in ahead.likelihoods])
            draws[:, rows] = ahead.scale.back(rng.normal(f, scales[part]))
    # Five standard errors of a share of the draws.
    error = 5.0 * np.sqrt(LEVELS * (1.0 - LEVELS) / number)
    for row, at in zip(draws, found, strict=True):
        assert ((row[:, None] < at).mean(axis=0) <= LEVELS + error).all()
        assert ((row[:, None] <= at).mean(axis=0) >= LEVELS - error).all()
    ends = model.predict_quantiles(8, q=(0.05, 0.95))
    np.testing.assert_allclose(model.predict_interval(8, level=0.9), ends, rtol=1e-9)


def test_a_trend_that_is_given_stays_alone(both):
    model, single = both
    y = REALS if model.family_ == "gaussian" else COUNTS
    for name in single:
        one = fitted(y, model.family_, trend=name)
        assert one.trends_ == {name: 1.0}
        data = one.structure_.columns(np.arange(60.0, 68.0), None, None)
        alone = ahead_of(one.model_, data, one.structure_.scale)
        volatility = one.volatilities_[0]
        if not volatility.is_constant:
            alone = alone.scaled(volatility.factors, volatility.weights, np.ones(8, dtype=bool))
        np.testing.assert_array_equal(one.predict(8), alone.mean())
        np.testing.assert_array_equal(one.predict_quantiles(8, q=LEVELS), alone.quantiles(LEVELS))


def test_saved_and_backtested(reals, tmp_path):
    reals.save(tmp_path / "forecaster")
    back = load(tmp_path / "forecaster")
    assert back.trends_ == reals.trends_
    quantiles = [one.predict_quantiles(8, q=LEVELS) for one in (back, reals)]
    np.testing.assert_array_equal(*quantiles)
    single = GPForecaster(**BARE, trend="average", family="gaussian")
    scores = backtest(single, REALS, horizon=8, windows=1)
    own = fitted(REALS[:52], "gaussian")
    assert len(own.trends_) > 1
    log_p = own.predict_log_density(REALS[52:], 8)
    assert scores.nlpd[0] == pytest.approx(-log_p.mean(), rel=1e-12)


def test_parts_that_are_integrated_and_have_regressors():
    holiday = np.arange(60) % 9 == 4
    model = GPForecaster(**{**BARE, "trend": "average", "family": "gaussian", "integrate": "auto"})
    model.fit(REALS + 3.0 * holiday, {"holiday": holiday.astype(float)})
    assert len(model.trends_) > 1
    nodes = sum(
        one.model.state_.count * volatility.factors.size
        for one, volatility in zip(model.members_, model.volatilities_, strict=True)
    )
    assert model.members_[0].model.state_.count > 1
    weights = model._ahead(2, {"holiday": [0.0, 1.0]}, None, None).mixture.weights
    assert len(weights) == nodes > len(model.trends_)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    day, holiday = (model.predict(index=[60.0], X={"holiday": [v]})[0] for v in (0.0, 1.0))
    assert holiday - day == pytest.approx(3.0, abs=1.0)


PLAN = np.array([0.0, 2.0, 5.0, 9.0, 6.0, 6.0, 1.0])
EVEN = {"noise": False, "drift": False, "integrate": "mode"}


@every_case("repetitions", [1, 14, 216, 100_000])
def test_the_weight_of_the_model_is_a_posterior_mean(repetitions):
    missed = 2.0 * stats.norm.sf(0.5, scale=12.0**-0.5)

    def moment(power):
        # Beyond 60 / (p k) the likelihood is below e^-60.
        most = min(1.0, 60.0 / (missed * repetitions))
        return integrate.quad(
            lambda w: w**power * np.exp(repetitions * np.log1p(-missed * w)), 0.0, most
        )[0]

    weight = weight_after(repetitions)
    np.testing.assert_allclose(weight, moment(1) / moment(0), rtol=1e-8)
    if repetitions > 200:
        np.testing.assert_allclose(missed * weight, 1.0 / (repetitions + 2.0), rtol=1e-4)


def test_forecasts_mix_the_timetable_with_the_model(tmp_path):
    model = GPForecaster([7], **EVEN).fit(np.tile(PLAN, 4)[:26])
    planned = np.roll(PLAN, -5)
    np.testing.assert_array_equal(model.timetable_.counts, PLAN)
    weight = model.timetable_.weight
    np.testing.assert_allclose(weight, weight_after(19), rtol=1e-12)
    steps = np.arange(26.0, 33.0)
    data = model.structure_.columns(steps, None, None)
    alone = ahead_of(model.model_, data, model.structure_.scale)
    values = np.arange(30.0)
    mass = weight * np.exp([alone.log_density(np.full(7, y)) for y in values])
    mass[planned.astype(int), np.arange(7)] += 1.0 - weight
    found = np.exp([model.predict_log_density(np.full(7, y), 7) for y in values])
    np.testing.assert_allclose(found, mass, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(model.predict(7), values @ mass, rtol=1e-9)
    levels = np.array([1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999])
    exact = [[np.argmax(total >= q) for q in levels] for total in mass.cumsum(axis=0).T]
    np.testing.assert_array_equal(model.predict_quantiles(7, q=levels), exact)
    # A miss has about the probability of Laplace's rule, here with a prior below 0.1.
    assert 0.02 < 1.0 - mass[planned.astype(int), np.arange(7)].max() < 0.06
    model.save(tmp_path / "timetable.qpr")
    again = GPForecaster.load(tmp_path / "timetable.qpr").predict(7)
    np.testing.assert_array_equal(again, model.predict(7))


def test_what_does_not_repeat_has_no_timetable():
    y = np.tile(PLAN, 6)
    model = GPForecaster([7], **EVEN, family="rounded-gaussian").fit(y)
    known = model._read(y, None, None, None)
    assert timetable_of(model.structure_, known) is not None
    missing = y.copy()
    missing[::7][:-1] = np.nan
    known = model._read(missing, None, None, None)
    assert timetable_of(model.structure_, known).weight == pytest.approx(weight_after(30))
    missing[::7] = np.nan
    once = y.copy()
    once[17] += 1.0
    for other in (missing, once, y[:20]):
        assert timetable_of(model.structure_, model._read(other, None, None, None)) is None
    assert GPForecaster([7], **EVEN, family="poisson").fit(y).timetable_ is None


def test_exact_timetables_and_constant_series_have_no_error_by_quantiles():
    model = GPForecaster([7], **EVEN).fit(np.tile(PLAN, 10))
    quantiles = model.predict_quantiles(7, q=LEVELS)
    np.testing.assert_array_equal(quantiles, np.repeat(PLAN[:, None], 99, axis=1))
    day = np.datetime64("2025-03-03") + np.arange(28)
    model = GPForecaster(integrate="mode").fit(np.full(28, 3.0), index=day)
    np.testing.assert_array_equal(model.timetable_.counts, [3.0])
    np.testing.assert_array_equal(model.predict_interval(5, level=0.95), np.full((5, 2), 3.0))


def test_a_timetable_follows_the_clock_on_the_wall():
    pd = pytest.importorskip("pandas")
    # Clocks in Vienna skip an hour on the last Sunday of March.
    hours = pd.date_range("2025-03-24", periods=24 * 7, freq="h", tz="Europe/Vienna")
    planned = np.minimum(np.abs(hours.hour - 12.0), 9.0)
    model = GPForecaster([24], **EVEN).fit(planned[:144], index=hours[:144])
    assert model.timetable_.counts.size == 24
    np.testing.assert_array_equal(model.predict_quantiles(24, q=[0.5])[:, 0], planned[144:])


def test_each_series_of_a_panel_has_its_own_timetable():
    lines = np.array([np.tile(PLAN, 5), np.tile(PLAN[::-1] + 1.0, 5), np.tile(PLAN, 5)])
    lines[2, 11] += 1.0
    panel = GPPanelForecaster(GPForecaster([7], trend="level", **EVEN), hyperparameters="shared")
    panel.fit(lines.ravel(), by=np.repeat(np.arange(3), 35))
    counts = [panel.models_[k].timetable_ for k in range(3)]
    np.testing.assert_array_equal(counts[0].counts, PLAN)
    np.testing.assert_array_equal(counts[1].counts, PLAN[::-1] + 1.0)
    assert counts[2] is None
