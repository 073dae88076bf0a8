"""What a posterior on a sparse precision is asked: predictions, draws, corrections, groups."""

import itertools
import pickle
from math import factorial

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss, hermeval
from scipy import sparse
from scipy.stats import multivariate_normal

from qpruntime import ConvergenceWarning, NumericalError, infer, infer_precision, load
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.precision.corrections import quantile_shifts, third_and_fourth
from qpruntime.inference.precision.profile import profiles_unless_normal
from tests.tools.cases import every_case, refuses
from tests.tools.precision_cases import (
    CASES,
    GROUP,
    LABELS,
    REFERENCE,
    constraint,
    dense,
    group,
    joined,
    problem,
)

#: Mean, standard deviation, 2.5 % and 97.5 % points of coefficients at deviations 1.5 and 3: by the
#: corrected evidence of another implementation, and by quadrature over the groups' effects.
PROFILED = {
    ("probit", 3.0, 1): (
        (1.65389499, 0.67709250, 0.46648230, 3.12056857),
        (1.64706277, 0.67780855, 0.45965149, 3.11585186),
    ),
    ("logistic", 1.5, 0): (
        (0.33267316, 0.63929488, -0.91657699, 1.59050020),
        (0.33257452, 0.63926773, -0.91661311, 1.59036020),
    ),
}


def posterior(name, **options):
    build, y, likelihood, offset = problem(name)
    given = {"offset": offset, "constraint": constraint(name), "tol": 1e-11, **options}
    return infer_precision(*build(np.array(REFERENCE[name]["theta"])), y, likelihood, **given)


def dense_posterior(post, name):
    """Posterior covariance of x by its sites, and rows."""
    A, S = dense(name)
    return A, np.linalg.inv(np.eye(len(S)) + S @ A.T @ np.diag(post.sites.tau) @ A) @ S


def test_the_evidence_of_normal_noise_takes_no_corrections():
    A, S = dense("groups probit")
    Q = problem("groups probit")[0](np.array(REFERENCE["groups probit"]["theta"]))[1]
    y = np.random.default_rng(2).normal(size=len(A))
    post = infer_precision(A, Q, y, "gaussian(scale=0.7)", tol=1e-12)
    exact = multivariate_normal(np.zeros(len(A)), A @ S @ A.T + 0.49 * np.eye(len(A))).logpdf(y)
    assert post.corrected_evidence() == (post.log_evidence, 0.0)
    assert post.log_evidence == pytest.approx(exact, rel=1e-10)


@every_case("name", CASES)
def test_pairs(name):
    """Third moments by differences are good to 1e-7 of themselves."""
    kept, post = REFERENCE[name], posterior(name)
    sums = solution_of(post).sums
    assert sums.third == pytest.approx(kept["all_pairs_third"], rel=1e-6)
    assert sums.fourth == pytest.approx(kept["all_pairs_fourth"], rel=1e-6)
    assert post.corrected_evidence().value == post.log_evidence + sums.third + 0.5 * sums.fourth
    if "pairs_third" in kept and not name.startswith("crossed"):
        levels = solution_of(post).level_sums()
        assert levels.third == pytest.approx(kept["pairs_third"], rel=1e-6)
        assert levels.fourth == pytest.approx(kept["pairs_fourth"], rel=1e-6)


