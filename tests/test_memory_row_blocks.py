"""Predictions in blocks: their values, their memory, and the index that an error names."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from qpruntime._memory import PointError, in_blocks
from tests.tools.cases import refuses

KERNEL = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
RNG = np.random.default_rng(5)
X = RNG.uniform(-3.0, 3.0, (30, 2))
NEW = RNG.uniform(-4.0, 4.0, (333, 2))
WAVE = np.sin(X[:, 0]) + 0.2 * X[:, 1]
NOISE = 0.1 * np.random.default_rng(6).standard_normal(30)
EXPOSURE = RNG.uniform(0.5, 2.0, 333)
COUNTS = RNG.integers(0, 5, (333, 3))

COUNTED = np.round(np.exp(WAVE))

#: Models and what they are fitted to.
MODELS = {
    "two classes": (qp.GPClassifier(KERNEL), WAVE > 0.0),
    "three classes": (
        qp.GPClassifier(KERNEL, likelihood="logistic"),
        np.digitize(WAVE, [-0.5, 0.5]),
    ),
    "square": (qp.GPPoissonRegressor(KERNEL), COUNTED),
    "exp": (qp.GPPoissonRegressor(KERNEL, link="exp"), COUNTED),
    "robust": (qp.GPRobustRegressor(KERNEL), WAVE + NOISE),
}


@cache
def fitted(name):
    model, y = MODELS[name]
    return model.fit(X, y)


#: Every predictive method, of models that have it, as a function of model, points and their number.
METHODS = {
    "latent": (list(MODELS), lambda m, x, n: np.column_stack(m.latent(x))),
    "predict": (list(MODELS), lambda m, x, n: m.predict(x)),
    "predict_proba": (["two classes", "three classes"], lambda m, x, n: m.predict_proba(x)),
    "decision_function": (["two classes", "three classes"], lambda m, x, n: m.decision_function(x)),
    "predict_interval": (["two classes"], lambda m, x, n: m.predict_interval(x)),
    "with std": (
        ["square", "exp", "robust"],
        lambda m, x, n: np.column_stack(m.predict(x, return_std=True)),
    ),
    "exposed": (["square", "exp"], lambda m, x, n: m.predict(x, exposure=EXPOSURE[:n])),
    "predict_count": (["square", "exp"], lambda m, x, n: m.predict_count(x, EXPOSURE[:n])),
    "quantiles": (["square", "exp"], lambda m, x, n: m.predict_quantiles(x, exposure=EXPOSURE[:n])),
    "pmf": (["square", "exp"], lambda m, x, n: m.predict_log_pmf(x, COUNTS[:n], EXPOSURE[:n])),
    "pmf of one": (["square", "exp"], lambda m, x, n: m.predict_log_pmf(x, 2)),
    "real quantiles": (["robust"], lambda m, x, n: m.predict_quantiles(x)),
    "one quantile": (["robust"], lambda m, x, n: m.predict_quantiles(x, 0.3)),
    "density": (["robust"], lambda m, x, n: m.predict_log_density(x, x[:, 0])),
}
PAIRS = [(name, method) for method, (names, _) in METHODS.items() for name in names]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_blocks_change_nothing(name, method, monkeypatch):
    predict = METHODS[method][1]
    whole = predict(fitted(name), NEW, len(NEW))
    monkeypatch.setattr(qp._memory, "_NUMBERS", 1)
    for n in (333, 64, 33, 1):
        found = predict(fitted(name), NEW[:n], n)
        assert found.shape == (n, *whole.shape[1:])
        assert found.dtype == whole.dtype
        # BLAS sums in an order that depends on the shapes of its matrices.
        if whole.dtype.kind == "f":
            np.testing.assert_allclose(found, whole[:n], rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_array_equal(found, whole[:n])


LARGE = RNG.uniform(-4.0, 4.0, (150_000, 2))


def peak_beside(function):
    """Megabytes of the most that was allocated at a time, without the result."""
    tracemalloc.start()
    try:
        found = function()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    parts = found if isinstance(found, tuple) else (found,)
    return (peak - sum(part.nbytes for part in parts)) / 1e6


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("two classes", lambda m: m.predict_proba(LARGE)),
        ("two classes", lambda m: m.predict(LARGE)),
        ("two classes", lambda m: m.latent(LARGE)),
        ("three classes", lambda m: m.predict_log_proba(LARGE[::10])),
        ("square", lambda m: m.predict(LARGE, return_std=True)),
        ("square", lambda m: m.predict_log_pmf(LARGE[::30], np.tile(np.arange(40), (5000, 1)))),
        ("square", lambda m: m.predict_quantiles(LARGE[::30])),
        ("exp", lambda m: m.predict(LARGE)),
        ("robust", lambda m: m.predict(LARGE, return_std=True)),
        ("robust", lambda m: m.predict_quantiles(LARGE[::60])),
        ("robust", lambda m: m.predict_log_density(LARGE[::10], LARGE[::10, 0])),
    ],
)
def test_memory(name, call):
    model = fitted(name)
    call(model)
    assert peak_beside(lambda: call(model)) < 64.0


@pytest.mark.slow
def test_memory_of_a_posterior():
    x = np.linspace(0.0, 9.0, 300)
    post = qp.infer(np.exp(-0.5 * (x[:, None] - x) ** 2), np.sign(np.sin(x) + 0.1))
    K_star = np.exp(-0.5 * (np.linspace(0.0, 9.0, 40_000)[:, None] - x) ** 2)
    assert K_star.nbytes > 90e6
    assert peak_beside(lambda: post.predict(K_star, 1.0)) < 20.0
    whole = post.predict(K_star, 1.0)
    for i in (0, 20_000, 39_999):
        got = np.ravel(post.predict(K_star[i : i + 1], 1.0))
        np.testing.assert_allclose(got, [whole[0][i], whole[1][i]], rtol=1e-9)
    K_star[31_234, 7] = np.nan
    refuses(r"K_star\[31234, 7\] is nan", post.predict, K_star, 1.0)


def test_the_index_in_an_error_counts_all_points(monkeypatch):
    steep = qp.GPPoissonRegressor(ConstantKernel(500.0, "fixed") * RBF(1.0, "fixed"), link="exp")
    steep.fit(X, np.ones(30))
    points = np.repeat(X[:1], 200, axis=0)
    points[170] = 1e3
    monkeypatch.setattr(qp._memory, "_NUMBERS", 1)
    with pytest.raises(qp.NumericalError, match=r"^point 170 has log rate"):
        steep.predict(points, return_std=True)


def test_joining():
    for rows in (0, 1, 31, 32, 33, 100):
        table = np.arange(3.0 * rows).reshape(rows, 3)
        found = in_blocks(lambda part, table=table: (table[part], table[part, 0]), rows, 10**9)
        np.testing.assert_array_equal(found[0], table)
        np.testing.assert_array_equal(found[1], table[:, 0])
    sizes = []
    in_blocks(lambda part: sizes.append(part.stop - part.start) or np.zeros(sizes[-1]), 10**6, 500)
    assert max(sizes) * 500 <= 2**19
    assert sum(sizes) == 10**6
    assert len(sizes) > 900

    def failing(part):
        raise PointError(3, "is bad")

    refuses(r"^point 3 is bad$", in_blocks, failing, 10, 1, error=PointError)
