"""Properties that every public estimator has, whatever it models."""

import pickle
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import qpruntime
import qpruntime.effects
import qpruntime.forecasting
from qpruntime import CorrectionWarning
from tests.properties.public_estimators import CASES, ELSEWHERE
from tests.tools.cases import refuses

#: Properties that a case may lack or break, by the names that it says so with.
PROPERTIES = {
    "all equal", "arrays", "columns", "constant feature", "copies", "labels", "missing features",
    "missing y", "rows", "types", "unit of X", "unit of y", "weight 0", "weights",
}  # fmt: skip
#: A row with nothing in it, or with what would move everything if it counted.
ROW = 3


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


@having("arrays")
@pytest.mark.parametrize(
    "wear", [pd.DataFrame.to_numpy, lambda X: X.to_numpy().tolist()], ids=["array", "list"]
)
def test_features_without_names(case, wear):
    # The same numbers by the same operations.
    same(case, case.numbers(case.data().on_features(wear)), rtol=1e-12)


@having("types")
@pytest.mark.parametrize(
    "wear",
    [
        lambda X: X.astype(dict.fromkeys(("a", "b"), np.float32)),
        lambda X: pytest.importorskip("polars").DataFrame(X.to_dict("list")),
    ],
    ids=["float32", "polars"],
)
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


# --- Units and origins.


@having("unit of X")
@pytest.mark.parametrize(("unit", "shift"), [(1e-6, 0.0), (1e9, 0.0), (1.0, 1e6), (1e3, -1e8)])
def test_unit_and_origin_of_features(case, unit, shift):
    def moved(X):
        return X.assign(a=X["a"] * unit + shift, b=X["b"] * unit - shift)

    same(case, case.numbers(case.data().on_features(moved)))


@having("unit of X")
def test_unit_and_origin_of_times(case):
    data = case.data()
    if "index" in data.rows:
        same(case, case.numbers(data.given(index=3600 * data.rows["index"] + 10**6)))


@having("unit of y")
@pytest.mark.parametrize("unit", [1e-6, 1e3, 1e9])
def test_unit_and_origin_of_observations(case, unit):
    data = case.data()
    assert case.shifts, "observations with a unit have an origin, or none: (0.0,)"
    for shift in case.shifts:
        found = case.numbers(data.given(y=unit * (data.rows["y"] + shift)))
        same(case, found / unit - shift)


# --- Weights.


@having("weights")
def test_whole_weights_are_equal_rows(case):
    data = case.data()
    weights = 1 + np.arange(len(data)) % 3
    repeated = case.numbers(data.take(np.repeat(np.arange(len(data)), weights)))
    weighted = case.numbers(data.given(sample_weight=weights.astype(float)))
    same(case, weighted, repeated, rtol=max(case.doubled, case.rtol))
    unit = np.abs(repeated).max(axis=0)
    assert np.abs((_numbers_by_name(case.name) - repeated) / unit).max() > 5.0 * case.doubled


@having("weight 0")
def test_rows_of_weight_0_teach_nothing(case):
    data = case.data()
    more = data.take(np.r_[np.arange(len(data)), 0])
    changed = {}
    if "X" in more.rows:
        odd = {"a": 1e6, "b": -1e6, "g": 99}
        changed["X"] = more.X.copy()
        for name in changed["X"]:
            changed["X"].loc[len(data), name] = odd[name]
    if case.renamed is None or case.name.startswith("effects"):
        changed["y"] = more.rows["y"].copy()
        changed["y"][-1] = 10**6
    same(case, case.numbers(more.given(sample_weight=np.r_[np.ones(len(data)), 0.0], **changed)))


# --- Missing values.


def _nan(y):
    return np.where(np.arange(len(y)) == ROW, np.nan, y)


HIDDEN = {
    "masked": lambda y: np.ma.array(y, mask=np.arange(len(y)) == ROW),
    "nan": _nan,
    "none": lambda y: np.array([None if i == ROW else v for i, v in enumerate(y.tolist())], object),
    "nullable": lambda y: pd.Series(_nan(y)).convert_dtypes(),
}


@having("missing y")
@pytest.mark.parametrize("hide", HIDDEN)
def test_missing_observations(case, hide):
    data = case.data()
    gappy = data.given(**{case.target: HIDDEN[hide](data.rows[case.target])})
    if case.missing == "refused":
        refuses(r"mask|(?i:nan|none).*(leave|finite)", case.fit, gappy)
    else:
        kept = np.delete(np.arange(len(data)), ROW)
        same(case, case.numbers(gappy), case.numbers(data.take(kept)))


@having("missing features")
def test_masked_features_are_missing_ones(case):
    data = case.data()
    hidden = np.zeros(data.X.shape, dtype=bool)
    hidden[ROW, 0] = True
    gappy = data.given(X=data.X.mask(hidden))
    if "arrays" in case.lacks:
        columns = enumerate(data.X)
        masked = {name: np.ma.array(data.X[name], mask=hidden[:, i]) for i, name in columns}
        masked = data.given(X=masked)
    else:
        masked = data.on_features(pd.DataFrame.to_numpy)
        masked = masked.given(X=np.ma.array(masked.X, mask=hidden))
    if case.gaps:
        same(case, case.numbers(masked), case.numbers(gappy))
        return
    for refused in (gappy, masked):
        refuses(r"mask|nan", case.fit, refused)


# --- Data that say little.


@having("all equal")
def test_observations_that_are_all_equal(case):
    data = case.data()
    assert case.alike
    for value, reach in case.alike.items():
        level = data.given(y=np.full(len(data), value))
        if reach == "refused":
            refuses(r"one class|got 1|positive|half the shortest", case.fit, level)
            continue
        with warnings.catch_warnings():
            # Counts that are all 0 have no smallest log rate, and corrections may say so.
            warnings.simplefilter("ignore", CorrectionWarning)
            warnings.filterwarnings("ignore", message="the expected observation is .* its far tail")
            found = case.numbers(replace(level, new=data.X[:5]))
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[:, 0], value, rtol=0.0, atol=reach)


@having("constant feature")
def test_a_constant_feature_says_nothing(case):
    constant = case.data().on_features(lambda X: X.assign(b=3.0))
    if case.name.startswith("effects"):
        refuses(r"'b' .* one value in all rows", case.fit, constant)
        return
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = case.numbers(constant)
    assert all("'b' has one value" in str(warning.message) for warning in caught)
    same(case, found, case.numbers(constant.on_features(lambda X: X[["a"]])))


# --- Copies.


@having("copies")
def test_copies_predict_the_same_bits(case, tmp_path):
    data, model = case.data(), case.make()
    with pytest.raises(NotFittedError):
        case.predict(model, data.new)
    model.fit(**data.arguments())
    model.save(tmp_path / "model")
    for copy in (
        pickle.loads(pickle.dumps(model)),
        qpruntime.load(tmp_path / "model"),
        clone(model).fit(**data.arguments()),
    ):
        np.testing.assert_array_equal(case.predict(copy, data.new), case.predict(model, data.new))