@every_case("name", ["logistic", "negative-binomial(dispersion=2)", "poisson-exp"])
def test_third_and_fourth_moments_of_weighted_rows(name):
    """Compare with sums over the tilted densities."""
    rng = np.random.default_rng(5)
    A = sparse.csr_array(np.column_stack([np.ones(12), rng.normal(size=(12, 2))]))
    y = rng.integers(0, 4, 12) if name != "logistic" else np.where(rng.random(12) < 0.6, 1.0, -1.0)
    weights = np.tile([1.0, 0.4, 2.5, 0.0], 3)
    post = infer_precision(A, sparse.eye_array(3), y, name, weights=weights, tol=1e-13)
    solution = solution_of(post)
    problem, here = solution.problem, solution.here
    found = third_and_fourth(problem, here, solution.sites_held)
    cavity = here.variance / here.kept
    std, z = np.sqrt(here.variance)[:, None], np.linspace(-12.0, 12.0, 4001)
    f = here.mean[:, None] + std * z
    centre = here.mean - here.pull * cavity
    log_p = problem.projector.likelihood.log_prob(f, problem.y[:, None])
    logs = problem.exponents[:, None] * log_p - 0.5 * (f - centre[:, None]) ** 2 / cavity[:, None]
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    exact = np.array([mass @ hermeval(z, np.eye(5)[n]) for n in (3, 4)])
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-8)


@every_case("name", ["crossed logistic", "rw1 poisson"])
def test_pairs_that_share_a_level(name):
    """By the posterior covariance of all rows; of crossed groups some are not on the pattern."""
    post = posterior(name)
    one = solution_of(post)
    sums = one.level_sums()
    _, S = dense(name)
    A, P = dense_posterior(post, name)
    V = A @ P @ A.T
    np.testing.assert_allclose(V.diagonal(), post.variance, rtol=1e-6)
    share = (A[:, 2:] != 0.0).astype(float)
    few = share.sum(axis=0) <= 30
    shared = np.triu((share[:, few] @ share[:, few].T) > 0.0, 1)
    std = np.sqrt(V.diagonal())
    r = np.where(shared, V / np.outer(std, std), 0.0)
    given = one.problem.y, one.problem.projector.likelihood, "ep"
    fixed = infer(A @ S @ A.T, *given, mean=one.problem.prior.mean, tol=1e-11)
    h = fixed._correcting.corrected.found.tilted.hermite
    assert sums.third == pytest.approx(np.sum(r**3 * np.outer(h[:, 3], h[:, 3])) / 6.0, rel=1e-5)
    assert sums.fourth == pytest.approx(np.sum(r**4 * np.outer(h[:, 4], h[:, 4])) / 24.0, rel=1e-5)
    assert (sums.missing > 0) == name.startswith("crossed")


@every_case("likelihood, deviation, column", list(PROFILED))
def test_profiled_coefficients(likelihood, deviation, column):
    A, Q = joined(group(GROUP, np.log(deviation)))
    post = infer_precision(A, Q, LABELS, likelihood, tol=1e-10)
    kept, exact = (np.array(values) for values in PROFILED[likelihood, deviation, column])
    found = post.coefficient(column, nodes=13)
    values = np.r_[found.mean, found.std, found.quantile([0.025, 0.975])]
    np.testing.assert_allclose(values, kept, atol=2e-3)
    assert (np.abs(values - exact) < 0.02 * exact[1]).all()
    plain = post.coefficient(column, corrected=False)
    if deviation > 2.0:
        assert abs(found.mean - exact[0]) < 0.2 * abs(plain.mean - exact[0])
    at = np.linspace(-4.0, 8.0, 4001)
    assert found.density(at).sum() * (at[1] - at[0]) == pytest.approx(1.0, abs=1e-3)


