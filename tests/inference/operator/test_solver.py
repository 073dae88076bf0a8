"""`infer(operator=)`: sites along functionals, on either side of the algebra."""

import json
import pickle

import mpmath
import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import solve

import qpruntime
from qpruntime import NumericalError, infer
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solution import takes_latent_side
from qpruntime.inference.operator.solver import LatentPrior
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.projection.projector import Projector
from tests.inference.multiclass.test_infer import squared
from tests.tools import oracle
from tests.tools.cases import every_case, refuses

REFERENCE = json.loads((oracle.REFERENCE / "operators.json").read_text())


def drawn(seed, n=12, rows=40, likelihood="probit"):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=n)) * 2.0
    K = squared(x, x, 3.0, 0.9) + 1e-6 * np.eye(n)
    A = rng.normal(size=(rows, n)) * (rng.random((rows, n)) < 0.3)
    A[:, 0] += 0.1
    mean = np.linspace(-0.3, 0.4, n)
    g = A @ (mean + np.linalg.cholesky(K) @ rng.normal(size=n))
    y = rng.poisson(np.exp(np.clip(g, -5, 4))) if likelihood == "poisson-exp" else None
    if y is None:
        y = np.where(g + rng.normal(size=rows) > 0.0, 1.0, -1.0)
    return x, K, A, y, mean


def both_sides(K, A, y, mean, likelihood, method, order="parallel", sweeps=400):
    """Problems on the observation side and on the latent side, after so many sweeps at most."""
    rows, projector = Functionals(A, len(K)), Projector(likelihood, method, None, None)
    projector, y = projector.observing(y)
    priors = DensePrior(rows.covariance(K), rows.times(mean)), LatentPrior(rows, K, mean)
    problems = [Problem(prior, y, projector) for prior in priors]
    return [settle(problem, Limits(1e-11, sweeps, 1.0), order=order) for problem in problems]


