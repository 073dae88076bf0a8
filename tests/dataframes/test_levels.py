"""Levels of one value in several types, declared orders, and missing levels."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pytest

from qpruntime import InputError
from qpruntime.dataframes.encoding import Coding, EncodedTable
from qpruntime.dataframes.levels import level_key, level_text, numbers_of, sorted_levels
from qpruntime.dataframes.readers import DataColumns, categories_of, columns_of
from tests.tools.cases import every_case, refuses

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

DAYS = ["2020-01-02", "2020-01-01", "2020-01-02"]
DATES = [dt.date(2020, 1, 2), dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
ZONED = pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("Europe/Berlin")

#: Columns of the levels b, a, b of one kind, in as many types as frames have.
SAME = {
    "text": [
        ["b", "a", "b"],
        np.array(["b", "a", "b"]),
        np.array([b"b", b"a", b"b"]),
        np.array(["b", "a", "b"], dtype=object),
        np.array(["b", "a", "b"], dtype=np.dtypes.StringDType()),
        [np.str_("b"), np.str_("a"), b"b"],
        pd.Series(["b", "a", "b"]),
        pd.Series(["b", "a", "b"], dtype="string"),
        pd.Series(["b", "a", "b"], dtype="category"),
        pd.Series(["b", "a", "b"], dtype="string[pyarrow]"),
        pd.Series(["b", "a", "b"], dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
        pl.Series(["b", "a", "b"]),
        pl.Series(["b", "a", "b"], dtype=pl.Categorical),
        pl.Series(["b", "a", "b"], dtype=pl.Enum(["a", "b"])),
        pl.Series([b"b", b"a", b"b"]),
        pa.array(["b", "a", "b"]),
        pa.chunked_array([["b"], ["a", "b"]]).dictionary_encode(),
    ],
    "numbers": [
        [20, 10, 20],
        np.array([20, 10, 20], dtype=np.uint8),
        np.array([20.0, 10.0, 20.0], dtype=np.float32),
        np.array([20, 10, 20], dtype=object),
        [Decimal(20), Decimal(10), Decimal("20.0")],
        pd.Series([20, 10, 20], dtype="Int64"),
        pd.Series([20, 10, 20], dtype="category"),
        pd.Series([20.0, 10.0, 20.0], dtype="float64[pyarrow]"),
        pl.Series([20, 10, 20], dtype=pl.Int16),
        pa.array([20, 10, 20]).dictionary_encode(),
    ],
    "fractions": [
        np.array([0.2, 0.1, 0.2]),
        np.array([0.2, 0.1, 0.2], dtype=np.float32),
        np.array([0.2, 0.1, 0.2], dtype=np.longdouble),
        [Decimal("0.2"), Decimal("0.1"), Decimal("0.2")],
        pd.Series(np.array([0.2, 0.1, 0.2], dtype=np.float32), dtype="category"),
        pl.Series([0.2, 0.1, 0.2], dtype=pl.Float32),
    ],
    "times": [
        DATES,
        [dt.datetime(one.year, one.month, one.day) for one in DATES],
        *(np.array(DAYS, dtype=f"datetime64[{unit}]") for unit in ("D", "h", "s", "us", "ns")),
        pd.Series(pd.to_datetime(DAYS)),
        pd.Series(pd.to_datetime(DAYS)).astype("category"),
        pd.Series(DATES, dtype=pd.ArrowDtype(pa.date32())),
        [pd.Timestamp(one) for one in DAYS],
        pl.Series(DATES),
        pl.Series(DATES).cast(pl.Datetime("ns")),
        pa.array(DATES),
    ],
    "times with a zone": [
        *(ZONED, ZONED.dt.tz_convert("UTC"), pl.from_pandas(ZONED), pa.Array.from_pandas(ZONED)),
        *(ZONED.tolist(), [one.to_pydatetime() for one in ZONED]),
    ],
    "durations": [
        [dt.timedelta(2), dt.timedelta(1), dt.timedelta(2)],
        np.array([48, 24, 48], dtype="timedelta64[h]"),
        pd.Series(pd.to_timedelta([2, 1, 2], "D")),
        pl.Series([dt.timedelta(2), dt.timedelta(1), dt.timedelta(2)]),
    ],
    "truths": [
        [True, False, True],
        np.array([1, 0, 1], dtype=bool),
        pd.Series([True, False, True], dtype="boolean"),
        pd.Series([True, False, True], dtype="bool[pyarrow]"),
        pl.Series([True, False, True]),
        pa.array([True, False, True]),
    ],
}
PAIRS = [(kind, k) for kind, columns in SAME.items() for k in range(len(columns))]


@every_case("kind, k", PAIRS)
def test_a_level_is_known_by_its_value_in_every_type(kind, k):
    """Fit and prediction, each in any type of the kind."""
    fitted = Coding(["g"], DataColumns({"g": SAME[kind][k]}))
    assert fitted.size == 2
    for column in SAME[kind]:
        assert fitted.codes(DataColumns({"g": column})).tolist() == [1, 0, 1], type(column)


@every_case("kind", [kind for kind in SAME if kind != "truths"])
def test_levels_of_another_kind_are_refused_and_other_ones_of_it_unknown(kind):
    fitted = Coding(["g"], DataColumns({"g": SAME[kind][0]}))
    own = "numbers" if kind == "fractions" else kind
    for other, columns in SAME.items():
        now = "numbers" if other in ("fractions", "truths") else other
        if now != own:
            words = f"column 'g' has levels that are {own} in the fit and {now} now"
            refuses(words, fitted.codes, DataColumns({"g": columns[0]}))
    if kind == "text":
        assert fitted.codes(DataColumns({"g": [b"c", b"a"]})).tolist() == [-1, 0]


ORDER = ["low", "mid", "high", "never"]
DECLARED = {
    "pandas": pd.Series(pd.Categorical(["high", "low", "mid"], ORDER, ordered=True)),
    "pandas, no order": pd.Series(pd.Categorical(["high", "low", "mid"], ORDER)),
    "polars": pl.Series(["high", "low", "mid"], dtype=pl.Enum(ORDER)),
    "pyarrow": pa.DictionaryArray.from_arrays([2, 0, 1], ORDER, ordered=True),
    "pandas of pyarrow": pd.Series(
        pa.DictionaryArray.from_arrays([2, 0, 1], ORDER, ordered=True),
        dtype=pd.ArrowDtype(pa.dictionary(pa.int64(), pa.string(), ordered=True)),
    ),
}


@every_case("name", list(DECLARED))
def test_declared_levels_keep_their_order(name):
    column = DECLARED[name]
    frame = DataColumns({"g": column})
    assert frame.distinct_levels("g").tolist() == ["low", "mid", "high"]
    assert categories_of(column).ordered == (name != "pandas, no order")
    coding = Coding(["g"], frame)
    assert coding.labels.tolist() == ["low", "mid", "high"]
    assert coding.codes(frame).tolist() == [2, 0, 1]
    assert Coding(["g"], frame.take(np.array([2, 0]))).labels.tolist() == ["mid", "high"]


def test_declared_levels_of_tables_keep_their_order():
    for table in (
        pd.DataFrame({"g": DECLARED["pandas"]}),
        pl.DataFrame({"g": DECLARED["polars"]}),
        pa.table({"g": DECLARED["pyarrow"]}),
    ):
        assert EncodedTable.of(columns_of(table)).levels == (("low", "mid", "high"),)
    plain = pa.table({"g": pa.array(["b", "c", "a"]).dictionary_encode()})
    assert EncodedTable.of(columns_of(plain)).levels == (("a", "b", "c"),)


def test_declared_numbers_and_days_are_levels_in_every_type():
    """What is 0.1 in single precision is 0.1 in double precision, not 0.10000000149."""
    short = pd.Series(np.array([0.1, 0.2], dtype=np.float32), dtype="category")
    table = EncodedTable.of(columns_of(pd.DataFrame({"g": short})))
    assert table.levels == ((0.1, 0.2),)
    now = columns_of(pd.DataFrame({"g": pd.Series([0.2, 0.1], dtype="category")}))
    assert table.matrix(now).ravel().tolist() == [1.0, 0.0]
    table = EncodedTable.of(columns_of(pd.DataFrame({"g": pd.Series(DATES, dtype="category")})))
    assert table.levels == (("2020-01-01", "2020-01-02"),)
    now = columns_of(pd.DataFrame({"g": pd.Series(pd.to_datetime(DAYS)).astype("category")}))
    assert table.matrix(now).ravel().tolist() == [1.0, 0.0, 1.0]


def test_what_is_declared_is_no_number():
    whole = {"g": pd.Series([1, 2, 3], dtype="category"), "x": [1, 2, 3], "when": DATES}
    frame = DataColumns(whole)
    assert [frame.is_numeric(name) for name in whole] == [False, True, True]
    np.testing.assert_array_equal(frame.numbers("when"), [18263.0, 18262.0, 18263.0])
    frame = DataColumns(pa.table({"x": [1.0, 2.0], "g": ["b", "a"]}))
    assert frame.names == ["x", "g"]
    assert frame.numbers("x").tolist() == [1.0, 2.0]
    assert frame.levels("g").tolist() == ["b", "a"]


@every_case(
    "column",
    [
        [True, None],
        ["a", None],
        ["a", float("nan")],
        [1, None],
        pd.Series([True, pd.NA], dtype="boolean"),
        pd.Series([1, pd.NA], dtype="Int64"),
        pd.Series(["a", pd.NA], dtype="string"),
        pd.Series([1, pd.NA], dtype=object),
        pd.Series([pd.Timestamp("2020"), pd.NaT]),
        pd.Categorical(["a", None]),
        pl.Series(["a", None], dtype=pl.Enum(["a"])),
        pl.Series([True, None]),
        pa.array([1, None]),
        np.array(["2020", "NaT"], dtype="datetime64[s]"),
    ],
)
def test_rows_without_a_level_are_named(column):
    with pytest.raises(InputError, match="column 'g' has no level in row 1: leave the 1 rows"):
        DataColumns({"g": column}).levels("g")


def test_missing_numbers_are_named_by_row():
    for column in (pd.Series([1, pd.NA], dtype="Int64"), [1.0, None], np.array([1, None])):
        refuses("column 'x' has nan in row 1", DataColumns({"x": column}).numbers, "x")


def test_levels_of_several_kinds_have_an_order_that_rows_do_not_change():
    mixed = ["b", 2, "a", 1]
    assert sorted_levels(mixed).tolist() == [1, 2, "a", "b"]
    assert sorted_levels(mixed[::-1]).tolist() == [1, 2, "a", "b"]
    found = numbers_of(np.array([1, "b"], dtype=object), sorted_levels(mixed), "g")
    assert found.tolist() == [0, 3]


def test_keys_of_single_levels():
    night = dt.datetime(2020, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert level_key(night) == level_key(pd.Timestamp("2020-01-01", tz="UTC"))
    assert level_key(night) != level_key(dt.datetime(2020, 1, 1))
    assert level_key(np.datetime64("2020-02")) == level_key(dt.date(2020, 2, 1))
    assert level_key(np.datetime64("1500-01-01")) == level_key(dt.date(1500, 1, 1))
    assert level_key((np.int64(1), b"a")) == (1, "a")
    assert level_key(b"\xff") == b"\xff"
    assert level_text(np.datetime64("2020-01-01T06:30", "ns")) == "2020-01-01T06:30:00"
    assert level_text(night) == "2020-01-01Z"
    refuses("cannot be a level", level_key, [1])


@every_case(
    "levels, values",
    [
        (np.array([-3, 2, 7]), np.array([7, -3, 2, 8, -4, 3])),
        (np.array([5]), np.array([5, 4, 6])),
        (np.array([7, -3, 2]), np.array([7, -3, 2, 8])),  # not rising
        (np.array(["a", "c"]), np.array(["c", "b", "a"])),
        (np.array([1.5, 2.0]), np.array([2.0, 1.0])),
        (np.array([0, 1], dtype=np.int8), np.array([300, 1])),
        (np.array([], dtype=int), np.array([1])),
    ],
)
def test_each_value_has_the_place_of_its_level(levels, values):
    known = levels.tolist()
    wanted = [known.index(one) if one in known else -1 for one in values.tolist()]
    assert numbers_of(values, levels).tolist() == wanted
