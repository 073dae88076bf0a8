"""Fits that do not end: the estimator stays as it was, and fits by inducing points go on."""

import json
import signal
import sys
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from qpruntime.inference.sparse.checkpoint import read_arrays, write_arrays
from qpruntime.inference.sparse.engine import Engine
from qpruntime.learning.sparse.objective import EvidenceSearch as Climb
from tests.tools.cases import refuses

RNG = np.random.default_rng(14)
X = np.sort(RNG.uniform(-3.0, 3.0, 14))[:, None]
OTHER = X[::-1] * [[2.0]] + 0.5
NEW = np.linspace(-4.0, 4.0, 9)[:, None]
WAVE = np.sin(2.0 * X[:, 0])
KERNEL = ConstantKernel(1.0) * RBF(1.0)
OURS = str(Path(qp.__file__).parent)

#: Per estimator: what it is fitted to first, and then to no end.
CASES = {
    "two classes": (
        qp.GPClassifier(KERNEL),
        (X, np.where(WAVE > 0.0, "spam", "ham")),
        (np.column_stack([OTHER, OTHER]), np.where(WAVE > 0.3, "dog", "cat")),
    ),
    "three classes": (
        qp.GPClassifier(KERNEL, likelihood="logistic"),
        (X, np.digitize(WAVE, [-0.5, 0.5])),
        (OTHER, np.digitize(WAVE, [-0.2, 0.4]) + 7),
    ),
    "counts": (
        qp.GPPoissonRegressor(KERNEL),
        (X, np.arange(14) // 2, np.full(14, 3.0)),
        (OTHER, np.arange(14) * 3, np.linspace(10.0, 20.0, 14)),
    ),
    "outliers": (qp.GPRobustRegressor(KERNEL), (X, WAVE), (OTHER, 1e3 * WAVE + 1e4)),
}


def state(model):
    """All that can be asked of a fitted model, or that it is not fitted."""
    new = np.repeat(NEW, getattr(model, "n_features_in_", 1), axis=1)
    try:
        found = [*model.latent(new), model.predict(new)]
    except NotFittedError:
        return NotFittedError
    if isinstance(model, qp.GPClassifier):
        found += [model.predict_log_proba(new), model.classes_]
    if isinstance(model, qp.GPPoissonRegressor):
        found += [model.exposure_, np.array(model.mean_)]
    if isinstance(model, qp.GPRobustRegressor):
        found += [model.predict_quantiles(new), model.predict_log_density(new, NEW[:, 0])]
        found += [np.array(model.scale_)]
    found.append(np.array(model.n_features_in_))
    return [array.tobytes() for array in found], sorted(vars(model))


class Stop(KeyboardInterrupt):
    """What Ctrl-C raises, told apart from a real one."""


class Broken(RBF):
    """A kernel that fails once all else has been looked at."""

    def __call__(self, X, Y=None, eval_gradient=False):
        raise ArithmeticError("no covariance")


def stop_at(evaluation):
    """A callback that does not come back from one of its calls."""
    left = iter(range(evaluation - 1))

    def callback(theta, value):
        if next(left, None) is None:
            raise Stop

    return callback


@pytest.fixture(params=[*list(CASES)[:-1], pytest.param("outliers", marks=pytest.mark.slow)])
def case(request):
    """An estimator, with its own name for every one of the data sets."""
    model, first, second = CASES[request.param]
    return type(model)(**model.get_params(deep=False)), first, second


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@pytest.mark.parametrize("restarts", [0, 2])
def test_interrupted_by_the_callback(case, restarts):
    model, first, second = case
    search = qp.Search(restarts=restarts, max_iter=4, callback=stop_at(2))
    model.set_params(optimize=search, random_state=1)
    with pytest.raises(Stop):
        model.fit(*first)
    assert state(model) is NotFittedError
    assert not [name for name in vars(model) if name.endswith("_")]
    model.set_params(optimize__callback=None).fit(*first)
    before = state(model)
    for evaluation in (1, 3):
        with pytest.raises(Stop):
            model.set_params(optimize__callback=stop_at(evaluation)).fit(*second)
        assert state(model) == before


def test_refused_or_failed_and_data_that_change_after_the_fit(case):
    model, first, second = case
    model.set_params(optimize=False).fit(*first)
    before = state(model)
    points, targets = second[:2]
    for change, arguments, error in [
        ({}, (points[:-1], targets), ValueError),
        ({}, (points, [None] * 14), ValueError),
        ({"kernel": Broken(1.0)}, second, ArithmeticError),
        ({"table": "/nowhere/table.h5"}, second, qp.TableError),
        ({"tol": -1.0}, second, qp.InputError),
        ({"max_sweeps": 1, "tol": 1e-12}, second, qp.ConvergenceWarning),
    ]:
        kept = model.get_params(deep=False)
        with pytest.raises(error):
            model.set_params(**change).fit(*arguments)
        model.set_params(**kept)
        assert state(model) == before
    with pytest.raises((qp.InputError, ValueError)):
        model.fit(points, targets, sample_weight=np.full(14, -1.0))
    assert state(model) == before
    data = [np.array(part) for part in first]
    model.fit(*data)
    for part in data:
        part[...] = part[::-1].copy()
    assert state(model) == before


def test_a_refit_forgets_all_of_the_fit_before():
    frame = pytest.importorskip("pandas").DataFrame({"speed": X[:, 0]})
    model = qp.GPClassifier(KERNEL, optimize=False).fit(frame, WAVE > 0.0)
    assert model.feature_names_in_.tolist() == ["speed"]
    model.fit(X, WAVE > 0.0)
    assert not hasattr(model, "feature_names_in_")
    refuses("one class", model.fit, frame, np.ones(14), error=ValueError)
    assert not hasattr(model, "feature_names_in_")
    assert state(model) == state(qp.GPClassifier(KERNEL, optimize=False).fit(X, WAVE > 0.0))


def ours(frame):
    # How many lines the threads of BLAS take depends on what an interrupt has left of them.
    name = frame.f_code.co_filename
    return name.startswith(OURS) and not name.endswith("threads.py")


def traced(run, stop=None):
    """Run, and raise `Stop` before a line of ours: how many it passes, and the function it was in.

    The tracer before has its place back.
    """
    passed, where, kept = 0, "", sys.gettrace()

    def local(frame, event, argument):
        nonlocal passed, where
        if event == "line":
            passed += 1
            if passed == stop:
                where = frame.f_code.co_name
                raise Stop
        return local

    sys.settrace(lambda frame, event, argument: local if ours(frame) else None)
    try:
        run()
    except Stop:
        pass
    finally:
        sys.settrace(kept)
    assert bool(where) == bool(stop)
    return passed, where


def test_interrupted_at_any_line(case):
    model, first, second = case
    model.set_params(optimize=False).fit(*second)
    after = state(model)
    model.fit(*first)
    before = state(model)
    n, _ = traced(lambda: model.fit(*second))
    model.fit(*first)
    # The very first lines and the last ones, where a fit becomes the model's, and some between.
    chosen = {*range(1, 6), *range(n - 24, n + 1), *RNG.integers(1, n, 10).tolist()}
    kept = 0
    for line in sorted(chosen):
        _, where = traced(lambda: model.fit(*second), line)
        found = state(model)
        if found == after:
            assert where in ("commit", "fit")
            model.fit(*first)
        else:
            assert found == before, where
            kept += 1
    assert kept >= len(chosen) - 3


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_interrupted_by_a_signal(case):
    model, first, second = case

    def stop(number, frame):
        raise Stop

    model.set_params(optimize=qp.Search(max_iter=3)).fit(*second)
    after = state(model)
    model.fit(*first)
    before = state(model)
    kept = signal.signal(signal.SIGALRM, stop)
    stopped = 0
    try:
        for delay in RNG.uniform(1e-4, 8e-3, 25):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    model.fit(*second)
                finally:  # the signal may come here too
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
            except (Stop, SystemError):  # the latter is numba's word for a signal amid its calls
                stopped += 1
            assert state(model) in (before, after)
            if state(model) == after:
                model.fit(*first)
    finally:
        signal.signal(signal.SIGALRM, kept)
    assert stopped >= 5


def test_an_interrupted_gradient_leaves_the_posterior():
    K = np.exp(-0.5 * (X - X.T) ** 2)
    post = qp.infer(K, np.sign(WAVE))
    true = post.evidence_gradient(K)
    n, _ = traced(lambda: post.evidence_gradient(K))
    assert n > 20
    for line in range(1, n + 1):
        traced(lambda: post.evidence_gradient(K), line)
        assert post.evidence_gradient(K) == true


def test_warnings_name_the_line_of_the_user():
    with warnings.catch_warnings(record=True, action="always") as caught:
        qp.infer(np.eye(2), [1, -1], max_sweeps=1)
        qp.GPClassifier(KERNEL, optimize=qp.Search(max_iter=1)).fit(X, WAVE > 0.3)
        optimize = qp.Search(max_iter=1)
        qp.GPClassifier(KERNEL, optimize=optimize).fit(X, np.digitize(WAVE, [-0.5, 0.5]))
        qp.GPPoissonRegressor(KERNEL, mean=0.0, optimize=False).fit(X, np.arange(14))
        qp.GPRobustRegressor(KERNEL, optimize=qp.Search(max_iter=1)).fit(X, WAVE)
    assert {warning.filename for warning in caught} == {__file__}
    lines = [warning.lineno for warning in caught]
    assert len(lines) >= 5
    assert all(a <= b for a, b in pairwise(lines))
    assert len(set(lines)) == 5


N, SOME = 500, 100
RESUMED = 1.7 * RBF(1.2345678901234)
ROWS = np.random.default_rng(0).uniform(-3.0, 3.0, (N, 2))
SMOOTH = 1.5 * np.sin(2.0 * ROWS[:, 0]) + 0.5 * ROWS[:, 1]
LATENT = SMOOTH + 0.3 * np.random.default_rng(1).standard_normal(N)
LABELS = LATENT > 0.0
EVALUATE, SWEEP = (Climb, "evaluate"), (Engine, "sweep")


@pytest.fixture(autouse=True)
def after_every_evaluation(monkeypatch):
    monkeypatch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)


