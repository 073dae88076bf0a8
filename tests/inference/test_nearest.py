"""The nearest rows of a point: the dense posterior where they are all rows, the sparse one where
nothing is left to correct.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from cases import every_case
from qpruntime import InputError, infer, infer_sparse
from qpruntime.inference.nearest.posterior import local_of

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
    engine = posterior.engine
    engine.sites = sites
    state = engine.state
    return replace(posterior, root=state.root, weights=state.mean, inducing=state.inducing)


def as_dense(kernel, y, likelihood, power, **options):
    """The dense posterior, and the local one by all rows of the same sites."""
    dense = infer(kernel(X), y, likelihood, "ep", power=power, tol=1e-13, **options)
    post = infer_sparse(kernel, X, y, Z, likelihood, "ep", power=power, max_sweeps=1000, **options)
    mean = np.broadcast_to(options.get("mean", 0.0), (48,))
    tau, nu = dense.sites
    return dense, with_sites(post, (tau, nu - tau * mean))


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
    dense, sparse = as_dense(kernel, y, likelihood, power, **options)
    at = 0.1 if "mean" in options else 0.0
    # Noise is of each row its own: a point where a row is has another.
    expected = dense.predict(kernel(POINTS, X), kernel.diag(POINTS), np.full(len(POINTS), at))
    for updates in (0, 2):
        local = local_of(sparse, X, 48, updates)
        found = local.predict(POINTS, np.full(len(POINTS), at))
        assert local.updates == updates
        # EP's fixed point stays where it is, as far as the dense engine has come to it.
        close = CLOSE if updates == 0 else {"rtol": 0.0, "atol": 1e-9}
        np.testing.assert_allclose(found, expected, **close)
    np.testing.assert_allclose(local_of(sparse, X, 48, 0).loo(), dense.loo(), **CLOSE)


def test_what_z_leaves_nothing_of_is_not_corrected():
    once = X[:40]
    options = {"method": "ep", "tol": 1e-13, "jitter": 0.0}
    sparse = infer_sparse(SMOOTH, once, LABELS[:40], once, **options)
    for updates, close in ((0, CLOSE), (2, {"rtol": 0.0, "atol": 1e-8})):
        local = local_of(sparse, once, 7, updates)
        np.testing.assert_allclose(local.predict(POINTS), sparse.predict(POINTS), **close)
    np.testing.assert_allclose(local_of(sparse, once, 7, 0).loo(), sparse.loo(), **CLOSE)


@every_case("updates", [0, 2])
def test_a_row_left_out_is_the_prediction_without_its_site(updates):
    options = {"method": "qp", "weights": WEIGHTS, "mean": PRIOR}
    sparse = infer_sparse(NOISY, X, LABELS, Z, **options)
    local = local_of(sparse, X, 9, updates)
    sites = sparse.engine.sites
    for n in (2, 3, 41, 44, 47):
        rest = np.arange(48) != n
        other = infer_sparse(
            NOISY, X[rest], LABELS[rest], Z, weights=WEIGHTS[rest], mean=PRIOR[rest]
        )
        other = with_sites(other, (sites.tau[rest], sites.nu[rest]))
        # Where other rows are at its place that is one neighbour more.
        more = int((X[rest] == X[n]).all(axis=1).any())
        mean, variance = local_of(other, X[rest], 9 + more, updates).predict(X[[n]], PRIOR[[n]])
        rule = sparse.rule
        expected = rule.project(mean, np.sqrt(variance), LABELS[[n]], None, "log_z", whole=True)[0]
        np.testing.assert_allclose(local.loo_of([n]), expected, **CLOSE)
    np.testing.assert_array_equal(local.loo_of([5, 1, 5]), local.loo()[[5, 1, 5]])
    np.testing.assert_allclose(sparse.loo_of([5, 1, 5]), sparse.loo()[[5, 1, 5]], **CLOSE)


def test_weights_and_order_of_rows():
    """A row of weight 2 is two rows; the order of rows means nothing."""
    twice = np.arange(48) % 4 == 0
    weights = np.where(twice, 2.0, 1.0)
    both = {"method": "ep", "tol": 1e-13, "nearest": 9}
    one = infer_sparse(SMOOTH, X, LABELS, Z, weights=weights, power=1.0, **both)
    order = np.random.default_rng(1).permutation(48)
    two = infer_sparse(SMOOTH, X[order], LABELS[order], Z, weights=weights[order], **both)
    three = infer_sparse(SMOOTH, X, LABELS, Z, weights=weights, **both)
    # What the tolerance of the fixed points leaves.
    np.testing.assert_allclose(two.predict(POINTS), three.predict(POINTS), **CLOSE)
    np.testing.assert_allclose(two.loo(), three.loo()[order], **CLOSE)
    assert np.abs(np.subtract(one.predict(POINTS), two.predict(POINTS))).max() > 1e-3


def test_a_copy_predicts_and_holds_its_rows():
    local = infer_sparse(SMOOTH, X, LABELS, Z, nearest=5)
    copy = pickle.loads(pickle.dumps(local))
    np.testing.assert_array_equal(copy.predict(POINTS), local.predict(POINTS))
    np.testing.assert_array_equal(copy.loo_of([1, 2]), local.loo_of([1, 2]))
    found = copy.summary()
    assert (found["nearest"], found["rows_held"], found["bytes_held"]) == (5, 48, 48 * (16 + 16))
    assert "48 rows are held and pickled" in str(copy)
    assert copy.converged == local.sparse.converged
    assert repr(copy).startswith("<LocalPosterior of 48 rows")
    assert "5 nearest" in repr(copy)


def test_what_is_no_row_is_refused():
    local = infer_sparse(SMOOTH, X, LABELS, Z, nearest=5)
    for post in (local, local.sparse):
        with pytest.raises(InputError, match="from 0 to 47, got 0 to 48"):
            post.loo_of([0, 48])
        with pytest.raises(InputError, match="whole numbers"):
            post.loo_of([0.5])
    with pytest.raises(InputError, match="the 48 rows"):
        local_of(local.sparse, X[:5], 3)
    with pytest.raises(InputError, match="nearest"):
        infer_sparse(SMOOTH, X, LABELS, Z, nearest=-1)
