"""Columns of data frames of three libraries: numbers, levels, and what is refused by name."""

import datetime
import decimal
import enum

import numpy as np
import pytest

from qpruntime import InputError
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.readers import columns_of, is_frame, of_array
from tests.tools.cases import every_case, refuses

pd = pytest.importorskip("pandas")


Colour = enum.Enum("Colour", "RED BLUE")
NUMBERS = {
    "whole": ([1, 2, 4], [1.0, 2.0, 4.0]),
    "true": ([True, False, True], [1.0, 0.0, 1.0]),
    "nullable": (pd.array([1, None, 4], dtype="Int64"), [1.0, np.nan, 4.0]),
    "nullable bool": (pd.array([True, None, False], dtype="boolean"), [1.0, np.nan, 0.0]),
    "decimal": ([decimal.Decimal("1.5"), None, decimal.Decimal("NaN")], [1.5, np.nan, np.nan]),
    "objects": (pd.Series([1, pd.NA, 2.5], dtype=object), [1.0, np.nan, 2.5]),
    "nothing": ([None, None, None], [np.nan] * 3),
    "sparse": (pd.arrays.SparseArray([0.0, 0.0, 3.0]), [0.0, 0.0, 3.0]),
}
LEVELS = {
    "text": (["b", None, "a"], ["b", None, "a"]),
    "category": (pd.Categorical([3, 1, None]), [3, 1, None]),
    "numeric text, declared": (pd.Categorical(["3", "1", "3"]), ["3", "1", "3"]),
    "members": ([Colour.RED, Colour.BLUE, Colour.RED], ["RED", "BLUE", "RED"]),
    "parts": (pd.cut([1, 2, 9], [0, 5, 10]), ["(0, 5]", "(0, 5]", "(5, 10]"]),
}
REFUSED = {
    "when": (pd.to_datetime(["2020-01-01"] * 3), "holds dates or times .*days since the first"),
    "how long": (pd.to_timedelta([1, 2, 3], "D"), "holds dates or times .*GPForecaster"),
    "month": (pd.period_range("2020", periods=3, freq="M"), "holds dates or times"),
    "day": ([datetime.date(2020, 1, 1)] * 3, "holds dates or times"),
    "complex": ([1j, 2j, 3j], "holds complex128, which are neither"),
    "lists": ([[1], [2], [3]], "holds list, which are neither"),
    "read as text": (["1", "2.5", "?"], r"its values are numbers, but for '\?'"),
    "both": (["a", 1, 2], "has numbers and text, such as 'a'"),
    "infinite": ([1.0, -np.inf, 2.0], "has -infinity in row 1: put NaN"),
}


def test_numbers_and_levels_of_pandas():
    frame = pd.DataFrame({name: values for name, (values, _) in (NUMBERS | LEVELS).items()})
    found = {one.name: one for one in columns_of(frame)}
    for name, (_, expected) in NUMBERS.items():
        np.testing.assert_array_equal(found[repr(name)].numbers, expected, err_msg=name)
    for name, (_, expected) in LEVELS.items():
        assert found[repr(name)].levels == expected, name


@every_case("name", list(REFUSED))
def test_refused_by_name(name):
    values, words = REFUSED[name]
    with pytest.raises(InputError, match=f"column '{name}' .*{words}|column '{name}' {words}"):
        columns_of(pd.DataFrame({"fine": [1, 2, 3], name: values}))


def test_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "number": [1.0, None, float("nan")],
            "true": [True, None, False],
            "decimal": [decimal.Decimal("1.5"), None, decimal.Decimal(2)],
            "nothing": [None, None, None],
            "text": ["b", None, "a"],
            "enum": pl.Series(["u", None, "v"], dtype=pl.Enum(["u", "v"])),
            "category": pl.Series(["3", None, "1"], dtype=pl.Categorical),
        }
    )
    found = columns_of(frame)
    expected = [[1.0, np.nan, np.nan], [1.0, np.nan, 0.0], [1.5, np.nan, 2.0], [np.nan] * 3]
    for one, numbers in zip(found[:4], expected, strict=True):
        np.testing.assert_array_equal(one.numbers, numbers)
    levels = [["b", None, "a"], ["u", None, "v"], ["3", None, "1"]]
    assert [one.levels for one in found[4:]] == levels
    refuses("LazyFrame, which has no rows yet", is_frame, frame.lazy())
    for when in (datetime.date(2020, 1, 1), datetime.timedelta(1), datetime.time(1)):
        refuses("column 'when' holds dates or times", columns_of, pl.DataFrame({"when": [when]}))
    for nested in ([[1, 2]], [{"a": 1}], [b"a"]):
        refuses("column 'nested' holds", columns_of, pl.DataFrame({"nested": nested}))


def test_arrow():
    pa = pytest.importorskip("pyarrow")
    text = pa.array(["b", None, "a"])
    table = pa.table({"number": [1, None, 3], "text": text, "coded": text.dictionary_encode()})
    assert [is_frame(one) for one in (table, np.zeros((2, 2)), {"a": [1.0]})] == [
        True,
        False,
        False,
    ]
    number, *others = columns_of(table)
    np.testing.assert_array_equal(number.numbers, [1.0, np.nan, 3.0])
    assert [one.levels for one in others] == [["b", None, "a"]] * 2


def test_codes_and_what_stands_for_missing_numbers():
    """Codes in the order of levels, None last; the median; a column that says what was missing."""
    frame = pd.DataFrame({"x": [3.0, np.nan, 1.0, 9.0], "s": ["b", "a", None, "b"], "z": [1.0] * 4})
    columns = columns_of(frame)
    table = EncodedTable.of(columns)
    assert table.levels == (None, ("a", "b", None), None)
    assert table.categorical == (1, 3)
    assert table.words == ("'x'", "'s'", "'z'", "'x' missing")
    assert not table.plain
    expected = [[3, 1, 1, 0], [3, 0, 1, 1], [1, 2, 1, 0], [9, 1, 1, 0]]
    np.testing.assert_array_equal(table.matrix(columns), expected)


def test_levels_that_the_fit_has_not_seen():
    """Codes beyond, the same for the same level; a missing one counts as such a level."""
    table = EncodedTable.of(columns_of(pd.DataFrame({"s": ["b", "a"]})))
    new = columns_of(pd.DataFrame({"s": ["d", "a", None, "c", "d"]}))
    np.testing.assert_array_equal(table.matrix(new)[:, 0], [2, 0, 3, 4, 2])


def test_numbers_that_were_never_missing():
    table = EncodedTable.of(of_array(np.array([[1.0], [2.0], [7.0]]), ["0"]))
    with pytest.warns(UserWarning, match="column 0 is missing in 1 rows and was in none of the"):
        found = table.matrix(of_array(np.array([[np.nan], [3.0]]), ["0"]))
    np.testing.assert_array_equal(found, [[2.0], [3.0]])


@every_case(
    "then, now, words",
    [
        ([1.0, 2.0], ["a", "b"], "has numbers in the fit and text now, such as 'a'"),
        (["a", "b"], [1.0, 2.0], "has levels that are text in the fit and numbers now"),
        (pd.Categorical([1, 2]), ["a", "b"], "has levels that are numbers in the fit and text now"),
    ],
)
def test_columns_that_change_their_kind(then, now, words):
    table = EncodedTable.of(columns_of(pd.DataFrame({"s": then})))
    refuses(f"column 's' {words}", table.matrix, columns_of(pd.DataFrame({"s": now})))