def model(path, **options):
    """A model with inducing points that writes to a file; options are of it or of `Inducing`."""
    names = ("points", "power", "learn", "resume")
    own = {name: options.pop(name) for name in names if name in options}
    given = qp.Inducing(**{"points": 15, "subsample": SOME, "checkpoint": path, **own})
    options = {"random_state": 0, "optimize": qp.Search(max_iter=15), **options}
    return qp.GPClassifier(inducing=given, **options)


def cut_off(monkeypatch, method, where, one, *data):
    """Have a fit end as Ctrl-C has it, at a call of a method of whose object `where` is true."""
    kind, name = method
    plain = getattr(kind, name)

    def watched(self, *given, **named):
        if where(self):
            raise KeyboardInterrupt
        return plain(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, watched)
        with pytest.raises(KeyboardInterrupt):
            one.fit(*data)


def is_with(rows, search):
    return search.engine.rows.n == rows


@pytest.mark.slow
def test_a_fit_cut_off_between_stages_has_the_same_bits(tmp_path, monkeypatch):
    """The first stage with all rows begins anew, from what the one on samples has left."""
    path = tmp_path / "fit.npz"
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_SIZES", (200,))
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_FACTOR", 2)
    plain = model(None).fit(ROWS, LABELS)
    for rows in (200, N):
        one = model(path, resume=True)
        cut_off(monkeypatch, EVALUATE, partial(is_with, rows), one, ROWS, LABELS)
        assert path.exists()
        again = one.fit(ROWS, LABELS)
        assert not path.exists()
        assert again.posterior_.log_evidence == plain.posterior_.log_evidence
        np.testing.assert_array_equal(again.inducing_points_, plain.inducing_points_)
        assert [run.value for run in again.optima_] == [run.value for run in plain.optima_]


