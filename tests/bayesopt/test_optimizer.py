"""`Optimizer`: what it finds, its bookkeeping, its files, and what it refuses."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern

from qpruntime import ConvergenceWarning, NumericalError
from qpruntime.bayesopt import (
    Optimizer,
    Surrogate,
    acquisition,
    condition,
    gains,
    sample_minimisers,
)
from tests.tools.cases import refuses
from tests.tools.commands import python


def gramacy(x):
    c1 = x[0] + 2 * x[1] + 0.5 * np.sin(2 * np.pi * (x[0] ** 2 - 2 * x[1])) - 1.5
    return x[0] + x[1], [c1, 1.5 - x[0] ** 2 - x[1] ** 2]


def steps(opt, count, problem=gramacy, **options):
    found = []
    for _ in range(count):
        x = opt.ask(**options)
        f, c = problem(x)
        opt.tell(x, f=f, c=c)
        found.append(x)
    return np.array(found)


@pytest.mark.slow
def test_gramacy_and_a_file_that_goes_on(tmp_path):
    """The whole loop; after a reload from the file, the next points are the same."""
    opt = Optimizer([(0, 1)] * 2, constraints=2, noise=0.0, random_state=1, path=tmp_path / "run")
    refuses("nothing is observed", opt.recommend)
    steps(opt, 8)
    again = Optimizer.load(tmp_path / "run")
    np.testing.assert_array_equal(steps(opt, 3), steps(again, 3))
    assert opt.columns() == again.columns()
    steps(opt, 4)
    x = opt.recommend()
    f, c = gramacy(x)
    # The bar at 15 evaluations, which is a median of seeds, is .0015.
    assert abs(f - 0.5997880) < 0.005
    assert min(c) > -1e-3
    assert opt.probability([x])[0] >= 0.95 - 1e-6
    mean, std = opt.predict([x])
    assert abs(mean[0, 0] - f) < 0.01
    assert mean.shape == std.shape == (3, 1)


def test_units_of_the_box_do_not_matter():
    """A box of width 1e-9 at one end, 1e9 at the other, values of 1e6: the same search."""
    low, width = np.array([5.0, -3e8]), np.array([1e-9, 1e9])
    plain = Optimizer([(0, 1)] * 2, 1, noise=0.0, random_state=2, n_samples=3)
    far = Optimizer(np.column_stack([low, low + width]), 1, noise=0.0, random_state=2, n_samples=3)

    def problem(u):
        return (u[0] - 0.3) ** 2 + u[1], [u[0] + u[1] - 0.6]

    wide = far.high - far.low
    for _ in range(7):
        u, x = plain.ask(), far.ask()
        f, c = problem(u)
        plain.tell(u, f=f, c=c)
        # 5 + 1e-9 u holds six digits of u: the far search is told what was asked near by.
        np.testing.assert_allclose((x - far.low) / wide, u, atol=2e-3)
        far.tell(x, f=1e6 * f, c=[1e-4 * v for v in c])
    np.testing.assert_allclose((far.recommend() - low) / wide, plain.recommend(), atol=0.05)


def test_pending_batches_and_decoupled():
    opt = Optimizer([(0, 1)] * 2, 2, noise=0.0, random_state=3, n_samples=4)
    steps(opt, 5)
    X = opt.ask(3)
    assert X.shape == (3, 2)
    assert len(opt.pending) == 3
    # What is awaited is imagined: differently in every sample, and nothing is to be gained there.
    posts = opt._knowledge(None, np.random.default_rng(0)).given.posts
    values = np.array([post.frame.surrogates[0].y[-3:] for post in posts])
    assert np.all(values.std(axis=0) > 0.0)
    for post in posts:
        assert len(post.points) == 8
        assert np.all(post.frame.base(X).variance[0] < 1e-6)
    x, which = opt.ask(decoupled=True, cost=[1e9, 1.0, 1e9])
    assert which == 1
    opt.tell(x, c=[gramacy(x)[1][0], np.nan])
    assert len(opt.pending) == 3
    for x in X:
        f, c = gramacy(x)
        opt.tell(x, f=f)
        opt.tell(x, c=c)
    assert not opt.pending
    assert len(opt.columns()["id"]) == 9
    free = Optimizer([(0, 1)] * 2, 2, noise=0.0, random_state=3, n_samples=2, n_initial=2)
    asked = []
    for _ in range(6):
        x, j = free.ask(decoupled=True)
        asked.append(j)
        values = [gramacy(x)[0], *gramacy(x)[1]]
        c = [v if k == j else np.nan for k, v in enumerate(values[1:], 1)]
        free.tell(x, f=values[0] if j == 0 else None, c=c)
    assert asked == [0, 1, 2, 0, 1, 2]


@pytest.mark.slow
def test_no_constraints_and_other_models():
    """Plain predictive entropy search, drawn hyper-parameters, QP, kernels that are given."""
    for options in (
        {"hyper": 2},
        {"method": "qp", "n_samples": 2},
        {"kernel": 1.0 * RBF(0.3)},
        {"kernel": "matern", "noise": None},
    ):
        opt = Optimizer([(-2.0, 3.0)], random_state=0, **{"n_samples": 4, "noise": 0.0, **options})
        for _ in range(9):
            x = opt.ask()
            opt.tell(x, f=(x[0] - 0.7) ** 2)
        # At a thousandth of the spread of f the place is open by a twentieth.
        assert abs(opt.recommend()[0] - 0.7) < 0.1, options


def test_samples_that_do_not_settle_are_said_and_change_nothing(monkeypatch):
    """With a limit of one iteration none settles; as an error, the call leaves nothing behind."""
    pair = [Optimizer([(0, 1)] * 2, 2, noise=0.0, random_state=1, n_samples=4) for _ in range(2)]
    for opt in pair:
        steps(opt, 5)
    before = pair[0].columns()
    with monkeypatch.context() as patch:
        patch.setattr(acquisition, "_ITERATIONS", 1)
        words = "4 of 4 samples of the minimiser had not settled after 1 iterations"
        refuses(words, pair[0].ask, 2, error=ConvergenceWarning)
        assert pair[0].columns() == before
        assert not pair[0].pending
    np.testing.assert_array_equal(*(opt.ask() for opt in pair))
    acquisition.complain(2, 4)  # half of them is not most
    with pytest.warns(ConvergenceWarning, match="noise=None"):
        acquisition.complain(3, 4)


@pytest.mark.slow
def test_without_a_feasible_point():
    """Nothing is feasible: the recommendation is where that is least sure."""
    opt = Optimizer([(0, 1)], 1, noise=0.0, random_state=0, n_samples=2)
    for _ in range(7):
        x = opt.ask()
        opt.tell(x, f=x[0], c=[-1.0 - (x[0] - 0.4) ** 2])
    assert opt.probability([[0.4]])[0] < 0.05
    c = opt.surrogates()[1]
    mean, variance = c.predict(np.vstack([opt.recommend(), np.linspace(0.0, 1.0, 101)[:, None]]))
    odds = mean / np.sqrt(np.maximum(variance, 1e-6 * c.scale))
    assert odds[0] >= odds.max() - 1e-3 * abs(odds.max())


def test_telling_twice_is_telling_once(tmp_path):
    opt = Optimizer([(0, 1)], 1, random_state=0)
    for given in ({"c": [2.0]}, {"c": [2.0]}, {}):
        opt.tell([0.25], f=1.0, id="a", **given)
    assert opt.columns() == {"id": ["a"], "x0": [0.25], "f": [1.0], "c1": [2.0], "awaited": [""]}
    for wrong in ({"f": 1.5}, {"c": [0.0]}):
        refuses("an id of its own", opt.tell, [0.25], **wrong, id="a")
    refuses("belongs to the point", opt.tell, [0.5], f=1.0, id="a")
    opt.tell([0.25], f=1.5)  # a repeated measurement
    assert len(opt.columns()["id"]) == 2
    assert isinstance(opt.to_dataframe(), pytest.importorskip("pandas").DataFrame)
    opt.save(tmp_path / "a")
    (tmp_path / "b").write_text((tmp_path / "a").read_text()[:-20])
    refuses("no saved optimisation, or damaged", Optimizer.load, tmp_path / "b")
    refuses("cannot be read: No such file", Optimizer.load, tmp_path / "c")
    refuses("cannot be read: Is a directory", Optimizer.load, tmp_path)
    refuses("same kernel", Optimizer.load, tmp_path / "a", kernel=RBF())


# Imports once; every run is a child of it, which dies at the given write.
KILLED = """
import json, os, sys
from qpruntime.bayesopt import Optimizer, persistence as saved

