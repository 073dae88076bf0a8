"""Both methods against mpmath, plain quadrature, numpy's Chebyshev series, and each other."""

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from qpruntime import infer, likelihoods, open_table, project
from qpruntime.table_format.metadata import Axis
from tablegen import builder
from tablegen.grid import chebyshev as compute
from tablegen.grid.chebyshev import integrate
from tablegen.grid.plan import make_plan
from tablegen.verify import verify
from tests.tools import oracle
from tests.tools.cases import every_case, refuses


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


# --- likelihoods with an exact scale: one file, slabs for counts, certified alike

FINE = {"mu_step": 0.02, "log10_sigma_step": 0.01}
SMALL = {"mu_step": 0.5, "log10_sigma_step": 0.1}


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    path = tmp_path_factory.mktemp("dense") / "poisson.h5"
    return path, builder.build("poisson", path, counts=(0, 3), **FINE)


def test_counts_in_one_file(counts):
    path, metadata = counts
    assert metadata.shape == (4, 1001, 201)
    assert (metadata.outcomes, metadata.method) == ([0.0, 1.0, 2.0, 3.0], "one-axis")
    assert metadata.certificate["nodes"]["max_relative_error"] < 1e-12
    table = open_table(path, verify=True)
    mu, sigma = metadata.mu.nodes(), 10.0 ** metadata.log10_sigma.nodes()
    i, j = np.random.default_rng(0).integers((1001, 201), size=(50, 2)).T
    for k in range(4):
        exact = project("poisson", mu[i], sigma[j], k, table="exact")[1]
        np.testing.assert_allclose(table.values[k, i, j], exact, rtol=1e-12)


def test_rows_are_found_by_count(counts):
    table = open_table(counts[0])
    y = np.array([3, 0, 2, 1, 4, 3])
    star, inside = table.lookup(-2.0, 1.0, y)
    assert inside.tolist() == [True, True, True, True, False, True]
    # Nodes, but for a rounding of the position.
    exact = project("poisson", -2.0, 1.0, y, table="exact")[1]
    np.testing.assert_allclose(star[inside], exact[inside], rtol=1e-9)
    assert star[4] == project("poisson", -2.0, 1.0, 4, method="ep")[1]
    exactly = open_table(counts[0], outside="exact").lookup(-2.0, 1.0, 4)[0]
    assert exactly == project("poisson", -2.0, 1.0, 4, table="exact")[1]


def test_first_count_above_zero(tmp_path):
    path = tmp_path / "t.h5"
    metadata = builder.build("poisson", path, counts=(2, 3), **SMALL)
    assert (metadata.outcomes, metadata.method) == ([2.0, 3.0], "direct")
    star, inside = open_table(path).lookup(1.0, 1.0, [1, 2, 3])
    assert inside.tolist() == [False, True, True]
    exact = project("poisson", 1.0, 1.0, [2, 3], table="exact")[1]
    np.testing.assert_allclose(star[1:], exact, rtol=1e-12)


def test_heaviside(tmp_path):
    path = tmp_path / "heaviside.h5"
    metadata = builder.build("heaviside", path, workers=1, **FINE)
    assert (metadata.method, metadata.outcomes) == ("one-axis", [1.0])
    assert metadata.certificate["nodes"]["max_relative_error"] < 1e-12
    whole = path.read_bytes()
    builder.build("heaviside", path, workers=3, force=True, **FINE)
    assert path.read_bytes() == whole
    table = open_table(path)
    for y in (1, -1):
        exact = project("heaviside", y * -7.0, 0.5, y, table="exact")[1]
        # Bilinear: (0.01 ln 10)^2/8 = 7e-5, times the curvature of log sigma*.
        assert table.lookup(y * -7.0, 0.5, y)[0] == pytest.approx(exact, rel=3e-4)
    assert verify(path, points=200, seed=1).ok


def test_dense_tables_verify_and_serve_inference(counts):
    assert verify(counts[0], points=300, seed=2).problems == ()
    x = np.linspace(0.0, 1.0, 8)
    K = 0.3 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    y = np.array([1, 2, 0, 1, 3, 2, 1, 2])
    by_table = infer(K, y, "poisson", mean=1.0, table=counts[0])
    by_default = infer(K, y, "poisson", mean=1.0)
    assert by_table.lookups.outside == 0
    np.testing.assert_allclose(by_table.mean, by_default.mean, rtol=2e-3)


@every_case(
    ("likelihood", "counts", "message"),
    [
        ("poisson", (3, 1), "FIRST <= LAST, got 3:1"),
        ("poisson", (-1, 1), "counts must be 0, 1, 2"),
        ("poisson", (0, 2_000_000), "counts up to 1000000"),
        ("poisson", (1, 20_001), "at most 20000 counts"),
        ("poisson", (0.5, 2), "two whole numbers"),
        ("poisson", 3, "two whole numbers"),
        ("poisson", (1, 2, 3), "two whole numbers"),
        ("probit", (0, 1), "'probit' takes no counts"),
    ],
)
def test_counts_that_make_no_sense(likelihood, counts, message):
    refuses(message, make_plan, likelihood, counts=counts)


def test_the_whole_range_of_counts_is_planned_in_bounded_pieces():
    plan = compute.resolve(make_plan("poisson"))
    assert plan.shape == (51, 20001, 2001)
    assert plan.method == "one-axis"
    assert max(c.stop - c.start for c in plan.chunks) * plan.shape[2] * 8 <= 8_000_000


@every_case("text", ["5", "0:50:1", "a:b", "-1:3", "1.5:2", ""])
def test_command_line_refuses(command, text):
    result = command("build", "--likelihood", "poisson", f"--counts={text}")
    assert result.code == 2
    assert "FIRST:LAST" in result.err
