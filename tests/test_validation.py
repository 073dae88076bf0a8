"""Arguments as users write them: masks, and values as messages show them."""

import numpy as np
import pytest

from qpruntime._validation import has_masked, real, shown, unmasked
from qpruntime.dataframes.readers import DataColumns
from tests.tools.cases import refuses

MASKED = np.ma.array([1, 2, 3], mask=[False, True, False])


@pytest.mark.parametrize("value", [MASKED, [MASKED, MASKED], [1.0, np.ma.masked], (MASKED,)])
def test_masked_entries_are_found_and_refused_by_place(value):
    assert has_masked(value)
    refuses(r"y has masked entries \(\d of \d, the first at", unmasked, value, "y")
    refuses("y must be an array of real numbers: a masked array", real, value, "y")


def test_masked_entries_become_missing_values_and_empty_masks_are_dropped():
    assert np.array_equal(unmasked(MASKED, "y", missing=True), [1.0, np.nan, 3.0], equal_nan=True)
    assert MASKED.data.tolist() == [1, 2, 3]
    words = np.ma.array(["a", "b"], mask=[True, False])
    assert unmasked(words, "y", missing=True).tolist() == [None, "b"]
    days = np.ma.array(["2020-01-01", "2020-01-02"], mask=[False, True], dtype="datetime64[D]")
    assert np.isnat(unmasked(days, "y", missing=True)).tolist() == [False, True]
    plain = unmasked(np.ma.array([1.0, 2.0]), "y")
    assert type(plain) is np.ndarray
    assert plain.tolist() == [1.0, 2.0]
    given = [1, "a"]
    assert unmasked(given, "y") is given


@pytest.mark.parametrize("data", [np.ma.array([[1.0], [2.0]], mask=[[0], [1]]), {"a": MASKED}])
def test_frames_refuse_masked_columns(data):
    refuses("masked", lambda: DataColumns(data).column("a"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.str_("i0"), "'i0'"),
        ([np.str_("a"), np.float64(0.5)], "['a', 0.5]"),
        ((np.int64(3),), "(3,)"),
        (np.datetime64("2020-01-01"), "'2020-01-01'"),
        (np.longdouble(2.0), "2.0"),
    ],
)
def test_messages_show_numpy_scalars_as_python_writes_them(value, text):
    assert shown(value) == text