def dying(name, limit):
    whole = getattr(os, name)
    def call(*args):
        global calls
        calls += 1
        if calls == limit:
            os._exit(9)
        return whole(*args)
    return call

def run(path, limit):
    os.fsync, os.replace = dying("fsync", limit), dying("replace", limit)
    try:
        opt = Optimizer.load(path, keep=True)
    except Exception:
        opt = Optimizer([(0, 1)], n_initial=50, random_state=0, path=path)
    while len(opt.columns()["id"]) < 4 or opt.pending:
        for x in list(opt.pending.values()) or [opt.ask()]:
            opt.tell(x, f=float(x[0]))

calls = 0
for path, limit in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(path, limit)
            code = 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if os.path.exists(path):
        assert saved.read_json(path)["format"]
"""


def test_a_file_is_not_lost_and_a_failed_write_changes_nothing(tmp_path):
    path = tmp_path / "folder" / "run"
    path.parent.mkdir()
    opt = Optimizer([(0, 1)], random_state=0, path=path)
    x = opt.ask()
    refuses(r"exists: Optimizer.load\(path, keep=True\)", Optimizer, [(0, 1)], path=path)
    before = opt.columns()
    path.unlink()
    path.parent.rmdir()
    for call in (
        lambda: opt.tell(x, f=1.0),
        lambda: opt.tell([0.3], f=1.0),
        lambda: opt.expect([0.5]),
        lambda: opt.forget("0"),
        opt.ask,
    ):
        refuses("cannot be written", call)
        assert str(opt.columns()) == str(before)
    path.parent.mkdir()
    opt.tell(x, f=1.0)
    assert Optimizer.load(path).columns() == opt.columns()


@pytest.mark.slow
def test_killed_between_any_two_calls(tmp_path):
    """Killed at every write in turn, the run goes on to the same table."""
    limits, never = range(1, 7), 10**6
    paths = {limit: str(tmp_path / f"run{limit}") for limit in (*limits, never)}
    runs = [(paths[limit], attempt) for limit in limits for attempt in (limit, never)]
    runs.append((paths[never], never))
    done = python("-c", KILLED, json.dumps(runs))
    assert done.stdout.split() == ["9", "0"] * len(limits) + ["0"], done.stderr
    tables = [json.loads(Path(path).read_text())["evaluations"] for path in paths.values()]
    assert len(tables[-1]) == 4
    assert all(table == tables[-1] for table in tables)


def test_what_is_refused():
    for options, words in [
        ({"bounds": [(0, 0)]}, "below"),
        ({"bounds": [(1, 0)]}, "below"),
        ({"bounds": [(0, np.inf)]}, "finite"),
        ({"bounds": [0, 1]}, "pairs"),
        ({"bounds": []}, "pairs"),
        ({"constraints": -1}, "constraints"),
        ({"n_samples": 0}, "n_samples"),
        ({"noise": -1.0}, "negative"),
        ({"kernel": DotProduct()}, "spectrum"),
        ({"kernel": "cubic"}, "kernel"),
        ({"noise": [0.0, 0.0]}, "list of 1"),
        ({"method": "vb"}, "method"),
        ({"n_initial": 0}, "n_initial"),
        ({"hyper": -1}, "hyper"),
    ]:
        refuses(words, Optimizer, **{"bounds": [(0, 1)]} | options)
    opt = Optimizer([(0, 1)], 1, random_state=0)
    for x, options, words in [
        ([2.0], {"f": 1.0}, "outside its bounds"),
        ([np.nan], {}, "finite"),
        ([0.1, 0.2], {}, "shape"),
        ([0.1], {"f": np.inf}, "1e100"),
        ([0.1], {"c": [1.0, 2.0]}, "one value a constraint"),
        ([0.1], {"f": "much"}, "f must be"),
    ]:
        refuses(words, opt.tell, x, **options)
    for options, words in [
        ({"cost": [0.0, 1.0]}, "positive"),
        ({"cost": [1.0]}, "shape"),
        ({"n": 0}, "n must"),
    ]:
        refuses(words, opt.ask, **options)
    refuses("no evaluation", opt.forget, "x")
    assert opt.columns()["id"] == []


@pytest.mark.parametrize("maximise", [False, True])
def test_the_best_evaluated_point_met_its_constraints(maximise):
    sign = -1.0 if maximise else 1.0
    opt = Optimizer([(0, 4)], constraints=2, maximise=maximise, random_state=0)
    assert opt.best_evaluated() is None
    opt.tell([1.2], c=[1.0, 1.0])
    for x, f, c in ((0.5, -9.0, [1.0, -1e-9]), (1.0, -8.0, [1.0, None])):
        opt.tell([x], f=sign * f, c=c)
        assert opt.best_evaluated() is None
    for x, f, c in ((1.5, 0.3, [1.0, 1.0]), (2.0, 0.1, [0.0, 0.0]), (3.0, 0.2, [1.0, 1.0])):
        opt.tell([x], f=sign * f, c=c)
    point, value = opt.best_evaluated()
    np.testing.assert_array_equal(point, [2.0])
    assert value == sign * 0.1


def attempt(seed):
    """One problem: duplicates, one point, x at x*, contradictions without noise; how it ends."""
    rng = np.random.default_rng(seed)
    d, K = int(rng.integers(1, 4)), int(rng.integers(0, 4))
    scale = 10.0 ** rng.uniform(-6, 6)
    width = 10.0 ** rng.uniform(-9, 9)
    low = width * rng.choice([0.0, -0.5, 3.0], d)
    shared = low + width * rng.random((int(rng.integers(1, 12)), d))
    surrogates = []
    for _ in range(K + 1):
        X = shared
        if rng.random() < 0.3:
            X = X[rng.integers(0, len(X), len(X))]  # duplicates, with values that contradict
        if rng.random() < 0.2:
            X = X[:0]
        y = scale * rng.standard_normal(len(X)) * 10.0 ** rng.uniform(-2, 2)
        length = width * 10.0 ** rng.uniform(-2, 2)
        kernel = scale**2 * (RBF(length) if rng.random() < 0.5 else Matern(length, nu=2.5))
        noise = 0.0 if rng.random() < 0.5 else scale**2 * 10.0 ** rng.uniform(-6, 2)
        surrogates.append(Surrogate(kernel, X, y, noise, scale * rng.normal()))
    star = shared[0] if rng.random() < 0.3 else low + width * rng.random(d)
    bounds = np.column_stack([low, low + width])
    method = "ep" if rng.random() < 0.9 else "qp"
    try:
        drawn = sample_minimisers(surrogates, bounds, 2, features=50, random_state=seed)
        posts = [condition(surrogates, x, method) for x in (star, drawn.X_star[0])]
        X = np.vstack([star[None], shared[:2], low + width * rng.random((4, d))])
        results = [gains(surrogates, posts, X), *(v for p in posts for v in p.predict(X))]
    except NumericalError:
        return "refused"
    assert np.all((drawn.X_star >= low) & (drawn.X_star <= low + width)), seed
    for found in results:
        assert np.isfinite(found).all(), seed
    assert all((post.predict(X)[1] > 0.0).all() for post in posts), seed
    return "ok"


@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 2060), marks=pytest.mark.slow)]
)
def test_never_nan(seeds):
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        ends = [attempt(seed) for seed in seeds]
    # Nothing but a kernel that no jitter makes definite may be refused.
    assert ends.count("ok") >= 0.98 * len(ends)


def test_optimisers_of_any_data():
    """Constants, copies, contradictions, failures and boxes of all widths."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        width = 10.0 ** rng.uniform(-9, 9)
        opt = Optimizer([(0.0, width)] * 2, 1, n_samples=2, random_state=seed)
        size = 10.0 ** rng.uniform(-8, 8)
        for n in range(7):
            x = opt.ask() if n % 3 else width * np.array([0.5, 0.5])
            f = size if seed % 2 else size * rng.normal()
            opt.tell(x, f=np.nan if n == 4 else f, c=[size * (rng.normal() - seed % 3)], id=n)
        assert np.isfinite(opt.ask()).all()
        assert np.all((opt.recommend() >= 0.0) & (opt.recommend() <= width))
        assert np.isfinite(opt.predict([[0.3 * width, 0.1 * width]])).all()
