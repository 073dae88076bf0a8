"""The factor of a sparse matrix, its inverse where that has numbers, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from qpruntime.inference.precision import cholesky as patterns
from qpruntime.inference.precision.cholesky import Factorised, Pattern, filled
from qpruntime.inference.precision.symbolic_kernels import elimination_order
from tests.tools.cases import refuses


def random_precision(n, density, seed, dense=0):
    """Sparse, positive definite, with a few columns that meet all others."""
    rng = np.random.default_rng(seed)
    B = sparse.random_array((n, n), density=density, rng=rng).toarray()
    B[:, :dense] = rng.standard_normal((n, dense))
    Q = B.T @ B + np.diag(rng.uniform(0.5, 2.0, n))
    Q[np.abs(Q) < 1e-14] = 0.0
    return sparse.csr_array(0.5 * (Q + Q.T))


def factorised(Q, order=None):
    """Of a matrix alone, seen along no rows."""
    pattern = Pattern(sparse.csr_array((1, Q.shape[0])), Q, order=order)
    panels = filled(pattern.symbolic.size, pattern.lower, pattern.halves(Q))
    return pattern, Factorised(pattern.symbolic, panels)


@settings(max_examples=40, deadline=None)
@given(
    *(st.integers(1, 400), st.floats(0.0, 0.05), st.integers(0, 2), st.integers(0, 10**6)),
    st.booleans(),
)
def test_against_dense_algebra(n, density, dense, seed, ordered):
    Q = random_precision(n, density, seed, min(dense, n))
    pattern, factor = factorised(Q, None if ordered else np.arange(n))
    assert factor.failed == -1
    D = Q.toarray()
    inverse = np.linalg.inv(D)
    assert factor.log_det == pytest.approx(np.linalg.slogdet(D)[1], abs=1e-12 * n + 1e-12)
    rows, columns = pattern.coordinates
    scale = np.abs(inverse).max()
    found = factor.inverse()
    got = found[pattern.entries]
    np.testing.assert_allclose(got, inverse[rows, columns], atol=1e-12 * scale * np.linalg.cond(D))
    np.testing.assert_allclose(found[pattern.diagonal], inverse.diagonal(), rtol=1e-11)
    order = pattern.symbolic.order
    right = np.random.default_rng(seed).standard_normal((n, 3))
    expected = inverse[np.ix_(order, order)] @ right
    np.testing.assert_allclose(factor.solve(right), expected, atol=1e-10 * scale)
    root = factor.root(np.eye(n))
    np.testing.assert_allclose(root @ root.T, inverse[np.ix_(order, order)], atol=1e-11 * scale)


def test_large_panels_go_through_blas():
    """Columns 60 to 109 do not meet the first 60, and both meet the last 40."""
    B = np.random.default_rng(0).standard_normal((150, 150))
    full = B @ B.T + 150.0 * np.eye(150)
    full[:60, 60:110] = full[60:110, :60] = 0.0
    Q = sparse.csr_array(full)
    pattern, factor = factorised(Q)
    assert pattern.symbolic.shape.first.size - 1 == 2
    rows, columns = pattern.coordinates
    wanted = np.linalg.inv(full)[rows, columns]
    np.testing.assert_allclose(factor.inverse()[pattern.entries], wanted, atol=1e-15)


def test_matrices_that_are_no_precisions_and_columns_that_are_not_definite():
    Q = random_precision(60, 0.02, 1).tolil()
    Q[17, 17] = -1.0
    pattern, factor = factorised(sparse.csr_array(Q))
    assert int(pattern.symbolic.order[factor.failed]) == 17
    Q = random_precision(30, 0.1, 0)
    for other, words in (
        (Q[:, :-1], "Q must be square"),
        (sparse.csr_array(sparse.triu(Q)), "some of its entries have no mirror image"),
        (Q * np.nan, "Q must be finite"),
    ):
        refuses(words, factorised, other)
    pattern, _ = factorised(Q)
    Q.data[np.flatnonzero(Q.indices != np.repeat(np.arange(30), np.diff(Q.indptr)))[0]] += 0.1
    refuses(r"mirrored entries differ by 0\.1", pattern.halves, Q)


def test_orders_fill_little():
    """A chain has no fill, and a star none once its centre is last; a plane has n log n numbers."""
    n = 2000
    chain = sparse.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1])
    star = sparse.lil_array((n, n))
    star.setdiag(1.0)
    star[0, :] = star[:, 0] = 1.0
    for pattern, most in ((chain, 6.0 * n), (star, 6.0 * n)):
        assert patterns.analyse(sparse.csr_array(pattern)).size < most
    assert elimination_order(sparse.csr_array(star))[-1] == 0
    line = sparse.diags_array([np.ones(59), np.ones(60), np.ones(59)], offsets=[-1, 0, 1])
    plane = sparse.csr_array(sparse.kron(line, line))
    ordered, natural = patterns.analyse(plane), patterns.analyse(plane, np.arange(3600))
    assert ordered.size < 0.6 * natural.size
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 300, 6000), rng.integers(0, 40, 6000)
    A = np.zeros((6000, 340))
    A[np.arange(6000), one] = A[np.arange(6000), 300 + two] = 1.0
    assert set(elimination_order(sparse.csr_array(A.T @ A))[:300]) == set(range(300))


def test_memory_and_operations_have_limits(monkeypatch):
    Q = random_precision(200, 0.05, 0)
    with monkeypatch.context() as patch:
        patch.setattr("qpruntime._memory.left", lambda: (0.0, "by the test"))
        patch.setattr("qpruntime._memory._SMALL", 1.0)
        refuses(r"the factor of 200 columns takes .* of memory", factorised, Q)
    monkeypatch.setattr(patterns, "_MOST", 1e3)
    rows = sparse.csr_array((1, 200))
    refuses(r"more than 1e\+03: .* or allow more by operations=", Pattern, rows, Q)
    assert Pattern(rows, Q, operations=1e9).of_prior[0].flops > 1e3
    refuses("operations must be", Pattern, rows, Q, operations=0.0)
