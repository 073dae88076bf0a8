"""Rows that observe a multiple of f: equal scales, whoever holds them, and bad ones."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import infer_sparse
from tests.inference.sparse.test_infer import KERNEL, SCALED, S, X, Z
from tests.tools.cases import refuses

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
    ones, none = (
        infer_sparse(X, SCALED, KERNEL, Z, **POISSON, scale=s) for s in (np.ones(40), None)
    )
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
