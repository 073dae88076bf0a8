"""Mixtures over trends: their weights, moments, quantiles and densities."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.special import logsumexp

from qpruntime import load
from qpruntime.forecasting import GPForecaster, backtest
from qpruntime.forecasting.averaging import WeightedStructures
from qpruntime.forecasting.structure import ahead_of
from qpruntime.forecasting.trial import evidence

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


@pytest.fixture(scope="module")
def counts():
    return fitted(COUNTS, "poisson")


@pytest.fixture(scope="module", params=["reals", "counts"])
def both(request):
    """A mixture, and forecasters with one of its members each."""
    model = request.getfixturevalue(request.param)
    return model, parts(model)


def parts(model):
    taken = [WeightedStructures((member,), np.ones(1), None) for member in model.members_]
    return {one.members[0].structure.trend: copy.copy(model)._taken(one) for one in taken}


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


def off_by(model, single, factor):
    """Difference of the mean from the weighted means, with one weight times a factor."""
    weights = np.array(list(model.trends_.values()))
    weights[-1] *= factor
    means = np.array([one.predict(8) for one in single.values()])
    return np.abs(model.predict(8) - weights @ means / weights.sum()).max()


def test_means_are_weighted(both):
    model, single = both
    assert off_by(model, single, 1.0) < 1e-9
    assert off_by(model, single, 1.001) > 1e-6


def test_densities_are_weighted(both):
    model, single = both
    y = np.round(model.predict(8))
    each = np.array([one.predict_log_density(y, 8) for one in single.values()])
    weights = np.array(list(model.trends_.values()))[:, None]
    wanted = logsumexp(each, axis=0, b=weights)
    np.testing.assert_allclose(model.predict_log_density(y, 8), wanted, rtol=1e-10)
    weights[-1] *= 1.001
    moved = logsumexp(each, axis=0, b=weights / weights.sum())
    assert np.abs(model.predict_log_density(y, 8) - moved).max() > 1e-6


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
    below = np.array(
        [(row[:, None] < at).mean(axis=0) for row, at in zip(draws, found, strict=True)]
    )
    upto = np.array(
        [(row[:, None] <= at).mean(axis=0) for row, at in zip(draws, found, strict=True)]
    )
    # Five standard errors of a share of the draws.
    error = 5.0 * np.sqrt(LEVELS * (1.0 - LEVELS) / number)
    assert (below <= LEVELS + error).all()
    assert (upto >= LEVELS - error).all()
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
    path = tmp_path / "forecaster"
    reals.save(path)
    back = load(path)
    assert back.trends_ == reals.trends_
    np.testing.assert_array_equal(
        back.predict_quantiles(8, q=LEVELS), reals.predict_quantiles(8, q=LEVELS)
    )
    scores = backtest(
        GPForecaster(**BARE, trend="average", family="gaussian"), REALS, horizon=8, windows=1
    )
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
    rise = model.predict(index=[60.0], X={"holiday": [1.0]}) - model.predict(
        index=[60.0], X={"holiday": [0.0]}
    )
    assert rise[0] == pytest.approx(3.0, abs=1.0)
