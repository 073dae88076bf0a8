"""Every way in which one site is projected, at a cavity or two each, against quadrature."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from qpruntime import InputError, NumericalError, TableError, likelihoods, open_table, project
from qpruntime._special import power_peak_ratio
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import (
    COMPUTED,
    DAMAGED,
    INSIDE,
    OUTSIDE_GRID,
    project_many,
    project_site,
    raise_status,
)
from qpruntime.quadrature.sigma_star_kernels import DECAY, NO_MASS, OK
from tests.tools.cases import every_case


def one(projector, mu, sigma, y, power=1.0):
    functions = projector.likelihood.functions(powers=power != 1.0)
    return project_site(functions, projector.source, power, mu, sigma, y, np.empty((1, 4)))


@pytest.mark.interpreted
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
    expected = project_many(
        likelihoods.get(name), Projector(name, "qp", "exact").source, mu, sigma, y
    )
    assert (status, where) == (OK, INSIDE)
    assert log_z == pytest.approx(float(expected.log_z), rel=1e-10)
    assert mean == pytest.approx(float(expected.mean), rel=1e-10)
    assert std == pytest.approx(float(expected.std), rel=2e-9)


def test_grid_inside_and_outside(small_table):
    for outside in ("ep", "exact"):
        projector = Projector("probit", "qp", open_table(small_table, outside=outside))
        ep, exact = (
            project("probit", -4.0, 1.5, 1.0, *how)[1] for how in (("ep",), ("qp", "exact"))
        )
        assert one(projector, -1.0, 1.0, 1.0)[4] == INSIDE
        status, _, _, std, where = one(projector, -4.0, 1.5, 1.0)
        assert (status, where) == (OK, OUTSIDE_GRID)
        assert std == pytest.approx(float(ep if outside == "ep" else exact), rel=1e-9)


@pytest.mark.interpreted
@pytest.mark.parametrize("method", ["ep", "qp"])
def test_powers_are_integrated(method):
    status, log_z, _, std, where = one(Projector("heaviside", method), 0.3, 1.0, 1.0, power=0.5)
    assert (status, where) == (OK, COMPUTED)
    whole = one(Projector("heaviside", method), 0.3, 1.0, 1.0)
    # Powers of a function with the values 0 and 1 change nothing.
    assert log_z == pytest.approx(whole[1], rel=1e-12)
    assert std == pytest.approx(whole[3], rel=1e-8)


@pytest.mark.interpreted
def test_ratio_beyond_the_lower_peak():
    """sigma*/sigma_EP is 1 - O(1/n) of a nearly normal peak, and nearer to 1 the further it is."""
    far = [power_peak_ratio(2.0, b) for b in (12.0, 20.0, 80.0, 1e4)]
    assert all(0.999 < r <= 1.0 for r in far)
    assert far == sorted(far)
    expected = project("poisson", 10.0, 0.5, 1.0, "qp", "exact")[1]
    sigma_ep = project("poisson", 10.0, 0.5, 1.0, "ep")[1]
    b = 10.0 / (0.5 * np.sqrt(1.5))
    assert power_peak_ratio(2.0, b) == pytest.approx(float(expected / sigma_ep), rel=1e-10)


@pytest.mark.interpreted
def test_arguments_and_statuses_in_words():
    likelihood = likelihoods.get("probit")
    source = Projector("probit", "ep").source
    for mu, sigma in ((np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)):
        with pytest.raises(InputError):
            project_many(likelihood, source, mu, sigma, 1.0)
    for status, words in ((DECAY, "does not decay"), (NO_MASS, "no finite mass")):
        with pytest.raises(NumericalError, match=f"{words} for the cavity N"):
            raise_status(status, likelihood, 0.0, 1.0, 1.0)
    with pytest.raises(TableError, match="damaged"):
        raise_status(DAMAGED, likelihood, 0.0, 1.0, 1.0, SimpleNamespace(path="probit.h5"))
