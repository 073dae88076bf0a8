"""Both methods against mpmath, plain quadrature, numpy's Chebyshev series, and each other."""

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from qpruntime import likelihoods
from qpruntime.table_format.metadata import Axis
from tablegen.grid import chebyshev as compute
from tablegen.grid.chebyshev import integrate
from tablegen.grid.plan import make_plan
from tests.tools import oracle
from tests.tools.cases import every_case


def serial(function, items):
    return [function(i) for i in items]


def table(plan):
    """Fill a whole table, one outcome."""
    expansion = compute.expand(plan, serial) if plan.nodes else None
    return np.concatenate([compute.fill(plan, expansion, lambda: False, c) for c in plan.chunks])


def test_integrate_agrees_with_high_precision_values(reference):
    ref = reference("probit")
    inside = (ref.y == 1) & (np.abs(ref.mu) <= 50) & (ref.sigma > 1e-3) & (ref.sigma < 1e3)
    assert inside.sum() > 50
    for mu, sigma, star in zip(
        ref.mu[inside], ref.sigma[inside], ref.sigma_star[inside], strict=True
    ):
        found = integrate(likelihoods.get("probit"), np.array([mu]), np.array([sigma]), 1.0)
        assert found[0, 0] == pytest.approx(star, rel=1e-12)


def test_integrate_in_runs_agrees_with_plain_quadrature():
    # A run shares its nodes; the plain rule looks at every point alone.
    mu, sigma = np.linspace(-10, 10, 401), np.array([0.1, 1.0, 1.29, 1.31, 10.0])
    found = integrate(likelihoods.get("probit"), mu, sigma, 1.0)
    for i in range(0, 401, 37):
        for j, s in enumerate(sigma):
            star = oracle.tilted(oracle.probit, mu[i], s)[3]
            assert found[i, j] == pytest.approx(star, rel=2e-13)


@every_case("n", [1, 2, 7, 32, 95])
def test_transform_and_basis_are_those_of_numpy(n):
    axis = Axis("x", -1.0, 1.0, 2)
    coefficients = np.random.default_rng(n).standard_normal(n)
    values = chebyshev.chebval(compute.chebyshev_nodes(axis, n), coefficients)
    np.testing.assert_allclose(compute._transform(n) @ values, coefficients, atol=1e-13)
    points = np.linspace(-1, 1, 50)
    expected = chebyshev.chebvander(points, n - 1)
    np.testing.assert_allclose(compute._basis(axis, points, n), expected, atol=1e-13)


@pytest.mark.slow
@every_case(
    "options",
    [
        {"mu_step": 0.05, "log10_sigma_step": 0.005},
        {"mu_range": (2.0, 4.0), "log10_sigma_range": (0.0, 0.5), "mu_step": 0.01},
        {"mu_range": (-30.0, 5.0), "log10_sigma_range": (-0.5, 1.5), "mu_step": 0.07},
        {"mu_range": (-3.0, 3.0), "log10_sigma_range": (-3.0, 0.0), "mu_step": 0.04},
    ],
)
def test_series_and_direct_integration_agree(options):
    options = {"log10_sigma_step": 0.01, **options}
    plan = compute.resolve(make_plan("probit", **options))
    assert plan.method == "spectral"
    assert plan.nodes is not None
    direct = table(make_plan("probit", method="direct", **options))
    # 3e-14 is where the direct rule itself is, at sigma near 1.25.
    np.testing.assert_allclose(table(plan), direct, rtol=2e-13, atol=0)


def test_a_small_grid_is_integrated_directly():
    plan = compute.resolve(make_plan("probit", mu_step=1.0, log10_sigma_step=0.1))
    assert (plan.method, plan.nodes) == ("direct", None)


def test_a_range_too_wild_for_a_series_is_integrated_directly():
    # psi falls from 1 to 1e-4 over this rectangle: a series would not be accurate relatively.
    plan = make_plan(
        "probit",
        mu_range=(-1e6, 10.0),
        mu_step=10.0,
        log10_sigma_range=(-1.0, 4.0),
        log10_sigma_step=0.005,
    )
    assert compute.resolve(plan).method == "direct"


def test_chunks_do_not_depend_on_how_the_series_was_integrated():
    plan = compute.resolve(make_plan("probit", mu_step=0.02, log10_sigma_step=0.002))
    expansion = compute.expand(plan, serial)
    backwards = compute.expand(plan, lambda f, items: serial(f, list(items)[::-1])[::-1])
    assert np.array_equal(expansion.coefficients, backwards.coefficients)


def test_single_precision_is_the_rounded_double():
    options = {"mu_step": 0.05, "log10_sigma_step": 0.004}
    double = table(compute.resolve(make_plan("probit", **options)))
    single = table(compute.resolve(make_plan("probit", dtype="float32", **options)))
    assert single.dtype == np.dtype("<f4")
    assert np.array_equal(single, double.astype(np.float32))


def test_an_interrupted_fill_stops():
    plan = make_plan("probit", method="direct", mu_step=1.0, log10_sigma_step=0.1)
    with pytest.raises(KeyboardInterrupt):
        compute.fill(plan, None, lambda: True, plan.chunks[0])
