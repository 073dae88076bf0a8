"""Rows that see one latent value as one site: exact where each site has a latent value alone."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, gammaln, log_ndtr

from qpruntime import infer, infer_precision
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.likelihoods import get
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(3)
CLUSTERS, ROWS = 30, 4
CODE = np.repeat(np.arange(CLUSTERS), ROWS)
EFFECT = 2.0 * RNG.standard_normal(CLUSTERS)[CODE]
Y = {
    "probit": np.where(EFFECT + RNG.standard_normal(CODE.size) > 0.3, 1.0, -1.0),
    "logistic": np.where(EFFECT + RNG.logistic(size=CODE.size) > 0.3, 1.0, -1.0),
    "poisson-exp": RNG.poisson(np.exp(0.25 * EFFECT)).astype(float),
    "laplace": np.round(EFFECT),
}
Y["binomial"] = np.column_stack([Y["logistic"] > 0.0, np.full(CODE.size, 2)]).astype(float)
#: log p and its slope by f, without constants that the package has too.
DENSITIES = {
    "probit": (
        lambda f, y: log_ndtr(y * f),
        lambda f, y: y * np.exp(-0.5 * f**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(y * f)),
    ),
    "logistic": (lambda f, y: -np.logaddexp(0.0, -y * f), lambda f, y: y * expit(-y * f)),
    "poisson-exp": (lambda f, y: y * f - np.exp(f) - gammaln(y + 1.0), lambda f, y: y - np.exp(f)),
}
ROWS_OF = sparse.csr_array((np.ones(CODE.size), (np.arange(CODE.size), CODE)))
PRECISION = sparse.eye_array(CLUSTERS) / 4.0
F = np.linspace(-24.0, 24.0, 12001)
PRIOR = np.exp(-F * F / 8.0) / np.sqrt(8.0 * np.pi) * (F[1] - F[0])


def infer_rows(likelihood, **options):
    given = {"offset": 0.2, "tol": 1e-11, **options}
    return infer_precision(ROWS_OF, PRECISION, Y[likelihood], likelihood, **given)


@every_case("likelihood", list(DENSITIES))
def test_clusters_are_exact(likelihood):
    """By the trapezoid rule over each cluster's effect."""
    density, slope = DENSITIES[likelihood]
    y = Y[likelihood].reshape(CLUSTERS, ROWS, 1)
    rows = density(F + 0.2, y)
    mass = np.exp(rows.sum(axis=1)) * PRIOR
    post = infer_rows(likelihood)
    total = mass.sum(axis=1)
    assert post.log_evidence == pytest.approx(np.log(total).sum(), abs=1e-9)
    if likelihood == "probit":  # what collapsing is for: rows one by one are off by half a unit
        assert post.log_evidence - infer_rows("probit", collapse=False).log_evidence > 0.5
    mean = (mass * (F + 0.2)).sum(axis=1) / total
    np.testing.assert_allclose(post.mean, mean[CODE], atol=1e-10)
    square = (mass * (F + 0.2) ** 2).sum(axis=1) / total - mean**2
    np.testing.assert_allclose(post.variance, square[CODE], atol=1e-9)
    rest = (np.exp(rows.sum(axis=1, keepdims=True) - rows) * PRIOR).sum(axis=2)
    expected = (np.log(total)[:, None] - np.log(rest)).ravel()
    np.testing.assert_allclose(post.loo(), expected, atol=1e-9)
    slopes = (mass[:, None] * slope(F + 0.2, y)).sum(axis=2) / total[:, None]
    np.testing.assert_allclose(post.weights, slopes.ravel(), atol=1e-9)


@every_case("likelihood", ["binomial", "laplace"])
def test_a_cluster_of_others_is_its_quadrature(likelihood):
    """Against likelihoods of the package multiplied on a grid; of the laplace equal rows alone."""
    y, same = Y[likelihood], np.arange(CODE.size) % ROWS < 2
    rows, code = ROWS_OF[same], CODE[same]
    logs = np.array([get(likelihood).log_prob(F[::8], np.array(one)) for one in y[same]])
    total = np.zeros((CLUSTERS, logs.shape[1]))
    np.add.at(total, code, logs)
    mass = np.exp(total) * PRIOR[::8] * 8.0
    post = infer_precision(rows, PRECISION, y[same], likelihood, tol=1e-11)
    # The kink of the laplace costs the trapezoid rule its digits.
    wanted = np.log(mass.sum(axis=1)).sum()
    assert post.log_evidence == pytest.approx(wanted, abs=3e-3 if likelihood == "laplace" else 1e-9)