@every_case("sweeps", [1, 3])
def test_visits_one_by_one(sweeps):
    """Sites that have not settled: each is that of the observation side, to rounding."""
    _, K, A, y, mean = drawn(7)
    seen, latent = both_sides(K, A, y, mean, "probit", "ep", "sequential", sweeps)
    assert not seen.settled
    np.testing.assert_allclose(latent.sites, seen.sites, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_preferences_of_the_reference(method):
    """Sites, items' moments, evidence and slope by an independent prototype, to its digits."""
    case = REFERENCE["preferences"]
    x, known = np.array(case["x"]), case[method]
    K = squared(x, x, case["v"], case["l"]) + 1e-6 * case["v"] * np.eye(len(x))
    winners, losers = np.transpose(case["pairs_winner_loser"])
    A = np.eye(len(x))[winners] - np.eye(len(x))[losers]
    post = infer(K, np.ones(len(A)), method=method, operator=A, tol=1e-11, max_sweeps=400)
    table = 1e-8 if method == "ep" else 3e-6  # the table shipped for the probit
    sites, items = (known["tau"], known["nu"]), (known["item_mean"], known["item_variance"])
    np.testing.assert_allclose(post.sites, sites, rtol=0, atol=table)
    np.testing.assert_allclose(post.latent(), items, rtol=0, atol=table)
    assert abs(post.log_evidence - known["log_evidence"]) < table
    if method == "ep":
        dK = (K - 1e-6 * case["v"] * np.eye(len(x))) * (x[:, None] - x) ** 2 / case["l"] ** 2
        assert abs(post.evidence_gradient(dK) - known["gradient_log_l"]) < 1e-7


@every_case(
    "likelihood, method",
    [("probit", "ep"), ("probit", "qp"), ("poisson-exp", "ep"), ("student-t", "ep")],
)
@every_case("seed", [0, 1])
def test_both_sides_agree(likelihood, method, seed):
    """Sites, moments, evidence, slopes: the same fixed point by two algebras (1e-8)."""
    _, K, A, y, mean = drawn(seed, likelihood=likelihood)
    rows, latent = both_sides(K, A, y, mean, likelihood, method)
    scale = np.sqrt(rows.variance)
    np.testing.assert_allclose(latent.sites.tau * scale**2, rows.sites.tau * scale**2, atol=1e-8)
    np.testing.assert_allclose(latent.sites.nu * scale, rows.sites.nu * scale, atol=1e-8)
    np.testing.assert_allclose(latent.factor.mean, rows.factor.mean, atol=1e-8)
    np.testing.assert_allclose(latent.variance, rows.variance, rtol=1e-8)
    np.testing.assert_allclose(latent.factor.weights, rows.factor.weights, atol=1e-8)
    assert abs(latent.factor.log_det - rows.factor.log_det) < 1e-8
    slope = A.T @ rows.factor.slope() @ A
    np.testing.assert_allclose(latent.factor.slope(), slope, atol=1e-8 * np.abs(slope).max())
    # The transposed derivatives that the leave-one-out objective takes.
    by = np.random.default_rng(seed).normal(size=(2, len(y)))
    ours, theirs = (end.factor.pullback(end.factor.marginals()) for end in (latent, rows))
    np.testing.assert_allclose(ours.to_sites(*by), theirs.to_sites(*by), atol=1e-7)
    to_prior = A.T @ theirs.to_prior(*by) @ A
    found = ours.to_prior(*by)
    np.testing.assert_allclose(found + found.T, to_prior + to_prior.T, atol=1e-7)


@pytest.mark.parametrize("rows", [9, 40])
def test_posterior_of_f_by_dense_algebra(rows):
    """Means, variances, draws and predictions follow from the sites by formulas of one line."""
    x, K, A, y, mean = drawn(3, rows=rows)
    assert takes_latent_side(Functionals(A, len(K)), "ep") == (rows == 40)
    post = infer(K, y, method="ep", mean=mean, operator=A, tol=1e-10)
    tau, nu = post.sites
    inner = np.linalg.inv(np.eye(rows) + tau[:, None] * (A @ K @ A.T))
    S = K - K @ A.T @ inner @ (tau[:, None] * (A @ K))
    centre = mean + K @ A.T @ (inner @ (nu - tau * (A @ mean)))
    found = post.latent()
    np.testing.assert_allclose(found[0], centre, atol=1e-8)
    np.testing.assert_allclose(found[1], np.diag(S), rtol=1e-7)
    np.testing.assert_allclose(post.mean, A @ centre, atol=1e-8)
    np.testing.assert_allclose(post.variance, np.diag(A @ S @ A.T), rtol=1e-7)
    cross = squared(np.array([-1.0, 0.3, 7.0]), x, 3.0, 0.9)
    at = post.predict(cross, np.full(3, 3.0), mean=0.2)
    gain = cross @ np.linalg.solve(K, (K - S) @ np.linalg.solve(K, cross.T))
    np.testing.assert_allclose(at[0], 0.2 + cross @ solve(K, centre - mean), atol=1e-7)
    np.testing.assert_allclose(at[1], 3.0 - np.diag(gain), atol=1e-7)
    draws = post.sample(n_samples=20_000, random_state=0)
    assert (np.abs(draws.mean(axis=0) - centre) < 5.0 * np.sqrt(np.diag(S) / 20_000)).all()
    np.testing.assert_allclose(np.cov(draws.T), S, atol=0.05 * S.max())
    step = 1e-5
    change = squared(x, x, 3.0, 0.9)
    given = {"method": "ep", "mean": mean, "operator": A, "tol": 1e-12, "max_sweeps": 300}
    up, down = (infer(K + s * change, y, **given) for s in (step, -step))
    slope = (up.log_evidence - down.log_evidence) / (2.0 * step)
    assert abs(post.evidence_gradient(change) - slope) < 1e-6 * max(1.0, abs(slope))
    both = post.evidence_gradient(np.stack([change, K], axis=-1))
    np.testing.assert_allclose(both[0], post.evidence_gradient(change), rtol=1e-10)


@pytest.mark.parametrize("rows", [9, 60])
def test_sparse_rows_are_dense_rows(rows):
    _, K, A, y, mean = drawn(4, rows=rows)
    dense = infer(K, y, mean=mean, operator=A, tol=1e-10)
    few = infer(K, y, mean=mean, operator=sparse.csr_matrix(A), tol=1e-10)
    np.testing.assert_allclose(few.mean, dense.mean, atol=1e-9)
    np.testing.assert_allclose(few.latent()[1], dense.latent()[1], rtol=1e-8)
    assert abs(few.log_evidence - dense.log_evidence) < 1e-9
    np.testing.assert_allclose(few.loo(), dense.loo(), atol=1e-9)


def test_strong_sites_by_the_posterior_of_the_others():
    """Shares 1 - tau variance of 1e-13 to 1e-9 against exact algebra of the functionals."""
    _, K, A, _, mean = drawn(7)
    tau = np.ones(len(A))
    tau[[3, 11]] = 1e9, 1e13
    solved = LatentPrior(Functionals(A, len(K)), K, mean).factor(Sites(tau, np.zeros(len(A))))
    variance, kept = solved.marginals()
    with mpmath.workdps(60):
        exact = mpmath.matrix(A.tolist())
        weighed = mpmath.diag(tau.tolist()) * exact
        S = exact * (mpmath.matrix(K.tolist()) ** -1 + exact.T * weighed) ** -1 * exact.T
        diagonal = [S[i, i] for i in range(len(A))]
        shares = [1 - t * v for t, v in zip(tau.tolist(), diagonal, strict=True)]
        np.testing.assert_allclose(variance, [float(v) for v in diagonal], rtol=1e-9)
        np.testing.assert_allclose(kept, [float(share) for share in shares], rtol=1e-9)


def test_corrections_take_the_functionals(tmp_path):
    """Corrected evidence and marginals are those of inference on A K A'."""
    x, K, A, y, mean = drawn(8, n=6, rows=14)
    along = infer(K, y, method="ep", mean=mean, operator=A, tol=1e-10)
    plain = infer(A @ K @ A.T, y, method="ep", mean=A @ mean, tol=1e-10)
    np.testing.assert_allclose(along.corrected_evidence(), plain.corrected_evidence(), atol=1e-7)
    cross = squared(np.array([0.5]), x, 3.0, 0.9)
    ours = along.marginals(cross, np.array([3.0]), mean=0.0)
    theirs = plain.marginals(cross @ A.T, np.array([3.0]), mean=0.0)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-7)
    assert along.check() == plain.check()
    # Pickles and files leave K out; what was asked of f stays.
    latent = along.latent()
    along.save(tmp_path / "post")
    for again in (pickle.loads(pickle.dumps(along)), qpruntime.load(tmp_path / "post")):
        np.testing.assert_array_equal(again.latent(), latent)
        predicted = (one.predict(cross, np.array([3.0]), mean=0.0) for one in (again, along))
        np.testing.assert_array_equal(*predicted)
        refuses("with_covariance", again.corrected_evidence)
        assert again.with_covariance(K).corrected_evidence() == along.corrected_evidence()
        refuses("not the prior covariance", again.with_covariance, 1.01 * K)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_a_pickle_of_the_latent_side(kind):
    x, K, A, y, mean = drawn(9, rows=30)
    post = infer(K, y, mean=mean, operator=kind(A))
    again = pickle.loads(pickle.dumps(post))
    at = squared(np.array([0.5]), x, 3.0, 0.9), np.array([3.0])
    np.testing.assert_array_equal(again.predict(*at, mean=0.0), post.predict(*at, mean=0.0))
    np.testing.assert_array_equal(again.latent(), post.latent())


