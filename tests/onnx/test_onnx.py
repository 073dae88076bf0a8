"""Class probabilities by a runtime that knows nothing of this package."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import log_ndtr
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, Inducing

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from qpruntime.learning.scaling import Warp  # noqa: E402
from qpruntime.onnx import (  # noqa: E402
    OnnxGraph,
    _warped,
    log_cdf,
    to_onnx,
)
from tests.tools.cases import refuses  # noqa: E402


def run(made, X):
    session = runtime.InferenceSession(made.SerializeToString())
    return session.run(["label", "probabilities"], {"X": np.asarray(X, dtype=float)})


def rows(n=60, d=3, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * [1.0, 30.0, 0.1][:d] + [0.0, 1e3, 0.0][:d]
    score = X[:, 0] + 0.4 * rng.normal(size=n)
    return X, np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))


def agrees(model, X, tolerance=1e-9):
    label, probabilities = run(to_onnx(model), X)
    np.testing.assert_allclose(probabilities, model.predict_proba(X), rtol=0, atol=tolerance)
    np.testing.assert_array_equal(np.asarray(label), model.predict(X).astype(label.dtype))
    return probabilities


def test_log_normal_cdf():
    """In double precision: 2e-11 relative in the log, from -40 to 8."""
    graph, s = OnnxGraph(), np.linspace(-40.0, 8.0, 4001)[:, None]
    made = graph.model(1, {"y": (log_cdf(graph, "X"), onnx.TensorProto.DOUBLE, ["T", 1])})
    (found,) = runtime.InferenceSession(made.SerializeToString()).run(None, {"X": s})
    # Above 0 logs are -p, of which 1 - p keeps 1e-16.
    np.testing.assert_allclose(found, log_ndtr(s), rtol=2e-11, atol=3e-16)


@pytest.mark.parametrize(
    "kernel",
    [
        None,
        sk.ConstantKernel(3.0) * sk.RBF([1.0, 20.0, 0.2]) + sk.WhiteKernel(0.1),
        sk.ConstantKernel(2.0) * sk.Matern([1.0, 20.0, 0.2], nu=0.5),
        sk.Matern([1.0, 20.0, 0.2], nu=1.5) + sk.DotProduct(0.1) * sk.ConstantKernel(1e-6),
        sk.RationalQuadratic(20.0, 0.7) + sk.Matern(30.0, nu=np.inf),
    ],
)
def test_dense_of_two_classes(kernel):
    X, y = rows()
    model = GPClassifier(kernel=kernel, optimize=kernel is None, inducing=None).fit(X, y)
    # New points, far ones, and the rows themselves, where a distance of 0 must be one.
    agrees(model, np.vstack([rows(40, seed=1)[0], X[:5], 1e3 * X[:2]]))


def test_heaviside_and_far_apart_classes():
    """The smaller probability keeps its digits."""
    X = np.linspace(-1.0, 1.0, 200)[:, None]
    kernel = sk.ConstantKernel(100.0) * sk.RBF(1.0)
    model = GPClassifier(kernel=kernel, likelihood="heaviside", optimize=False)
    model.fit(X, X[:, 0] > 0.01)
    found = agrees(model, X)
    least = model.predict_proba(X).min(axis=1)
    assert least.min() < 1e-4
    np.testing.assert_allclose(found.min(axis=1), least, rtol=1e-8)


def test_three_classes_with_names():
    X, y = rows(90, classes=3)
    model = GPClassifier().fit(X, np.array(["ä", "b", "c"])[y])
    label, _ = run(to_onnx(model), X[:4])
    assert list(label) == list(model.predict(X[:4]))
    agrees(model, X)


def test_inducing_points(tmp_path):
    X, y = rows(300)
    model = GPClassifier(inducing=Inducing(20), random_state=0).fit(X, y)
    agrees(model, rows(50, seed=2)[0])
    to_onnx(model, tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == [tmp_path / "model.onnx"]


def test_ranks_of_features():
    """A feature of one value, of two, of many; between knots and beyond them."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.full(50, 2.0), rng.integers(0, 2, 50), rng.lognormal(size=50)])
    warp, graph = Warp.of(X), OnnxGraph()
    made = graph.model(3, {"y": (_warped(graph, warp, 3), onnx.TensorProto.DOUBLE, ["T", 3])})
    at = np.vstack([X, X[:5] + 0.3, [[9.0, -9.0, 99.0]]])
    (found,) = runtime.InferenceSession(made.SerializeToString()).run(None, {"X": at})
    np.testing.assert_allclose(found, warp(at), atol=1e-13)
    assert all(a <= b for a, b in pairwise(found[np.argsort(at[:, 2]), 2]))


def test_what_has_no_graph(tmp_path):
    X, y = rows()
    fixed = {"optimize": False}
    cases = [
        (GPClassifier(likelihood="logistic", **fixed), "logistic is an integral"),
        (GPClassifier(correction="blend", **fixed), "correction has no formula"),
        (GPClassifier(kernel=sk.ConstantKernel(2.0) ** 2.0 * sk.RBF(), **fixed), r"\*\* 2"),
        (GPClassifier(kernel=sk.Matern(nu=0.7), **fixed), "nu=0.7"),
    ]
    for model, said in cases:
        refuses(said, to_onnx, model.fit(X, y), tmp_path / "model.onnx")
    rising = GPClassifier(kernel=sk.RBF([1.0, 30.0, 0.1]), monotone={0: 1}, **fixed).fit(X, y)
    refuses(r"monotone features .* monotone=None", to_onnx, rising, tmp_path / "model.onnx")
    three, labels = rows(classes=3)
    joint = GPClassifier(kernel=sk.RBF([1.0, 30.0, 0.1]), multi_class="joint", **fixed)
    joint.fit(three, labels)
    refuses(r'joint classes .* multi_class="one_vs_rest"', to_onnx, joint, tmp_path / "model.onnx")
    gaps = np.where(np.arange(len(X))[:, None] == 0, np.nan, X)
    words, lacking = "levels and missing values have no formula", GPClassifier(sk.RBF(), **fixed)
    refuses(words, to_onnx, lacking.fit(gaps, y), tmp_path / "model.onnx")
    times = np.linspace(0.0, 9.0, 40)[:, None]
    series = GPClassifier(kernel=sk.Matern(nu=1.5), solver="markov", **fixed)
    refuses("markov", to_onnx, series.fit(times, times[:, 0] > 4.0), tmp_path / "model.onnx")
    refuses("GPClassifier", to_onnx, "model")
    assert not list(tmp_path.iterdir())