@pytest.mark.slow
def test_a_fit_cut_off_with_all_rows_goes_on_from_its_best_place(tmp_path, monkeypatch):
    """Fewer evaluations of all rows are left, and no worse an optimum is found."""
    path = tmp_path / "fit.npz"
    plain, counted = model(None).fit(ROWS, LABELS), []

    def sixth(search):
        counted.append(search.engine.rows.n == N)
        return counted[-1] and sum(counted) == 6

    one = model(path, resume=True)
    cut_off(monkeypatch, EVALUATE, sixth, one, ROWS, LABELS)
    last, samples = sum(counted), len(counted) - sum(counted)
    counted.clear()
    cut_off(monkeypatch, EVALUATE, sixth, one, ROWS, LABELS)
    assert last == sum(counted) == len(counted) == 6 < samples
    again = one.fit(ROWS, LABELS)
    gain = again.log_marginal_likelihood_value_ - plain.log_marginal_likelihood_value_
    assert gain > -1e-5 * N  # where stages end
    assert np.abs(again.predict_proba(ROWS) - plain.predict_proba(ROWS)).max() < 0.03


@pytest.mark.slow
def test_sweeps_that_are_cut_off_go_on(tmp_path, monkeypatch):
    """Of a fit without anything to learn, and of one of two processes."""
    path = tmp_path / "fit.npz"
    classes = np.digitize(LATENT, [-0.5, 0.5])
    for options, target in (
        ({"optimize": False, "points": ROWS[:15]}, LABELS),
        ({"optimize": qp.Search(max_iter=3)}, classes),
    ):
        plain = model(None, **options).fit(ROWS, target)
        one, sweeps = model(path, resume=True, **options), []

        def third(engine, sweeps=sweeps):
            sweeps.append(engine.rows.n == N and engine.dtype == np.float64)
            return sum(sweeps) == 3

        cut_off(monkeypatch, SWEEP, third, one, ROWS, target)
        assert len(list(tmp_path.iterdir())) == 1
        again = one.fit(ROWS, target)
        assert not list(tmp_path.iterdir())
        expected = plain.log_marginal_likelihood_value_
        np.testing.assert_allclose(again.log_marginal_likelihood_value_, expected, rtol=1e-6)


