"""Times of every kind as steps, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from qpruntime.forecasting import GPForecaster
from qpruntime.forecasting.calendar import StepClock
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.structure import Structure
from tests.tools.cases import every_case, refuses

pandas = pytest.importorskip("pandas")

ZONE, FORTNIGHT = "Europe/Berlin", pandas.Timedelta(days=14)
HOURS = (24.0, 168.0, 8765.82)


@every_case(
    "index, steps, calendar",
    [
        (pandas.date_range("2015-01-31", periods=30, freq="ME"), range(30), (12.0,)),
        # A day of two steps repeats nothing.
        (pandas.date_range("2015-01-01", periods=60, freq="12h"), range(60), (14.0, 730.485)),
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
    clock = StepClock.of(index)
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
    wanted = np.array(list(steps))[mixed]
    np.testing.assert_allclose(StepClock.of(own).steps(own), wanted, atol=1e-12)


def test_times_without_a_step_have_their_median_gap():
    times = np.cumsum([0.0, 0.1037, 1.3, 1.1, 0.9, 1.0])
    assert StepClock.of(times).step == pytest.approx(1.0)
    # Dates between two months.
    months = StepClock.of(np.array(["2020-01", "2020-02", "2020-05"], dtype="datetime64[D]"))
    assert months.steps(np.array(["2020-03-16T12:00"], dtype="datetime64[m]"))[0] == 2.5


def test_lists_of_periods_and_times_that_are_refused():
    twice = np.datetime64("2020-01-01") + np.array([0, 1, 2, 1])
    refuses("times number 1 and 3 are both 2020-01-02", StepClock.of, twice)
    refuses("at least 3 times, got 2", StepClock.of, [1.0, 2.0])
    refuses("of text make dates", StepClock.of, ["a", "b", "c"])
    periods = pandas.period_range("2015-01", periods=30, freq="M")
    assert StepClock.of(list(periods)) == StepClock.of(periods)
    masked = np.ma.array([0.0, 1.0, 99.0, 3.0], mask=[0, 0, 1, 0])
    refuses("times has masked entries", StepClock.of, masked)


def zoned(start, count, step):
    """Times `step` apart of UTC, by the clock in Berlin, from the standard library alone."""
    begun = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(ZONE)).astimezone(UTC)
    return [(begun + k * step).astimezone(ZoneInfo(ZONE)) for k in range(count)]


@every_case(
    "start, step",
    [
        # Clocks are put forward on 2024-03-31 and back on 2024-10-27.
        ("2024-03-29T00:00", timedelta(hours=1)),
        ("2024-03-29T00:00", timedelta(minutes=15)),
        ("2024-10-25T00:00", timedelta(hours=1)),
        ("2024-10-25T00:00", timedelta(minutes=30)),
        ("2024-03-30T00:00", timedelta(hours=6)),
    ],
)
def test_times_ahead_elapse_where_clocks_change(start, step):
    times = zoned(start, 400, step)
    for known in range(10, 390, 19):
        clock = StepClock.of(times[:known])
        last = clock.steps(times[:known]).max()
        ahead = clock.after(last, 10)
        # Before a change six hours are taken for steps of the clock on the wall.
        if step <= timedelta(hours=1) or clock.utc:
            assert [t.to_pydatetime() for t in ahead] == times[known : known + 10]
            assert ahead.is_unique
        np.testing.assert_array_equal(clock.steps_after(last, 10), clock.steps(ahead))


def test_the_first_of_two_equal_hours_is_of_summer_time():
    # The last time of the fit is 02:00 in summer time; an hour later it is 02:00 again.
    times = zoned("2024-10-25T00:00", 60, timedelta(hours=1))
    known = next(k for k, t in enumerate(times) if (t.day, t.hour) == (27, 2)) + 1
    clock = StepClock.of(times[:known])
    assert not clock.utc
    last = clock.steps(times[:known]).max()
    assert [t.to_pydatetime() for t in clock.after(last, 3)] == times[known : known + 3]
    assert clock.at(np.array([last]))[0].utcoffset() == timedelta(hours=2)
    assert clock.steps_after(last, 3).tolist() == [last, last + 1.0, last + 2.0]


@every_case("start", ["2024-03-29T00:00", "2024-10-25T00:00"])
@every_case("step", [timedelta(hours=1), timedelta(minutes=30)])
def test_seasons_of_repeated_hours_follow_the_clock_on_the_wall(start, step):
    times = zoned(start, 400, step)
    clock, day = StepClock.of(times), timedelta(days=1) / step
    hours = [(t.hour + t.minute / 60.0) * timedelta(hours=1) / step for t in times]
    steps = clock.steps(times)
    np.testing.assert_array_equal(clock.wall_steps(steps) % day, hours)
    # In October steps are those of UTC, which tell the two equal hours apart.
    assert clock.utc == (start == "2024-10-25T00:00")
    assert np.unique(steps).size == 400
    structure = Structure((day,), (), "none", False, "poisson", Scale(), clock=clock)
    columns = structure.columns(steps, None, None)
    np.testing.assert_array_equal(columns[f"season {day:g}"], hours)
    if not clock.utc:  # steps to come as well
        known = StepClock.of(times[:40])
        ahead = known.steps_after(known.steps(times[:40]).max(), 100)
        np.testing.assert_array_equal(ahead % day, hours[40:140])


def test_forecasts_after_a_repeated_hour_have_the_hours_of_the_wall():
    times = zoned("2024-10-22T00:00", 240, timedelta(hours=1))
    shops = np.array([60.0 if 9 <= t.hour < 18 else 6.0 for t in times])
    y = np.random.default_rng(0).poisson(shops)
    bare = {"trend": "level", "noise": False, "drift": False, "integrate": "mode"}
    model = GPForecaster(seasons=[24], **bare).fit(y[:192], index=times[:192])
    assert model.clock_.utc
    np.testing.assert_allclose(np.log(model.predict(48)), np.log(shops[192:]), atol=0.6)


@every_case("start", ["2024-03-29T00:00", "2024-10-25T00:00"])
def test_times_of_another_zone_are_the_same_instants(start):
    times = zoned(start, 80, timedelta(hours=1))
    local = pandas.DatetimeIndex(times)
    clock = StepClock.of(local)
    wanted = clock.steps(local)
    for other in ("UTC", "America/New_York"):
        moved = local.tz_convert(other)
        np.testing.assert_array_equal(clock.steps(moved), wanted)
        np.testing.assert_array_equal(clock.steps(pandas.Series(moved)), wanted)
        np.testing.assert_array_equal(clock.steps(moved.to_pydatetime().tolist()), wanted)
    # Without a zone they are what the clock shows.
    np.testing.assert_array_equal(clock.steps(local[:20].tz_localize(None)), wanted[:20])
    plain, words = StepClock.of(local[:20].tz_localize(None)), "time zone UTC, and those of the fit"
    refuses(f"{words} have none", plain.steps, local[:20].tz_convert("UTC"))


def test_zoned_times_of_lists_and_polars_keep_their_zone():
    times = zoned("2024-03-29T00:00", 30, timedelta(days=1))
    for given in (times, np.array(times, dtype=object), [pandas.Timestamp(t) for t in times]):
        assert StepClock.of(given).zone == ZONE
        assert StepClock.of(given) == StepClock.of(pandas.DatetimeIndex(times))
    # Offsets that differ are no clock, but instants.
    fixed = [t.astimezone(timezone(t.utcoffset())) for t in times]
    assert StepClock.of(fixed).zone == "UTC"
    mixed = [times[0], times[1].replace(tzinfo=None), times[2]]
    refuses("time number 1 has no time zone", StepClock.of, mixed)
    polars = pytest.importorskip("polars")
    column = polars.Series(times, dtype=polars.Datetime("us", ZONE))
    assert StepClock.of(column) == StepClock.of(pandas.DatetimeIndex(times))


@every_case("time", ["12:00:00", "23:59:59", "23:59:59.999999"])
@every_case("freq", ["ME", "QE", "MS", "B"])
def test_months_and_working_days_keep_their_time_of_day(time, freq):
    index = pandas.date_range("2015-01-31", periods=40, freq=freq) + pandas.Timedelta(time)
    clock = StepClock.of(index[:30])
    assert clock.kind == ("working days" if freq == "B" else "months")
    np.testing.assert_array_equal(clock.steps(index), np.arange(40.0))
    assert list(pandas.Index(clock.after(29.0, 10))) == list(index[30:])