def test_quantile_shifts():
    """Compare with expectations of products of Hermite polynomials by three-fold quadrature."""
    rng = np.random.default_rng(4)
    X = np.column_stack([np.ones(8), rng.normal(size=8), np.arange(8)[:, None] % 3 == np.arange(3)])
    S = np.diag([4.0, 4.0, 2.0, 2.0, 2.0])
    y = np.where(rng.random(8) < 0.6, 1.0, -1.0)
    precision = sparse.csr_array(np.linalg.inv(S))
    post = infer_precision(sparse.csr_array(X), precision, y, "logistic", tol=1e-12)
    solution = solution_of(post)
    state = solution.problem, solution.solved, solution.here, solution.sites_held
    S = np.linalg.inv(np.linalg.inv(S) + X.T @ np.diag(post.sites.tau) @ X)
    std = np.sqrt(np.diag(X @ S @ X.T))
    h3, h4 = third_and_fourth(solution.problem, solution.here, solution.sites_held)
    nodes, weights = hermegauss(8)
    grid = np.array(np.meshgrid(nodes, nodes, nodes)).reshape(3, -1)
    weights = np.multiply.outer(np.multiply.outer(weights, weights), weights).ravel()
    weights /= weights.sum()

    def He(n, z):
        return hermeval(z, np.eye(5)[n]) / factorial(n)

    z = np.array([-1.96, 0.0, 1.96])
    for column, found in zip([0, 1], quantile_shifts(*state, np.array([0, 1])), strict=True):
        r = X @ S[column] / std / np.sqrt(S[column, column])
        coefficients = np.array([0.0, 0.0, h3 @ r**3 / 6.0, h4 @ r**4 / 24.0])
        for i, k in itertools.combinations(range(8), 2):
            r_ik = X[i] @ S @ X[k] / std[i] / std[k]
            R = np.array([[1.0, r_ik, r[i]], [r_ik, 1.0, r[k]], [r[i], r[k], 1.0]])
            values, vectors = np.linalg.eigh(R)
            at = vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * grid)
            mixed = h3[i] * h4[k] * He(3, at[0]) * He(4, at[1])
            mixed += h4[i] * h3[k] * He(4, at[0]) * He(3, at[1])
            thirds = h3[i] * h3[k] * He(3, at[0]) * He(3, at[1])
            fourths = h4[i] * h4[k] * He(4, at[0]) * He(4, at[1])
            parts = mixed, thirds + 0.5 * fourths, mixed, thirds
            coefficients += [weights @ (part * He(n, at[2])) for n, part in enumerate(parts, 1)]
        c = coefficients[2]
        shifts = hermeval(z, coefficients) - c**2 * (2.0 * z**3 - 5.0 * z)
        np.testing.assert_allclose(found, shifts, rtol=1e-6)


def test_coefficients_close_to_normal_are_not_profiled():
    """Compare with the profile: close to EP's quantiles if and only if there is none."""
    normal = []
    for likelihood, deviation, column in PROFILED:
        A, Q = joined(group(GROUP, np.log(deviation)))
        post = infer_precision(A, Q, LABELS, likelihood, tol=1e-10)
        mean, variance = (part[column] for part in post.latent())
        quantiles = post.coefficient(column).quantile([0.025, 0.5, 0.975])
        shift = np.abs((quantiles - mean) / variance**0.5 - [-1.96, 0.0, 1.96]).max()
        (profile,) = profiles_unless_normal(solution_of(post), np.array([column]))
        normal.append(profile is None)
        assert shift < 0.05 if normal[-1] else shift > 0.03, (likelihood, deviation, column, shift)
    assert any(normal) < len(normal)


@every_case("name", ["crossed logistic", "rw1 poisson", "intercept and slope"])
def test_groups_left_out(name):
    """By dense algebra: the posterior of all other sites, and EP of the group's rows under it."""
    post = posterior(name)
    groups, found = post.loo_groups(GROUP)
    A, S = dense(name)
    _, y, likelihood, offset = problem(name)
    tau, nu = post.sites
    for g in (0, 3):
        own = np.isin(GROUP, [g])
        rest = np.where(own, 0.0, 1.0)
        cov = np.linalg.solve(np.eye(len(S)) + S @ A.T @ np.diag(rest * tau) @ A, S)
        mean = offset + A @ (cov @ (A.T @ (rest * (nu - tau * offset))))
        V = (A @ cov @ A.T)[np.ix_(own, own)]
        V = 0.5 * (V + V.T)
        right = infer(V, y[own], likelihood, "ep", mean=mean[own], tol=1e-11)
        assert found[g] == pytest.approx(right.log_evidence, abs=1e-7)
    np.testing.assert_array_equal(groups, np.arange(10))
    np.testing.assert_allclose(post.loo_groups(np.arange(40))[1], post.loo(), atol=1e-12)


