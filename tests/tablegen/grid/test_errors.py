"""The second rule against mpmath, and certificates of tables with a known error."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from qpruntime import likelihoods
from qpruntime.errors import NumericalError
from qpruntime.execution.threads import run
from qpruntime.likelihoods import Likelihood
from tablegen.grid import chebyshev as compute, errors as certify
from tablegen.grid.chebyshev import integrate
from tablegen.grid.plan import make_plan
from tablegen.second_rule.framed import independent, independent_all
from tests.tools import oracle

serial = partial(run, workers=1)


@pytest.fixture(scope="module")
def plan():
    return make_plan("probit", method="direct", mu_step=0.25, log10_sigma_step=0.05)


@pytest.fixture(scope="module")
def values(plan):
    return compute.fill(plan, None, lambda: False, plan.chunks[0])[None]


@pytest.mark.parametrize(
    ("name", "limit", "inside"),
    [
        ("probit", 1e-12, lambda r: (abs(r.mu) <= 50) & (r.sigma > 1e-3) & (r.sigma < 1e3)),
        ("heaviside", 1e-12, lambda r: abs(r.mu / r.sigma) <= 30),  # a hard edge
        # Two peaks. A count y makes y log y of what is left of order one: digits go with y.
        ("poisson", 1e-11, lambda r: r.sigma > 0.0),
        ("poisson_large", 1e-9, lambda r: r.sigma > 0.0),
    ],
)
def test_second_rule_agrees_with_high_precision_values(reference, name, limit, inside):
    ref = reference(name)
    kept = inside(ref)
    likelihood = likelihoods.get(name.removesuffix("_large"))
    found = independent(likelihood, ref.mu[kept], ref.sigma[kept], ref.y[kept])
    np.testing.assert_allclose(found, ref.sigma_star[kept], rtol=limit, atol=0)


def without_frame(name):
    """Return a likelihood that only has its density left."""
    return replace(
        likelihoods.get(name), name=f"bare-{name}", frame=None, moments=None, powers=None
    )


@pytest.mark.parametrize(("name", "limit"), [("probit", 1e-11), ("heaviside", 1e-11)])
def test_second_rule_needs_no_frame(reference, name, limit):
    # What is left is the rounding of log p, 1e-16 times its size at the mode.
    ref = reference(name)
    inside = (np.abs(ref.mu / ref.sigma) <= 20) & (ref.sigma > 1e-3) & (ref.sigma < 1e3)
    arrays = [a[inside] for a in (ref.mu, ref.sigma, ref.y)]
    found = independent_all(without_frame(name), *arrays)
    std = np.sqrt(ref.variance[inside])
    np.testing.assert_allclose(found[:, 0], ref.log_z[inside], rtol=limit, atol=limit)
    assert np.abs((found[:, 1] - ref.mean[inside]) / std).max() < limit
    np.testing.assert_allclose(found[:, 2], ref.variance[inside], rtol=2 * limit)
    np.testing.assert_allclose(found[:, 3], ref.sigma_star[inside], rtol=limit)


def test_second_rule_finds_a_narrow_peak_and_two():
    """A Gaussian of width 0.003 in a cavity of width 10, alone and beside another."""

    def one(f, y, theta):
        return -0.5 * ((f - y) / 0.003) ** 2

    def two(f, y, theta):
        return max(-0.5 * ((f - y) / 0.003) ** 2, -0.5 * ((f + y) / 0.003) ** 2)

    mu, sigma, y = np.array([1.0]), np.array([10.0]), np.array([4.0])
    precision = 1 / 0.003**2 + 0.01
    single = Likelihood.from_log_prob(one, name="one", log_concave=True)
    _, mean, variance, star = independent_all(single, mu, sigma, y)[0]
    assert mean == pytest.approx((4.0 / 0.003**2 + 0.01) / precision, rel=1e-12)
    assert variance == pytest.approx(1 / precision, rel=1e-10)
    assert star == pytest.approx(precision**-0.5, rel=1e-11)
    log_z, mean, _, _ = independent_all(Likelihood.from_log_prob(two, name="two"), mu, sigma, y)[0]
    weights = np.exp(-0.5 * (np.array([3.0, 5.0]) ** 2) / (100.0 + 0.003**2))
    assert mean == pytest.approx(4.0 * (weights[0] - weights[1]) / weights.sum(), rel=1e-6)
    expected = np.log(weights.sum() * 0.003 / np.sqrt(100.0 + 0.003**2))
    assert log_z == pytest.approx(expected, abs=1e-11)


def test_second_rule_says_where_there_is_no_end():
    growing = Likelihood.from_log_prob(lambda f, y, theta: 0.6 * f * f, name="growing")
    assert np.isnan(independent_all(growing, np.zeros(1), np.ones(1), np.zeros(1))).all()


@pytest.fixture(scope="module")
def worst(values):
    return certify.worst_nodes(values[0], 0, 0)


def test_a_good_table_is_certified(plan, values, worst):
    found = certify.certify(values, plan.metadata(), worst, run=serial, points=2000, seed=1)
    assert found["nodes"]["max_relative_error"] < 1e-13
    assert found["nodes"]["points"] >= 2000 + 4 * certify.EDGE
    assert found["seed"] == 1


def test_error_in_cells_is_that_of_bilinear_interpolation(plan, values, worst):
    cells = certify.certify(values, plan.metadata(), worst, run=serial)["cells"]
    mu, log10_sigma = plan.mu.nodes(), plan.log10_sigma.nodes()
    i = np.searchsorted(mu, cells["mu"]) - 1
    j = np.searchsorted(log10_sigma, cells["log10_sigma"]) - 1
    mean = values[0, i : i + 2, j : j + 2].mean()
    truth = oracle.tilted(oracle.probit, cells["mu"], 10 ** cells["log10_sigma"])[3]
    assert cells["max_relative_error"] == pytest.approx(abs(mean / truth - 1), rel=1e-6)
    # Brute force over every cell: what was found is the largest there is, or nearly.
    centres = integrate(
        likelihoods.get("probit"),
        (mu[1:] + mu[:-1]) / 2,
        10 ** ((log10_sigma[1:] + log10_sigma[:-1]) / 2),
        1.0,
    )
    v = values[0]
    error = np.abs((v[1:, 1:] + v[1:, :-1] + v[:-1, 1:] + v[:-1, :-1]) / 4 / centres - 1)
    assert cells["max_relative_error"] >= 0.9 * error.max()


CORNERS = [(0, 0), (0, 40), (80, 0), (80, 40)]
SIDES = [(0, 20), (80, 20), (40, 0), (40, 40)]


@pytest.mark.parametrize("place", [*CORNERS, *SIDES, (37, 11)])
def test_an_error_is_found_with_its_place(plan, values, place):
    # Corners and sides are always looked at; a spike inside is the most curved node there is.
    bad = values.copy()
    bad[0][place] *= 1.1
    found = certify.certify(
        bad, plan.metadata(), certify.worst_nodes(bad[0], 0, 0), run=serial, points=1
    )["nodes"]
    assert found["max_relative_error"] == pytest.approx(0.1, rel=1e-6)
    assert found["mu"] == pytest.approx(plan.mu.nodes()[place[0]])
    assert found["log10_sigma"] == pytest.approx(plan.log10_sigma.nodes()[place[1]])


def test_a_nan_is_an_error(plan, values):
    bad = values.copy()
    bad[0, 0, 0] = np.nan
    with pytest.raises(NumericalError, match="the table has nan"):
        certify.certify(bad, plan.metadata(), [], run=serial, points=1)


def test_worst_nodes_are_the_most_curved():
    v = 1 + 0.1 * np.random.default_rng(5).random((30, 40))
    bend = np.abs(v[:-2, 1:-1] - 2 * v[1:-1, 1:-1] + v[2:, 1:-1])
    bend += np.abs(v[1:-1, :-2] - 2 * v[1:-1, 1:-1] + v[1:-1, 2:])
    bend /= v[1:-1, 1:-1]
    i, j = np.unravel_index(bend.argmax(), bend.shape)
    worst = max(certify.worst_nodes(v, 2, 100))
    assert worst[0] == pytest.approx(bend.max())
    assert worst[1:] == (2, 100 + i + 1, j + 1)


def test_workers_do_not_change_a_certificate(plan, values, worst):
    one = certify.certify(values, plan.metadata(), worst, run=serial)
    assert one == certify.certify(values, plan.metadata(), worst, run=partial(run, workers=2))
