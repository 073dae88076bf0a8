"""Crossed groups whose factor is dear: sites approached without factors end where others do."""

from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from qpruntime import infer, infer_precision
from qpruntime.inference.precision import cholesky, iterate
from qpruntime.inference.precision.cholesky import Factorised, Pattern, filled
from qpruntime.inference.precision.cholesky_kernels import routines
from qpruntime.inference.precision.iterate import Nearby
from tests.tools.cases import every_case

RNG = np.random.default_rng(5)
N, ONE, TWO = 240, 30, 20
CODES = RNG.integers(0, [ONE, TWO], (N, 2))
X = np.column_stack([np.ones(N), RNG.standard_normal(N)])


def levels(codes, count):
    return sparse.csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)), (N, count))


A = sparse.hstack([X, levels(CODES[:, 0], ONE), levels(CODES[:, 1], TWO)], format="csr")
ETA = A @ np.concatenate([[-0.3, 0.7], RNG.standard_normal(ONE), 0.7 * RNG.standard_normal(TWO)])
SEEN = {
    "probit": np.where(ETA + RNG.standard_normal(N) > 0.0, 1.0, -1.0),
    "poisson-exp": RNG.poisson(np.exp(ETA)).astype(float),
}


def precision(theta):
    sds = np.exp(np.repeat(theta, [ONE, TWO]))
    return sparse.csr_array(sparse.diags_array(np.concatenate([[1e-4, 1e-2], sds**-2])))


@pytest.fixture
def counted(monkeypatch):
    """Factors that are made, with the approach where `dear` is 0."""
    made, plain = [], Factorised.__init__
    monkeypatch.setattr(
        Factorised, "__init__", lambda *args, **more: made.append(1) or plain(*args, **more)
    )

    def of(dear):
        made.clear()
        monkeypatch.setattr(iterate, "_DEAR", dear)
        return made

    return of


@every_case("family", list(SEEN))
def test_the_dense_engine_agrees_with_few_factors(family, counted):
    """Seven factors for what takes twenty; the dense engine shares neither factors nor starts."""
    theta = np.array([0.0, -0.4])
    K = A @ np.linalg.inv(precision(theta).toarray()) @ A.T
    dense = infer(K, SEEN[family], family, "ep", tol=1e-10)
    found = {}
    for dear in (np.inf, 0.0):
        made = counted(dear)
        post = infer_precision(A, precision(theta), SEEN[family], family, tol=1e-12, log_det=0.0)
        found[dear] = len(made), post
    assert found[0.0][0] <= 0.6 * found[np.inf][0]
    post = found[0.0][1]
    shift = 0.5 * float(np.log(precision(theta).diagonal()).sum())
    assert post.log_evidence + shift == pytest.approx(dense.log_evidence, abs=1e-9)
    np.testing.assert_allclose(post.mean, dense.mean, atol=1e-10)
    np.testing.assert_allclose(post.variance, dense.variance, atol=1e-10)


def test_a_search_takes_one_factor_for_each_evaluation(counted):
    """In the end, from sites near by; the first has no ratios of variances to go by."""
    made, known, pattern = counted(0.0), Nearby(3), Pattern(A, precision(np.zeros(2)))
    numbers = []
    for theta in ([0.0, 0.0], [0.1, -0.2], [0.05, -0.4], [0.06, -0.38], [0.061, -0.381]):
        before = len(made)
        given = {"pattern": pattern, "log_det": 0.0, "sites": known.at(theta), "tol": 1e-5}
        post = infer_precision(A, precision(theta), SEEN["probit"], "probit", **given)
        numbers.append(len(made) - before)
        known.add(theta, post.sites)
        exact = infer_precision(A, precision(theta), SEEN["probit"], "probit", tol=1e-12, log_det=0)
        made.clear()
        np.testing.assert_allclose(post.mean, exact.mean, atol=1e-4)
    assert numbers[-1] == 1
    assert sum(numbers) <= 10


