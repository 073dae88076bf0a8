"""Every way in which one site is projected, at a cavity or two each, against quadrature."""

from types import SimpleNamespace

import numpy as np
import pytest

from qpruntime import NumericalError, TableError, likelihoods
from qpruntime.projection import interpolation, site_kernel
from qpruntime.projection.projector import Projector
from qpruntime.quadrature.sigma_star_kernels import DECAY, NO_MASS, OK
from tests.tools.cases import every_case, refuses

pytestmark = pytest.mark.interpreted


CAVITY = -1.0, 0.8, 1.0


def by_source(source, cavity=CAVITY, power=1.0, likelihood="probit"):
    functions = likelihoods.get(likelihood).functions(powers=power != 1.0)
    return site_kernel.project_site(functions, source, power, *cavity, np.empty((1, 4)))


def one(projector, mu, sigma, y, power=1.0):
    return by_source(projector.source, (mu, sigma, y), power, projector.likelihood)


@every_case(
    ("name", "mu", "sigma", "y"),
    [
        ("probit", -3.0, 10.0, 1.0),
        ("heaviside", 0.5, 2.0, -1.0),
        ("poisson", 0.2, 5.0, 4.0),
        ("poisson", 1.0, 0.5, 0.0),  # in closed form
        ("poisson", 3.0, 0.01, 900.0),  # a count that no table has
    ],
)
def test_shipped_tables(name, mu, sigma, y):
    status, log_z, mean, std, where = one(Projector(name), mu, sigma, y)
    source = Projector(name, "qp", "exact").source
    expected = site_kernel.project_many(likelihoods.get(name), source, mu, sigma, y)
    assert (status, where) == (OK, site_kernel.INSIDE)
    assert log_z == pytest.approx(float(expected.log_z), rel=1e-10)
    assert mean == pytest.approx(float(expected.mean), rel=1e-10)
    assert std == pytest.approx(float(expected.std), rel=2e-9)


def test_arguments_and_statuses_in_words():
    likelihood = likelihoods.get("probit")
    source = Projector("probit", "ep").source
    for mu, sigma in ((np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)):
        refuses(".", site_kernel.project_many, likelihood, source, mu, sigma, 1.0)
    for status, words in ((DECAY, "does not decay"), (NO_MASS, "no finite mass")):
        given = f"{words} for the cavity N", site_kernel.raise_status, status, likelihood
        refuses(*given, 0.0, 1.0, 1.0, error=NumericalError)
    given = site_kernel.DAMAGED, likelihood, 0.0, 1.0, 1.0, SimpleNamespace(path="probit.h5")
    refuses("damaged", site_kernel.raise_status, *given, error=TableError)


def exact(method, cavity=CAVITY):
    status, log_z, mean, std, _ = one(Projector("probit", method, "exact"), *cavity)
    assert status == OK
    return log_z, mean, std


def grid(star, outside_exact=False):
    """Return the source of a grid over y mu and log10 sigma, which holds one value everywhere."""
    values, axes = np.full((1, 3, 4), star), np.array([-2.0, 2.0, 0.5, -1.0, 0.5, 2.0, 1.0])
    for array in (values, axes):
        array.flags.writeable = False
    return site_kernel.GRID, True, outside_exact, values, axes, 0, 0


def test_a_grid():
    log_z, mean, std = exact("ep")
    assert by_source(grid(0.5 * std)) == (OK, log_z, mean, 0.5 * std, site_kernel.INSIDE)
    # sigma* is at most sigma_EP.
    assert by_source(grid(2.0 * std))[3] == std
    for star in (0.0, np.nan, -0.1, 1e-10 * std):
        assert by_source(grid(star))[0] == site_kernel.DAMAGED
    far = -2.5, 0.8, 1.0
    assert by_source(grid(0.5), far) == (OK, *exact("ep", far), site_kernel.OUTSIDE_GRID)
    status, *found, where = by_source(grid(0.5, outside_exact=True), far)
    assert (status, where) == (OK, site_kernel.OUTSIDE_GRID)
    assert found == pytest.approx(exact("qp", far), rel=1e-12)


def surfaces(kind, stored, outside_exact=False, power=None):
    values = np.ascontiguousarray(np.broadcast_to(stored, (1, 7, 7, 4)).reshape(1, 7, 28))
    plane = [-2.0, 2.0, 0.5, -1.0, 0.5, 4.0 / 3.0, 0.0]
    axes = interpolation.pack(plane, interpolation.MIRROR, [1.0])
    axes = axes if power is None else np.append(axes, power)
    for array in (values, axes):
        array.flags.writeable = False
    return kind, False, outside_exact, values, axes, interpolation.lookup.handle, 0


def test_surfaces():
    stored = np.array([-0.4, 0.25, np.log(0.75), np.log(0.5)])
    std = 0.8 * 0.75
    expected = -0.4, -1.0 + 0.25 * std
    status, *found, where = by_source(surfaces(site_kernel.SURFACES_EP, stored))
    assert (status, where) == (OK, site_kernel.INSIDE)
    assert found == pytest.approx([*expected, std], rel=1e-13)
    got = by_source(surfaces(site_kernel.SURFACES_QP, stored))[3]
    assert got == pytest.approx(0.5 * std, rel=1e-13)
    for k, bad in ((0, np.inf), (1, -np.inf), (2, np.inf), (3, -30.0)):
        damaged = stored.copy()
        damaged[k] = bad
        assert by_source(surfaces(site_kernel.SURFACES_QP, damaged))[0] == site_kernel.DAMAGED
    far = -2.5, 0.8, 1.0
    assert by_source(surfaces(site_kernel.SURFACES_QP, stored), far)[0] == site_kernel.BEYOND
    for kind, method in ((site_kernel.SURFACES_EP, "ep"), (site_kernel.SURFACES_QP, "qp")):
        status, *found, where = by_source(surfaces(kind, stored, True), far)
        assert (status, where) == (OK, site_kernel.OUTSIDE_GRID)
        assert found == pytest.approx(exact(method, far), rel=1e-12)
    assert by_source(surfaces(site_kernel.SURFACES_WP, stored), power=0.5)[0] == site_kernel.POWERED


def test_surfaces_of_a_power():
    """They serve the power that they were built for; any other is integrated."""
    stored = np.array([-0.4, 0.25, np.log(0.75), np.log(0.5)])
    source = surfaces(site_kernel.RAISED_QP, stored, power=0.5)
    status, *found, where = by_source(source, power=0.5)
    assert (status, where) == (OK, site_kernel.INSIDE)
    std = 0.8 * 0.75
    assert found == pytest.approx([-0.4, -1.0 + 0.25 * std, 0.5 * std], rel=1e-13)
    damaged = surfaces(site_kernel.RAISED_QP, [-0.4, np.inf, 0.0, 0.0], power=0.5)
    assert by_source(damaged, power=0.5)[0] == site_kernel.DAMAGED
    whole = by_source(source)
    assert whole[4] == site_kernel.COMPUTED
    assert whole[1:4] == pytest.approx(exact("qp"), rel=1e-12)


def test_rows_without_weight_keep_their_cavity():
    likelihood = likelihoods.get("probit")
    source = Projector("probit", "ep").source
    cavities, powers = np.full((2, 2), CAVITY[:2]).T, np.array([0.0, 1.0])
    found = site_kernel.project_many(likelihood, source, *cavities, 1.0, powers=powers)
    assert (found.log_z[0], found.mean[0], found.std[0]) == (0.0, CAVITY[0], CAVITY[1])
    assert (found.log_z[1], found.mean[1], found.std[1]) == pytest.approx(exact("ep"), rel=1e-14)
