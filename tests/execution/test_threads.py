"""Threads of the BLAS and of our own: limits that nest, results in order, failures, quotas."""

import os
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern
from threadpoolctl import threadpool_info, threadpool_limits

from qpruntime import GPClassifier, Search, _memory, infer, infer_series, infer_sparse
from qpruntime.bayesopt import Optimizer
from qpruntime.execution import threads as module
from qpruntime.execution.threads import (
    BlasThreads,
    Stop,
    Threads,
    blas_threads,
    cores,
    hands,
    one_blas_thread,
    run,
    sized,
    thread_count,
)
from tests.tools.cases import every_case, refuses
from tests.tools.commands import python

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 2))
Y = np.where(X[:, 0] > 0.0, 1.0, -1.0)


def in_force():
    """Threads of every BLAS library; there are two, NumPy's and SciPy's."""
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def three():
    """Three threads, whatever the machine has: OpenBLAS makes them."""
    with threadpool_limits(3, "blas"):
        assert in_force() == {3}
        yield
        assert in_force() == {3}, "not given back"


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 8)


class Spy(RBF):
    """A kernel that notes how many threads there are where it is evaluated."""

    seen: list = []  # noqa: RUF012  of the class: kernels are cloned

    def __call__(self, X, Y=None, eval_gradient=False):
        self.seen.append(in_force())
        return super().__call__(X, Y, eval_gradient)


def test_hands_by_the_size(many):
    # Up to 600 rows one; then two or one for 500 rows, as long as there are cores.
    for n, most in [(1, 1), (400, 1), (600, 1), (601, 2), (1000, 2), (1600, 3), (9000, 3)]:
        with blas_threads(n):
            assert (in_force(), hands()) == ({1}, most), n
    with threadpool_limits(1, "blas"), blas_threads(9000):
        assert hands() == 1, "what the user has limited"
    with threadpool_limits(12, "blas"):
        for n, callers, most in [(2000, 1, 4), (9000, 1, 8), (9000, 2, 4), (9000, 20, 1)]:
            with blas_threads(n, callers), blas_threads(n, callers):
                assert (in_force(), hands()) == ({1}, most)
    assert hands() == 1


def test_cores_and_threads_are_those_of_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    for quota, found in [(np.inf, 6), (2.5, 2), (0.3, 1), (9.0, 6)]:
        monkeypatch.setattr(module, "_quota", lambda quota=quota: quota)
        assert cores() == found
    monkeypatch.setattr(module, "_quota", lambda: 3.0)
    assert (thread_count(None), thread_count(5)) == (3, 5)
    refuses("workers must be at least 1, got 0", thread_count, 0)


@every_case("caught", [None, KeyError])
def test_limits_nest_and_are_given_back(many, caught):
    try:
        with BlasThreads(2, 4):
            assert (in_force(), hands()) == ({2}, 3)
            with one_blas_thread():
                assert (in_force(), hands()) == ({1}, 1)
                with BlasThreads(9, 2):
                    assert (in_force(), hands()) == ({1}, 2), "the least of all holds"
                assert (in_force(), hands()) == ({1}, 1)
                if caught:
                    raise caught
            assert (in_force(), hands()) == ({2}, 3)
    except KeyError:
        pass
    assert (in_force(), hands()) == ({3}, 1)


def test_what_is_set_meanwhile_is_left(many):
    with BlasThreads(2):
        with threadpool_limits(1, "blas"):
            with BlasThreads(9):
                assert in_force() == {1}
            assert in_force() == {1}
        assert in_force() == {2}
    # Lowered below what is set meanwhile, and raised to that again.
    with BlasThreads(9):
        with threadpool_limits(2, "blas"):
            with one_blas_thread():
                assert in_force() == {1}
            assert in_force() == {2}
        assert in_force() == {3}


