"""Kernels that a user gives: what cannot learn or is held back is said, and one start is added."""

import re
import warnings

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.datasets import load_digits, load_iris
from sklearn.gaussian_process import kernels as sk

import qpruntime as qp
from qpruntime.learning.initialisation import degenerate, start_from
from tests.tools.cases import every_case
from tests.tools.oracle import RBFData, slopes

C = sk.ConstantKernel
WIDE = (1e-6, 1e10)


def digits():
    X, y = load_digits(return_X_y=True)
    kept = np.flatnonzero(np.isin(y, (3, 8)))[:120]
    return X[kept], y[kept]


def series(n=120):
    t = np.linspace(0.0, 6000.0, n)
    return t[:, None], np.sin(t / 300.0) + 0.3 * np.cos(37.0 * t) > 0.0


def tens_of_thousands():
    rng = np.random.default_rng(0)
    X = 1e4 * rng.integers(1, 12, (100, 3)) + 1e4 * rng.random((100, 3))
    return X, X[:, 0] > X[:, 1]


def said(model, *data, **more):
    """Fit, and return the warnings' texts; each points at the caller of `fit`."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        model.fit(*data, **more)
    assert all(w.category is qp.ConvergenceWarning and w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


@every_case("data", [digits, series, tens_of_thousands])
@every_case("shape", [sk.RBF(1.0), sk.Matern(1.0, nu=2.5)])
def test_a_kernel_too_short_to_learn_gets_a_start_from_the_data(data, shape):
    X, y = data()
    model = qp.GPClassifier(C(1.0, WIDE) * shape)
    text = said(model, X, y)[0]
    distance = np.median(pdist(X))
    assert "relates no rows: its matrix is diagonal to 1e-06" in text
    assert f"k2__length_scale 1 (bounds 1e-05 to 1e+05) where rows are {distance:.3g}" in text
    assert "a start from the data was tried too, and is better" in text
    found, given = model.optima_
    np.testing.assert_allclose(given.start, [0.0, 0.0])
    np.testing.assert_allclose(np.exp(found.start), [1.0, distance])
    # K is the identity to the one that was given: each row is worth log 2.
    assert given.value == pytest.approx(-len(y) * np.log(2.0), rel=1e-9)
    assert given.n_iterations == 0
    assert found.value > given.value + 20.0
    assert model.optimum_ is found
    signs = np.where(y > y.min(), 1.0, -1.0)
    post = qp.infer(model.kernel_(X), signs, method="ep")
    assert post.log_evidence == pytest.approx(found.value, abs=1e-4)
    assert model.score(X, y) > 0.85


@every_case("model", [qp.GPPoissonRegressor, qp.GPRobustRegressor])
def test_regressions_too(model):
    X, _ = series(80)
    y = np.random.default_rng(1).poisson(4.0 + 3.0 * np.sin(X[:, 0] / 300.0))
    more = {"exposure": np.full(80, 2.0)} if model is qp.GPPoissonRegressor else {}
    model = model(C() * sk.RBF(1.0))
    assert "relates no rows" in said(model, X, y, **more)[0]
    assert model.optima_[0].value > model.optima_[1].value + 5.0
    np.testing.assert_allclose(np.exp(model.optima_[0].start[1]), np.median(pdist(X)))


def test_a_constant_matrix_no_length_scale_and_a_variance_too_small_to_move():
    X, y = digits()
    for kernel, what in ((sk.WhiteKernel(), "diagonal"), (C(1.0, (1e-10, 1.0)), "constant")):
        model = qp.GPClassifier(kernel)
        text, length = said(model, X, y)[0], f"{np.median(pdist(X)):.3g}"
        assert f"its matrix is {what}" in text
        assert f"it has no length-scale): add a part that has one, as RBF({length}" in text
        assert len(model.optima_) == 1
    model = qp.GPClassifier(C(1.0, WIDE) * sk.RBF(1e6, (1e-2, 1e7)))
    assert "tells no rows apart: its matrix is constant to 1e-06" in said(model, X, y)[0]
    assert len(model.optima_) == 2
    assert model.score(X, y) > 0.95
    model = qp.GPClassifier(C(1e-12, (1e-14, 1e10)) * sk.RBF(30.0))
    text = said(model, X, y)[0]
    assert "ended where it began" in text
    assert "latent variance 1e-12" in text
    assert "and is better" in text
    assert [o.n_iterations > 0 for o in model.optima_] == [True, False]
    assert np.exp(model.optima_[0].start[0]) == 1.0


def test_every_part_is_named_and_started():
    X, _ = digits()
    X = X[:, 20:23]
    distances = [np.median(d[d > 0.0]) for d in (pdist(c[:, None]) for c in X.T)]
    kernel = (
        C(2.0) * sk.RBF([1e-3] * 3)
        + sk.Exponentiation(sk.Matern(1e-3), 2.0)
        + C(3.0) * sk.ExpSineSquared(1e-3, 0.37, periodicity_bounds="fixed")
        + sk.RationalQuadratic(1e-3, length_scale_bounds="fixed")
        + sk.WhiteKernel(0.1)
    )
    theta = start_from(kernel, X)
    started = kernel.clone_with_theta(theta).get_params()
    own = {k: v for k, v in started.items() if k.endswith("length_scale")}
    whole = np.median(pdist(X)[pdist(X) > 0.0])
    expected = {
        "k1__k1__k1__k1__k2__length_scale": np.multiply(distances, 3**0.5),
        "k1__k1__k1__k2__kernel__length_scale": whole,
        "k1__k1__k2__k2__length_scale": 1.0,
        "k1__k2__length_scale": 1e-3,
    }
    assert set(own) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(own[name], value, err_msg=name)
    # Nothing else has moved.
    for name, value in kernel.get_params().items():
        if name.endswith(("value", "level", "alpha")):
            assert started[name] == pytest.approx(value, rel=1e-12)


def test_a_start_keeps_to_the_bounds():
    X, y = series()
    model = qp.GPClassifier(C(1.0, WIDE) * sk.RBF(1.0, (0.1, 200.0)))
    assert "(bounds 0.1 to 200)" in said(model, X, y)[0]
    np.testing.assert_allclose(np.exp(model.optima_[0].start[1]), 200.0)
    # There is no other start where bounds leave none.
    short = qp.GPClassifier(C(1.0, WIDE) * sk.RBF(1.0, (0.1, 1.0)))
    assert "tried" not in said(short, X, y)[0]
    assert len(short.optima_) == 1
    # Without learning.
    X, y = digits()
    for kernel in (C() * sk.RBF(1.0), C(4.0, "fixed") * sk.RBF(1.0, "fixed"), C() * sk.RBF(1e6)):
        (text,) = said(qp.GPClassifier(kernel, optimize=False), X, y)
        assert "tried" not in text
        assert f"start it at {np.median(pdist(X)):.3g}" in text
    (text,) = said(qp.GPClassifier(C(4.0, "fixed") * sk.RBF(1.0, "fixed")), X, y)
    assert "k2__length_scale 1 (fixed)" in text


def test_bounds_that_hold_back_are_named():
    data = RBFData(60, seed=3)
    kernel = C(1.0, (0.5, 2.0)) * sk.RBF([30.0, 0.3], (0.25, 40.0))
    with pytest.warns(qp.ConvergenceWarning, match="k1__constant_value ended at its upper bound 2"):
        model = qp.GPClassifier(kernel).fit(data.x, data.y)
    free = qp.GPClassifier(C(1.0, WIDE) * sk.RBF([1.0, 1.0], WIDE)).fit(data.x, data.y)
    assert free.optimum_.value > model.optimum_.value
    lower = qp.GPClassifier(C(1.0, WIDE) * sk.RBF(20.0, (15.0, 40.0)))
    texts = "\n".join(said(lower, data.x, data.y))
    words = f"ended at its lower bound 15.*rows are {np.median(pdist(data.x)):.3g} apart"
    assert re.search(f"k2__length_scale {words}", texts)

    def evidence(theta):
        K = lower.kernel.clone_with_theta(theta)(data.x)
        return qp.infer(K, data.y, method="ep", tol=1e-11).log_evidence

    # The gradient points beyond the bound; sites settle to 1e-6 in the optimiser.
    best = lower.optimum_
    assert best.slope[1] < 0.0
    assert best.slope == pytest.approx(slopes(evidence, best.theta), rel=1e-3, abs=1e-5)


def test_restarts_are_the_remedy():
    X, y = digits()
    kernel = C(1.0, WIDE) * sk.RBF(1.0)
    model = qp.GPClassifier(kernel, optimize=qp.Search(restarts=3), random_state=0)
    assert said(model, X, y) == []
    assert len(model.optima_) == 4
    # None of these can get away.
    stuck = C(1.0, WIDE) * sk.RBF(1e-3, (1e-5, 0.1))
    stuck = qp.GPClassifier(stuck, optimize=qp.Search(restarts=2), random_state=0)
    assert "which no restart changes" in said(stuck, X, y)[0]
    assert len(stuck.optima_) == 3


def test_several_classes_say_it_once_each_and_alike():
    X, y = load_iris(return_X_y=True)
    model = qp.GPClassifier(C(1.0, WIDE) * sk.RBF(1e-4))
    texts = [t for t in said(model, X[::3], y[::3]) if "relates no rows" in t]
    assert len(texts) == 3
    # The default filter shows one text of one place once.
    assert len(set(texts)) == 1
    assert [len(optima) for optima in model.optima_] == [2, 2, 2]


def sound():
    """Kernels that are meant: no warning is due."""
    data = RBFData(60, seed=3)
    kernel = C(1.0, WIDE) * sk.RBF(1.0)
    with warnings.catch_warnings(action="error"):
        fitted = qp.GPClassifier(kernel).fit(data.x, data.y).kernel_
    noise = np.column_stack([data.x, np.random.default_rng(0).standard_normal(60)])
    bits = np.random.default_rng(1).integers(0, 2, (60, 4)).astype(float)
    line = np.linspace(1.0, 3.0, 60)[:, None]
    fixed = C(4.0, "fixed") * sk.RBF(1.0, "fixed")
    return [
        ("again from its optimum", fitted, data.x),
        ("fixed", fixed, data.x),
        ("one fixed", C(4.0, "fixed") * sk.RBF(1.0), data.x),
        ("linear in one feature", C(1.0, WIDE) * sk.DotProduct(0.0, "fixed"), line),
        ("white noise beside", kernel + sk.WhiteKernel(1e-3, "fixed"), data.x),
        ("flags", C(1.0, "fixed") * sk.RBF(1.0, "fixed"), bits),
        ("two rows", fixed, data.x[:2]),
        ("some rows twice", fixed, np.repeat(data.x[:30], 2, axis=0)),
        ("a feature of noise", C(1.0, WIDE) * sk.RBF([1.0] * 3, (1e-3, 1e3)), noise),
    ]


@every_case("name, kernel, X", sound())
def test_no_false_alarm(name, kernel, X):
    y = RBFData(60, seed=3).y[: len(X)]
    model = qp.GPClassifier(kernel)
    assert said(model, X, [0, 1] if len(X) == 2 else y) == []
    assert len(model.optima_) <= 1


@every_case("n", [1, 2, 3, 40])
def test_degenerate_against_brute_force(n):
    rng = np.random.default_rng(n)
    for length in np.logspace(-8.0, 8.0, 33):
        X = rng.standard_normal((n, 2)) * 10.0 ** rng.uniform(-2, 2)
        kernel = C(3.0) * sk.RBF(length) + sk.WhiteKernel(0.5)
        # Relative to the variances that rows have, 3.5; what rows share is at most 3.
        K = 3.0 * sk.RBF(length)(X)
        expected = None
        if n > 1:
            related = (np.where(np.eye(n, dtype=bool), 0.0, K) > 3.5e-6).any(axis=1)
            if related.mean() <= 0.1:
                expected = "diagonal"
            elif np.ptp(K) <= 3e-6:
                expected = "constant"
        assert degenerate(kernel, X) == expected


def test_a_failed_start_from_the_data_leaves_the_first():
    X, y = series(40)

    class Refuses(sk.RBF):
        """Double precision ends beyond a length-scale of 10."""

        def __call__(self, X, Y=None, eval_gradient=False):
            K = super().__call__(X, Y, eval_gradient)
            unit = 1.0 if self.length_scale < 10.0 else np.nan
            return (unit * K[0], K[1]) if eval_gradient else unit * K

    model = qp.GPClassifier(Refuses(1.0))
    assert "and is no better" in said(model, X, y)[0]
    assert model.optima_[1].value == -np.inf
    assert model.kernel_.length_scale == pytest.approx(1.0)
