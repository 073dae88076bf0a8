"""The nearest rows: the dense posterior where they are all, the sparse one where none correct."""

import pickle
from dataclasses import replace

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import infer, infer_sparse
from qpruntime.inference.local import blocks
from qpruntime.inference.local.neighbours import Cells, Tree, distinct, metric
from qpruntime.inference.local.posterior import local_of
from qpruntime.inference.posterior import moved_to
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(3)
X = RNG.uniform(-3.0, 3.0, (48, 2))
# Places with several rows, of either label.
X[40:44], X[44:46] = X[3], X[7]
LABELS = np.sign(np.sin(1.7 * X[:, 0]) + 0.5 * RNG.standard_normal(48))
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0])).astype(float)
HEAVY = X[:, 1] + np.where(np.arange(48) % 9 == 0, 4.0, 0.0)
WEIGHTS = np.where(np.arange(48) % 4 == 0, 2.0, np.where(np.arange(48) == 5, 0.0, 1.0))
PRIOR = 0.3 * np.cos(X[:, 0])
Z = X[:6]
POINTS = np.concatenate([RNG.uniform(-3.0, 3.0, (9, 2)), X[[3, 20]]])
SMOOTH = ConstantKernel(2.0) * RBF([0.9, 1.5])
NOISY = ConstantKernel(2.0) * Matern(1.2, nu=1.5) + WhiteKernel(0.3)
# Rounding of some hundred operations on numbers of order 1.
CLOSE = {"rtol": 0.0, "atol": 1e-10}


def with_sites(posterior, sites):
    """The posterior by the same inducing inputs, of these sites about the prior mean."""
    engine = posterior._solution.engine
    engine.sites = sites
    state = engine.state
    left = {"root": state.root, "weights": state.mean, "inducing": state.inducing}
    return replace(posterior, _solution=replace(posterior._solution, **left))


@every_case(
    "kernel, y, likelihood, options",
    [
        (SMOOTH, LABELS, "probit", {}),
        (NOISY, LABELS, "probit", {"weights": WEIGHTS}),
        (NOISY, COUNTS, "poisson-exp", {"mean": PRIOR}),
    ],
)
@every_case("power", [1.0, 0.5])
def test_by_all_rows_it_is_the_dense_posterior(kernel, y, likelihood, options, power):
    dense = infer(kernel(X), y, likelihood, "ep", power=power, tol=1e-13, **options)
    post = infer_sparse(X, y, kernel, Z, likelihood, "ep", power=power, max_sweeps=1000, **options)
    tau, nu = dense.sites
    sparse = with_sites(post, (tau, nu - tau * options.get("mean", 0.0)))
    at = 0.1 if "mean" in options else 0.0
    # Noise is of each row its own: a point where a row is has another.
    expected = dense.predict(kernel(POINTS, X), kernel.diag(POINTS), mean=np.full(len(POINTS), at))
    local = local_of(sparse, X, 48)
    got = local.predict(POINTS, mean=np.full(len(POINTS), at))
    np.testing.assert_allclose(got, expected, **CLOSE)
    np.testing.assert_allclose(local.loo(), dense.loo(), **CLOSE)


def test_what_z_leaves_nothing_of_is_not_corrected():
    once = X[:40]
    sparse = infer_sparse(once, LABELS[:40], SMOOTH, once, method="ep", tol=1e-13, jitter=0.0)
    local = local_of(sparse, once, 7)
    np.testing.assert_allclose(local.predict(POINTS), sparse.predict(POINTS), **CLOSE)
    np.testing.assert_allclose(local.loo(), sparse.loo(), **CLOSE)


def left_out(sparse, n, y, *given, mean=None, **options):
    """Log density of row n by the local posterior of the other rows' sites."""
    rest, sites = np.arange(48) != n, sparse._solution.engine.sites
    if mean is not None:
        options["mean"], mean = mean[rest], mean[[n]]
    other = infer_sparse(X[rest], y[rest], NOISY, Z, *given, **options)
    other = with_sites(other, (sites.tau[rest], sites.nu[rest]))
    # Where other rows are at its place that is one neighbour more.
    more = int((X[rest] == X[n]).all(axis=1).any())
    centre, variance = local_of(other, X[rest], 9 + more).predict(X[[n]], mean=mean)
    rule = sparse._solution.rule
    return rule.project(centre, np.sqrt(variance), y[[n]], None, "log_z", whole=True)[0]


def test_a_row_left_out_is_the_prediction_without_its_site():
    sparse = infer_sparse(X, LABELS, NOISY, Z, method="qp", weights=WEIGHTS, mean=PRIOR)
    local = local_of(sparse, X, 9)
    for n in (2, 3, 41, 44, 47):
        expected = left_out(sparse, n, LABELS, mean=PRIOR, weights=WEIGHTS[np.arange(48) != n])
        np.testing.assert_allclose(local.loo([n]), expected, **CLOSE)
    np.testing.assert_array_equal(local.loo([5, 1, 5]), local.loo()[[5, 1, 5]])
    np.testing.assert_allclose(sparse.loo([5, 1, 5]), sparse.loo()[[5, 1, 5]], **CLOSE)


