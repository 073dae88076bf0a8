"""Estimators with inducing points: against dense ones, in any units, in parts."""

import pickle
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime as qp
from qpruntime.learning.inducing_points import clusters, pivots
from qpruntime.learning.inputs import Inputs
from tests.tools.cases import every_case, refuses

KERNEL = ConstantKernel(2.0) * RBF(1.0)


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    return X, 1.5 * np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1], rng


@pytest.fixture(scope="module")
def labelled():
    X, f, rng = rows()
    return X, np.where(f + rng.standard_normal(len(f)) > 0.0, "up", "down")


@every_case("method, weighted", [("ep", False), ("qp", False), ("ep", True)])
def test_every_row_an_inducing_point_is_the_dense_posterior(labelled, method, weighted):
    X, labels, new = labelled[0][:60], labelled[1][:60], labelled[0][60:90]
    signs = np.where(labels == "up", 1.0, -1.0)
    # Rows of weight 0 are not there, and their z has nothing to say.
    k = np.arange(60)
    weights = 1.0 + (k % 3 == 0) - (k % 5 == 0) if weighted else None
    model = qp.GPClassifier(KERNEL, method=method, optimize=False, inducing=X)
    model.fit(X, labels, sample_weight=weights)
    dense = qp.infer(KERNEL(X), signs, "probit", method, power=0.5, weights=weights)
    # The jitter on k(Z, Z) is 1e-8 of the variance.
    assert abs(model.log_marginal_likelihood_value_ - dense.log_evidence) < 1e-5
    wanted = dense.predict(KERNEL(new, X), KERNEL.diag(new))
    np.testing.assert_allclose(model.latent(new), wanted, rtol=0.0, atol=1e-4)


def test_units_of_features_do_not_matter(labelled):
    """The default kernel in other units, with a constant column, given as inputs or as a number."""
    X, labels = labelled
    wide = np.column_stack([1e3 * X[:, 0] - 5e4, np.full(len(X), 7.0), 1e-4 * X[:, 1]])
    options = {"optimize": qp.Search(max_iter=4), "random_state": 0}
    first = qp.GPClassifier(inducing=20, **options).fit(X, labels)
    other = qp.GPClassifier(inducing=20, **options).fit(wide, labels)
    assert np.abs(first.predict_proba(X) - other.predict_proba(wide)).max() < 1e-3
    assert np.allclose(other.inducing_points_[:, 1], 7.0)
    given = qp.GPClassifier(inducing=wide[::20], **options).fit(wide, labels)
    assert given.score(wide, labels) > 0.7


def test_pickles_hold_no_rows(labelled):
    X, labels = labelled
    model = qp.GPClassifier(KERNEL, inducing=10, optimize=False).fit(X, labels)
    assert model.posterior_.loo().shape == (len(X),)
    assert model.X_train_.shape == (0, 2)
    text = pickle.dumps(model)
    assert len(text) < 8 * X.size + 4000
    assert np.array_equal(pickle.loads(text).predict_log_proba(X), model.predict_log_proba(X))


def test_a_tolerance_says_how_many(labelled, caplog):
    X, labels = labelled
    model = qp.GPClassifier(Matern(2.0, nu=2.5), optimize=False, inducing="variance").fit(X, labels)
    assert f"M = {len(model.inducing_points_)}" in caplog.text
    rng = np.random.default_rng(0)
    for kernel in (KERNEL, Matern(2.0, nu=2.5)):
        Z, share = pivots(kernel, X, 200, 0.02, rng)
        K = kernel(X, Z)
        left = kernel.diag(X) - np.einsum("nm,mn->n", K, np.linalg.solve(kernel(Z), K.T))
        assert share <= 0.02
        assert abs(left.sum() / kernel.diag(X).sum() - share) < 1e-9
    # Clusters of few distinct rows differ.
    X = np.repeat(np.eye(3), 50, axis=0)
    Z = clusters(X, 10, np.random.default_rng(0))
    assert len(np.unique(Z, axis=0)) == 10


BAD = [
    ({"inducing": 500}, "inducing=500 is more than the 400 rows"),
    ({"inducing": 0}, "at least 1"),
    ({"inducing": 5, "optimize": qp.Search(restarts=2)}, "starts elsewhere"),
    ({"inducing": [[np.nan, 0.0]]}, "must be finite"),
    ({"inducing": [[1.0, 2.0, 3.0]]}, "2 columns"),
    ({"inducing": [[1e6, 2e6]]}, "units of X"),
    ({"inducing": [1.0, 2.0]}, "shape"),
    ({"inducing": 9, "method": "vb"}, "dense only"),
]


