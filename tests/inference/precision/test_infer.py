"""Inference on a sparse precision: kept values, the dense engine, and what is refused."""

import numpy as np
import pytest

from qpruntime import infer, infer_precision
from tests.tools import precision_cases
from tests.tools.cases import every_case, refuses


@every_case("name", precision_cases.CASES)
def test_kept_values(name):
    """Of another implementation, which agrees with the dense engine to 1e-12."""
    kept = precision_cases.REFERENCE[name]
    build, y, likelihood, offset = precision_cases.problem(name)
    theta = np.array(kept["theta"])
    C = precision_cases.constraint(name)
    post = infer_precision(*build(theta), y, likelihood, offset=offset, constraint=C, tol=1e-12)
    assert post.converged
    lost = precision_cases.LOST.get(name, 1.0)
    assert post.log_evidence == pytest.approx(kept["log_evidence"], abs=1e-10 * lost)
    np.testing.assert_allclose(post.latent()[0][:2], kept["fixed"], atol=1e-10 * lost)
    np.testing.assert_allclose(post.mean[:3], kept["eta_mean_first3"], atol=1e-10 * lost)
    np.testing.assert_allclose(post.variance[:3], kept["eta_variance_first3"], atol=1e-10 * lost)
    np.testing.assert_allclose(post.sites.tau[:3], kept["tau_first3"], atol=1e-10 * lost)
    steps = 1e-6 * np.eye(theta.size)
    changes = [(build(theta + step)[1] - build(theta - step)[1]) / 2e-6 for step in steps]
    expected = kept["gradient"]
    np.testing.assert_allclose(post.evidence_gradient(changes), expected, rtol=1e-7 * lost**0.5)


@every_case("name", precision_cases.CASES)
@every_case("method", ["ep", "qp"])
def test_the_dense_engine_agrees(name, method):
    build, y, likelihood, offset = precision_cases.problem(name)
    A, Q = build(np.array(precision_cases.REFERENCE[name]["theta"]))
    C = precision_cases.constraint(name)
    inverse = np.linalg.inv(Q.toarray())
    if C is not None:
        seen = inverse @ C
        inverse -= np.outer(seen, seen) / (C @ seen)
    K = A @ inverse @ A.T
    post = infer_precision(A, Q, y, likelihood, method, offset=offset, constraint=C, tol=1e-12)
    lost = precision_cases.LOST.get(name, 1.0)
    dense = infer(K, y, likelihood, method, mean=offset, tol=1e-12)
    assert post.log_evidence == pytest.approx(dense.log_evidence, abs=1e-10 * lost)
    for found, right in ((post.mean, dense.mean), (post.variance, dense.variance)):
        np.testing.assert_allclose(found, right, atol=1e-10 * lost)
    np.testing.assert_allclose(post.loo(), dense.loo(), atol=1e-10 * lost)


def test_qp_has_its_kept_values():
    build, y, likelihood, _ = precision_cases.problem("groups probit")
    kept = precision_cases.REFERENCE["groups probit QP"]
    post = infer_precision(*build([0.4]), y, likelihood, "qp", "exact", tol=1e-12)
    np.testing.assert_allclose(post.latent()[0][:2], kept["fixed"], atol=1e-8)
    np.testing.assert_allclose(post.variance[:3], kept["eta_variance_first3"], atol=1e-8)
    np.testing.assert_allclose(post.sites.tau[:3], kept["tau_first3"], atol=1e-8)


@every_case(
    "change, words",
    [
        ({"A": np.ones((40, 3))}, "A has 3 columns, and Q 12"),
        ({"y": precision_cases.LABELS[:3]}, r"y must have shape \(40,\)"),
        ({"offset": np.zeros(3)}, "offset must be a number"),
        ({"constraint": np.ones((1, 3))}, r"constraint must have shape \(m, 12\)"),
        ({"weights": -np.ones(40)}, "weights must not be negative"),
        ({"method": "vb"}, "method must be"),
        ({"A": np.full((40, 12), np.nan)}, "A must be finite, and row 0 is not"),
    ],
)
def test_what_is_refused(change, words):
    A, Q = precision_cases.joined(precision_cases.group(precision_cases.GROUP, 0.4))
    given = {"A": A, "Q": Q, "y": precision_cases.LABELS, "likelihood": "probit", **change}
    refuses(words, infer_precision, **given)