@every_case("width", [2, 12])
def test_kernels_of_other_variances_share_the_search(width, monkeypatch):
    """A shared search finds what a new one does, and other length-scales or rows do not use it."""
    rng, searched = np.random.default_rng(5), []
    inputs = rng.standard_normal((80, width))
    y = np.sign(inputs[:, 0] + 0.3 * rng.standard_normal(80))
    rows = np.array([4, 0, 33, 79])
    for index in (Cells, Tree):

        def query(self, points, k, search=index.query):
            searched.append(len(points))
            return search(self, points, k)

        monkeypatch.setattr(index, "query", query)

    def loo(variance, length, at, search=None):
        kernel = ConstantKernel(variance) * RBF(length)
        local = local_of(infer_sparse(at, y, kernel, inputs[:6], method="ep"), at, 5, search)
        return local.loo(rows), local._solution.search

    first, search = loo(2.0, 1.0, inputs)
    assert searched == [4]
    (again, same), fresh = loo(8.0, 1.0, inputs, search), loo(8.0, 1.0, inputs)[0]
    assert same is search
    assert searched == [4, 4]
    np.testing.assert_array_equal(again, fresh)
    assert np.abs(again - first).max() > 1e-3
    for case in ((2.0, np.linspace(0.2, 3.0, width), inputs), (2.0, 1.0, inputs[::-1].copy())):
        found, other = loo(*case, search)
        assert other is not search
        np.testing.assert_array_equal(found, loo(*case)[0])


def test_weights_and_order_of_rows():
    """A row of weight 2 is two rows; the order of rows means nothing."""
    weights = np.where(np.arange(48) % 4 == 0, 2.0, 1.0)
    both = {"method": "ep", "tol": 1e-13, "nearest": 9}
    one = infer_sparse(X, LABELS, SMOOTH, Z, weights=weights, power=1.0, **both)
    order = np.random.default_rng(1).permutation(48)
    two = infer_sparse(X[order], LABELS[order], SMOOTH, Z, weights=weights[order], **both)
    three = infer_sparse(X, LABELS, SMOOTH, Z, weights=weights, **both)
    # What the tolerance of the fixed points leaves.
    np.testing.assert_allclose(two.predict(POINTS), three.predict(POINTS), **CLOSE)
    np.testing.assert_allclose(two.loo(), three.loo()[order], **CLOSE)
    assert np.abs(np.subtract(one.predict(POINTS), two.predict(POINTS))).max() > 1e-3


def test_a_copy_holds_its_rows():
    """That it predicts alike is in `test_solver_protocol`."""
    local = infer_sparse(X, LABELS, SMOOTH, Z, nearest=5)
    copy = pickle.loads(pickle.dumps(local))
    np.testing.assert_array_equal(copy.loo([1, 2]), local.loo([1, 2]))
    found = copy.summary()
    assert (found["nearest"], found["rows_held"], found["bytes_held"]) == (5, 48, 48 * (16 + 16))
    assert "48 rows are held and pickled" in str(copy)
    assert "5 nearest" in repr(copy)
    refuses("the 48 rows", local_of, local.sparse, X[:5], 3)
    refuses("nearest", infer_sparse, X, LABELS, SMOOTH, Z, nearest=-1)


def test_negative_precisions():
    """They are left to the inducing points, but a row left out takes its own away."""
    sparse = infer_sparse(X, HEAVY, NOISY, Z, "student-t(nu=4, scale=0.3)", "ep", max_sweeps=500)
    local = local_of(sparse, X, 9)
    negative = np.flatnonzero(sparse.sites.tau < 0.0)
    assert negative.size
    expected = left_out(sparse, negative[0], HEAVY, "student-t(nu=4, scale=0.3)", "ep")
    np.testing.assert_allclose(local.loo(negative[:1]), expected, **CLOSE)


def test_later_rows_join():
    """Rows in two parts are neighbours as if held at once."""
    sparse = infer_sparse(X[:30], LABELS[:30], SMOOTH, Z, method="ep", tol=1e-13)
    later = pickle.loads(pickle.dumps(local_of(sparse, X[:30], 9))).extend(X[30:], LABELS[30:])
    both = later._solution.sites_held
    whole = infer_sparse(X, LABELS, SMOOTH, Z, method="ep")
    whole = with_sites(whole, (both.tau, both.nu))
    wanted = local_of(whole, X, 9).predict(POINTS)
    np.testing.assert_allclose(later.predict(POINTS), wanted, **CLOSE)
    assert (later.n, later.summary()["rows_held"]) == (48, 48)


