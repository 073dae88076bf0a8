"""A fit that does not end leaves the estimator as it was: with the fit before, or with none."""

import signal
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
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
    left = [evaluation]

    def callback(theta, value):
        left[0] -= 1
        if left[0] == 0:
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


def test_refused_or_failed(case):
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
    ]:
        kept = model.get_params(deep=False)
        with pytest.raises(error):
            model.set_params(**change).fit(*arguments)
        model.set_params(**kept)
        assert state(model) == before
    with pytest.raises((qp.InputError, ValueError)):
        model.fit(points, targets, sample_weight=np.full(14, -1.0))
    assert state(model) == before


def test_warnings_made_errors(case):
    model, first, second = case
    model.set_params(optimize=False).fit(*first)
    before = state(model)
    with pytest.raises(qp.ConvergenceWarning):
        model.set_params(max_sweeps=1, tol=1e-12).fit(*second)
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


def lines_of(run):
    """How many lines of ours a call passes."""
    passed = [0]

    def local(frame, event, argument):
        passed[0] += event == "line"
        return local

    traced(lambda frame, event, argument: local if ours(frame) else None, run)
    return passed[0]


def ours(frame):
    # How many lines the threads of BLAS take depends on what an interrupt has left of them.
    name = frame.f_code.co_filename
    return name.startswith(OURS) and not name.endswith("threads.py")


def traced(tracer, run):
    """Run under a tracer, and give the one before its place back."""
    kept = sys.gettrace()
    sys.settrace(tracer)
    try:
        run()
    finally:
        sys.settrace(kept)


def interrupted(line, run):
    """Run, raise `Stop` before the given line of ours, and return the function it was in."""
    left, where = [line], [""]

    def local(frame, event, argument):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                where[0] = frame.f_code.co_name
                raise Stop
        return local

    with pytest.raises(Stop):
        traced(lambda frame, event, argument: local if ours(frame) else None, run)
    return where[0]


def test_interrupted_at_any_line(case):
    model, first, second = case
    model.set_params(optimize=False).fit(*second)
    after = state(model)
    model.fit(*first)
    before = state(model)
    n = lines_of(lambda: model.fit(*second))
    model.fit(*first)
    # The very first lines and the last ones, where a fit becomes the model's, and some between.
    chosen = {*range(1, 6), *range(n - 24, n + 1), *RNG.integers(1, n, 10).tolist()}
    kept = 0
    for line in sorted(chosen):
        where = interrupted(line, lambda: model.fit(*second))
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


def test_the_data_may_change_after_the_fit(case):
    model, first, _ = case
    data = [np.array(part) for part in first]
    model.set_params(optimize=False).fit(*data)
    before = state(model)
    for part in data:
        part[...] = part[::-1].copy()
    assert state(model) == before


def test_an_interrupted_gradient_leaves_the_posterior():
    K = np.exp(-0.5 * (X - X.T) ** 2)
    post = qp.infer(K, np.sign(WAVE))
    true = post.evidence_gradient(K)
    n = lines_of(lambda: post.evidence_gradient(K))
    assert n > 20
    for line in range(1, n + 1):
        interrupted(line, lambda: post.evidence_gradient(K))
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