def test_a_singular_covariance():
    rng = np.random.default_rng(1)
    B = rng.normal(size=(8, 3))
    K = B @ B.T
    A = rng.normal(size=(20, 8))
    y = np.where(rng.random(20) < 0.5, 1.0, -1.0)
    latent = infer(K, y, operator=A, tol=1e-10)
    rows = infer(A @ K @ A.T, y, tol=1e-10)
    np.testing.assert_allclose(latent.mean, rows.mean, atol=1e-8)
    assert abs(latent.log_evidence - rows.log_evidence) < 1e-8


@every_case(
    "operator, y, said",
    [
        (np.ones((4, 3)), np.ones(4), r"shape \(N, 2\)"),
        (np.ones(2), np.ones(2), r"shape \(N, 2\)"),
        (np.empty((0, 2)), np.empty(0), r"shape \(N, 2\)"),
        (np.array([[1.0, np.nan]]), np.ones(1), r"operator\[0, 1\]"),
        (sparse.csr_array(np.array([[np.inf, 1.0]])), np.ones(1), "operator"),
        (sparse.csr_array(np.array([[1j, 1.0]])), np.ones(1), "real numbers"),
        (np.array([[1.0, 0.0], [1.0, -1.0]]), np.ones(3), "rows of the operator"),
        (np.array([[1.0, 0.0], [0.0, 0.0]]), np.ones(2), "row 1 .* says nothing"),
        (np.array([[1.0, 0.0]] * 4 + [[1.0, -1.0]]), np.ones(5), "row 4 .* says nothing"),
        ("ab", np.ones(2), "operator"),
    ],
)
def test_operators_that_are_refused(operator, y, said):
    """The second latent value is a copy of the first: their difference is nothing."""
    refuses(said, infer, np.ones((2, 2)), y, operator=operator)


def test_words():
    _, K, A, y, _ = drawn(2)
    post = infer(K, y, operator=A)
    assert "along an operator of 12 latent values" in repr(post)
    assert post.summary()["latent"] == 12
    refuses(r"shape \(T, 12\)", post.predict, np.ones((1, 40)), np.ones(1))
    refuses("dK of the latent values", post.evidence_gradient, np.ones((40, 40)))
    with pytest.raises(NumericalError, match="rescale dK"):
        infer(1e-9 * K, y, operator=A).evidence_gradient(1e308 * np.eye(12))
