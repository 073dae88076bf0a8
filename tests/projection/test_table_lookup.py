"""Lookups in a grid: exact where bilinear is, decided on all four sides, bounded by sigma_EP.

Most tests use a surface that bilinear interpolation reproduces, far below sigma_EP, on a rectangle
that is not symmetric: -2 <= mu <= 1, -1 <= log10 sigma <= 0.5.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from qpruntime import infer, likelihoods, open_table, project
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.interpolation import bilinear
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis, Metadata
from tests.tools.cases import every_case, refuses

EPS = np.finfo(float).eps


def surface(mu, log10_sigma):
    return 1e-3 * (5.0 + mu + 2.0 * log10_sigma + 0.5 * mu * log10_sigma)


def synthetic(outside="ep", dtype="float64", f=surface):
    mu, sigma = Axis("mu", -2.0, 1.0, 7), Axis("log10_sigma", -1.0, 0.5, 4)
    metadata = Metadata("probit", [1.0], (mu, sigma), dtype, "test", "test")
    values = f(mu.nodes()[:, None], sigma.nodes())[None].astype(dtype)
    values.flags.writeable = False
    return Table(Path("synthetic"), metadata, likelihoods.get("probit"), values, outside)


@pytest.mark.interpreted
@pytest.mark.parametrize("y", [1, -1])
def test_bilinear_against_scipy(y):
    table = synthetic(f=lambda mu, ell: 1e-3 * (2.0 + np.sin(3.0 * mu) * np.cos(2.0 * ell)))
    axes = table.metadata.mu.nodes(), table.metadata.log10_sigma.nodes()
    peer = RegularGridInterpolator(axes, table.values[0])
    rng = np.random.default_rng(1)
    mu, ell = rng.uniform(-2, 1, 200), rng.uniform(-1, 0.5, 200)
    expected = peer(np.stack([mu, ell], 1))
    np.testing.assert_allclose(table.lookup(y * mu, 10.0**ell, y)[0], expected, rtol=1e-13)
    nodes = np.meshgrid(*axes, indexing="ij")
    at_nodes, inside = table.lookup(y * nodes[0], 10.0 ** nodes[1], y)
    # The node itself, found with a position that rounds by 1e-15 cells.
    np.testing.assert_allclose(at_nodes, table.values[0], rtol=1e-14)
    assert inside.all()


@pytest.mark.interpreted
@pytest.mark.parametrize(("edge", "sign"), [(-2.0, -1), (1.0, 1)])
def test_mu_edges(edge, sign):
    table = synthetic()
    for y in (1, -1):
        beyond = np.nextafter(edge, sign * np.inf)
        star, inside = table.lookup(y * np.array([edge, beyond]), 1.0, y)
        assert inside.tolist() == [True, False]
        assert star[0] == pytest.approx(surface(edge, 0.0), rel=1e-14)
        assert star[1] == project("probit", y * beyond, 1.0, y, method="ep")[1]


@pytest.mark.interpreted
@pytest.mark.parametrize(("edge", "sign"), [(-1.0, -1), (0.5, 1)])
def test_sigma_edges(edge, sign):
    table, axes = synthetic(), synthetic().axes()
    beyond = np.nextafter(edge, sign * np.inf)
    assert bilinear(table.values, axes, 0, 0.3, edge)[1]
    assert not bilinear(table.values, axes, 0, 0.3, beyond)[1]
    for y in (1, -1):  # 8 eps of sigma are 2 ulp of its logarithm
        sigma = 10.0**edge * (1.0 + np.array([-8, 8]) * sign * EPS)
        star, inside = table.lookup(0.0, sigma, y)
        assert inside.tolist() == [True, False]
        assert star[1] == project("probit", 0.0, sigma[1], y, method="ep")[1]


@pytest.mark.interpreted
@every_case("mu", [-2.0, 1.0])
@every_case("ell", [-1.0, 0.5])
def test_corners(mu, ell):
    table = synthetic()
    value, inside = bilinear(table.values, table.axes(), 0, mu, ell)
    assert inside
    assert value == pytest.approx(surface(mu, ell), rel=1e-14)
    outwards = [(np.nextafter(mu, 9 * mu), ell), (mu, np.nextafter(ell, 9 * ell))]
    outwards.append((outwards[0][0], outwards[1][1]))
    for point in [*outwards, (np.nan, ell), (mu, np.nan), (np.inf, ell), (mu, -np.inf)]:
        value, inside = bilinear(table.values, table.axes(), 0, *point)
        assert not inside
        assert np.isnan(value)


@pytest.mark.interpreted
@every_case("y", [1, -1])
@every_case(("mu", "sigma"), [(-2.5, 1), (1.5, 1), (0, 0.05), (0, 5), (9, 9)])
def test_outside_values(mu, sigma, y):
    for outside, method in (("ep", "ep"), ("exact", "qp")):
        star, inside = synthetic(outside).lookup(y * mu, sigma, y)
        assert not inside
        assert star == project("probit", y * mu, sigma, y, method=method, table="exact")[1]


@pytest.mark.interpreted
def test_never_above_sigma_ep_and_float32_values():
    star, inside = synthetic(f=lambda mu, ell: 100.0 + 0.0 * mu * ell).lookup([-1.0, 0.5], 0.5, 1)
    assert inside.all()
    np.testing.assert_array_equal(star, project("probit", [-1.0, 0.5], 0.5, 1, method="ep")[1])
    star, inside = synthetic(dtype="float32").lookup(0.3, 1.0, 1)
    assert inside
    assert star == pytest.approx(surface(0.3, 0.0), rel=1.2e-7)  # eps of float32


def test_bilinear_error_on_the_papers_grid():
    # Cell centres of step 0.001 all over the paper's rectangle; every "slab" is one cell.
    grid = np.meshgrid(np.linspace(-10, 9.999, 161), np.linspace(-1, 0.999, 41))
    mu, ell = (a.ravel() for a in grid)
    corner = np.array([0.0, 1e-3])
    nodes = mu[:, None, None] + corner[:, None], ell[:, None, None] + corner
    values = project("probit", nodes[0], 10.0 ** nodes[1], 1, table="exact")[1]
    axes = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    got = np.array([bilinear(values, axes, i, 0.5, 0.5)[0] for i in range(mu.size)])
    exact = project("probit", mu + 5e-4, 10.0 ** (ell + 5e-4), 1, table="exact")[1]
    error = np.abs(got / exact - 1.0)
    assert error.max() <= 2e-6  # promised
    assert error.max() > 1e-7  # and really measured: h^2/8 (ln 10)^2 = 6.6e-7


def test_project_and_infer_by_table(small_table, toy):
    table = open_table(small_table, outside="exact")
    got = project_arrays("probit", [0.31, 5.0], 1.7, -1, table=small_table)
    assert got.inside.tolist() == [True, False]
    by_table = infer(toy.K, toy.y, table=table)
    exact = infer(toy.K, toy.y, table="exact")
    # Bilinear on step 0.1: (0.1 ln 10)^2/8 = 7e-3 of sigma*, and the sites follow.
    np.testing.assert_allclose(by_table.mean, exact.mean, rtol=0.05, atol=0.02)
    assert by_table.lookups.inside > 0
    assert sum(by_table.lookups) == by_table.n_sweeps * len(toy.y)
    assert exact.lookups == (0, 0)


def test_refuses_the_table_of_another_likelihood(small_table):
    probit = likelihoods.get("probit")
    other = Likelihood("mine", "labels", probit.split, probit.validate)
    refuses(r"is for the likelihood 'probit', not 'mine'", Projector, other, "qp", small_table)