@every_case("options, words", BAD)
def test_refusals_say_what_to_do(options, words, labelled):
    model = qp.GPClassifier(KERNEL, **options)
    refuses(words, model.fit, *labelled)


def test_rows_are_read_where_they_are(tmp_path, labelled):
    dask_array, zarr = pytest.importorskip("dask.array"), pytest.importorskip("zarr")
    X, labels = 50.0 * labelled[0] + 3.0, labelled[1]
    stored = zarr.create_array(tmp_path / "X.zarr", shape=X.shape, dtype="f8", chunks=(150, 2))
    stored[:] = X
    np.save(tmp_path / "X.npy", X)
    kinds = [stored, np.load(tmp_path / "X.npy", mmap_mode="r"), dask_array.from_array(X, (90, 2))]
    options = {"inducing": qp.Inducing(15, subsample=200), "random_state": 0}
    options["optimize"] = qp.Search(max_iter=3)
    held = qp.GPClassifier(**options).fit(X, labels)
    for rows in kinds:
        model = qp.GPClassifier(**options).fit(rows, labels)
        assert np.abs(model.predict_proba(X) - held.predict_proba(X)).max() < 1e-6
        assert model.n_features_in_ == 2
    refuses("weight 0", model.fit, stored, labels, sample_weight=np.arange(len(X)))
    refuses("rows like X", model.fit, stored, labels[1:])


@pytest.mark.slow
def test_a_dense_fit_reads_all_rows_where_the_policy_does_not_act(tmp_path):
    X, f, rng = rows(1600)
    labels = f + rng.standard_normal(len(f)) > 0.0
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    held = qp.GPClassifier(KERNEL, optimize=False).fit(X, labels)
    model = qp.GPClassifier(KERNEL, optimize=False).fit(mapped, labels)
    assert model.engine_ == held.engine_ == "dense"
    np.testing.assert_array_equal(model.predict_proba(X[:9]), held.predict_proba(X[:9]))


class Endless:
    """What says that it holds more rows than memory does, and cannot be read."""

    shape, dtype, chunks, ndim = (10**12, 20), np.dtype(float), (1000, 20), 2


def test_rows_beyond_memory_are_not_read_at_once():
    refuses("inducing=200 reads it in parts", Inputs(Endless()).in_memory)


def exposed(n, seed=4):
    X, f, rng = rows(n, seed)
    exposure = np.exp(rng.uniform(-2.0, 2.0, n))
    exposure[:4] = 1e-6, 1e-6, 3e4, 3e4
    return X, rng.poisson(exposure * (2.0 + 0.6 * f) ** 2), exposure


def test_exposures_in_the_square_link_are_those_of_dense_inference():
    X, events, exposure = exposed(60)
    s, new = np.sqrt(exposure), rows(20, 9)[0]
    for method in ("ep", "qp"):
        model = qp.GPPoissonRegressor(KERNEL, method=method, optimize=False, inducing=X, mean=1.5)
        model.fit(X, events, exposure)
        K = KERNEL(X) * np.outer(s, s)
        dense = qp.infer(K, events, "poisson", method, power=0.5, mean=1.5 * s)
        # The jitter on k(Z, Z) is 2e-8; two rows of exposure 3e4 know f to 1/(4 3e4), of which that
        # is 0.0024.
        assert abs(model.log_marginal_likelihood_value_ - dense.log_evidence) < 4e-3
        mean, variance = dense.predict(KERNEL(new, X) * s, KERNEL.diag(new), mean=1.5)
        for found, expected in zip(model.latent(new), (mean, variance), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-3)
        post = model.posterior_
        np.testing.assert_allclose(post.loo(), dense.loo(), rtol=0.0, atol=1e-2)
        np.testing.assert_allclose(post.mean, dense.mean / s, rtol=0.0, atol=1e-3)
        np.testing.assert_array_equal(post.predict(new), model.latent(new))
        # Predictions of counts are of f and the exposures given, as without inducing points.
        e = np.linspace(0.1, 9.0, len(new))
        mean, variance = model.latent(new)
        np.testing.assert_allclose(model.predict(new, exposure=e), e * (mean**2 + variance))
        low, high = model.predict_quantiles(new, [0.1, 0.9], exposure=e).T
        pmf = np.exp(model.predict_log_pmf(new, np.tile(np.arange(600), (len(new), 1)), e))
        below = np.cumsum(pmf, axis=1)
        k = np.arange(len(new))
        assert (below[k, low] >= 0.1).all()
        assert (below[k, high] >= 0.9).all()
        refuses("exposure", model.score, X, events)
        assert model.score(X, events, exposure=exposure) > 0.9
        assert model.exposure_.shape == (0,)