def test_learnt_noise_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "fit.npz"
    one = qp.GPRobustRegressor(
        method="ep",
        inducing=qp.Inducing(15, subsample=SOME, checkpoint=path, resume=True),
        optimize=qp.Search(max_iter=4),
        random_state=0,
    )
    cut_off(monkeypatch, EVALUATE, lambda s: s.engine.rows.n == N and s.kept, one, ROWS, LATENT)
    assert path.exists()
    again = one.fit(ROWS, LATENT)
    assert 0.2 < again.scale_ < 0.4
    plain = one.set_params(inducing__checkpoint=None, inducing__resume=False).fit(ROWS, LATENT)
    np.testing.assert_allclose(again.scale_, plain.scale_, rtol=0.05)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "fit.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)
        one = model(path, optimize=qp.Search(max_iter=1), kernel=RESUMED)
        cut_off(patch, EVALUATE, partial(is_with, N), one, ROWS, LABELS)
    return path


def refused(path, words, X=ROWS, y=LABELS, **options):
    there = path.read_bytes()
    options = {"optimize": qp.Search(max_iter=1), "resume": True, "kernel": RESUMED, **options}
    with pytest.raises(qp.InputError, match=words) as caught:
        model(path, **options).fit(X, y)
    assert path.read_bytes() == there
    return str(caught.value)


def test_files_of_other_fits_are_refused(cut):
    edited = ROWS.copy()
    edited[N - 1, 1] += 1e-12  # a row that is in no sample
    for words, options in (
        ("another fit: its data", {"X": ROWS + 0.1}),
        ("another fit: its data", {"X": edited}),
        ("another fit: its data", {"y": LATENT > 0.1}),
        ("another fit: its data", {"random_state": 1}),
        ("another fit: its options", {"power": 0.4}),
        ("another fit: its options", {"learn": False}),
        ("another fit: its options", {"optimize": qp.Search(max_iter=2)}),
        ("another fit: its options", {"tol": 1e-7}),
        ("another fit: its method", {"method": "ep"}),
        ("another fit: its table", {"table": "exact"}),
        ("another fit: its kernel", {"optimize": False}),
        ("another fit: its kernel", {"kernel": None}),
        # The fourteenth digit, other bounds, and nothing to learn.
        ("another fit: its kernel", {"kernel": 1.7 * RBF(1.2345678901235)}),
        ("another fit: its kernel", {"kernel": 1.7 * RBF(1.2345678901234, (1e-5, 1e4))}),
        ("another fit: its kernel", {"kernel": 1.7 * RBF(1.2345678901234, "fixed")}),
        ("needs a whole number as random_state=", {"random_state": None}),
        ("checkpoint=.* cannot act with inducing='auto'", {"points": "auto"}),
    ):
        refused(cut, words, **options)
    refuses("resume=True needs checkpoint=", model, None, resume=True)


def test_damaged_files_of_a_fit_are_refused(cut):
    """Also what a version of this package could have written, but not with such content."""
    whole, arrays = cut.read_bytes(), read_arrays(cut)
    generator = json.loads(str(arrays["random"]))
    others = [
        {"stages": np.array("two")},
        {"stages": np.array(99)},
        {"theta": arrays["theta"][:-1]},
        {"theta": np.append(arrays["theta"], np.nan)},
        {"Z": arrays["Z"].astype(str)},
        {"root": arrays["root"][:-1]},
        {"h": None},
        {"optima": None},
        {"optima": np.array("[" * 100_000)},
        {"optima": np.array('[{"theta": 1}]')},
        {"optima": np.array("3")},
        {"random": np.array("[" * 100_000)},
        {"random": np.array(json.dumps(generator | {"state": "none"}))},
        {"random": np.array("{}")},
    ]
    try:
        for change in others:
            write_arrays(cut, {k: v for k, v in (arrays | change).items() if v is not None})
            assert str(cut) in refused(cut, "is no checkpoint, or damaged")
        for content in (b"", whole[:-1], whole[: len(whole) // 2], b"[" * 100_000):
            cut.write_bytes(content)
            assert str(cut) in refused(cut, "is no checkpoint, or damaged")
    finally:
        cut.write_bytes(whole)


def test_a_place_to_write_to_may_hold_anything_and_a_folder_does_not_cost_the_fit(tmp_path):
    path = tmp_path / "fit.npz"
    path.write_bytes(b"no checkpoint")
    model(path, optimize=qp.Search(max_iter=1)).fit(ROWS, LABELS)
    assert not path.exists()
    with pytest.warns(qp.ConvergenceWarning, match="no checkpoint: .*; fit goes on"):
        found = model(tmp_path, optimize=qp.Search(max_iter=2)).fit(ROWS, LABELS)
    assert found.score(ROWS, LABELS) > 0.7
    assert tmp_path.is_dir()
