"""Properties that every public estimator has, whatever it models."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

import qpruntime
import qpruntime.effects
import qpruntime.forecasting
from tests.properties.public_estimators import CASES, ELSEWHERE

#: Properties that a case may lack or break, by the names that it says so with.
PROPERTIES = {"arrays", "columns", "labels", "rows", "types"}


def having(prop):
    """Return the cases that have a property, as `pytest.mark.parametrize` takes them."""
    assert prop in PROPERTIES
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case,
                id=case.name,
                marks=[pytest.mark.xfail(strict=False, reason=case.broken[prop])]
                if prop in case.broken
                else [],
            )
            for case in CASES
            if prop not in case.lacks
        ],
    )


@cache
def _numbers_by_name(name):
    case = next(case for case in CASES if case.name == name)
    return case.numbers(case.data())


def same(case, found, expected=None, rtol=None):
    """Assert that predictions are those of the data as they are, or others that are given.

    The tolerance is relative to the largest number of each column: others may be near 0.
    """
    expected = _numbers_by_name(case.name) if expected is None else expected
    assert np.isfinite(expected).all()
    rtol = case.rtol if rtol is None else rtol
    unit = np.abs(expected).max(axis=0)
    np.testing.assert_allclose(found / unit, expected / unit, rtol=0.0, atol=rtol)


def test_every_public_estimator_is_in_the_table():
    public = {
        name
        for module in (qpruntime, qpruntime.effects, qpruntime.forecasting)
        for name in module.__all__
        if isinstance(getattr(module, name), type) and hasattr(getattr(module, name), "fit")
    }
    tried = {type(case.make()).__name__ for case in CASES}
    assert len(public) >= 10
    assert public - tried - set(ELSEWHERE) == set(), "add it to tests/properties"
    assert tried & set(ELSEWHERE) == set()


def test_cases_name_properties_that_exist():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert set(case.lacks) | set(case.broken) <= PROPERTIES
        assert not set(case.lacks) & set(case.broken)
        assert all(len(why.split()) > 3 for why in (case.lacks | case.broken).values())


@having("rows")
def test_order_of_rows(case):
    data = case.data()
    order = np.random.default_rng(9).permutation(len(data))
    same(case, case.numbers(data.take(order)))


@having("columns")
def test_order_of_columns(case):
    same(case, case.numbers(case.data().on_features(lambda X: X[X.columns[::-1]])))


@having("labels")
def test_labels_renamed(case):
    for data, back in case.renamed(case.data()):
        same(case, back(case.numbers(data)))


def _lists(X):
    return X.to_numpy().tolist()


def _polars(X):
    return pytest.importorskip("polars").DataFrame(X.to_dict("list"))


def _narrow(X):
    return X.astype(dict.fromkeys(("a", "b"), np.float32))


def _columns(X):
    return {name: X[name].to_numpy() for name in X}


@having("arrays")
@pytest.mark.parametrize("wear", [pd.DataFrame.to_numpy, _lists], ids=["array", "list"])
def test_features_without_names(case, wear):
    # The same numbers by the same operations.
    same(case, case.numbers(case.data().on_features(wear)), rtol=1e-12)


@having("types")
@pytest.mark.parametrize("wear", [_narrow, _polars], ids=["float32", "polars"])
def test_features_of_another_type(case, wear):
    same(case, case.numbers(case.data().on_features(wear)), rtol=1e-12)


@having("types")
def test_features_of_whole_numbers(case):
    eights = case.data().on_features(lambda X: X.assign(a=8.0 * X["a"], b=8.0 * X["b"]))
    whole = eights.on_features(lambda X: X.astype(int))
    same(case, case.numbers(whole), case.numbers(eights), rtol=1e-12)


@having("types")
@pytest.mark.parametrize(
    "wear",
    [np.ndarray.tolist, pd.Series, lambda y: pytest.importorskip("polars").Series(y)],
    ids=["list", "pandas", "polars"],
)
def test_observations_of_another_type(case, wear):
    data = case.data()
    given = {name: wear(value) for name, value in data.rows.items() if name not in ("X", "pairs")}
    same(case, case.numbers(data.given(**given)), rtol=1e-12)


@having("types")
def test_observations_in_single_precision(case):
    data = case.data()
    narrow = np.asarray(data.rows[case.target]).astype(np.float32)
    wide = case.numbers(data.given(**{case.target: narrow.astype(float)}))
    same(case, case.numbers(data.given(**{case.target: narrow})), wide, rtol=1e-12)