def test_in_other_units_and_with_little_memory(monkeypatch):
    local = infer_sparse(X, LABELS, SMOOTH, Z, nearest=9)
    expected = local.predict(POINTS)
    units = np.array([10.0, 0.1])
    kernel = ConstantKernel(2.0) * RBF(units * [0.9, 1.5])
    moved = moved_to(local, kernel, X * units, lambda inputs: inputs * units)
    np.testing.assert_allclose(moved.predict(POINTS * units), expected, **CLOSE)
    # Features of few places at a time, made again and again, in single precision.
    monkeypatch.setattr(blocks, "_DOUBLE_BYTES", 0.0)
    monkeypatch.setattr(blocks, "MEMORY", 48.0 * 12)
    again = local_of(local.sparse, X, 9)
    assert again._solution._ground._features.known.inducing.dtype == np.float32
    for _ in range(2):
        # Of the kind of rounding of single precision, some times 6e-8 times the variance 2.
        np.testing.assert_allclose(again.predict(POINTS), expected, rtol=0.0, atol=3e-6)
        assert np.abs(np.subtract(again.predict(POINTS), expected)).max() > 0.0
        again.predict(POINTS[::-1][:2])


def test_distances_in_length_scales():
    """Of a sum the inverse squares are weighted by variances, as its curvature at distance 0 is."""
    one, two = ConstantKernel(2.0) * RBF([1.0, 2.0]), ConstantKernel(0.5) * RBF([4.0, 0.5])
    for kernel, variance in ((one + two + WhiteKernel(0.3), 2.5), (one * two, 1.0)):
        step = 1e-3
        bend = [1.0 - kernel(np.zeros((1, 2)), step * unit[None]) / variance for unit in np.eye(2)]
        expected = np.sqrt(2.0 * np.ravel(bend)) / step
        np.testing.assert_allclose(metric(kernel, 2), expected, rtol=1e-4)
    np.testing.assert_array_equal(metric(ConstantKernel(2.0), 2), np.ones(2))


def test_equal_rows_are_found_in_any_order():
    rng = np.random.default_rng(0)
    A = rng.integers(0, 3, (200, 3)).astype(float)
    A[::7] *= -1.0  # also -0.0
    first, group = distinct(A)
    np.testing.assert_array_equal(A[first][group] + 0.0, A + 0.0)
    assert len(first) == len(np.unique(A + 0.0, axis=0))
    order = rng.permutation(200)
    np.testing.assert_array_equal(A[order][distinct(A[order])[0]] + 0.0, A[first] + 0.0)


def test_features_are_made_in_single_precision_only_where_that_is_right(monkeypatch):
    """Neighbours of nearly equal inducing inputs have features that single precision loses."""
    monkeypatch.setattr(blocks, "_DOUBLE_BYTES", 0.0)
    smooth = ConstantKernel(1e4) * RBF([3.0, 3.0])
    local = infer_sparse(X, LABELS, smooth, X[:40], nearest=9, method="ep")
    made = local._solution._ground._features
    assert (made.dtype, made.known.inducing.dtype) == (np.float32, np.float64)
    found = made.known.described(POINTS).mean
    np.testing.assert_array_equal(found, local.sparse.predict(POINTS)[0])


def test_cells_find_the_nearest():
    """All of them among few; among many nearly all, and what is found is in order."""
    rng = np.random.default_rng(0)
    points, centres, asked = (rng.standard_normal((n, 12)) for n in (3000, 20, 40))
    ones = np.ones(12)
    exact = np.argsort(cdist(asked, points), axis=1)[:, :15]
    nearest = Cells(points[:100], centres, ones).query(asked, 100)[:, 0]
    np.testing.assert_array_equal(nearest, np.argmin(cdist(asked, points[:100]), axis=1))
    found = Cells(points, centres, ones).query(asked, 15)
    assert all(len(set(row)) == 15 for row in found)
    shared = [len(set(a) & set(b)) / 15 for a, b in zip(found, exact, strict=True)]
    assert np.mean(shared) > 0.92  # 12 features that count alike, 9 of 20 cells: measured 0.94
    # Where few of many features vary in units of the metric, as beside long length-scales.
    scale = np.where(np.arange(12) % 3 == 0, 1.0, 0.05)
    many, far = (rng.standard_normal((n, 12)) * scale for n in (60_000, 40))
    exact = np.argpartition(cdist(far, many), 30, axis=1)[:, :30]
    found = Cells(many, many[:300], ones).query(far, 30)
    assert np.mean([len(set(a) & set(b)) / 30 for a, b in zip(found, exact, strict=True)]) > 0.95
    # All points at one centre: the cell is cut, and points too far to tell apart are still found.
    one = Cells(np.concatenate([points, [np.full(12, 1e200)]]), centres[:1], ones)
    np.testing.assert_array_equal(one.query(points[:5], 1)[:, 0], np.arange(5))
    assert sorted(one.query(asked[:1], 3001)[0]) == list(range(3001))