def test_limits_of_concurrent_calls_do_not_fight(many):
    small, large, over = threading.Event(), threading.Event(), threading.Event()

    def first():
        with one_blas_thread():
            small.set()
            large.wait(10.0)
        over.set()

    other = threading.Thread(target=first)
    other.start()
    assert small.wait(10.0)
    with BlasThreads(2):
        assert in_force() == {1}
        large.set()
        assert over.wait(10.0)
        other.join()
        assert in_force() == {2}

    # Many threads at once: the count comes out even.
    def often():
        for n in range(50):
            with BlasThreads(n + 1):
                pass

    pool = [threading.Thread(target=often) for _ in range(8)]
    for one in pool:
        one.start()
    for one in pool:
        one.join()


def test_decorated_functions_keep_their_names_and_what_they_raise():
    @sized(lambda n: n)
    def fails(n):
        """Words."""
        assert in_force() == {1}
        raise KeyError(n)

    assert (fails.__name__, fails.__doc__) == ("fails", "Words.")
    with pytest.raises(KeyError):
        fails(5)


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
def test_public_calls_have_one_thread_at_small_sizes():
    seen, counts = [], [0]
    Spy.seen, kernel = seen, Spy(1.0)
    model = GPClassifier(kernel, optimize=Search(max_iter=2), method="ep").fit(X, Y)
    counts.append(len(seen))
    model.predict(X)
    counts.append(len(seen))
    post = infer_sparse(X, Y, kernel, X[:5], method="ep")
    counts.append(len(seen))
    post.predict(X)
    assert (np.diff([*counts, len(seen)]) > 0).all()
    model = GPClassifier(kernel, inducing=4, optimize=Search(max_iter=2)).fit(X, Y)
    model.predict_proba(X)
    assert {tuple(one) for one in seen} == {(1,)}


def test_inference_and_what_follows_have_one_thread(monkeypatch):
    seen = {}

    def spying(room, name, label):
        inner = getattr(room, name)

        def spied(*args, **options):
            seen.setdefault(label, set()).update(in_force())
            return inner(*args, **options)

        monkeypatch.setattr(room, name, spied)

    from qpruntime.bayesopt.surrogate import Models
    from qpruntime.effects import EffectsModel, Groups
    from qpruntime.effects.objective import Assembly
    from qpruntime.forecasting import GPForecaster
    from qpruntime.forecasting.calendar import StepClock
    from qpruntime.inference.corrections.corrected import Corrected
    from qpruntime.inference.dense.solver import CholeskyFactor, Triangle
    from qpruntime.inference.markov import infer as series

    room = sys.modules["qpruntime.inference.infer"]
    spying(room, "covariance", "covariance")
    spying(CholeskyFactor, "__init__", "infer")
    spying(Triangle, "reduction", "predict")
    spying(Corrected, "marginals", "marginals")
    spying(series, "concluded", "series")
    spying(Models, "groups", "optimiser")
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    post = infer(K, Y, method="ep")
    post.predict(K[:3], np.ones(3))
    post.marginals()
    infer_series(X[:, 0], Y, Matern(1.0, nu=0.5))
    opt = Optimizer([(0.0, 1.0)], n_initial=1, n_samples=1, random_state=0)
    opt.tell([0.3], 1.0)
    opt.tell([0.6], 0.5)
    opt.ask()
    spying(Assembly, "columns", "effects")
    spying(StepClock, "__init__", "forecasts")
    data = {"g": np.arange(len(Y)) % 7}
    EffectsModel([Groups("g")], integrate="mode").fit(data, Y > 0).latent(data)
    GPForecaster((), trend="none", noise=False, family="poisson").fit(np.ones(9)).predict(2)
    wanted = ("covariance", "infer", "predict", "marginals", "series", "optimiser", "effects")
    assert seen == {name: {1} for name in (*wanted, "forecasts")}


