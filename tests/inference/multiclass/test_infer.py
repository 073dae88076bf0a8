"""Classes jointly: the solver by blocks beside the dense covariance of all contrasts."""

import json
import pickle

import numpy as np
import pytest
from scipy.linalg import solve
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF

import qpruntime
from qpruntime import ConvergenceWarning, infer, infer_classes
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.solver import ClassPrior
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import no_counts, no_sites
from qpruntime.projection.projector import Projector
from tests.tools import oracle
from tests.tools.cases import every_case, refuses

REFERENCE = json.loads((oracle.REFERENCE / "operators.json").read_text())


def squared(x, z, v, length):
    return v * np.exp(-0.5 * (x[:, None] - z) ** 2 / length**2)


def reference(name):
    """Covariances of a case of the reference, crossed ones, and prior variances of its points."""
    case = REFERENCE[name]
    x, at = np.array(case["x"]), np.array(case["x_star"])
    scales = list(zip(case["v"], case["l"], strict=True))
    K = np.array([squared(x, x, v, a) + 1e-6 * v * np.eye(x.size) for v, a in scales])
    K_star = np.array([squared(at, x, v, a) for v, a in scales])
    diagonal = np.array([np.full(at.size, v) for v, _ in scales])
    if name == "joint_shared":
        K, K_star, diagonal = K[0], K_star[0], diagonal[0]
    return case, K, K_star, diagonal


