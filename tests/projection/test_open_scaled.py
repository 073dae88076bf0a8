"""The table at unit scale of Student's t: against quadrature and mpmath, for every scale."""

import pickle

import numpy as np

from qpruntime import likelihoods
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.projection.open import shipped_scaled
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many

HALF = 0.5


def projections(scale, method, cavities, table=None, nu=4.0, powers=None):
    likelihood = likelihoods.get("student-t", nu=nu, scale=scale)
    projector = Projector(likelihood, method, table).to_power(HALF)
    powers = np.full(np.shape(cavities[0]), HALF) if powers is None else powers
    return project_many(likelihood, projector.source, *cavities, None, powers)


def draw(n, scale):
    """Cavities of every width and distance, both ends of the table included."""
    rng = np.random.default_rng(3)
    sigma = scale * 10.0 ** rng.uniform(-3.0, 2.1, n)
    away = rng.choice([-1.0, 1.0], n) * (10.0 ** rng.uniform(-3.0, 4.0, n)) * scale
    away[:3], sigma[3:6] = 0.0, scale * 1e-3
    y = 3.0 * scale * rng.standard_normal(n)
    return y + away, sigma, y


def test_lookups_are_what_quadrature_gives():
    for scale in (1.0, 3e-4, 2e3):
        cavities = mu, sigma, y = draw(300, scale)
        for method in ("ep", "qp"):
            found = projections(scale, method, cavities)
            exact = projections(scale, method, cavities, "exact")
            assert found.inside.all()
            assert not exact.inside.any()
            # The certificate's 1e-8 at unit scale; log Z is relative where it is large.
            size = np.maximum(1.0, np.abs(exact.log_z))
            assert (np.abs(found.log_z - exact.log_z) / size).max() < 2e-8
            assert (np.abs(found.mean - exact.mean) / exact.std).max() < 2e-8
            assert np.abs(found.std / exact.std - 1.0).max() < 2e-8
            # What a narrow cavity is moved by has relative errors; mu's digits limit both.
            shift = np.abs(found.mean - exact.mean)
            allowed = 3e-8 * np.abs(exact.mean - mu) + 1e-13 * (np.abs(mu) + np.abs(y))
            assert (shift < allowed + 1e-10 * sigma * (sigma > scale)).all()


def test_what_the_table_does_not_hold_is_integrated():
    """Wide cavities, other powers, other degrees of freedom."""
    mu, sigma = np.array([1.0, 0.0, 0.5, 0.5]), np.array([300.0, 250.0, 1.0, 1.0])
    cavities = mu, sigma, np.array([2.0, 1e9, 1.0, 1.0])
    powers = np.array([0.5, 0.5, 0.7, 1.0])
    found = projections(1.0, "ep", cavities, powers=powers)
    assert not found.inside.any()
    assert not projections(1.0, "ep", draw(5, 1.0), nu=4.2).inside.any()
    exact = projections(1.0, "ep", cavities, "exact", powers=powers)
    for one, other in zip(found, exact, strict=True):
        assert np.array_equal(one, other)


def test_the_table_follows_what_is_learnt_and_pickles():
    """EP's projector of another scale looks up, one of other degrees of freedom integrates."""
    mu, sigma, y = draw(20, 0.3)
    start = Projector(likelihoods.get("student-t", nu=4.0, scale=1.0), "ep")
    for values, inside in (({"scale": 0.3}, True), ({"nu": 3.9, "scale": 0.3}, False)):
        own = start.likelihood.with_parameters(**values)
        rule = PowerProjector(start.for_parameters(own), HALF)
        rules = rule, pickle.loads(pickle.dumps(rule))
        one, other = (r.project(mu, sigma, y, None) for r in rules)
        assert (one[3].all(), other[3].all()) == (inside, inside)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        exact = PowerProjector(Projector(own, "ep", "exact"), HALF).project(mu, sigma, y, None)
        assert np.allclose(one[0], exact[0], rtol=2e-8, atol=2e-8)


def test_the_table_ships_certified():
    table = shipped_scaled("student-t", 1.5)
    assert table is not None
    certificate = table.metadata.certificate
    assert max(certificate[s]["max_relative_error"] for s in table.metadata.surfaces) < 1e-8
    assert shipped_scaled("student-t", 1.6) is None