def test_a_limit_is_not_inherited_from_a_thread_that_is_not_there():
    code = """
import os, threading
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits
import scipy.linalg
from qpruntime.execution.threads import one_blas_thread
threadpool_limits(3, "blas")
begun, over = threading.Event(), threading.Event()
def work():
    with one_blas_thread():
        begun.set()
        over.wait(20)
thread = threading.Thread(target=work)
thread.start()
begun.wait(20)
child = os.fork()
if child == 0:
    there = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
    with one_blas_thread():
        pass
    os._exit(0 if there == {3} else 1)
over.set()
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    python("-W", "ignore", "-c", code)


def groups(tmp_path, monkeypatch, membership, **files):
    """Files as the kernel has them, with "/" for "__" in their names."""
    monkeypatch.setattr(_memory, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(_memory, "_MOUNT", tmp_path / "fs")
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_quota_of_either_version(tmp_path, monkeypatch):
    assert _memory.cpu_quota() > 0.0
    both = {"cpu.max": "300000 100000\n", "pod/cpu.max": "max 100000\n"}
    groups(tmp_path / "a", monkeypatch, "0::/pod\n", **both)
    assert _memory.cpu_quota() == 3.0
    own = {"pod/job/cpu.max": "50000 100000\n"}
    groups(tmp_path / "b", monkeypatch, "0::/pod/job\n", **both, **own)
    assert _memory.cpu_quota() == 0.5
    old = {"cpu,cpuacct/cpu.cfs_quota_us": "150000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    groups(tmp_path / "c", monkeypatch, "4:cpu,cpuacct:/docker/abc\n3:memory:/x\n0::/\n", **old)
    assert _memory.cpu_quota() == 1.5, "of the host's path only the root is seen"
    old["cpu,cpuacct/cpu.cfs_quota_us"] = "-1\n"
    groups(tmp_path / "c", monkeypatch, "4:cpu,cpuacct:/docker/abc\n", **old)
    assert _memory.cpu_quota() == np.inf
    groups(tmp_path / "d", monkeypatch, "")
    assert _memory.cpu_quota() == np.inf


@every_case("where", ["hands", "apply"])
def test_an_interruption_of_the_beginning_leaves_no_limit_behind(many, monkeypatch, where):
    """Later calls have what there is then, not what there was in the one that was interrupted."""

    def interrupted(*_):
        monkeypatch.undo()
        monkeypatch.setattr(module, "cores", lambda: 8)
        raise KeyboardInterrupt

    room, name = (module, "set_hands") if where == "hands" else (module, "_apply")
    monkeypatch.setattr(room, name, interrupted)
    with threadpool_limits(1, "blas"), pytest.raises(KeyboardInterrupt), blas_threads(9000):
        pass
    with blas_threads(9000):
        assert (in_force(), hands()) == ({1}, 3)
    assert hands() == 1


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_results_keep_the_order_of_items(workers, count):
    assert run(lambda x: x * x, range(count), workers) == [x * x for x in range(count)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_drops_what_waits_and_stops_what_runs(error):
    executor, started = Threads(2), []

    def task(item):
        started.append(item)
        if item == started[0]:
            raise error("no")
        # A running call ends because it is told to, not because it is done.
        while not executor.stop():
            assert time.monotonic() < limit

    limit = time.monotonic() + 30.0
    with pytest.raises(error):
        executor.run(task, range(50))
    assert len(started) < 50


def test_calls_are_drawn_as_they_are_carried_out():
    """A plan of a million chunks must not become a list of a million tasks."""
    drawn, taken, ahead = [], [], []

    def calls():
        for i in range(200):
            drawn.append(i)
            ahead.append(len(drawn) - len(taken))
            yield str, i

    Threads(2).each(calls(), lambda number, text: taken.append((number, text)))
    assert sorted(taken) == [(i, str(i)) for i in range(200)]
    assert max(ahead) <= 7


def test_progress_counts_up_and_a_stop_does_not_travel():
    seen = []
    assert Threads(3).run(abs, [-1, 2, -3], lambda *a: seen.append(a)) == [1, 2, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    stop = Stop()
    stop.set()
    assert stop()
    assert not pickle.loads(pickle.dumps(stop))()