def test_a_path_of_levels_is_left_to_factors(counted):
    """Each row ties two neighbours of a long path: the diagonal says nothing of P."""
    k = 201
    rows = sparse.diags_array([np.full(k, 1.0), np.full(k - 1, -1.0)], offsets=[0, 1], shape=(k, k))
    rows, Q = sparse.csr_array(rows), sparse.eye_array(k, format="csr") * 1e-6
    y = RNG.poisson(np.exp(np.sin(np.arange(k)))).astype(float)
    made, pattern = counted(0.0), Pattern(rows, Q)
    post = infer_precision(rows, Q, y, "poisson-exp", pattern=pattern, tol=1e-10)
    assert pattern.held["far"]
    assert len(made) > 3
    counted(np.inf)
    plain = infer_precision(rows, Q, y, "poisson-exp", tol=1e-10)
    np.testing.assert_allclose(post.mean, plain.mean, atol=1e-8)
    assert post.log_evidence == pytest.approx(plain.log_evidence, abs=1e-8)


def test_large_blocks_in_single_precision(monkeypatch):
    """Of one dense block: right to single precision, and not to double."""
    monkeypatch.setattr(cholesky, "_SIDE", 16)
    n = 40
    B = RNG.standard_normal((n, 2 * n))
    P = sparse.csr_array(B @ B.T / n + np.eye(n))
    pattern = Pattern(sparse.csr_array((1, n)), P)
    right = np.linalg.inv(P.toarray())
    errors = {}
    for wanted in (False, True):
        panels = filled(pattern.symbolic.size, pattern.lower, pattern.halves(P))
        factor = Factorised(pattern.symbolic, panels, wanted)
        errors[wanted] = np.abs(factor.inverse()[pattern.diagonal] - np.diag(right)).max()
        exact = np.linalg.slogdet(P.toarray())[1]
        assert factor.log_det == pytest.approx(exact, abs=1e-5 if wanted else 1e-11)
    assert errors[False] < 1e-13 < errors[True] < 1e-5
    assert cholesky.single_routines()[2:] == routines()[2:]


def test_what_goes_wrong_within_a_kernel(monkeypatch):
    """No copy: the block is LAPACK's. An interruption: the result is not handed out."""
    monkeypatch.setattr(cholesky, "_SIDE", 16)
    P = sparse.csr_array(np.eye(40) + np.full((40, 40), 0.5))
    pattern = Pattern(sparse.csr_array((1, 40)), P)

    def factor():
        panels = filled(pattern.symbolic.size, pattern.lower, pattern.halves(P))
        return Factorised(pattern.symbolic, panels, True)

    exact = np.linalg.slogdet(P.toarray())[1]
    monkeypatch.setattr(cholesky, "_replaced", mock.Mock(side_effect=MemoryError))
    assert factor().log_det == pytest.approx(exact, abs=1e-11)
    monkeypatch.setattr(cholesky, "_replaced", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        factor()
    monkeypatch.undo()
    assert factor().log_det == pytest.approx(exact, abs=1e-11)


def test_normal_noise_takes_one_factor(counted):
    """Least squares are the oracle, also for weighted rows and a start far from the sites."""
    made, Q, scale = counted(np.inf), precision(np.array([0.0, -0.4])), 0.6
    y, weights = ETA + scale * RNG.standard_normal(N), RNG.uniform(0.5, 2.0, N)
    far = np.full(N, 50.0), np.full(N, -70.0)
    given = {"weights": weights, "sites": far, "log_det": 0.0}
    post = infer_precision(A, Q, y, f"gaussian(scale={scale})", **given)
    assert len(made) == 1
    tau = weights / scale**2
    covariance = np.linalg.inv(Q.toarray() + (A.T * tau) @ A.toarray())
    np.testing.assert_allclose(post.mean, A @ covariance @ (A.T @ (tau * y)), rtol=1e-10)
    np.testing.assert_allclose(post.variance, (A @ covariance * A.toarray()).sum(1), rtol=1e-10)
