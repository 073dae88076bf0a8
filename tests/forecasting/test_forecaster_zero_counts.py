"""Expected counts where counts are zero: near what a dense grid of the same model gives."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.structure import Structure
from tests.tools.cases import every_case

N = 120
HOLIDAY = np.isin(np.arange(N), [20, 50, 80, 110]).astype(float)
Y = np.where(HOLIDAY == 1.0, 0.0, np.random.default_rng(0).poisson(10.0, N))
CONSTANT = {"trend": "none", "noise": False, "cycle": False, "outliers": False}


def by_grid(y, column):
    """E rate on a day of the column and on another, of a level and an effect of sd 2."""
    # The prior is that of the effect where the column is farthest from its mean.
    share = column.mean()
    base, effect = np.linspace(-12.0, 6.0, 1201)[:, None], np.linspace(-16.0, 12.0, 1201)
    log_p = stats.norm.logpdf(effect * (1.0 - share), 0.0, 2.0) + 0.0 * base
    for value in (0.0, 1.0):
        rows = column == value
        eta = base + effect * value
        log_p = log_p + y[rows].sum() * eta - rows.sum() * np.exp(eta)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return (p * np.exp(base + effect)).sum(), (p * np.exp(base)).sum()


@every_case("kind", [float, bool, str])
def test_a_holiday_without_counts(kind):
    model = GPForecaster((), family="poisson", **CONSTANT)
    column = np.where(HOLIDAY == 1.0, "yes", "no") if kind is str else HOLIDAY.astype(kind)
    model.fit(Y, X={"holiday": column})
    ahead = np.array(["yes", "no"]) if kind is str else np.array([1, 0]).astype(kind)
    found = model.predict(2, X={"holiday": ahead})
    wanted = by_grid(Y, HOLIDAY)
    # A normal in place of a density with one long tail.
    assert found[0] == pytest.approx(wanted[0], rel=0.35)
    assert found[0] < 0.5
    assert found[1] == pytest.approx(wanted[1], rel=0.01)
    high = model.predict_quantiles(2, X={"holiday": ahead}, q=[0.99])[:, 0]
    assert (found < high).all()


def test_a_holiday_with_counts_is_as_it_was():
    # What the data know well no prior changes.
    y = np.where(HOLIDAY == 1.0, 900.0, Y)
    model = GPForecaster((), family="poisson", **CONSTANT).fit(y, X={"holiday": HOLIDAY})
    found = model.predict(2, X={"holiday": [1.0, 0.0]})
    np.testing.assert_allclose(found, [900.0, Y[HOLIDAY == 0.0].mean()], rtol=0.01)


@pytest.mark.slow
@every_case("at", [15, 59])
def test_one_event_among_zeros(at):
    y = np.zeros(60)
    y[at] = 1.0
    model = GPForecaster(()).fit(y)
    found = model.predict(6)
    # The rate is about 1/60, and no more than 2/60 if the event was long ago.
    assert (found > 0.2 / 60.0).all()
    assert (found < (4.0 if at == 59 else 2.0) / 60.0).all()
    assert model.predict_quantiles(6, q=[0.99]).max() <= 2.0


@every_case("how", ["shared", "prior", "own"])
def test_a_panel_of_series_without_counts(how):
    count = 3 if how == "own" else 12
    panel = GPPanelForecaster(GPForecaster(), hyperparameters=how)
    found = panel.fit(np.zeros(30 * count), by=np.repeat(np.arange(count), 30)).predict(2)
    assert found.shape == (count, 2)
    # As of a series alone, whose rate is below 3/30 with 95 %.
    np.testing.assert_allclose(found, GPForecaster().fit(np.zeros(30)).predict(2)[0], rtol=1e-9)
    assert (found > 0.0).all()
    assert (found < 3.0 / 30.0).all()


def test_means_beyond_the_quantiles_are_told():
    y = np.random.default_rng(1).poisson(5.0, 60)
    model = GPForecaster((), family="poisson", **{**CONSTANT, "trend": "slope"}).fit(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(2)
    with pytest.warns(UserWarning, match="99 % of its distribution is below") as told:
        mean = model.predict(600)
    high = model.predict_quantiles(600, q=[0.99])[:, 0]
    first = int(np.argmax(mean > high))
    assert mean[first] > high[first]
    assert f" in row {first}," in str(told[0].message)


@every_case(
    "column, farthest",
    [
        (HOLIDAY, 2.0),
        (7.0 - 3.0 * HOLIDAY, 2.0),
        (np.where(HOLIDAY == 1.0, np.arange(N), 0.0), 5.0),
        (1e6 * np.random.default_rng(2).normal(size=N), 5.0),
    ],
)
def test_priors_of_effects_are_those_where_columns_are_farthest_from_their_mean(column, farthest):
    structure = Structure((), ("x",), "none", False, "poisson", Scale())
    (term,) = structure._effects({"x": column})
    # In units of the column: by how much it changes the log rate where it is farthest.
    each = term.std / column.std()
    assert each * np.abs(column - column.mean()).max() == pytest.approx(farthest, rel=1e-12)
    # Real numbers are known by their noise, and keep the prior in units of the spread.
    structure = replace(structure, family="gaussian", scale=Scale(whole=False))
    (term,) = structure._effects({"x": column})
    assert (term.std, term.standardise) == (10.0, True)
