"""Dense grids of likelihoods with an exact scale: one file, slabs for counts, certified alike."""

import numpy as np
import pytest

from qpruntime import infer, open_table, project
from tablegen import builder
from tablegen.grid import chebyshev as compute
from tablegen.grid.plan import make_plan
from tablegen.verify import verify
from tests.tools.cases import every_case, refuses

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
