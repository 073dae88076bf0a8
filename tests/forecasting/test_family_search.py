"""Families that "auto" has for zeros of their own and for numbers that were rounded."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qpruntime.forecasting import GPForecaster, GPPanelForecaster, family_search, trial
from qpruntime.forecasting.family_search import zeros_gain
from qpruntime.forecasting.trial import evidence
from tests.tools.cases import every_case, refuses


def bare(**more):
    short = {"trend": "level", "noise": False, "drift": False, "integrate": "mode"}
    return GPForecaster(**short | more)


def before_hurdle(n, seed, mean=12.0):
    """Counts of which half are made 0, and which else are at least 1."""
    rng = np.random.default_rng(seed)
    y = 1.0 + rng.poisson(mean * rng.gamma(5.0, 0.2, n))
    return np.where(rng.uniform(size=n) < 0.5, 0.0, y)


def test_what_zeros_gain_is_found_on_a_grid_too():
    for y in (before_hurdle(90, 1), np.random.default_rng(2).negative_binomial(2, 0.3, 90)):
        r = np.exp(np.linspace(-4.0, 8.0, 700))
        one = max(stats.nbinom.logpmf(y, s, s / (s + y.mean())).sum() for s in r)
        positive, none = y[y > 0], np.mean(y == 0)
        two = -np.inf
        for mean in np.linspace(0.3, 1.05, 60) * positive.mean():
            own = stats.nbinom(r[::5], r[::5] / (r[::5] + mean))
            beyond = own.logpmf(positive[:, None]).sum(axis=0) - positive.size * own.logsf(0)
            two = max(two, beyond.max())
        share = positive.size * np.log1p(-none) + (y.size - positive.size) * np.log(none)
        assert zeros_gain(y) == pytest.approx(two + share - one, abs=0.02)


def test_zeros_of_their_own_are_found_and_forecast():
    y = before_hurdle(150, 3)
    model, asked = (bare(seasons=(), **more).fit(y) for more in ({}, {"family": "hurdle"}))
    assert model.family_ in ("hurdle", "zero-inflated")
    for one in (model, asked):
        none = np.exp(one.predict_log_density([0.0], 1)[0])
        assert none == pytest.approx(np.mean(y == 0.0), abs=0.03)
        # Quantiles are those of the sum of the probabilities, and the mean is theirs.
        counts = np.arange(120.0)
        pmf = np.exp(one.predict_log_density(counts, index=np.full(120, 150.0)))
        assert pmf.sum() == pytest.approx(1.0, abs=1e-5)
        levels = np.array([0.3, 0.6, 0.9])
        wanted = np.searchsorted(np.cumsum(pmf), levels)
        np.testing.assert_array_equal(one.predict_quantiles(1, q=levels)[0], wanted)
        assert one.predict(1)[0] == pytest.approx(counts @ pmf, rel=1e-4)
        assert one.predict(1)[0] == pytest.approx(y.mean(), rel=0.15)


def test_numbers_that_were_rounded_are_no_counts_of_events():
    rng = np.random.default_rng(0)
    t = np.arange(120)
    y = np.round(500.0 + 60.0 * np.sin(0.5 * np.pi * t) + 6.0 * rng.normal(size=120))
    model = bare(seasons=[4]).fit(y)
    assert model.family_ in ("gaussian", "log-normal")
    ends = model.predict_interval(1)[0]
    # Poisson's 90 % would be 72 wide.
    assert ends[1] - ends[0] == pytest.approx(2.0 * 1.645 * 6.0, rel=0.3)
    events = rng.poisson(500.0 + 60.0 * np.sin(0.5 * np.pi * t))
    assert bare(seasons=[4]).fit(events).family_ == "poisson"


def test_whole_numbers_of_thousands_are_forecast_as_in_any_other_unit():
    rng = np.random.default_rng(6)
    y = np.round(9000.0 + 700.0 * rng.normal(size=80))
    options = {"seasons": (), "outliers": False}
    model, thousands = (bare(**options, noise="auto").fit(y / unit) for unit in (1.0, 1000.0))
    # The spread is constant, and seven times that of Poisson's.
    assert (thousands.family_, thousands.noise_) == (model.family_, model.noise_)
    assert model.family_ == "gaussian"
    wanted = 1000.0 * thousands.predict_quantiles(5)
    np.testing.assert_allclose(model.predict_quantiles(5), wanted, rtol=1e-6)
    # Events that vary as gamma rates do stay counts.
    events = rng.poisson(3000.0 * rng.gamma(4.0, 0.25, 80))
    assert bare(**options).fit(events).family_ == "negative-binomial"


def test_poisson_trends_are_fitted_to_large_counts_only_if_the_level_is_near(monkeypatch):
    rng, tried = np.random.default_rng(8), []

    def listed(structure, *rest):
        tried.append((structure.family, structure.trend))
        return trial.fitted(structure, *rest)

    monkeypatch.setattr(family_search, "fitted", listed)
    single = bare(trend="auto", seasons=(), cycle=False, outliers=False)
    wide = np.round(9000.0 + 700.0 * rng.normal(size=60))
    assert single.fit(wide).family_ != "poisson"
    assert not tried
    events = rng.poisson(2000.0 * np.exp(0.02 * np.arange(60)))
    assert single.fit(events).trend_ == "line"
    assert tried[:2] == [("poisson", "line"), ("poisson", "slope")]


def test_evidence_of_rounded_numbers_is_just_below_that_of_their_cells():
    y = np.round(5.0 + 0.9 * np.random.default_rng(7).normal(size=40))
    refuses("which is no count", GPForecaster(family="rounded-gaussian").fit, y + 0.5)
    for values in (y, np.where(np.arange(40) % 13 == 5, 6.0, 5.0)):
        model = bare(seasons=(), trend="none", outliers=False, family="rounded-gaussian")
        model.fit(values)
        unit, centre = model.structure_.scale.unit, model.structure_.scale.centre
        noise = unit * model.model_.state_.likelihood(0).parameters["scale"]
        assert noise > 0.999 / np.sqrt(12.0)
        # The intercept alone is unknown, so that the cells take one integral.
        level = np.linspace(3.0, 8.0, 20001)
        mass = stats.norm.cdf(values + 0.5, level[:, None], noise)
        mass -= stats.norm.cdf(values - 0.5, level[:, None], noise)
        prior = stats.norm.pdf(level, centre, 100.0 * unit)
        exact = np.log(np.trapezoid(mass.prod(axis=1) * prior, level))
        found = evidence(model.members_[0], model._read(values, None, None, None))
        # The lower limit is about the variance of rounding over twice that of the noise away.
        assert exact - values.size / (20.0 * noise**2) < found < exact < 0.0


def timetable(days, seed, share=0.1):
    """Trains per hour, of which some in ten hours miss one, and the same hours a day earlier."""
    rng = np.random.default_rng(seed)
    planned = [0] * 5 + [2, 6, 12, 12, 8, 6, 6, 6, 6, 6, 8, 12, 12, 8, 6, 4, 4, 2, 1]
    planned = np.tile(np.array(planned, dtype=float), days)
    return planned - (rng.uniform(size=planned.size) < share) * (planned > 0.0)


@every_case("share", [0.1, 0.0])
def test_a_timetable_is_forecast_no_worse_than_by_its_last_day(share):
    y = timetable(10, 8, share)
    model = bare(seasons=[24], trend="auto").fit(y[:-24])
    assert model.family_ == "rounded-gaussian"
    levels = np.arange(1, 100) / 100.0
    quantiles = model.predict_quantiles(24, q=levels)
    np.testing.assert_array_equal(quantiles, np.maximum(np.round(quantiles), 0.0))
    gap = y[-24:, None] - quantiles
    crps = 2.0 * np.where(gap > 0.0, levels * gap, (levels - 1.0) * gap).mean()
    assert crps <= np.abs(y[-24:] - y[-48:-24]).mean()
    # Poisson's are several times as wide.
    assert np.diff(model.predict_interval(24)).mean() < 2.0


@every_case(
    "mean, events",
    [
        (0.5, lambda rng, mean: rng.poisson(mean)),
        (3.0, lambda rng, mean: rng.poisson(mean)),
        (15.0, lambda rng, mean: rng.poisson(mean)),
        (3.0, lambda rng, mean: rng.poisson(mean * rng.gamma(2.0, 0.5, mean.size))),
        (3.0, lambda rng, mean: rng.poisson(mean) * (rng.uniform(size=mean.size) < 0.5)),
    ],
)
def test_events_keep_their_families(mean, events):
    rates = mean * np.exp(0.5 * np.sin(np.arange(96) * np.pi / 6.0))
    for seed in range(3):
        y = events(np.random.default_rng(seed), rates)
        assert bare(seasons=[12]).fit(y).family_ != "rounded-gaussian"


def test_a_panel_of_timetables_is_one_of_rounded_numbers():
    lines = np.array([timetable(6, seed) for seed in range(3)])
    single = GPForecaster(seasons=[24], trend="level", noise=False)
    panel = GPPanelForecaster(single, hyperparameters="shared")
    panel.fit(lines.ravel(), by=np.repeat(np.arange(3), lines.shape[1]))
    assert panel.structure_.family == "rounded-gaussian"
    # A few timetables among series of events do not make these rounded numbers.
    others = np.random.default_rng(9).poisson(6.0, (5, lines.shape[1]))
    several = np.concatenate([lines[:2], others])
    panel.fit(several.ravel(), by=np.repeat(np.arange(7), lines.shape[1]))
    assert panel.structure_.family == "poisson"
