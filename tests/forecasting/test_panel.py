"""Many series in one call: what they share, what one bad series does, and forms of tables."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from qpruntime import load
from qpruntime.dataframes.levels import level_key
from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.long_table import LongTable
from qpruntime.forecasting.structure import Learnt, Structure
from tests.tools.cases import refuses

RNG = np.random.default_rng(5)
S, N = 12, 60
LEVEL = np.linspace(0.5, 2.0, S)[:, None]
T = np.arange(N + 7)
RATE = np.exp(LEVEL + 0.6 * (T % 7 > 4) + 0.1 * np.cumsum(RNG.normal(size=(S, N + 7)), axis=1))
Y = RNG.poisson(RATE)
BY = np.repeat([f"shop {k}" for k in range(S)], N)
SINGLE = GPForecaster(seasons=[7], trend="level", noise=False, family="poisson")


@pytest.fixture(scope="module")
def panel():
    return GPPanelForecaster(SINGLE, sample=6).fit(Y[:, :N].ravel(), by=BY)


def test_hyperparameters_are_those_of_the_sum_of_evidences(panel):
    learnt = panel.structure_.learnt
    assert learnt.names == ("rw1(trend): log sd", "rw2(season 7): log sd")
    table = LongTable.of(Y[:, :N].ravel(), None, BY, None, None, None)
    some = [SINGLE._read(**table.series(k), clock=None) for k in (0, 2, 4, 7, 9, 11)]

    def evidence(centres):
        """Of all of the sample, with one prior."""
        total = 0.0
        for k, known in enumerate(some):
            own = Structure((7.0,), (), "level", False, "poisson", panel.structure_.scale)
            held = Learnt(learnt.names, np.asarray(centres))
            data = own.columns(known.steps, None, None)
            model = Structure(**{**vars(own), "learnt": held}).model(data, "mode")
            model.fit(data, known.y)
            total += model.log_evidence_
            if not k:
                total += model.state_.assembly.log_prior(model.theta_)[0]
        return total

    top = evidence(learnt.centres)
    for k in (0, 1):
        for step in (-0.1, 0.1):
            assert evidence(learnt.centres + step * np.eye(2)[k]) < top + 1e-3
    single = panel.model("shop 3").model_
    np.testing.assert_allclose(single.theta_, learnt.centres)


def test_forecasts_of_all_are_near_the_truth(panel):
    assert panel.predict(7).shape == (S, 7)
    order = [int(name.split()[1]) for name in panel.series_]
    pairs = zip(panel.series_, order, strict=True)
    log_p = [panel.models_[name].predict_log_density(Y[k, N:], 7) for name, k in pairs]
    truth = stats.poisson.logpmf(Y[order, N:], RATE[order, N:])
    assert 0.0 < np.mean(truth - log_p) < 0.25
    ends = panel.predict_interval(7)
    seen = Y[order, N:]
    assert np.mean((seen >= ends[..., 0]) & (seen <= ends[..., 1])) > 0.85
    found = panel.table(7, q=[0.5])
    assert list(found) == ["series", "time", "mean", "50%"]
    np.testing.assert_array_equal(found["mean"].reshape(S, 7), panel.predict(7))
    assert found["time"][:3].tolist() == [60.0, 61.0, 62.0]
    assert panel.model(b"shop 3") is panel.model("shop 3")
    refuses("there is no series 3", panel.model, 3)


def test_one_bad_series_is_named(tmp_path, capsys):
    y = Y[:, :N].astype(float).ravel()
    y[BY == "shop 4"] = np.nan
    with pytest.warns(UserWarning, match="1 of 12 series cannot be fitted, the first is 'shop 4'"):
        found = GPPanelForecaster(SINGLE, sample=3, verbose=1).fit(y, by=BY)
    assert "series: 11 of 11" in capsys.readouterr().err
    assert "at least 8 observations, got 0" in found.failed_["shop 4"]
    missing = np.isnan(found.predict(3)).any(axis=1)
    assert [name for name, none in zip(found.series_, missing, strict=True) if none] == ["shop 4"]
    refuses("'shop 4' was not fitted", found.model, "shop 4")
    strict = GPPanelForecaster(SINGLE, sample=3, errors="raise")
    refuses("the first is 'shop 4'", strict.fit, y, by=BY)
    found.save(tmp_path / "panel.qp")
    np.testing.assert_array_equal(load(tmp_path / "panel.qp").predict(3), found.predict(3))


@pytest.mark.slow
def test_rows_in_any_order_and_tables_by_name(panel):
    pandas = pytest.importorskip("pandas")
    day = np.tile(np.datetime64("2024-01-01") + np.arange(N), S)
    mixed = np.random.default_rng(1).permutation(S * N)
    frame = pandas.DataFrame({"shop": BY, "day": day, "sold": Y[:, :N].ravel()}).iloc[mixed]
    found = GPPanelForecaster(SINGLE, sample=6).fit("sold", by="shop", index="day", data=frame)
    np.testing.assert_allclose(found.predict(3), panel.predict(3), rtol=1e-9)
    assert found.index_ahead(1)[0, 0] == np.datetime64("2024-03-01")
    levels = frame.set_index(["shop", "day"])["sold"]
    again = GPPanelForecaster(SINGLE, sample=6).fit(levels)
    assert set(again.series_) == set(found.series_)
    again = again.predict(1)[np.argsort(again.series_)]
    np.testing.assert_allclose(again, found.predict(1), rtol=1e-9)


@pytest.mark.slow
def test_series_of_their_own_and_with_regressors():
    y = Y[:3, :N].ravel()
    by = np.repeat([0, 1, 2], N)
    promotion = (np.arange(3 * N) * 7 % 11 < 3).astype(float)
    found = GPPanelForecaster(SINGLE, hyperparameters="own").fit(y, {"p": promotion}, by=by)
    alone = clone(SINGLE).fit(y[by == 1], {"p": promotion[by == 1]})
    assert alone.model_.state_.count > 1
    ahead = {"p": [1.0, 0.0] * 3}
    at = np.repeat([0, 1, 2], 2)
    wanted = alone.predict(2, {"p": [1.0, 0.0]})
    np.testing.assert_allclose(found.predict(2, ahead, by=at)[1], wanted, rtol=1e-9)
    refuses("X is missing: the series were fitted with p", found.predict, 2)
    refuses("series 2 has 1 rows", found.predict, 2, {"p": [1.0, 0.0] * 2 + [1.0]}, by=at[:5])
    refuses("by= says which series", GPPanelForecaster().fit, y)


@pytest.mark.slow
def test_forecasts_begin_together_or_each_after_its_own_end():
    rows = np.ones(3 * N, dtype=bool)
    rows[N - 2 : N] = False
    by, index, y = np.repeat([0, 1, 2], N), np.tile(np.arange(N), 3), Y[:3, :N].ravel()
    for together, begins in ((True, [60.0] * 3), (False, [58.0, 60.0, 60.0])):
        many = GPPanelForecaster(SINGLE, hyperparameters="own", together=together)
        many.fit(y[rows], by=by[rows], index=index[rows])
        assert many.index_ahead(1)[:, 0].tolist() == begins


def test_series_of_their_own_have_their_own_steps():
    # One series has a count every second time: alone these are its steps.
    single = clone(SINGLE).set_params(seasons=(), integrate="mode")
    index = np.concatenate([np.arange(N), 100.0 + 2.0 * np.arange(N)])
    y, by = Y[:2, :N].ravel(), np.repeat([0, 1], N)
    many = GPPanelForecaster(single, hyperparameters="own", together=False)
    many.fit(y, by=by, index=index)
    assert many.model(1).clock_.step == 2.0
    alone = clone(single).fit(y[by == 1], index=index[by == 1])
    np.testing.assert_allclose(many.predict(3)[1], alone.predict(3), rtol=1e-12)
    # Together all begin after the last time of all, by their own steps.
    many = clone(many).set_params(together=True).fit(y, by=by, index=index)
    assert many.index_ahead(2).tolist() == [[219.0, 220.0], [220.0, 222.0]]
    wanted = clone(single).fit(y[by == 0], index=index[by == 0]).predict(index=[219.0, 220.0])
    np.testing.assert_allclose(many.predict(2)[0], wanted, rtol=1e-12)


def test_a_categorical_keeps_its_order_and_rows_without_a_series_are_refused():
    pandas = pytest.importorskip("pandas")
    y = np.ones(30)
    text = [None if k == 4 else "a" for k in range(30)]
    numbers = pandas.array([pandas.NA if k == 4 else 1 for k in range(30)], dtype="Int64")
    for by in (text, numbers, pandas.Series(text, dtype="string"), pandas.Categorical(text)):
        refuses("no level in row 4", GPPanelForecaster().fit, y, by=by)
    frame = pandas.DataFrame({"y": range(4), "shop": pandas.Categorical(list("abab"), ["b", "a"])})
    table = LongTable.of("y", None, "shop", None, None, frame)
    assert table.labels == ("b", "a")
    assert [rows.tolist() for rows in table.rows] == [[1, 3], [0, 2]]
    for missing in (None, pandas.NA):
        by = np.array(["a", missing, "b", "b"], dtype=object)
        refuses("has no level in row 1", LongTable.of, np.arange(4.0), None, by, None, None, None)


@pytest.mark.slow
def test_a_prior_that_the_sample_has_taught():
    y = Y[:, :N].ravel()
    found = GPPanelForecaster(SINGLE, hyperparameters="prior", sample=4).fit(y, by=BY)
    learnt = found.structure_.learnt
    assert ((learnt.stds >= 0.1) & (learnt.stds <= 2.0)).all()
    thetas = np.array([one.model_.theta_ for one in found.models_.values()])
    # Nearer to the centre than without the prior, and not all there.
    own = GPPanelForecaster(SINGLE, hyperparameters="own").fit(y, by=BY)
    alone = np.array([one.model_.theta_ for one in own.models_.values()])
    gap, wide = (np.abs(one - learnt.centres).mean(axis=0) for one in (thetas, alone))
    assert (gap < wide).all()
    assert (thetas.std(axis=0) > 1e-3).any()


@pytest.mark.slow
def test_on_a_cluster(panel):
    from dask.distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as there:
        far = GPPanelForecaster(SINGLE, sample=6, scheduler=there.scheduler_address)
        far.fit(Y[:, :N].ravel(), by=BY)
    np.testing.assert_array_equal(far.predict(3), panel.predict(3))


DAY = [np.datetime64("2020-01-01"), np.datetime64("2021-01-01")]


@pytest.mark.parametrize(
    ("by", "labels", "again"),
    [
        (np.repeat(["b", "a"], 2), ("a", "b"), np.array([b"a", b"b", b"a", b"b"])),
        (
            np.repeat(DAY, 2).astype("M8[ns]"),
            (datetime(2020, 1, 1), datetime(2021, 1, 1)),
            np.tile(DAY, 2),
        ),
        (np.repeat([2, 1], 2), (1, 2), np.array([1.0, 2.0, 1.0, 2.0], dtype=np.float32)),
        ([("x", 2), ("x", 2), ("x", 1), ("x", 1)], (("x", 1), ("x", 2)), None),
    ],
)
def test_labels_of_series_are_levels(by, labels, again):
    """Sorted, as Python writes them, and the same in other types of the same value."""
    if isinstance(by, list):
        rows = np.empty(len(by), dtype=object)
        rows[:] = by
        by = rows
    table = LongTable.of(np.arange(4.0), None, by, None, None, None)
    assert table.labels == labels
    if again is not None:
        found = LongTable.of(np.arange(4.0), None, again, None, None, None).labels
        assert [level_key(one) for one in found] == [level_key(one) for one in labels]
