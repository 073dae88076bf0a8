"""Triangles by tiles are LAPACK's to rounding, with the same bits for any number of threads."""

import os
import threading
import time
from unittest import mock

import numpy as np
import pytest
from scipy.linalg.lapack import dlauum, dpotrf, dtrtri, dtrtrs
from threadpoolctl import threadpool_limits

from qpruntime import infer
from qpruntime.execution import threads
from qpruntime.inference.dense import blas


@pytest.fixture(autouse=True)
def one_hand():
    yield
    assert threads.hands() == 1, "not given back"


@pytest.fixture(params=[1, 3])
def hands(request):
    before = threads.set_hands(request.param)
    yield request.param
    threads.set_hands(before)


def definite(n):
    """A matrix whose condition is 1e6, Fortran-ordered; NaN above the diagonal."""
    x = np.linspace(0.0, 30.0, n)
    A = 1e4 * np.exp(-0.5 * (x[:, None] - x) ** 2) + np.eye(n)
    A[np.triu_indices(n, 1)] = np.nan
    return np.asfortranarray(A)


# One row more than a whole, sizes that no piece divides, and several levels of halves.
@pytest.mark.parametrize("n", [601, 1301])
def test_as_lapack(n, hands):
    A = definite(n)
    wanted = np.tril(dpotrf(A, lower=1)[0])
    lower, info = blas.cholesky(A.copy(order="F"))
    assert info == 0
    assert np.isnan(lower[0, 1:]).all(), "what is above the diagonal is neither read nor set"
    lower = np.asfortranarray(np.tril(lower))
    # n roundings of the largest entry, 100, and the condition of the leading blocks.
    np.testing.assert_allclose(lower, wanted, rtol=0.0, atol=1e-9)
    # The residual has no condition: A is 1e4.
    np.testing.assert_allclose(np.tril(lower @ lower.T), np.tril(A), rtol=0.0, atol=1e-10)
    inverse, known = blas.inverse_triangle(wanted), dtrtri(wanted, lower=1)[0]
    np.testing.assert_allclose(np.tril(inverse), np.tril(known), rtol=0, atol=1e-11)
    square, known = blas.square(wanted.copy(order="F")), dlauum(wanted, lower=1)[0]
    np.testing.assert_allclose(np.tril(square), np.tril(known), rtol=1e-12, atol=1e-9)
    columns = np.asfortranarray(np.random.default_rng(0).standard_normal((n, 300)))
    solved = dtrtrs(wanted, columns, lower=1)[0]
    found = blas.solve_lower(wanted, columns.copy(order="F"))
    np.testing.assert_allclose(found, solved, rtol=0.0, atol=1e-12)
    for count in (0, 1, 2):
        some = columns[:, :count].copy(order="F")
        if count == 1:
            some = np.lib.stride_tricks.as_strided(some, strides=(8, 8))
        found = blas.solve_lower(wanted, some)
        np.testing.assert_allclose(found, solved[:, :count], rtol=0.0, atol=1e-12)


def test_the_row_that_fails(hands):
    for row in (0, 400, 800, 1199):
        A = definite(1200)
        A[row, row] = -1.0
        assert blas.cholesky(A)[1] == row + 1


def test_same_bits_with_any_number_of_hands(monkeypatch):
    X = np.random.default_rng(1).standard_normal((700, 3))
    K = 9.0 * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    y = np.where(X[:, 0] * X[:, 1] > 0.0, 1.0, -1.0)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(threads, "cores", lambda count=count: count)
        with threadpool_limits(count, "blas"):
            post = infer(K, y, method="ep")
        found.append((post.log_evidence, post.mean, post.variance, post.evidence_gradient(K)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_every_piece_once_and_by_several_threads(hands):
    seen, names = [], set()

    def piece(i):
        time.sleep(0.002)
        seen.append(i)
        names.add(threading.get_ident())

    threads.share([(piece, (i,)) for i in range(40)])
    assert sorted(seen) == list(range(40))
    assert len(names) <= hands
    assert hands == 1 or len(names) > 1


def test_an_error_ends_it(hands):
    done = []

    def piece(i):
        if i == 5:
            raise KeyError(i)
        time.sleep(0.001)
        done.append(i)

    with pytest.raises(KeyError):
        threads.share([(piece, (i,)) for i in range(1000)])
    # What had begun has ended, at most one piece a thread.
    count = len(done)
    time.sleep(0.05)
    assert len(done) == count < 100


def test_errors_of_all_threads_are_waited_for(hands):
    """Each thread but the last fails at once; none is at work when the call returns."""
    here, started = threading.get_ident(), threading.Event()
    ended = []

    def piece(i):
        if threading.get_ident() == here and hands > 1:
            started.wait(10.0)
            raise KeyError(i)
        started.set()
        time.sleep(0.05)
        ended.append(i)
        if i % 2:
            raise KeyError(i)

    with pytest.raises(KeyError):
        threads.share([(piece, (i,)) for i in range(3)])
    count = len(ended)
    time.sleep(0.1)
    assert len(ended) == count >= 1


def test_without_further_threads(hands, monkeypatch):
    """A pool queues what it cannot start, as that of Python does."""
    pool = mock.Mock()
    pool.submit.side_effect = RuntimeError("can't start new thread")
    monkeypatch.setattr(threads, "_pool", lambda: pool)
    done = []
    threads.share([(done.append, (i,)) for i in range(20)])
    assert done == list(range(20))
    # A thread that comes by later finds nothing to do.
    for (function, *arguments), _ in pool.submit.call_args_list:
        function(*arguments)
    assert done == list(range(20))


def test_a_team_in_a_new_process(hands):
    threads.share([(time.sleep, (0.001,)) for _ in range(4)])
    child = os.fork()
    if child == 0:
        threads.share([(time.sleep, (0.001,)) for _ in range(4)])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
