"""Fits by inducing points that are cut off, and go on."""

import json
from functools import partial

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

import qpruntime as qp
from qpruntime.inference.sparse.checkpoint import read_arrays, write_arrays
from qpruntime.inference.sparse.engine import Engine
from qpruntime.learning.sparse.objective import EvidenceSearch as Climb

N, SOME = 500, 100
KERNEL = 1.7 * RBF(1.2345678901234)
EVALUATE, SWEEP = (Climb, "evaluate"), (Engine, "sweep")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (N, 2))
    f = 1.5 * np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.3 * rng.standard_normal(N)
    return X, f


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
def test_a_fit_cut_off_between_stages_has_the_same_bits(data, tmp_path, monkeypatch):
    """The first stage with all rows begins anew, from what the one on samples has left."""
    X, f = data
    path, labels = tmp_path / "fit.npz", f > 0.0
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_SIZES", (200,))
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_FACTOR", 2)
    plain = model(None).fit(X, labels)
    for rows in (200, N):
        one = model(path, resume=True)
        cut_off(monkeypatch, EVALUATE, partial(is_with, rows), one, X, labels)
        assert path.exists()
        again = one.fit(X, labels)
        assert not path.exists()
        assert again.posterior_.log_evidence == plain.posterior_.log_evidence
        np.testing.assert_array_equal(again.inducing_points_, plain.inducing_points_)
        assert [run.value for run in again.optima_] == [run.value for run in plain.optima_]


@pytest.mark.slow
def test_a_fit_cut_off_with_all_rows_goes_on_from_its_best_place(data, tmp_path, monkeypatch):
    """Fewer evaluations of all rows are left, and no worse an optimum is found."""
    X, f = data
    path, labels = tmp_path / "fit.npz", f > 0.0
    plain, counted = model(None).fit(X, labels), []

    def sixth(search):
        counted.append(search.engine.rows.n == N)
        return counted[-1] and sum(counted) == 6

    one = model(path, resume=True)
    cut_off(monkeypatch, EVALUATE, sixth, one, X, labels)
    last, samples = sum(counted), len(counted) - sum(counted)
    counted.clear()
    cut_off(monkeypatch, EVALUATE, sixth, one, X, labels)
    assert last == sum(counted) == len(counted) == 6 < samples
    again = one.fit(X, labels)
    gain = again.log_marginal_likelihood_value_ - plain.log_marginal_likelihood_value_
    assert gain > -1e-5 * N  # where stages end
    assert np.abs(again.predict_proba(X) - plain.predict_proba(X)).max() < 0.03


@pytest.mark.slow
def test_sweeps_that_are_cut_off_go_on(data, tmp_path, monkeypatch):
    """Of a fit without anything to learn, and of one of two processes."""
    X, f = data
    path = tmp_path / "fit.npz"
    classes = np.digitize(f, [-0.5, 0.5])
    for options, target in (
        ({"optimize": False, "points": X[:15]}, f > 0.0),
        ({"optimize": qp.Search(max_iter=3)}, classes),
    ):
        plain = model(None, **options).fit(X, target)
        one, sweeps = model(path, resume=True, **options), []

        def third(engine, sweeps=sweeps):
            sweeps.append(engine.rows.n == N and engine.dtype == np.float64)
            return sum(sweeps) == 3

        cut_off(monkeypatch, SWEEP, third, one, X, target)
        assert len(list(tmp_path.iterdir())) == 1
        again = one.fit(X, target)
        assert not list(tmp_path.iterdir())
        expected = plain.log_marginal_likelihood_value_
        np.testing.assert_allclose(again.log_marginal_likelihood_value_, expected, rtol=1e-6)


def test_learnt_noise_goes_on(data, tmp_path, monkeypatch):
    X, f = data
    path = tmp_path / "fit.npz"
    one = qp.GPRobustRegressor(
        method="ep",
        inducing=qp.Inducing(15, subsample=SOME, checkpoint=path, resume=True),
        optimize=qp.Search(max_iter=4),
        random_state=0,
    )
    cut_off(monkeypatch, EVALUATE, lambda s: s.engine.rows.n == N and s.kept, one, X, f)
    assert path.exists()
    again = one.fit(X, f)
    assert 0.2 < again.scale_ < 0.4
    plain = one.set_params(inducing__checkpoint=None, inducing__resume=False).fit(X, f)
    np.testing.assert_allclose(again.scale_, plain.scale_, rtol=0.05)


@pytest.fixture(scope="module")
def cut(data, tmp_path_factory):
    """A fit with a kernel, cut off with all rows: its file, and what was fitted."""
    X, f = data
    path = tmp_path_factory.mktemp("fit") / "fit.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)
        one = model(path, optimize=qp.Search(max_iter=1), kernel=KERNEL)
        cut_off(patch, EVALUATE, partial(is_with, N), one, X, f > 0.0)
    return path, X, f


def refused(cut, words, X=None, y=None, **options):
    """A fit that goes on from the file is refused, and the file left as it is."""
    path, plain, f = cut
    there = path.read_bytes()
    options = {"optimize": qp.Search(max_iter=1), "resume": True, "kernel": KERNEL, **options}
    with pytest.raises(qp.InputError, match=words) as caught:
        model(path, **options).fit(plain if X is None else X, f > 0.0 if y is None else y)
    assert path.read_bytes() == there
    return str(caught.value)


def test_files_of_other_fits_are_refused(cut):
    _, X, f = cut
    edited = X.copy()
    edited[N - 1, 1] += 1e-12  # a row that is in no sample
    for words, options in (
        ("another fit: its data", {"X": X + 0.1}),
        ("another fit: its data", {"X": edited}),
        ("another fit: its data", {"y": f > 0.1}),
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
    with pytest.raises(qp.InputError, match="resume=True needs checkpoint="):
        model(None, resume=True).fit(X, f > 0.0)


def test_damaged_files_of_a_fit_are_refused(cut):
    """Also what a version of this package could have written, but not with such content."""
    path, *_ = cut
    whole = path.read_bytes()
    arrays = read_arrays(path)
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
            write_arrays(path, {k: v for k, v in (arrays | change).items() if v is not None})
            assert str(path) in refused(cut, "is no checkpoint, or damaged")
        for content in (b"", whole[:-1], whole[: len(whole) // 2], b"[" * 100_000):
            path.write_bytes(content)
            assert str(path) in refused(cut, "is no checkpoint, or damaged")
    finally:
        path.write_bytes(whole)


def test_a_place_to_write_to_may_hold_anything(data, tmp_path):
    X, f = data
    path = tmp_path / "fit.npz"
    path.write_bytes(b"no checkpoint")
    model(path, optimize=qp.Search(max_iter=1)).fit(X, f > 0.0)
    assert not path.exists()


def test_a_folder_in_the_place_of_the_file_does_not_cost_the_fit(data, tmp_path):
    X, f = data
    with pytest.warns(qp.ConvergenceWarning, match="no checkpoint: .*; fit goes on"):
        found = model(tmp_path, optimize=qp.Search(max_iter=2)).fit(X, f > 0.0)
    assert found.score(X, f > 0.0) > 0.7
    assert tmp_path.is_dir()