def test_exposures_in_the_square_link_are_fitted_as_dense_ones_are():
    """The optimum of the dense fit, where every row is an inducing point and the power is 1."""
    X, events, exposure = exposed(80)
    options = {"method": "ep", "optimize": qp.Search(max_iter=60), "random_state": 0}
    dense = qp.GPPoissonRegressor(KERNEL, **options).fit(X, events, exposure)
    fixed = qp.Inducing(X, power=1.0, learn=False, dtype="float64")
    model = qp.GPPoissonRegressor(KERNEL, inducing=fixed, **options).fit(X, events, exposure)
    assert model.mean_ == dense.mean_
    # Stages end where the evidence per row rises by less than 2e-5.
    found, best = model.log_marginal_likelihood_value_, dense.log_marginal_likelihood_value_
    assert abs(found - best) < 0.01
    assert np.abs(model.kernel_.theta - dense.kernel_.theta).max() < 0.1
    np.testing.assert_allclose(model.predict(X), dense.predict(X), rtol=0.05)


def test_a_sample_comes_between_where_rows_are_many(labelled, monkeypatch, capsys):
    """Constants lowered: three sizes of rows, unless the first sample is as large as the second."""
    X, labels = labelled
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_SIZES", (150,))
    monkeypatch.setattr("qpruntime.learning.sparse.train._SAMPLE_FACTOR", 2)
    options = {"optimize": qp.Search(max_iter=4), "random_state": 0, "verbose": 2}
    model = qp.GPClassifier(KERNEL, inducing=qp.Inducing(15, subsample=60), **options)
    model.fit(X, labels)
    told = capsys.readouterr().err
    for number, words in enumerate(["parameters on 60", "too, on 60", "150", "all 400"], 1):
        assert f"stage {number} of 4" in told
        assert f"{words} rows: 1 evaluations" in told
    assert len(model.optima_) == 4
    # Scores are those of all rows, of which the last stage is.
    values = [run.value / n for run, n in zip(model.optima_, (400, 150, 60, 60), strict=True)]
    assert abs(model.log_marginal_likelihood_value_ / 400 - values[0]) < 0.02
    assert np.ptp(values) < 0.2
    assert model.score(X, labels) > 0.75
    other = qp.GPClassifier(KERNEL, inducing=qp.Inducing(15, subsample=200), **options)
    other.fit(X, labels)
    assert "of 3, all 400 rows" in capsys.readouterr().err
    assert len(other.optima_) == 3


def test_what_remains_slow_is_announced(labelled, monkeypatch, caplog):
    """QP's sweeps at the end, by how long the first one took: here a minute by the clock."""
    X, labels = labelled
    ticks = iter(range(0, 10**9, 60))
    clock = "qpruntime.learning.sparse.objective.time.perf_counter"
    monkeypatch.setattr(clock, lambda: next(ticks))
    for method in ("qp", "ep"):
        caplog.clear()
        qp.GPClassifier(KERNEL, inducing=10, optimize=False, method=method).fit(X[:50], labels[:50])
        told = [r.getMessage() for r in caplog.records if "will take about" in r.getMessage()]
        assert len(told) == (method == "qp")
        assert all("minutes" in words and 'method="ep"' in words for words in told)
    # A sweep in which kernels compile says nothing about others.
    caplog.clear()
    monkeypatch.setattr("qpruntime.learning.sparse.objective.compilations", lambda: next(ticks))
    qp.GPClassifier(KERNEL, inducing=10, optimize=False).fit(X[:50], labels[:50])
    assert "will take about" not in caplog.text