def test_a_row_twice_is_a_weight_of_two():
    weights = np.where(CODE % 3, 2.0, 1.0)
    once = np.flatnonzero(np.arange(CODE.size) % ROWS == 0)
    repeated = np.repeat(once, weights[once].astype(int))
    one, two = (
        infer_precision(ROWS_OF[r], PRECISION, Y["laplace"][r], "laplace", weights=w, tol=1e-11)
        for r, w in ((once, weights[once]), (repeated, None))
    )
    assert two.log_evidence == pytest.approx(one.log_evidence, abs=1e-11)
    np.testing.assert_allclose(one.mean, two.mean[np.searchsorted(repeated, once)], atol=1e-11)
    assert infer_rows("laplace").n == CODE.size


def test_power_one_half_is_that_of_the_dense_engine():
    """Two equal rows of weight 1/2 are the row itself; and weights are those of `infer`."""
    y, half = np.repeat(Y["probit"][::ROWS], 2), np.full(2 * CLUSTERS, 0.5)
    rows = sparse.csr_array(sparse.eye_array(CLUSTERS))[np.repeat(np.arange(CLUSTERS), 2)]
    post = infer_precision(rows, PRECISION, y, "probit", weights=half, tol=1e-11)
    plain = infer(4.0 * np.eye(CLUSTERS), y[::2], "probit", "ep", tol=1e-11)
    assert post.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
    weights = np.linspace(0.3, 2.0, CLUSTERS)
    given = {"likelihood": "probit", "weights": weights, "tol": 1e-11}
    one = infer_precision(sparse.eye_array(CLUSTERS), PRECISION, y[::2], **given)
    two = infer(4.0 * np.eye(CLUSTERS), y[::2], method="ep", **given)
    assert one.log_evidence == pytest.approx(two.log_evidence, abs=1e-9)


def test_sites_of_rows_are_a_start():
    post = infer_rows("poisson-exp", tol=1e-6)
    assert infer_rows("poisson-exp", tol=1e-6, sites=post.sites).n_sweeps == 1
    tau, nu = post.sites
    P = PRECISION.toarray() + np.diag(np.bincount(CODE, tau))
    x = np.linalg.solve(P, np.bincount(CODE, nu - 0.2 * tau))
    np.testing.assert_allclose(x, post.latent()[0], atol=1e-12)


def test_rows_without_exposure():
    """A count of 0 of an exposure of 0 says nothing."""
    y, offset = Y["poisson-exp"].copy(), np.full(CODE.size, 0.2)
    y[7], offset[7] = 0.0, -np.inf
    post = infer_precision(ROWS_OF, PRECISION, y, "poisson-exp", offset=offset, tol=1e-11)
    keep = np.arange(CODE.size) != 7
    rest = infer_precision(ROWS_OF[keep], PRECISION, y[keep], "poisson-exp", offset=0.2, tol=1e-11)
    assert post.log_evidence == pytest.approx(rest.log_evidence, abs=1e-12)
    np.testing.assert_allclose(post.mean[keep], rest.mean, atol=1e-12)
    assert post.n == CODE.size
    assert (post.mean[7], post.loo()[7], post.sites.tau[7]) == (-np.inf, 0.0, 0.0)
    y[7] = 1.0
    for name, seen, words in (
        ("poisson-exp", y, "row 7 counts 1 with an offset of -inf"),
        ("probit", Y["probit"], "only counts have exposures"),
    ):
        refuses(words, infer_precision, ROWS_OF, PRECISION, seen, name, offset=offset)


@every_case("likelihood", ["probit", "poisson-exp", "laplace"])
def test_sites_in_the_order_of_levels(likelihood, monkeypatch):
    """Many sites are put next to those of their level; calls with a pattern do as the first."""
    rng = np.random.default_rng(1)
    rows = rng.permutation(CODE.size)
    A, y = ROWS_OF[rows], Y[likelihood][rows]
    A = sparse.hstack([A, np.round(rng.standard_normal((CODE.size, 1)))], format="csr")
    Q = sparse.block_diag([PRECISION, sparse.eye_array(1)], format="csr")
    plain = infer_precision(A, Q, y, likelihood, offset=0.2, tol=1e-10)
    monkeypatch.setattr("qpruntime.inference.precision.aggregation._MANY", 1)
    pattern = Pattern(A, Q)
    for given in ({}, {"pattern": pattern}, {"pattern": pattern}):
        post = infer_precision(A, Q, y, likelihood, offset=0.2, tol=1e-10, **given)
        assert post.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)
        for name in ("mean", "variance", "weights"):
            np.testing.assert_allclose(getattr(post, name), getattr(plain, name), atol=1e-9)
        np.testing.assert_allclose(post.loo(), plain.loo(), atol=1e-9)
        np.testing.assert_allclose(post.sites, plain.sites, atol=1e-8)
        assert post.worst == plain.worst
