"""Rows that come later: a posterior extended by them is inference from the posterior there was."""

import pickle

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import infer, infer_sparse
from tests.inference.sparse.test_infer import KERNEL, SCALED, S, X, Z
from tests.tools.cases import every_case, refuses

EXACT = {"method": "qp", "tol": 1e-12}


def data(n=60):
    rng = np.random.default_rng(5)
    x = rng.uniform(-3.0, 3.0, (n, 1))
    return x, np.sign(np.sin(1.7 * x[:, 0]) + rng.standard_normal(n))


@every_case(
    "likelihood, scale",
    [("probit", 1.0), ("laplace(scale=1e-8)", 1.0), ("poisson", np.linspace(0.4, 2.0, 60))],
)
def test_it_is_dense_inference_from_the_posterior_there_was(likelihood, scale):
    x, y = data()
    mean = 0.2
    if likelihood == "poisson":
        mean, y = 1.2, np.round((scale * (1.2 + 0.3 * y)) ** 2)
    s, given = scale * np.ones(60), {"likelihood": likelihood, **EXACT}
    old = infer_sparse(x[:40], y[:40], KERNEL, Z, power=1.0, mean=mean, scale=s[:40], **given)
    x, y, s = x[40:], y[40:], s[40:]
    new = pickle.loads(pickle.dumps(old)).extend(x, y, scale=s)
    phi, r = old._solution.inducing.features(x)
    half = solve_triangular(old._solution.root, phi.T, lower=True)
    K = (half.T @ half + np.diag(r)) * np.outer(s, s)
    dense = infer(K, y, mean=s * old.predict(x)[0], **given)
    # What the tolerance of the fixed points leaves.
    for one, two in (
        (new.log_evidence - old.log_evidence, dense.log_evidence),
        (new.mean, dense.mean / s),
        (new.variance, dense.variance / s**2),
        (new.loo(), dense.loo()),
    ):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-9)
    assert new.n == 60
    # Sites that are shared while they settle: docs/bench-cost.md has by how much.
    if likelihood != "laplace(scale=1e-8)":
        assert abs(old.extend(x, y, scale=s, sites="tied").log_evidence - new.log_evidence) < 0.2


def test_odd_parts():
    """One row; equal rows of one class; rows far away; in either way of sites."""
    x, y = data()
    post = infer_sparse(x, y, KERNEL, Z)
    for part in (x[:1], np.full((30, 1), 0.3), np.full((5, 1), 1e8)):
        for sites in ("own", "tied"):
            found = post.extend(part, np.ones(len(part)), sites=sites)
            assert found.converged
            assert found.log_evidence < post.log_evidence
            assert (found.predict(Z)[1] > 0.0).all()
            assert np.isfinite(found.loo()).all()
    # Rows that no inducing input is near say what they say alone.
    np.testing.assert_allclose(found.loo(), np.log(0.5), rtol=1e-12)
    np.testing.assert_allclose(found.predict(Z), post.predict(Z), rtol=0.0, atol=1e-12)


def test_bad_rows_leave_the_posterior_as_it_was():
    x, y = data()
    post = infer_sparse(x, y, KERNEL, Z)
    before = post.predict(x), post.log_evidence
    for change, words in (
        ({"X": np.zeros((3, 2))}, "must have"),
        ({"X": x[:0], "y": y[:0]}, "X must have shape"),
        ({"y": y[:3]}, "y must have shape"),
        ({"y": 0.5 * y}, "labels must be"),
        ({"mean": [0.0]}, "mean must be"),
        ({"sites": "shared"}, "sites must be"),
    ):
        refuses(words, post.extend, **{"X": x, "y": y, **change})
    np.testing.assert_array_equal(post.predict(x), before[0])
    refuses("prior mean differs", infer_sparse(x, y, KERNEL, Z, mean=x[:, 0]).extend, x, y)


POISSON = {"likelihood": "poisson", "mean": 1.2}


def test_equal_scales_are_another_prior():
    """To the bits where they are a power of two: later rows and tied sites as well."""

    def found(factor, s):
        kernel = ConstantKernel(2.0 * factor**2) * RBF(0.9)
        given = {"likelihood": "poisson", "tol": 1e-10}
        scale = None if s == 1.0 else np.full(40, s)
        post = infer_sparse(X, SCALED, kernel, Z, mean=1.2 * factor, scale=scale, **given)
        assert (post._solution.engine.rows.scale is None) == (s == 1.0)
        for later in (
            post,
            post.extend(X, SCALED, scale=scale),
            post.extend(X, SCALED, scale=scale, sites="tied"),
        ):
            unit = factor**2
            yield later.log_evidence, later.history, later._solution.least(), later.loo()
            yield later.sites.tau * unit, later.sites.nu * factor
            for mean, variance in (later.predict(Z), (later.mean, later.variance)):
                yield mean / factor, variance / unit

    for plain, scaled in zip(found(2.0, 1.0), found(1.0, 2.0), strict=True):
        for one, two in zip(plain, scaled, strict=True):
            np.testing.assert_array_equal(one, two)
    scales = np.ones(40), None
    ones, none = (infer_sparse(X, SCALED, KERNEL, Z, **POISSON, scale=s) for s in scales)
    assert ones._solution.engine.rows.scale is None
    np.testing.assert_array_equal(ones.sites, none.sites)


def test_bad_scales():
    post = infer_sparse(X, SCALED, KERNEL, Z, scale=S, **POISSON)
    before = post.predict(X)
    seventh = np.arange(40) == 7
    for bad, words in (
        (2.0, r"scale must have shape \(40,\)"),
        (S[:3], r"scale must have shape \(40,\), got \(3,\)"),
        (np.where(seventh, 0.0, S), "scale must be positive.*got 0 at row 7; leave out"),
        (-S, "scale must be positive"),
        (np.where(seventh, 1e200, S), r"to 1e\+100, got 1e\+200 at row 7"),
        (np.where(seventh, np.nan, S), r"scale\[7\] is nan"),
        (np.where(seventh, np.inf, S), r"scale\[7\] is inf"),
        (np.array(["1"] * 40), "scale must be an array of real numbers"),
    ):
        for call in (
            lambda s: infer_sparse(X, SCALED, KERNEL, Z, scale=s, **POISSON),
            lambda s: post.extend(X, SCALED, scale=s),
        ):
            refuses(words, call, bad)
    np.testing.assert_array_equal(post.predict(X), before)
