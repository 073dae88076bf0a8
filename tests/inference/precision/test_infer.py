"""Inference on a sparse precision: kept values, the dense engine, and what is refused."""

import numpy as np
import pytest
from scipy import sparse

from qpruntime import ConvergenceWarning, InputError, NumericalError, infer, infer_precision
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision import solver
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.solution_protocol import Solution
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
    rows, S = precision_cases.dense(name)
    post = infer_precision(A, Q, y, likelihood, method, offset=offset, constraint=C, tol=1e-12)
    lost = precision_cases.LOST.get(name, 1.0)
    dense = infer(rows @ S @ rows.T, y, likelihood, method, mean=offset, tol=1e-12)
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


X = np.linspace(-1.0, 1.0, 60)
LINE = np.column_stack([np.ones(60), X])


def both(A, Q, y, likelihood, tol=1e-9, **options):
    K = A @ np.linalg.inv(Q) @ A.T
    right = infer(K, y, likelihood, "ep", tol=tol, mean=options.get("offset", 0.0))
    return infer_precision(A, Q, y, likelihood, tol=tol, **options), right


@every_case("scale", [1.0, 1e4])
@every_case("strong", [1e-8, 0.1])
def test_rows_that_own_an_effect(scale, strong, monkeypatch):
    """Counts of 50 000 leave 1 - tau variance of 1e-9, found without their sites; and of more."""
    monkeypatch.setattr(solver, "_STRONG", strong)
    monkeypatch.setattr(solver, "_AT_ONCE", 7)
    A = np.zeros((20, 24))
    A[np.arange(20), np.repeat(np.arange(4), 5)] = A[np.arange(20), 4 + np.arange(20)] = 1.0
    Q = np.diag(np.r_[np.ones(4), np.full(20, 4.0)]) / scale
    y = np.random.default_rng(0).poisson(5e4 * np.exp(0.3 * X[:20])).astype(float)
    found, right = both(A, Q, y, "poisson-exp", 1e-7, offset=np.log(5e4))
    assert found.converged
    assert found.log_evidence == pytest.approx(right.log_evidence, abs=1e-7)
    np.testing.assert_allclose(found.mean, right.mean, rtol=1e-10)
    np.testing.assert_allclose(found.variance, right.variance, rtol=1e-8)
    np.testing.assert_allclose(found.weights, solution_of(right).kept.weights, rtol=1e-6, atol=1e-9)


@every_case("likelihood", ["probit", "logistic"])
@every_case("y", [np.ones(60), np.where(X > 0.1, 1.0, -1.0)])
@every_case("scale", [10.0, 1000.0])
def test_labels_of_one_kind_and_separated_ones(likelihood, y, scale):
    """Finite by the prior of the coefficients, within 35 sweeps of any width of it."""
    found, right = both(LINE, np.eye(2) / scale**2, y, likelihood)
    assert found.converged
    assert found.n_sweeps <= 35
    assert found.log_evidence == pytest.approx(right.log_evidence, abs=1e-9)
    np.testing.assert_allclose(found.mean, right.mean, rtol=1e-6, atol=1e-6 * scale)