def drawn(seed, n, C, v, shared=True):
    """Covariances of 1-D inputs, and labels of functions drawn from them."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3.0, 3.0, n))
    lengths = np.ones(C) if shared else 1.0 + 0.3 * np.arange(C)
    K = np.array([squared(x, x, v, a) + 1e-6 * v * np.eye(n) for a in lengths])
    f = np.array([np.linalg.cholesky(one) @ rng.normal(size=n) for one in K])
    return (K[0] if shared else K), np.argmax(f + rng.normal(size=(C, n)), axis=0)


def dense(K, labels, C, **options):
    """The same by `infer` on the covariance of all contrasts, built here; and that covariance."""
    K = np.broadcast_to(K, (C, len(labels), len(labels)))
    rows = [(i, j) for i in range(len(labels)) for j in range(C) if j != labels[i]]
    A = np.zeros((len(rows), C, len(labels)))
    for row, (i, j) in zip(A, rows, strict=True):
        row[labels[i], i] += 1.0
        row[j, i] -= 1.0
    cov = np.einsum("acn,cnm,bcm->ab", A, K, A, optimize=True)
    cov += [[float(i == k) for k, _ in rows] for i, _ in rows]
    cov = 0.5 * (cov + cov.T)
    return infer(cov, np.ones(len(rows)), tol=1e-11, max_sweeps=400, **options), cov


def separable(n, v):
    """Three classes one after the other along a line."""
    x = np.linspace(0.0, 6.0, n)
    return squared(x, x, v, 1.5) + 1e-6 * v * np.eye(n), np.arange(n) * 3 // n


@every_case("name", ["joint_shared", "joint_per_class"])
@every_case("method", ["ep", "qp"])
def test_fixed_points_of_the_reference(name, method):
    case, K, K_star, diagonal = reference(name)
    known = case[method]
    post = infer_classes(K, case["labels"], method, tol=1e-12, max_sweeps=300)
    assert abs(post.log_evidence - known["log_evidence"]) < 1e-8
    mean, covariance = post.predict(K_star, diagonal)
    for name_of, found in {
        "tau": post.sites.tau,
        "nu": post.sites.nu,
        "latent_mean": post.mean,
        "latent_covariance_row0": post.covariance[0],
        "predict_mean": mean,
        "predict_covariance": covariance,
        "class_probabilities": np.exp(post.predict_log_proba(K_star, diagonal)),
    }.items():
        wanted = np.array(known[name_of], dtype=float)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9, err_msg=name_of)
    if method == "ep":
        evidence = post.corrected_evidence()
        assert abs(evidence.value - known["corrected_evidence"]) < 1e-7
        assert abs(evidence.spread - known["spread"]) < 1e-7
    if (name, method) == ("joint_per_class", "ep"):
        x = np.array(case["x"])
        square = (x[:, None] - x) ** 2
        changes = np.zeros((*K.shape, 6))
        for c, (v, length) in enumerate(zip(case["v"], case["l"], strict=True)):
            changes[c, ..., c] = K[c]
            changes[c, ..., 3 + c] = (K[c] - 1e-6 * v * np.eye(x.size)) * square / length**2
        wanted = [*known["gradient_log_v"], *known["gradient_log_l"]]
        np.testing.assert_allclose(post.evidence_gradient(changes), wanted, rtol=0, atol=1e-9)


@every_case("method", ["ep", "qp"])
@every_case("C, v, shared", [(3, 4.0, True), (4, 25.0, False), (5, 400.0, True)])
def test_blocks_are_the_dense_covariance_of_contrasts(method, C, v, shared):
    """Sites 1e-7, marginals 1e-8, evidence 1e-9: one fixed point by two algebras."""
    K, labels = drawn(C, 20, C, v, shared)
    known, cov = dense(K, labels, C, method=method)
    layout = Layout(labels, C)
    blocks = K[None] if shared else K
    np.testing.assert_allclose(layout.contrasts(blocks), cov, atol=1e-12 * v)
    prior = ClassPrior(blocks, layout)
    np.testing.assert_allclose(prior.variance, cov.diagonal(), atol=1e-12 * v)
    problem = Problem(prior, np.ones(layout.sites), Projector("probit", method, None, None))
    end = settle(problem, Limits(1e-11, 400, 1.0), order="parallel")
    np.testing.assert_allclose(end.sites, known.sites, rtol=0, atol=1e-9)
    np.testing.assert_allclose(end.variance, known.variance, rtol=1e-9)
    np.testing.assert_allclose(end.factor.mean, known.mean, rtol=0, atol=1e-8)
    weights = solve(cov, known.mean, assume_a="pos")
    np.testing.assert_allclose(end.factor.weights, weights, rtol=0, atol=1e-6)
    log_det = np.linalg.slogdet(np.eye(len(cov)) + cov * end.sites.tau)[1]
    assert abs(end.factor.log_det - log_det) < 1e-9
    post = infer_classes(K, labels, method, n_classes=C, tol=1e-11, max_sweeps=400)
    assert abs(post.log_evidence - known.log_evidence) < 1e-9


@every_case("shared", [True, False])
def test_slope_is_that_of_the_dense_covariance(shared):
    K, labels = drawn(3, 12, 4, 9.0, shared)
    known, _ = dense(K, labels, 4, method="ep")
    options = {"n_classes": 4, "tol": 1e-11}
    post = infer_classes(K, labels, "ep", max_sweeps=400, **options)
    change = np.random.default_rng(0).normal(size=K.shape)
    change += np.swapaxes(change, -1, -2)
    layout = Layout(labels, 4)
    blocks = change[None] if shared else change
    by_contrast = layout.contrasts(blocks) - layout.contrasts(np.zeros_like(blocks))
    assert abs(post.evidence_gradient(change) - known.evidence_gradient(by_contrast)) < 1e-8
    step = 1e-5
    ends = [infer_classes(K * (1 + h), labels, "ep", **options).log_evidence for h in (step, -step)]
    assert abs(post.evidence_gradient(K) - (ends[0] - ends[1]) / (2 * step)) < 1e-7


def test_two_classes_are_the_binary_problem():
    """EP: the reference, and a probit on half the sum; QP: along the difference, not along g."""
    case, K, K_star, diagonal = reference("two_classes")
    half = 0.5 * (K[0] + K[1])
    y = np.where(np.array(case["labels"]) == 1, 1.0, -1.0)
    for method in ("ep", "qp"):
        post = infer_classes(K, case["labels"], method, tol=1e-12, max_sweeps=300)
        known = infer(half, y, method=method, tol=1e-12, max_sweeps=300)
        assert abs(post.log_evidence - known.log_evidence) < 1e-12
        mean = (post.mean[:, 1] - post.mean[:, 0]) / np.sqrt(2.0)
        np.testing.assert_allclose(mean, known.mean, rtol=0, atol=1e-9)
        S = post.covariance
        variance = 0.5 * (S[:, 0, 0] + S[:, 1, 1] - 2.0 * S[:, 0, 1])
        np.testing.assert_allclose(variance, known.variance, rtol=1e-9)
        np.testing.assert_allclose(post.loo(), known.loo(), rtol=0, atol=1e-12)
        found = np.exp(post.predict_log_proba(K_star, diagonal))[:, 1]
        m, s2 = known.predict(0.5 * K_star.sum(axis=0), 0.5 * diagonal.sum(axis=0))
        z = m / np.sqrt(1.0 + s2)
        np.testing.assert_allclose(found, multivariate_normal.cdf(z[:, None]), rtol=0, atol=1e-9)
        assert infer_classes(K, case["labels"], method, tol=1e-9, sites=post.sites).n_sweeps == 1
        gap = np.nanmax(np.abs(post.sites.tau - np.array(case[method]["tau"], dtype=float)))
        assert (gap < 1e-9) if method == "ep" else (1e-3 < gap < 1e-2)
    first = infer_classes(K, case["labels"], "ep", tol=1e-12, max_sweeps=300)
    wanted = case["ep"]["corrected_evidence"]
    assert abs(first.corrected_evidence().value - wanted) < 1e-7


@pytest.mark.parametrize(("C", "atol"), [(3, 1e-8), (4, 2e-3)])
def test_left_out_rows_are_those_of_a_posterior_without_their_sites(C, atol):
    """By dense algebra on the contrasts of the other rows, and normals of two and three values."""
    K, labels = drawn(5, 14, C, 9.0)
    post = infer_classes(K, labels, "ep", n_classes=C, tol=1e-11, max_sweeps=300)
    layout = Layout(labels, C)
    cov = layout.contrasts(K[None])
    tau, nu = (layout.flat(part) for part in post.sites)
    known = []
    for i in range(labels.size):
        own, rest = layout.rows == i, layout.rows != i
        gain = solve(cov[np.ix_(rest, rest)] + np.diag(1.0 / tau[rest]), cov[rest][:, own]).T
        mean = gain @ (nu[rest] / tau[rest])
        V = cov[np.ix_(own, own)] - gain @ cov[rest][:, own]
        known.append(np.log(multivariate_normal.cdf(mean, cov=V + np.eye(C - 1))))
    np.testing.assert_allclose(post.loo(), known, rtol=0, atol=atol)


@every_case("method", ["ep", "qp"])
def test_sites_settle_in_few_iterations(method):
    """Separable, one class alone, labels at random, and ten classes, with variances up to 1e7."""
    cases = [(*separable(60, v), 3) for v in (1e4, 1e5, 1e6, 1e7)]
    cases += [(separable(60, v)[0], np.zeros(60, dtype=int), 3) for v in (100.0, 1e6)]
    K, _ = drawn(0, 80, 3, 1e4)
    cases.append((K, np.random.default_rng(0).integers(0, 6, 80), 6))
    # Steps of the means that take each site for itself never end here.
    cases.append((*drawn(0, 200, 10, 100.0), 10))
    for K, labels, C in cases:
        post = infer_classes(K, labels, method, n_classes=C)
        assert post.converged
        assert post.n_sweeps <= 15


def test_visits_by_rows_reach_the_same_fixed_point():
    """The fallback: every row settles its own sites, from one posterior for all."""
    K, labels = drawn(8, 12, 4, 4.0)
    layout = Layout(labels, 4)
    prior, projector = ClassPrior(K[None], layout), Projector("probit", "ep", None, None)
    problem = Problem(prior, np.ones(layout.sites), projector)
    end = settle(problem, Limits(1e-10, 300, 0.7), order="sequential")
    known, _ = dense(K, labels, 4, method="ep")
    np.testing.assert_allclose(end.sites.tau, known.sites.tau, rtol=0, atol=1e-8)
    # From the prior each row becomes what EP makes of it alone.
    nothing = no_sites(layout.sites)
    _, tau, _ = problem.prior.factor(nothing).sweep(problem, nothing, 1.0, None, no_counts())
    row = infer_classes(K[:1, :1], labels[:1], "ep", n_classes=4, tol=1e-10)
    alone = row.sites.tau[0][np.isfinite(row.sites.tau[0])]
    np.testing.assert_allclose(tau[:3], alone, rtol=0, atol=1e-8)


def test_a_class_without_rows_and_equal_rows_of_unlike_labels():
    K, labels = drawn(9, 20, 3, 9.0)
    post = infer_classes(K, np.where(labels == 2, 1, labels), "ep", n_classes=3)
    found = np.exp(post.predict_log_proba(K[:4], K.diagonal()[:4]))
    assert post.converged
    assert (found[:, 2] > 0.0).all()
    # One row of three classes, alike: each has a third, as symmetry has it.
    alone = infer_classes(np.full((1, 1), 4.0), [1], "ep", n_classes=3, tol=1e-10)
    assert abs(alone.corrected_evidence().value + np.log(3.0)) < 3e-4
    assert abs(alone.log_evidence + 1.1004) < 5e-3
    K = np.full((6, 6), 4.0)
    post = infer_classes(K, [0, 1, 2, 0, 1, 2], "ep")
    np.testing.assert_allclose(post.mean, 0.0, atol=1e-6)
    found = np.exp(post.predict_log_proba(K[:1], [4.0]))
    np.testing.assert_allclose(found, 1.0 / 3.0, rtol=0, atol=1e-6)


def test_marginals_of_each_class():
    """Beside corrections of the dense covariance of contrasts, at the rows and at a new point."""
    K, labels = drawn(11, 14, 3, 25.0)
    post = infer_classes(K, labels, "ep", n_classes=3, tol=1e-10)
    found = post.marginals()
    assert len(found) == 3
    known, _ = dense(K, labels, 3, method="ep")
    layout = Layout(labels, 3)
    for c, one in enumerate(found):
        own, other = labels[layout.rows] == c, layout.others == c
        wanted = known.marginals(K[:, layout.rows] * (own * 1.0 - other * 1.0), K.diagonal())
        np.testing.assert_allclose(one.mean, wanted.mean, rtol=0, atol=1e-6)
        np.testing.assert_allclose(one.variance, wanted.variance, rtol=1e-6)
    new = post.marginals(K[:2], K.diagonal()[:2], correction="fact")
    expected = post.marginals(correction="fact")[1].mean[:2]
    np.testing.assert_allclose(new[1].mean, expected, atol=1e-9)


def test_pickles_and_files(tmp_path):
    K, labels = drawn(12, 16, 3, 9.0)
    post = infer_classes(K, labels, "qp", n_classes=3)
    post.save(tmp_path / "post.qp")
    for other in (pickle.loads(pickle.dumps(post)), qpruntime.load(tmp_path / "post.qp")):
        predicted = (p.predict(K[:5], K.diagonal()[:5]) for p in (post, other))
        for before, after in zip(*predicted, strict=True):
            np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(other.covariance, post.covariance)
        assert other.summary() == post.summary()
        assert not other.knows_covariance
        refuses(r"with_covariance\(K\)", other.corrected_evidence)
        value = other.with_covariance(K).corrected_evidence().value
        assert abs(value - post.corrected_evidence().value) < 1e-9
        refuses("not the prior covariance", other.with_covariance, 2.0 * K)


def test_words_name_rows_and_classes():
    layout = Layout(np.array([1, 0]), 3)
    assert layout.words("most of all site 3;") == "most of all the site of row 1 and class 2;"
    K, labels = drawn(13, 20, 3, 1e4)
    with pytest.warns(ConvergenceWarning, match=r"most of all the site of row \d+ and class \d"):
        post = infer_classes(K, labels, max_sweeps=1, n_classes=3)
    assert not post.converged
    assert "NOT CONVERGED after 1 sweeps" in str(post)
    assert repr(post).startswith("<ClassPosterior of 20 rows of 3 classes, qp, log evidence ")
    assert post.summary()["classes"] == 3


K_4 = np.eye(4)


@every_case(
    "K, labels, options, words",
    [
        (K_4, [0, 1, 2], {}, r"labels must have shape \(4,\)"),
        (K_4, [0.0, 1.0, 2.0, 1.0], {}, "whole numbers from 0"),
        (K_4, ["a", "b", "c", "a"], {}, "return_inverse"),
        (K_4, [0, 0, 0, 0], {}, "one class: say of how many"),
        (K_4, [0, 1, 2, -1], {}, "from 0 to 2, got -1 to 2"),
        (K_4, [0, 1, 2, 3], {"n_classes": 3}, "from 0 to 2, got 0 to 3"),
        (np.array([K_4] * 3), [0, 1, 2, 0], {"n_classes": 4}, "n_classes=4 and 3 covariances"),
        (np.ones(3), [0, 1, 2], {}, r"shape \(N, N\)"),
        (K_4, [0, 1, 2, 0], {"method": "vb"}, "method must be one of"),
        (K_4, [0, 1, 2, 0], {"sites": (1.0, 2.0)}, r"arrays of shape \(4, 3\)"),
        (K_4, [0, 1, 2, 0], {"sites": (-np.ones((4, 3)), np.ones((4, 3)))}, "not be negative"),
        (K_4, [0, 1, 2, 0], {"tol": 0.0}, "tol must be"),
    ],
)
def test_what_cannot_be_inferred(K, labels, options, words):
    refuses(words, infer_classes, K, labels, **options)


def test_what_cannot_be_predicted():
    K, labels = drawn(14, 8, 3, 4.0, shared=False)
    post = infer_classes(K, labels, "ep", n_classes=3)
    refuses("a covariance of its own here", post.predict, K[0], K[0].diagonal())
    refuses("one column per training point", post.predict, K[:, :, :7], K[0].diagonal())
    refuses("k_star_diag must have shape", post.predict, K, np.ones(3))
    refuses("dK must have shape", post.evidence_gradient, K[0])
    refuses("go together", post.marginals, K)


@pytest.mark.parametrize("method", ["ep", "qp"])
@pytest.mark.parametrize("name", ["plane3", "plane4", "sorted3"])
def test_long_chains(name, method):
    """Means .05 sd, log variances .12, probabilities .03, corrected evidence .06 and errors."""
    case, problems = REFERENCE["chains"]["inputs"][name], REFERENCE["chains"]["problems"]
    kernel, C = case["v"] * RBF(case["l"]), case["classes"]
    X, at = np.array(case["X"]), np.array(case["X_star"])
    known = next(p for p in problems if p["name"] == name and p["model"] == "probit")
    K = kernel(X) + case["jitter"] * np.eye(len(X))
    post = infer_classes(K, case["labels"], method, n_classes=C)
    mean, variance = (np.reshape(known[part], (C, -1)).T for part in ("mean", "var"))
    ours = np.diagonal(post.covariance, axis1=1, axis2=2)
    assert np.sqrt((((post.mean - mean) / np.sqrt(variance)) ** 2).mean()) < 0.05
    assert -0.12 < np.log(ours / variance).mean() < 0.005
    found = np.exp(post.predict_log_proba(kernel(at, X), kernel.diag(at)))
    assert np.abs(found - known["probs"]).max() < 0.03
    assert -0.65 < post.log_evidence - known["log_z"] < -0.1
    assert abs(post.corrected_evidence().value - known["log_z"]) < 0.06 + 2.0 * known["log_z_se"]