@every_case("name", ["crossed logistic", "rw1 poisson", "spde poisson"])
def test_predictions(name):
    """Of rows on the pattern and of any other, by the posterior of x in dense algebra."""
    post = posterior(name)
    A, P = dense_posterior(post, name)
    some = np.random.default_rng(0).standard_normal((70, A.shape[1]))
    for rows in (A[:7], some, np.vstack([some[:3], A[4:9], some[3:5]]), np.zeros_like(A[:2])):
        mean, variance = post.predict(rows, mean=0.3)
        np.testing.assert_allclose(mean, 0.3 + rows @ post.latent()[0], atol=1e-12)
        right = np.einsum("ij,jk,ik->i", rows, P, rows)
        np.testing.assert_allclose(variance, right, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(post.latent()[1], P.diagonal(), atol=1e-8)
    np.testing.assert_allclose(post.predict(A)[0], post.mean, atol=1e-12)
    mean, found = post.joint()
    # What a walk leaves free, 1e-9 of its diagonal, takes half of the digits.
    np.testing.assert_allclose(found, P, rtol=0.0, atol=1e-6 * np.abs(P).max())
    np.testing.assert_allclose(mean, post.latent()[0], rtol=1e-12)
    of_rows, some = post.joint(A[:5], mean=0.3)
    np.testing.assert_allclose(some, A[:5] @ P @ A[:5].T, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(of_rows, 0.3 + A[:5] @ mean, rtol=1e-12)


@every_case("name", ["crossed logistic", "rw1 poisson"])
def test_draws(name):
    """Standardised by EP's covariance they are unit normals; a constraint holds for each."""
    post = posterior(name)
    x = post.sample(n_samples=4000, random_state=0)
    mean, variance = post.latent()
    z = (x - mean) / np.sqrt(variance)
    assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(4000)
    assert np.abs(z.var(axis=0) - 1.0).max() < 4.5 * np.sqrt(2.0 / 4000)
    A, P = dense_posterior(post, name)
    right = P[0, 3] / np.sqrt(P[0, 0] * P[3, 3])
    assert (z[:, 0] * z[:, 3]).mean() == pytest.approx(right, abs=4.5 / np.sqrt(4000))
    if constraint(name) is not None:
        assert np.abs(x @ constraint(name)).max() < 1e-9
    eta = post.sample(A, n_samples=3, random_state=0)
    wanted = post.sample(n_samples=3, random_state=0) @ A.T + problem(name)[3]
    np.testing.assert_allclose(eta, wanted)


def test_a_pattern_and_sites_of_near_deviations():
    A, Q = joined(group(GROUP, 0.4))
    pattern = Pattern(A, Q)
    first = infer_precision(A, Q, LABELS, "probit", pattern=pattern)
    near = joined(group(GROUP, 0.41))[1]
    warm = infer_precision(A, near, LABELS, "probit", pattern=pattern, sites=first.sites, tol=1e-11)
    cold = infer_precision(A, near, LABELS, "probit", tol=1e-11)
    assert warm.n_sweeps < cold.n_sweeps
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-10)
    known = infer_precision(A, near, LABELS, "probit", log_det=np.log(near.diagonal()).sum())
    assert known.log_evidence == pytest.approx(cold.log_evidence, abs=1e-8)
    fewer = A[:30], Q, LABELS[:30], "probit"
    refuses("pattern is of other entries", infer_precision, *fewer, pattern=pattern)


def test_the_slope_has_what_changes_of_the_precision_take():
    post = posterior("ar1 poisson")
    build, *_ = problem("ar1 poisson")
    theta, step = np.array(REFERENCE["ar1 poisson"]["theta"]), np.array([0.0, 1e-6])
    dQ = (build(theta + step)[1] - build(theta - step)[1]) / 2e-6
    change = [np.linalg.slogdet(build(theta + s)[1].toarray())[1] for s in (step, -step)]
    # tr(S0 dQ) is the change of log |Q|.
    expected = 0.5 * ((change[0] - change[1]) / 2e-6 - post.slope().against(dQ))
    assert post.evidence_gradient(dQ) == pytest.approx(expected, abs=1e-7)
    offset = problem("ar1 poisson")[3]
    by_offset = 1e-5 * (np.arange(40) == 11)
    offsets = offset + by_offset, offset - by_offset
    both = [posterior("ar1 poisson", offset=moved).log_evidence for moved in offsets]
    assert post.weights[11] == pytest.approx((both[0] - both[1]) / 2e-5, abs=1e-8)
    refuses("entries that Q has not", post.evidence_gradient, np.ones((22, 22)))
    refuses("evidence_gradient takes dK", post.evidence_gradient)


@every_case("likelihood", ["probit", "logistic", "poisson-exp"])
def test_a_copy_is_as_good(likelihood, tmp_path):
    """Of rows that are sites of their own, and of equal ones; with a constraint."""
    A = np.vstack([np.eye(6), np.eye(6)[:3], np.eye(6)[:3]])
    y = np.r_[np.ones(9), 1.0 if likelihood == "poisson-exp" else -1.0, 1.0, 1.0]
    post = infer_precision(A, np.eye(6), y, likelihood, constraint=np.ones(6))
    post.save(tmp_path / "post.qp")
    rows = np.eye(6)[:4]
    for copy in (pickle.loads(pickle.dumps(post)), load(tmp_path / "post.qp")):
        np.testing.assert_array_equal(copy.predict(rows, mean=0.0), post.predict(rows, mean=0.0))
        np.testing.assert_array_equal(copy.loo(), post.loo())
        np.testing.assert_array_equal(copy.weights, post.weights)
        assert copy.corrected_evidence() == post.corrected_evidence()
        assert copy.summary() == post.summary()
        assert copy.loo_groups(np.arange(12) % 3)[1].shape == (3,)


def test_marginals_of_few_rows_are_those_of_their_covariance():
    kept = REFERENCE["groups logistic"]["fact_fixed0"]
    post = posterior("groups logistic")
    found = post.marginals(np.eye(12)[:1], correction="fact")
    assert found.mean[0] == pytest.approx(kept["mean"], abs=1e-6)
    assert found.variance[0] ** 0.5 == pytest.approx(kept["sd"], abs=1e-6)
    assert post.check() == ()


def test_what_is_refused_afterwards():
    post = posterior("rw1 poisson")
    refuses("column 5 is held by a constraint", post.coefficient, 5)
    refuses("column 2 is held by column 3", posterior("ar1 poisson").coefficient, 2)
    refuses("column must be below 22", post.coefficient, 22)
    refuses("A must have 22 columns", post.predict, np.eye(3))
    refuses(r"labels must have shape \(40,\)", post.loo_groups, [1, 2])
    refuses("labels must not be NaN", post.loo_groups, np.r_[np.nan, np.zeros(39)])
    by_qp = posterior("groups probit", method="qp")
    refuses("corrections by pairs start from EP", by_qp.corrected_evidence)
    A = sparse.csr_array(np.repeat(np.eye(2), 3, axis=0))
    equal = infer_precision(A, np.eye(2), [1, 1, -1, 1, -1, -1], "probit")
    refuses("row 1 equals another one of another group", equal.loo_groups, [0, 1, 0, 1, 1, 1])
    with pytest.warns(ConvergenceWarning, match="not converged after 1 sweeps"):
        posterior("groups probit", max_sweeps=1)
    words, improper = (
        "not positive definite at column 3: what the term",
        np.diag([1.0, 1.0, 1.0, 0.0]),
    )
    given = np.eye(4)[:3], improper, [1, 1, 1], "probit"
    refuses(words, infer_precision, *given, error=NumericalError)
