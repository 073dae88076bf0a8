"""Tables of likelihoods to a power: against quadrature, and where they do not serve."""

import pickle

import numpy as np
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer, likelihoods, open_table
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.projection.open import shipped_path, shipped_scaled
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import every_case

HALF = 0.5
NAMES = ("probit", "logistic")
#: The table at unit scale of Student's t serves every scale.
SCALES = (1.0, 3e-4, 2e3)
OTHER = np.array([HALF, HALF, 0.7, 1.0])


def projections(likelihood, method, cavities, table=None, powers=None):
    projector = Projector(likelihood, method, table).to_power(HALF)
    powers = np.full(np.shape(cavities[0]), HALF) if powers is None else powers
    return project_many(projector.likelihood, projector.source, *cavities, None, powers)


def student_t(scale, nu=4.0):
    return likelihoods.get("student-t", nu=nu, scale=scale)


def labelled(n):
    rng = np.random.default_rng(8)
    mu, sigma = rng.uniform(-9.9, 9.9, n), 10.0 ** rng.uniform(-1.9, 2.9, n)
    return mu, sigma, rng.choice([-1.0, 1.0], n)


def noisy(n, scale):
    """Cavities of every width and distance, both ends of the table included."""
    rng = np.random.default_rng(3)
    sigma = scale * 10.0 ** rng.uniform(-3.0, 2.1, n)
    away = rng.choice([-1.0, 1.0], n) * (10.0 ** rng.uniform(-3.0, 4.0, n)) * scale
    away[:3], sigma[3:6] = 0.0, scale * 1e-3
    y = 3.0 * scale * rng.standard_normal(n)
    return y + away, sigma, y


@every_case("method", ["ep", "qp"])
@every_case(
    ("likelihood", "cavities"),
    [
        *((name, labelled(400)) for name in NAMES),
        *((student_t(scale), noisy(300, scale)) for scale in SCALES),
    ],
)
def test_tables_hold_what_quadrature_gives(likelihood, cavities, method):
    mu, sigma, y = cavities
    found = projections(likelihood, method, cavities)
    exact = projections(likelihood, method, cavities, "exact")
    assert found.inside.all()
    assert not exact.inside.any()
    labels = likelihood in NAMES
    # The certificate's 1e-8; log Z of noise is relative where it is large.
    size = 1.0 if labels else np.maximum(1.0, np.abs(exact.log_z))
    shift = np.abs(found.mean - exact.mean)
    assert (np.abs(found.log_z - exact.log_z) / size).max() < 2e-8
    assert (shift / (sigma if labels else exact.std)).max() < 2e-8
    assert np.abs(found.std / exact.std - 1.0).max() < 2e-8
    if not labels:
        # What a narrow cavity is moved by has relative errors; mu's digits limit both.
        allowed = 3e-8 * np.abs(exact.mean - mu) + 1e-13 * (np.abs(mu) + np.abs(y))
        assert (shift < allowed + 1e-10 * sigma * (sigma > likelihood.parameters["scale"])).all()


@every_case("method", ["ep", "qp"])
@every_case(
    ("likelihood", "cavities", "powers"),
    [
        ("probit", [(30.0, 0.1, 0.5, 0.5), (2.0, 1e-3, 1.0, 1.0), (-1.0, 1, 1, 1)], OTHER),
        (student_t(1.0), [(1, 0, 0.5, 0.5), (300.0, 250.0, 1, 1), (2, 1e9, 1, 1)], OTHER),
        (student_t(1.0, 4.2), noisy(5, 1.0), None),
    ],
)
def test_what_a_table_does_not_hold_is_integrated(likelihood, cavities, powers, method):
    """Cavities beyond its ends, other powers, and the power 1 that a weight of 2 makes."""
    cavities = np.array(cavities, dtype=float)
    found = projections(likelihood, method, cavities, powers=powers)
    exact = projections(likelihood, method, cavities, "exact", powers)
    assert not found.inside.any()
    # One rule for both, but for the power 1, whose sigma* is in the exact rule's tolerance.
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12 * (likelihood == "probit"), atol=0.0)


def test_the_table_follows_what_is_learnt_and_pickles():
    """EP's projector of another scale looks up, one of other degrees of freedom integrates."""
    mu, sigma, y = noisy(20, 0.3)
    start = Projector(student_t(1.0), "ep")
    for values, inside in (({"scale": 0.3}, True), ({"nu": 3.9, "scale": 0.3}, False)):
        own = start.likelihood.with_parameters(**values)
        rule = PowerProjector(start.for_parameters(own), HALF)
        rules = rule, pickle.loads(pickle.dumps(rule))
        one, other = (r.project(mu, sigma, y, None) for r in rules)
        assert (one[3].all(), other[3].all()) == (inside, inside)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        exact = PowerProjector(Projector(own, "ep", "exact"), HALF).project(mu, sigma, y, None)
        assert np.allclose(one[0], exact[0], rtol=2e-8, atol=2e-8)


def test_tables_ship_certified():
    for name in (*NAMES, "student-t"):
        table = shipped_scaled(name, 1.5) or open_table(shipped_path(name, HALF))
        table.verify_hash()
        certificate = table.metadata.certificate
        assert max(certificate[s]["max_relative_error"] for s in table.metadata.surfaces) < 1e-8
        for f, y, value in table.metadata.traits["probes"] if name in NAMES else ():
            own = likelihoods.get(name)
            assert abs(value - HALF * own.log_prob(f, y)) < 1e-12 * max(1.0, abs(value))
    assert shipped_scaled("student-t", 1.6) is None


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
