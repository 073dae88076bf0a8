"""Long work is announced before, progress is shown, and the cheaper order is the default."""

import logging

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_info

from qpruntime import _duration, infer
from qpruntime.learning import progress

N = 40
X = np.random.default_rng(0).standard_normal((N, 2))
K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
Y = np.where(X[:, 0] > 0.2, 1.0, -1.0)


def large(monkeypatch, rate, beside=0.0):
    monkeypatch.setattr(_duration, "_SMALL", 10)
    monkeypatch.setattr(_duration, "_rate", lambda: rate)
    monkeypatch.setattr(_duration, "_busy", lambda: 1.0)
    monkeypatch.setattr(_duration, "_BESIDE", beside)


def test_long_inference_is_announced_once(monkeypatch, caplog):
    # 35 factorisations of 40^3 at 1e-4 seconds each are 224 s.
    large(monkeypatch, 1e-4)
    with caplog.at_level(logging.WARNING, "qpruntime"):
        infer(K, Y)
    (said,) = caplog.messages
    assert said.startswith("qpruntime: inference with N = 40 will take about 4 minutes")
    assert 'order="parallel"' in said
    caplog.clear()
    infer(K, Y, order="parallel")
    assert "2 minutes" in caplog.messages[0]
    assert "order=" not in caplog.messages[0]


def test_short_work_and_silenced_loggers_say_nothing(monkeypatch, caplog):
    infer(K, Y)
    large(monkeypatch, 1e-9)
    infer(K, Y)
    monkeypatch.setattr(_duration, "_rate", lambda: 1e-4)
    with caplog.at_level(logging.ERROR, "qpruntime"):
        infer(K, Y)
    assert not caplog.messages


def test_the_rate_is_that_of_this_machine(monkeypatch):
    # Between a supercomputer's teraflop and a megaflop, N^3 / 3 operations each.
    assert 3e-13 < _duration._rate() < 3e-7
    large(monkeypatch, 1e-11, 250.0)
    # Ten of them, faster at 5000 rows than the probe of 700 is.
    larger = (1.0 + 250 / 5000) / (1.0 + 250 / 700)
    assert _duration.expected_seconds(5000, 10.0) == pytest.approx(12.5 * larger)
    assert _duration.expected_seconds(5, 1e9) == 0.0


def test_other_processes_count_for_the_clock_and_not_for_the_rate(monkeypatch):
    # The probe takes .01 s of CPU, and .03 s or, twice, a second by the clock.
    monkeypatch.setattr(_duration, "_load", lambda: 2.0)
    clocks = iter([0.03, 1.0, 1.0, 0.03] * 5)
    monkeypatch.setattr(_duration, "_factorise", lambda: (0.01, next(clocks)))
    rate = _duration._rate.__wrapped__()
    assert rate == 0.01 / _duration._PROBE**3
    monkeypatch.setattr(_duration, "_rate", lambda: rate)
    monkeypatch.setattr(_duration, "_factorise", lambda: (0.01, 0.03))
    assert _duration._busy() == pytest.approx(3.0)
    monkeypatch.setattr(_duration, "_BESIDE", 0.0)
    work = 10.0 * rate * 5000.0**3
    assert work > 10.0
    # Threads gain nothing where there is no core for them.
    monkeypatch.setattr(_duration, "hands", lambda: 4)
    assert _duration.expected_seconds(5000, 10.0) == pytest.approx(3.0 * work)
    monkeypatch.setattr(_duration, "_factorise", lambda: (0.01, 0.01))
    assert _duration.expected_seconds(5000, 10.0) == pytest.approx(work / 2.0)


def test_the_probe_has_one_thread_and_a_busy_machine_is_looked_at_in_time(monkeypatch):
    seen = []
    monkeypatch.setattr(_duration, "dpotrf", lambda *_, **__: seen.extend(threadpool_info()))
    used, elapsed = _duration._factorise()
    assert {one["num_threads"] for one in seen if one["user_api"] == "blas"} == {1}
    assert used >= 0.0 < elapsed
    # Hardly any CPU to be had: the look ends by the clock.
    monkeypatch.setattr(_duration, "_factorise", lambda: (1e-6, 0.6))
    monkeypatch.setattr(_duration, "_load", lambda: 2.0)
    assert _duration._busy() > 1e5
    monkeypatch.setattr(_duration, "_load", lambda: 0.4)
    assert _duration._busy() == 1.0, "no look where the last minute was quiet"


def test_progress_without_a_terminal_is_lines_and_time_left(capsys):
    with progress.evaluation_reports(1, "evidence", 1) as report:
        kernel = ConstantKernel(1.0, "fixed") + 2.0 * RBF([3.0, 4.0])
        progress.named(report, kernel, ("scale",))(np.log([2.0, 3.0, 4.0, 5.0]), -1.5)
    assert capsys.readouterr().err == (
        "evidence -1.500000 at k2__k1__constant_value=2, k2__k2__length_scale[0]=3, "
        "k2__k2__length_scale[1]=4, scale=5\n"
    )
    assert progress.named(None, kernel, ()) is None
    with progress.evaluation_reports(0, "evidence", 1) as report:
        assert report is None
    usual = progress.USUAL_EVALUATIONS
    assert progress.seconds_left(usual // 2, 1, 60.0) == pytest.approx(60.0)
    assert progress.seconds_left(usual, 2, 60.0) == pytest.approx(60.0)
    assert progress.seconds_left(2 * usual, 1, 60.0) == 0.0


@pytest.mark.parametrize("rich", [True, False])
def test_progress_on_a_terminal(rich, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    if not rich:
        monkeypatch.setattr(progress, "_has_rich", lambda: False)
    with progress.evaluation_reports(1, "evidence", 2) as report:
        for _ in range(3):
            report(np.zeros(1), -2.0, ("length_scale",))
    shown = capsys.readouterr().err
    assert ("3 evaluations, evidence -2" in shown) is rich
    assert (shown.count("evidence -2.000000 at length_scale=1\n") == 3) is not rich


def test_the_default_order(monkeypatch):
    orders = {order: infer(K, Y, order=order) for order in ("sequential", "parallel")}
    np.testing.assert_array_equal(infer(K, Y).mean, orders["sequential"].mean)
    monkeypatch.setattr("qpruntime.inference.infer._PARALLEL_FROM", N)
    np.testing.assert_array_equal(infer(K, Y).mean, orders["parallel"].mean)
    # tol is 1e-6 of the sites.
    np.testing.assert_allclose(infer(K, Y).mean, orders["sequential"].mean, atol=1e-5)
    # Several fixed points: the order stays what it was.
    counts = np.random.default_rng(1).poisson(3.0, N)
    plain = infer(K, counts, "poisson", "ep", mean=1.7)
    again = infer(K, counts, "poisson", "ep", mean=1.7, order="sequential")
    np.testing.assert_array_equal(plain.mean, again.mean)
