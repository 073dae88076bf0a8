"""Times of every kind as steps, and back."""

from __future__ import annotations

import numpy as np
import pytest

from qpruntime import InputError
from qpruntime.forecasting.calendar import Clock
from tests.tools.cases import every_case

pandas = pytest.importorskip("pandas")

ZONE, FORTNIGHT = "Europe/Berlin", pandas.Timedelta(days=14)
HOURS = (24.0, 168.0, 8765.82)


@every_case(
    "index, steps, calendar",
    [
        (pandas.date_range("2015-01-31", periods=30, freq="ME"), range(30), (12.0,)),
        (pandas.date_range("2015-01-01", periods=30, freq="MS") + FORTNIGHT, range(30), (12.0,)),
        (pandas.period_range("2015-01", periods=30, freq="M"), range(30), (12.0,)),
        (pandas.Series(pandas.period_range("2015-01", periods=30, freq="M")), range(30), (12.0,)),
        (pandas.date_range("2005-01-01", periods=30, freq="QS"), range(30), (4.0,)),
        (pandas.date_range("1960-01-01", periods=30, freq="YS"), range(30), ()),
        (pandas.bdate_range("2023-01-02", periods=30), range(30), (5.0, 365.2425 / 7 * 5)),
        (pandas.date_range("2024-03-20", periods=30, tz=ZONE), range(30), (7.0, 365.2425)),
        (pandas.Series(pandas.date_range("2024-03-20", periods=30)), range(30), (7.0, 365.2425)),
        (pandas.date_range("2024-10-26", periods=30, freq="h", tz=ZONE), range(30), HOURS),
        (np.array([3, 5, 9, 11]), (0, 1, 3, 4), ()),
    ],
)
def test_steps_are_whole_and_come_back(index, steps, calendar):
    clock = Clock.of(index)
    np.testing.assert_allclose(clock.steps(index), list(steps), atol=1e-12)
    np.testing.assert_allclose(clock.calendar(), calendar, rtol=1e-12)
    begun = clock.after(-1.0, 30)
    if len(index) == 30:
        wanted = index if not hasattr(index, "dt") else pandas.Index(index)
        wanted = wanted.to_timestamp() if hasattr(wanted, "to_timestamp") else wanted
        assert list(pandas.Index(begun)) == list(wanted)
    # In any order.
    mixed = np.random.default_rng(0).permutation(len(index))
    own = index.iloc[mixed] if hasattr(index, "iloc") else index[mixed]
    np.testing.assert_allclose(Clock.of(own).steps(own), np.array(list(steps))[mixed], atol=1e-12)


def test_times_without_a_step_have_their_median_gap():
    times = np.cumsum([0.0, 0.1037, 1.3, 1.1, 0.9, 1.0])
    assert Clock.of(times).step == pytest.approx(1.0)
    # Dates between two months.
    months = Clock.of(np.array(["2020-01", "2020-02", "2020-05"], dtype="datetime64[D]"))
    assert months.steps(np.array(["2020-03-16T12:00"], dtype="datetime64[m]"))[0] == 2.5


def test_times_that_are_refused():
    with pytest.raises(InputError, match="times number 1 and 3 are both 2020-01-02"):
        Clock.of(np.datetime64("2020-01-01") + np.array([0, 1, 2, 1]))
    with pytest.raises(InputError, match="at least 3 times, got 2"):
        Clock.of([1.0, 2.0])
    with pytest.raises(InputError, match="of text make dates"):
        Clock.of(["a", "b", "c"])
