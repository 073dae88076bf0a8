"""Tables of likelihoods to a power: against mpmath and quadrature, and where they do not serve."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer, likelihoods, open_table
from qpruntime.projection.open import shipped_path
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many

HALF = 0.5
NAMES = ("probit", "logistic")


def projections(name, method, mu, sigma, y, powers, table=None):
    projector = Projector(name, method, table).to_power(HALF)
    return project_many(projector.likelihood, projector.source, mu, sigma, y, None, powers)


def cavities(n):
    rng = np.random.default_rng(8)
    mu, sigma = rng.uniform(-9.9, 9.9, n), 10.0 ** rng.uniform(-1.9, 2.9, n)
    return mu, sigma, rng.choice([-1.0, 1.0], n)


def test_tables_hold_what_quadrature_gives():
    mu, sigma, y = cavities(400)
    powers = np.full(mu.size, HALF)
    for name in NAMES:
        for method in ("ep", "qp"):
            found = projections(name, method, mu, sigma, y, powers)
            exact = projections(name, method, mu, sigma, y, powers, "exact")
            assert found.inside.all()
            assert not exact.inside.any()
            assert np.abs(found.log_z - exact.log_z).max() < 2e-8
            assert (np.abs(found.mean - exact.mean) / sigma).max() < 2e-8
            assert np.abs(found.std / exact.std - 1.0).max() < 2e-8


def test_what_a_table_does_not_hold_is_integrated():
    """Cavities beyond its ends, other powers, and the power 1 that a weight of 2 makes."""
    mu, sigma = np.array([30.0, 0.1, 0.5, 0.5]), np.array([2.0, 1e-3, 1.0, 1.0])
    y, powers = np.array([-1.0, 1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.7, 1.0])
    for method in ("ep", "qp"):
        found = projections("probit", method, mu, sigma, y, powers)
        exact = projections("probit", method, mu, sigma, y, powers, "exact")
        assert not found.inside.any()
        # One rule for both, but for the power 1, whose sigma* is in the exact rule's tolerance.
        for one, other in zip(found, exact, strict=True):
            assert np.allclose(one, other, rtol=1e-12, atol=0.0)


def test_tables_ship_certified():
    for name in NAMES:
        table = open_table(shipped_path(name, HALF))
        table.verify_hash()
        certificate = table.metadata.certificate
        assert max([certificate[s]["max_relative_error"] for s in table.metadata.surfaces]) < 1e-8
        log_prob = table.metadata.traits["probes"]
        own = likelihoods.get(name)
        for f, y, value in log_prob:
            assert abs(value - HALF * own.log_prob(f, y)) < 1e-12 * max(1.0, abs(value))


def test_dense_inference_looks_up():
    x = np.linspace(-3.0, 3.0, 30)
    K, y = RBF(0.8)(x[:, None]) * 3.0, np.sign(np.sin(2.0 * x) + 0.1)
    weights = np.where(np.arange(30) % 3, 1.0, 2.0)
    for method in ("ep", "qp"):
        for some in (None, weights):
            found = infer(K, y, "probit", method, power=HALF, weights=some)
            exact = infer(K, y, "probit", method, "exact", power=HALF, weights=some)
            assert found.lookups[0] > 0
            assert abs(found.log_evidence - exact.log_evidence) < 1e-6
            assert np.abs(found.mean - exact.mean).max() < 1e-6
