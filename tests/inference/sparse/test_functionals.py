"""`infer_sparse(operator=)`: games of many players by inducing inputs of their strengths."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import infer, infer_sparse
from qpruntime.inference.sparse.functionals import AlongRows
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

KERNEL = ConstantKernel(2.0) * RBF([0.8, 1.4])


def games(seed=0, n=15, count=60):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    one = rng.integers(0, n, count)
    two = (one + 1 + rng.integers(0, n - 1, count)) % n
    rows = np.tile(np.arange(count), 2)
    A = sparse.csr_array((np.r_[np.ones(count), -np.ones(count)], (rows, np.r_[one, two])))
    f = np.linalg.cholesky(KERNEL(X) + 1e-9 * np.eye(n)) @ rng.normal(size=n)
    y = np.where(A @ f + rng.normal(size=count) > 0.0, 1.0, -1.0)
    return X, A, y


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_all_inputs_inducing_is_dense(method):
    """Nothing is left out: evidence, densities and predictions are those of `infer` (1e-6)."""
    X, A, y = games()
    mean = np.linspace(-0.2, 0.3, len(X))
    options = {"method": method, "tol": 1e-10, "operator": A}
    ours = infer_sparse(X, y, KERNEL, X, mean=mean, power=1.0, jitter=1e-12, **options)
    exact = infer(KERNEL(X), y, mean=mean, **options)
    assert abs(ours.log_evidence - exact.log_evidence) < 1e-6
    np.testing.assert_allclose(ours.loo(), exact.loo(), atol=1e-6)
    np.testing.assert_allclose(ours.mean, exact.mean, atol=1e-6)
    new = np.array([[0.1, -0.3], [2.0, 2.0]])
    found = ours.predict(new, mean=0.1)
    known = exact.predict(KERNEL(new, X), KERNEL.diag(new), mean=0.1)
    np.testing.assert_allclose(found, known, atol=1e-6)


def test_few_inducing_inputs_are_fitc_of_the_functionals():
    """Power 1 is the dense engine on Phi Phi' + diag(r), r by exact variances."""
    X, A, y = games(1)
    Z = X[::3]
    ours = infer_sparse(X, y, KERNEL, Z, method="ep", power=1.0, jitter=1e-12, operator=A)
    across = A @ KERNEL(X, Z)
    low = across @ np.linalg.solve(KERNEL(Z) + 2e-12 * np.eye(len(Z)), across.T)
    K = low + np.diag(np.diag(A.toarray() @ KERNEL(X) @ A.toarray().T - low))
    dense = infer(0.5 * (K + K.T), y, method="ep")
    assert abs(ours.log_evidence - dense.log_evidence) < 1e-6
    np.testing.assert_allclose(ours.variance, dense.variance, rtol=1e-5)
    assert ours.kernel is KERNEL

    def evidence(theta):
        given = {"method": "ep", "power": 1.0, "jitter": 1e-12, "operator": A, "tol": 1e-10}
        return infer_sparse(X, y, KERNEL.clone_with_theta(theta), Z, **given).log_evidence

    expected = slopes(evidence, KERNEL.theta)
    np.testing.assert_allclose(ours.evidence_gradient(), expected, rtol=0.0, atol=1e-5)


def test_a_checkpoint_knows_the_kernel_again(tmp_path):
    """Of another process it has another address; of another length-scale it is another kernel."""
    X, A, y = games()
    given = {"method": "ep", "operator": A, "checkpoint": tmp_path / "sites.npz"}
    first = infer_sparse(X, y, KERNEL, X[:5], **given)
    again = infer_sparse(X, y, clone(KERNEL), X[:5], resume=True, **given)
    assert again.log_evidence == pytest.approx(first.log_evidence, abs=1e-9)
    assert repr(AlongRows(KERNEL, 2)) == repr(AlongRows(clone(KERNEL), 2))
    other = KERNEL.clone_with_theta(KERNEL.theta + 1e-12)
    assert repr(AlongRows(KERNEL, 2)) != repr(AlongRows(other, 2))


def test_rows_of_any_few_entries():
    """Sums of three, a single one, one given in two parts: as dense rows."""
    X, _, _ = games(2)
    entries, columns = [1.0, -0.5, 2.0, -1.5, 1.0, 1.0, 0.4, 0.6], [0, 3, 5, 2, 7, 8, 1, 1]
    twice = sparse.csr_array((entries, columns, [0, 3, 4, 6, 8]), shape=(4, len(X)))
    A = twice.toarray()
    y = np.array([1.0, -1.0, 1.0, 1.0])
    options = {"method": "ep", "power": 1.0, "jitter": 1e-12, "tol": 1e-10}
    one = infer_sparse(X, y, KERNEL, X, operator=A, **options)
    two = infer_sparse(X, y, KERNEL, X, operator=twice, **options)
    exact = infer(KERNEL(X), y, method="ep", operator=A, tol=1e-10)
    assert abs(one.log_evidence - exact.log_evidence) < 1e-6
    assert one.log_evidence == two.log_evidence


@every_case(
    "change, said",
    [
        ({"operator": np.ones((60, 3))}, r"shape \(N, 15\)"),
        ({"operator": np.zeros((60, 15))}, "row 0 of the operator is empty"),
        ({"operator": sparse.eye_array(15), "y": np.ones(14)}, r"shape \(15,\)"),
        ({"nearest": 5}, "nearest cannot act"),
        ({"mean": np.ones(60)}, r"shape \(15,\)"),
        ({"Z": np.ones((3, 1))}, "2 columns"),
        ({"X": np.ones((40, 2)), "y": [1.0], "operator": np.ones((1, 40))}, "has 40 entries"),
    ],
)
def test_what_is_refused(change, said):
    X, A, y = games()
    given = {"X": X, "y": y, "kernel": KERNEL, "Z": X[:3], "operator": A} | change
    refuses(said, infer_sparse, **given)
