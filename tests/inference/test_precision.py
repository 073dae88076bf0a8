"""Inference on a sparse precision: kept values, the dense engine, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from cases import every_case
from qpruntime import InputError, infer, infer_precision

REFERENCE = json.loads(Path(__file__).with_name("precision_reference.json").read_text())
N = np.arange(40)
X = np.sin(1.7 * N)
FIXED = np.column_stack([np.ones(40), X])
GROUP, OTHER = N // 4, 7 * N % 10
LABELS = np.sign(1.5 * np.sin(3.1 * GROUP + 1.0) + 0.8 * X + 0.9 * np.cos(2.3 * N) + 0.2)
COUNTS = np.round(np.exp(0.8 * np.sin(0.3 * N) + 0.3 * X))


def levels(codes, count):
    """Rows that see one level each."""
    return sparse.csr_array(
        (np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, count)
    )


def joined(*blocks):
    """A and Q of blocks (rows, precision), after two fixed effects of deviation 10."""
    A = sparse.hstack([FIXED, *(a for a, _ in blocks)], format="csr")
    Q = sparse.block_diag([sparse.eye_array(2) / 100.0, *(q for _, q in blocks)], format="csr")
    return A, Q


def group(codes, theta):
    return levels(codes, 10), sparse.eye_array(10) * np.exp(-2.0 * theta)


def ar1(theta):
    """20 states of deviation exp(theta[0]) and correlation tanh(theta[1])."""
    rho = np.tanh(theta[1])
    middle = np.full(20, 1.0 + rho**2)
    middle[[0, -1]] = 1.0
    off = np.full(19, -rho)
    Q = sparse.diags_array([off, middle, off], offsets=[-1, 0, 1])
    return Q * np.exp(-2.0 * theta[0]) / (1.0 - rho**2)


def problem(name):
    """A, Q as a function of theta, observations, likelihood and offset."""
    if name.startswith("groups"):
        return lambda t: joined(group(GROUP, t[0])), LABELS, name.split()[1], 0.0
    if name.startswith("crossed"):
        two = lambda t: joined(group(GROUP, t[0]), group(OTHER, t[1]))  # noqa: E731
        return two, LABELS, "logistic", 0.0
    chain = lambda t: joined((levels(N // 2, 20), ar1(t)))  # noqa: E731
    return chain, COUNTS, "poisson-exp", 0.1


CASES = ["groups probit", "groups logistic", "crossed logistic", "ar1 poisson"]


@every_case("name", CASES)
def test_kept_values(name):
    """Of another implementation, which agrees with the dense engine to 1e-12."""
    kept = REFERENCE[name]
    build, y, likelihood, offset = problem(name)
    theta = np.array(kept["theta"])
    post = infer_precision(*build(theta), y, likelihood, offset=offset, tol=1e-12)
    assert post.converged
    assert post.log_evidence == pytest.approx(kept["log_evidence"], abs=1e-10)
    np.testing.assert_allclose(post.latent()[0][:2], kept["fixed"], atol=1e-10)
    np.testing.assert_allclose(post.mean[:3], kept["eta_mean_first3"], atol=1e-10)
    np.testing.assert_allclose(post.variance[:3], kept["eta_variance_first3"], atol=1e-10)
    np.testing.assert_allclose(post.sites.tau[:3], kept["tau_first3"], atol=1e-10)
    changes = []
    for i in range(theta.size):
        step = np.eye(theta.size)[i] * 1e-6
        changes.append((build(theta + step)[1] - build(theta - step)[1]) / 2e-6)
    np.testing.assert_allclose(post.evidence_gradient(changes), kept["gradient"], rtol=1e-7)


@every_case("name", CASES)
@every_case("method", ["ep", "qp"])
def test_the_dense_engine_agrees(name, method):
    build, y, likelihood, offset = problem(name)
    A, Q = build(np.array(REFERENCE[name]["theta"]))
    K = A @ np.linalg.solve(Q.toarray(), A.T.toarray())
    post = infer_precision(A, Q, y, likelihood, method, offset=offset, tol=1e-12)
    dense = infer(K, y, likelihood, method, mean=offset, tol=1e-12)
    assert post.log_evidence == pytest.approx(dense.log_evidence, abs=1e-10)
    for found, right in ((post.mean, dense.mean), (post.variance, dense.variance)):
        np.testing.assert_allclose(found, right, atol=1e-10)
    np.testing.assert_allclose(post.loo(), dense.loo(), atol=1e-10)


def test_qp_has_its_kept_values():
    build, y, likelihood, _ = problem("groups probit")
    kept = REFERENCE["groups probit QP"]
    post = infer_precision(*build([0.4]), y, likelihood, "qp", "exact", tol=1e-12)
    np.testing.assert_allclose(post.latent()[0][:2], kept["fixed"], atol=1e-8)
    np.testing.assert_allclose(post.variance[:3], kept["eta_variance_first3"], atol=1e-8)
    np.testing.assert_allclose(post.sites.tau[:3], kept["tau_first3"], atol=1e-8)


@every_case(
    "change, words",
    [
        ({"A": np.ones((40, 3))}, "A has 3 columns, and Q 12"),
        ({"y": LABELS[:3]}, r"y must have shape \(40,\)"),
        ({"offset": np.zeros(3)}, "offset must be a number"),
        ({"constraint": np.ones((1, 3))}, r"constraint must have shape \(m, 12\)"),
        ({"weights": -np.ones(40)}, "weights must not be negative"),
        ({"method": "vb"}, "method must be"),
        ({"A": np.full((40, 12), np.nan)}, "A must be finite, and row 0 is not"),
    ],
)
def test_what_is_refused(change, words):
    A, Q = joined(group(GROUP, 0.4))
    given = {"A": A, "Q": Q, "y": LABELS, "likelihood": "probit", **change}
    with pytest.raises(InputError, match=words):
        infer_precision(**given)
