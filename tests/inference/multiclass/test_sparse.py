"""Classes jointly by inducing points, beside dense inference under FITC's covariances."""

import pickle

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern

import qpruntime
from qpruntime import InputError, infer_classes, infer_sparse_classes
from qpruntime.inference.multiclass.sparse_linalg import ClassFeatures, SharedFeatures
from tests.tools.cases import every_case, refuses

OPTIONS = {"tol": 1e-11, "max_sweeps": 300}


def drawn(C, kernels=1, n=36, v=4.0):
    rng = np.random.default_rng(C)
    X = rng.normal(size=(n, 2))
    found = [(v + c) * Matern([0.8 + 0.1 * c, 1.2], nu=2.5) for c in range(kernels)]
    f = rng.normal(size=(n, C)) + 2.0 * np.sin(X[:, :1] + np.arange(C))
    return X, np.argmax(f, axis=1), found


def fitc(kernel, X, Z, new):
    """Covariance of the rows, of points with the rows and of these alone, by solves of k(Z, Z)."""
    Kzz = kernel(Z)
    Kzz += 1e-8 * np.mean(np.diag(Kzz)) * np.eye(len(Z))
    onto = np.linalg.solve(Kzz, kernel(Z, X))
    Q = kernel(X, Z) @ onto
    K = 0.5 * (Q + Q.T)
    K[np.diag_indices(len(X))] = np.diag(kernel(X))
    return K, kernel(new, Z) @ onto, kernel.diag(new)


@every_case(
    ("C", "kernels", "count", "method"),
    [(3, 1, 36, "ep"), (3, 1, 10, "qp"), (4, 4, 9, "ep"), (5, 1, 7, "qp"), (4, 4, 36, "qp")],
)
def test_dense_inference_under_its_covariances(C, kernels, count, method):
    """All that a posterior has, to rounding: the fixed point is the same one."""
    X, labels, found = drawn(C, kernels)
    Z, new = X[:count], np.random.default_rng(9).normal(size=(6, 2))
    parts = zip(*(fitc(one, X, Z, new) for one in found), strict=True)
    K, K_star, diagonal = map(np.array, parts)
    if kernels == 1:
        K, K_star, diagonal = K[0], K_star[0], diagonal[0]
    known = infer_classes(K, labels, method, n_classes=C, **OPTIONS)
    kernel = found if kernels > 1 else found[0]
    post = infer_sparse_classes(X, labels, kernel, Z, method, n_classes=C, **OPTIONS)
    assert post.converged
    assert post.log_evidence == pytest.approx(known.log_evidence, abs=1e-9)
    np.testing.assert_allclose(post.sites.tau, known.sites.tau, atol=1e-9)
    ours, theirs = (
        (one.sites.nu, one.mean, one.covariance, one.loo(), *one.predict(*at))
        for one, at in ((post, (new,)), (known, (K_star, diagonal)))
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    expected = known.predict_log_proba(K_star, diagonal)
    np.testing.assert_allclose(post.predict_log_proba(new), expected, atol=1e-7)


def test_one_kernel_of_all_by_products_of_features():
    """Both products, beside those of as many equal features, and of chunks beside all rows."""
    rng = np.random.default_rng(1)
    C, n, m = 3, 150, 4
    phi, rest = rng.normal(size=(n, m)), np.zeros((1, n))
    own, shared = rng.normal(size=(2, C, n))
    V = rng.normal(size=(C * m, C * m))
    V += V.T
    one, several = SharedFeatures([phi], rest, C), ClassFeatures([phi] * C, rest, C)
    blocks = np.triu(np.kron(np.ones((C, C)), np.ones((m, m))).astype(bool))
    known = np.einsum("cn,dn,nk,nl->ckdl", shared, -shared, phi, phi)
    for c in range(C):
        known[c, :, c] = (phi * own[c][:, None]).T @ phi
    for features in (one, several):
        P = features.precision(own, shared)
        wanted = (known.reshape(C * m, C * m) + np.eye(C * m))[blocks]
        np.testing.assert_allclose(P[blocks], wanted, atol=1e-12)
        known_2 = np.einsum("nk,ckdl,nl->ncd", phi, V.reshape(C, m, C, m), phi)
        np.testing.assert_allclose(features.quadratic(V), known_2, atol=1e-11)


def test_manners(tmp_path):
    X, labels, (kernel,) = drawn(3)
    post = infer_sparse_classes(X, labels, kernel, X[:8], "ep")
    post.save(tmp_path / "post")
    new = X[:3] + 0.1
    for again in (pickle.loads(pickle.dumps(post)), qpruntime.load(tmp_path / "post")):
        np.testing.assert_array_equal(again.predict_log_proba(new), post.predict_log_proba(new))
        np.testing.assert_array_equal(again.loo(), post.loo())
    begun = infer_sparse_classes(X, labels, kernel, X[:8], "ep", sites=post.sites)
    assert begun.n_sweeps < post.n_sweeps
    assert "36 rows of 3 classes" in str(post)
    # Equal inducing points, and a class without rows.
    twice = infer_sparse_classes(X, labels, kernel, np.vstack([X[:8], X[:8]]), "ep", n_classes=4)
    assert twice.converged
    p = np.exp(twice.predict_log_proba(new))
    assert p[:, 3].max() < p.max(axis=1).min()


@every_case(
    ("change", "said"),
    [
        ({"labels": np.arange(36) % 2}, "two classes are one function"),
        ({"labels": np.arange(35) % 3}, "labels must have shape"),
        ({"labels": np.arange(36) % 3 - 1}, "labels must be from 0"),
        ({"kernel": [RBF()] * 4}, "labels must be|n_classes|of 4"),
        ({"Z": np.zeros((3, 5))}, r"Z must have shape \(M, 2\)"),
        ({"X": np.zeros(36)}, "X must have shape"),
        ({"method": "vb"}, "method must be one of"),
        ({"sites": 3}, "sites must be a pair"),
    ],
)
def test_what_is_refused(change, said):
    X, labels, (kernel,) = drawn(3)
    arguments = {"X": X, "labels": labels, "kernel": kernel, "Z": X[:5], "method": "ep"} | change
    if isinstance(arguments["kernel"], list):
        arguments["n_classes"] = 3
    refuses(said, infer_sparse_classes, **arguments)


def test_what_rows_have_to_be_at_hand_for():
    X, labels, (kernel,) = drawn(3)
    post = infer_sparse_classes(X, labels, kernel, X[:5], "ep")
    for call in (
        lambda: post.evidence_gradient(np.eye(36)),
        lambda: post.corrected_evidence(),
        lambda: post.marginals(),
        lambda: post.with_covariance(np.eye(36)),
        lambda: post.predict_log_proba(X, correction="ratio"),
        lambda: post.predict(X[:, :1]),
        lambda: pickle.loads(pickle.dumps(post)).covariance,
    ):
        with pytest.raises(InputError):
            call()