def test_negative_precisions():
    """Outliers of heavy tails widen the posterior."""
    rng = np.random.default_rng(0)
    A = np.zeros((40, 11))
    A[:, 0], A[np.arange(40), 1 + np.arange(40) // 4] = np.sin(np.arange(40)), 1.0
    y = rng.standard_t(2, 40)
    y[3], y[8] = y[3] + 9.0, y[8] - 9.0
    found, right = both(A, np.diag(np.r_[0.01, np.ones(10)]), y, "student-t", 1e-10)
    assert found.converged
    assert found.n_negative == right.n_negative > 0
    assert found.log_evidence == pytest.approx(right.log_evidence, abs=1e-10)
    np.testing.assert_allclose(found.mean, right.mean, atol=1e-9)


def test_contradictions_are_held_and_said():
    """Two observations of one value that contradict each other leave no free fixed point."""
    A, y = np.kron(np.eye(3), np.ones((2, 1))), np.array([2.0, -2.0, 0.1, 0.2, 0.0, 0.1])
    with pytest.warns(ConvergenceWarning, match="2 of 6 site precisions are held at zero"):
        post = infer_precision(A, np.eye(3) / 25.0, y, "student-t(nu=4, scale=0.4)")
    assert (post.status, post.held, post.n_negative) == ("held", 2, 0)
    y[:2] = 6.0, -6.0
    with pytest.warns(ConvergenceWarning, match="not converged"):
        infer_precision(A, np.eye(3) / 400.0, y, "student-t(nu=4, scale=0.4)")


def test_rows_that_see_nothing():
    A = np.eye(3)[[0, 1, 2, 2, 0]]
    A[4] = 0.0
    offset = np.array([0.0, 0.0, 0.2, 0.0, 0.5])
    y = np.array([1.0, 1.0, -1.0, 1.0, -1.0])
    found = infer_precision(A, np.eye(3), y, "logistic", offset=offset)
    rest = infer_precision(A[:4], np.eye(3), y[:4], "logistic", offset=offset[:4])
    own = -np.log1p(np.exp(0.5))
    assert found.log_evidence == pytest.approx(rest.log_evidence + own, abs=1e-12)
    assert (found.mean[4], found.variance[4]) == (0.5, 0.0)
    assert found.loo()[4] == pytest.approx(own, abs=1e-14)
    weights = [1.0, 1.0, 1.0, 1.0, 0.0]
    weighed = infer_precision(A, np.eye(3), y, "logistic", offset=offset, weights=weights)
    assert weighed.log_evidence == pytest.approx(rest.log_evidence, abs=1e-12)
    blind = np.zeros((2, 3)), np.eye(3), [1.0, 1.0], "probit"
    refuses("no row sees a latent value", infer_precision, *blind)


def test_equal_columns_share_their_effect():
    """A proper prior leaves no rank missing."""
    A = np.column_stack([LINE, X])
    y = np.where(X + 0.3 * np.sin(9.0 * X) > 0.0, 1.0, -1.0)
    found, right = both(A, np.eye(3) / 100.0, y, "probit")
    assert found.log_evidence == pytest.approx(right.log_evidence, abs=1e-9)
    mean = found.latent()[0]
    assert mean[1] == pytest.approx(mean[2], abs=1e-9)


def test_improper_priors_and_constraints_that_repeat_each_other():
    D = np.diff(np.eye(5), axis=0)
    A, y = np.eye(5)[:, 1:], np.ones(5)
    for Q, words in (
        (np.diag([1.0, 1.0, 0.0, 1.0]), "positive definite at column 2"),
        (-np.eye(4), "the posterior precision is not positive definite at column"),
    ):
        refuses(words, infer_precision, A, Q, y, "probit", error=NumericalError)
    walk, y = sparse.csr_array(D.T @ D), np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    given = np.eye(5), walk, y, "probit"
    words = "the precision Q is not positive definite"
    refuses(words, infer_precision, *given, error=NumericalError)
    # With what it leaves free known, and its log determinant, it is proper after the data.
    post = infer_precision(*given, constraint=np.ones(5), log_det=0.0)
    assert abs(post.latent()[0].sum()) < 1e-12
    for count, error, words in (
        (2, NumericalError, "the 2 constraints repeat each other"),
        (6, InputError, "6 constraints on 5 latent values"),
    ):
        own = np.ones((count, 5))
        refuses(words, infer_precision, *given, error=error, constraint=own, log_det=0.0)


def test_the_contract_is_whole():
    post = infer_precision(LINE, np.eye(2), np.sign(X + 0.01), "probit")
    for name in (n for n in dir(Solution) if not n.startswith("_")):
        assert hasattr(solution_of(post), name), name
    assert repr(post).startswith("<PrecisionPosterior of 60 sites of 2 latent values")
    assert len(str(post).splitlines()) == 5
    assert post.summary()["latent"] == 2
    refuses("go together", post.predict)
    refuses("from 0 to 59, got 60 to 60", post.loo, [60])
    refuses("A has 2 columns, and Q 3", Pattern, LINE, np.eye(3))