@pytest.mark.slow
def test_a_row_of_a_fit_takes_three_numbers_beside_the_data(tmp_path):
    """Rows of a file: two numbers of sites, a byte of label, and the zeros of the prior mean."""
    most, path = 300_000, tmp_path / "x.npy"
    x = np.random.default_rng(0).uniform(-3.0, 3.0, (most, 1))
    np.save(path, x)
    labels = np.sin(2.0 * x[:, 0]) > 0.1

    def taken(n):
        given = qp.Inducing(8, memory=0, subsample=2000)
        options = {"inducing": given, "method": "ep", "optimize": qp.Search(max_iter=3)}
        tracemalloc.start()
        try:
            model = qp.GPClassifier(**options, random_state=0)
            model.fit(np.load(path, mmap_mode="r")[:n], labels[:n])
            return np.array(tracemalloc.get_traced_memory())
        finally:
            tracemalloc.stop()

    taken(5000)
    held, peak = (taken(most) - taken(100_000)) / (most - 100_000)
    assert held < 25.5
    assert peak < 34.0  # half the digits of the best sites are kept while others are tried


FIXED = {"optimize": False, "random_state": 0, "method": "ep", "tol": 1e-8}


def test_parts_are_near_all_rows_at_once():
    """Sites of the first part are not updated: nearly nothing, where they are many."""
    rng = np.random.default_rng(3)
    X, exposure = rng.uniform(-3.0, 3.0, (400, 1)), rng.uniform(0.5, 2.0, 400)
    Z, new = np.linspace(-3.0, 3.0, 12)[:, None], np.linspace(-2.5, 2.5, 30)[:, None]
    f, given, options = np.sin(1.5 * X[:, 0]), {"exposure": exposure}, {"kernel": KERNEL, **FIXED}
    robust = qp.GPRobustRegressor(noise_bounds={"start": 0.3}, normalize_y=False, **options)
    counts = qp.GPPoissonRegressor(link="exp", mean=0.0, **options)
    square = qp.GPPoissonRegressor(mean=2.0, **options)
    for model, y, columns in (
        (qp.GPClassifier(**options), f + rng.standard_normal(400) > 0.0, {}),
        (counts, rng.poisson(exposure * np.exp(f)), given),
        (square, rng.poisson(exposure * (2.0 + f) ** 2), given),
        (robust, f + 0.3 * rng.standard_t(4.0, 400), {}),
    ):
        model.set_params(inducing=qp.Inducing(Z, power=1.0))
        first, second = ({k: v[i] for k, v in columns.items()} for i in np.split(np.arange(400), 2))
        half, whole = clone(model).fit(X[:200], y[:200], **first), clone(model).fit(X, y, **columns)
        model.partial_fit(X[:200], y[:200], **first).partial_fit(X[200:], y[200:], **second)
        (mean, variance), (true, width) = model.latent(new), whole.latent(new)
        assert np.abs(mean - true).max() < 0.15 * np.sqrt(width).min()
        assert np.abs(np.log(variance / width)).max() < 0.1
        off = model.log_marginal_likelihood_value_ - whole.log_marginal_likelihood_value_
        assert abs(off) < 0.5
        # And not what the first part alone says.
        assert np.abs(np.log(half.latent(new)[1] / width)).min() > 0.2


def test_what_cannot_be_added(labelled):
    X, labels = labelled[0][:60], labelled[1][:60]
    dense = qp.GPClassifier(KERNEL, **FIXED).fit(X, labels).set_params(inducing=5)
    refuses("clone", dense.partial_fit, X, labels)
    model = qp.GPClassifier(KERNEL, inducing=5, **FIXED).partial_fit(X, labels)
    before = model.latent(X)
    for words, points, y in (
        (r"labels \['left'\] are not among", X, np.where(labels == "up", "up", "left")),
        ("features", np.hstack([X, X]), labels),
        ("infinity", X * np.inf, labels),
    ):
        refuses(words, model.partial_fit, points, y, error=ValueError)
    np.testing.assert_array_equal(model.latent(X), before)
    y = np.full(60, 3)
    counts = qp.GPPoissonRegressor(KERNEL, inducing=5, **FIXED).fit(X, y)
    for exposure in (-1.0, np.ones(3), 1e-310):
        words = r"exposure must|scale must be positive"
        refuses(words, counts.partial_fit, X, y, exposure=exposure)
    refuses("counts need theirs", counts.partial_fit(X, y, exposure=2.0).score, X, y)
