"""Projections of any density, and of powers."""

import math
import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from qpruntime import TableError, infer, likelihoods, open_table, project
from qpruntime._special import power_peak_ratio
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.likelihoods.base import CLOSED, INTEGRATE
from qpruntime.likelihoods.poisson_square import LARGEST_COUNT, TABULATED
from qpruntime.projection import open
from qpruntime.projection.open import shipped, shipped_path, shipped_scaled
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import every_case, refuses

#: The promise: relative error of sigma*.
BOUND = 1e-9
#: The heaviside's (and the wide probit's) limit for a cavity far on the wrong side.
FAR_RATIO = 0.90319728556863
#: What ships with a compact table.
NAMES = [n for n in likelihoods.names() if likelihoods.get(n).reduction is not None]


def exact(name, mu, sigma, y):
    return project(name, mu, sigma, y, table="exact")[1]


def error(name, mu, sigma, y):
    got = project_arrays(name, mu, sigma, y)
    assert got.inside.all()
    return np.abs(got.std / exact(name, mu, sigma, y) - 1.0).max()


def labels(name, rng, size):
    if name == "poisson":
        counts = np.floor((LARGEST_COUNT + 1.0) ** rng.uniform(0, 1, size)) - 1.0
        return np.where(rng.random(size) < 0.3, rng.integers(0, 12, size), counts)
    return rng.choice([-1.0, 1.0], size)


@every_case("name", NAMES)
@every_case("seed", [0, 1])
def test_every_cavity(name, seed):
    """mu from 1e-6 to 1e6 times the wider of cavity and likelihood, sigma from 1e-6 to 1e8."""
    rng = np.random.default_rng(seed)
    sigma = 10.0 ** rng.uniform(-6, 8, 3000)
    size = np.maximum(sigma, 1.0) * 10.0 ** rng.uniform(-6, 6, sigma.size)
    # Beyond 1e9 sigma a double does not hold mu well enough to integrate: test_registry_extremes.
    mu = rng.choice([-1.0, 1.0], sigma.size) * np.minimum(size, 1e9 * sigma)
    assert error(name, mu, sigma, labels(name, rng, sigma.size)) <= BOUND


@every_case("sigma", [1e-6, 1e-3, 1.0, 1e3, 1e8])
@every_case("mu", [1e10, 1e30, 1e150, 1e200, 1.7e308])
def test_extremes(mu, sigma):
    """Where no quadrature can follow the limits are known."""
    for y in (1.0, -1.0):
        # On the right side nothing happens; on the wrong one a Gaussian is left, of the product's
        # variance, unless the cavity is wide enough for an exponential tail.
        assert project("probit", y * mu, sigma, y)[1] == pytest.approx(sigma, rel=BOUND)
        assert project("heaviside", y * mu, sigma, y)[1] == pytest.approx(sigma, rel=BOUND)
        if mu > 1e7 * sigma * max(sigma, 1.0):
            expected = sigma / math.sqrt(1.0 + sigma * sigma)
            got = project("probit", -y * mu, sigma, y)[1]
            assert got == pytest.approx(expected, rel=BOUND)
        if mu > 1e6 * sigma and mu / sigma**2 < 1e150:
            got = project("heaviside", -y * mu, sigma, y)[1]
            assert got == pytest.approx(FAR_RATIO * sigma**2 / mu, rel=BOUND)
    if mu > 1e10 * sigma * sigma:
        for y in (0.0, 1.0, 50.0, 60.0, 501.0, 1e6):
            expected = sigma / math.sqrt(1.0 + 2.0 * sigma * sigma)
            got = project("poisson", -mu, sigma, y)[1]
            assert got == pytest.approx(expected, rel=BOUND)


def both_sides(at, steps=(1e-12, 1e-9, 1e-6)):
    return np.array([at * (1.0 + s * d) for s in steps for d in (-1.0, 1.0)])


def probit_sigma(k, ell):
    p = 0.5 * (math.sqrt(16.0 + k * k) - k)
    return 10.0**ell * math.sqrt(1.0 + p * p)


@every_case("y", [1.0, -1.0])
def test_seams_of_labels(y):
    for k, ell in product([-1e6, -30.0, -2.0, 0.0, 1.0, 4.0, 7.9], [-1.6, 5.0]):
        sigma = both_sides(probit_sigma(k, ell))
        assert error("probit", y * k * np.sqrt(1.0 + sigma**2), sigma, y) <= BOUND
    k = both_sides(8.0)
    for sigma in (1e-6, 0.1, 1.0, 30.0, 1e4, 1e8):
        assert error("probit", y * k * math.sqrt(1.0 + sigma**2), sigma, y) <= 1e-11
        assert error("heaviside", y * k * sigma, sigma, y) <= 1e-11


def seam_of_count(y, sigma=1.0):
    """The |mu| at which W = 80."""
    b2 = 6400.0 / (4.0 * y + math.sqrt(16.0 * y * y + 6400.0))
    return math.sqrt(b2) * sigma * math.sqrt(1.0 + 2.0 * sigma**2)


@every_case("y", [1, 2, 3, 7, 20, 100, 499, 500, 501, 2000, 50_000, 10**6])
@every_case("sigma", [1e-6, 1.0, 1e5])
def test_poisson_seams(y, sigma):
    mu = both_sides(seam_of_count(y, sigma))
    coordinates = likelihoods.get("poisson").reduction.coordinates
    rows = {coordinates(m, sigma, float(y), np.zeros(0))[0] for m in mu}
    assert rows == {CLOSED, y - 1.0 if y <= TABULATED[-1] else INTEGRATE}
    assert error("poisson", mu, sigma, y) <= (1e-10 if y <= 2000 else BOUND)
    assert error("poisson", [0.0, 1e-300, 1e-9 * mu[0], 1e-3 * mu[0]], sigma, y) <= BOUND


@every_case("y", [1, 2, 5, 8, 20, 60, 400])
def test_series_of_a_lone_peak(y):
    for w in (80.0, 100.0, 500.0):
        b = math.sqrt(2.0 * w * w / (8.0 * y + math.sqrt(64.0 * y * y + 4.0 * w * w)))
        mu = b * math.sqrt(3.0)
        ratio = exact("poisson", mu, 1.0, y) / project("poisson", mu, 1.0, y, method="ep")[1]
        assert power_peak_ratio(2.0 * y, b) == pytest.approx(float(ratio), rel=3e-11)


def test_monotone_where_sigma_star_is():
    """In mu for probit and heaviside, in sigma for all, wherever sigma* grows measurably.

    Where it is level, rounding is all there is.
    """
    for name in ("probit", "heaviside"):
        for sigma in (0.05, 0.3, 1.0, 3.0, 30.0, 1e3, 1e6):
            mu = np.linspace(-12.0, 12.0, 24001) * max(sigma, 1.0)
            star = project(name, mu, sigma, 1)[1]
            assert (np.diff(star) >= -1e-15 * star[1:]).all()
            grows = np.diff(exact(name, mu[::20], sigma, 1)) / star[20::20] > 1e-10
            assert grows.any() or sigma < 0.1
            assert (np.diff(star[::20])[grows] > 0.0).all()
    for name, y in (("probit", 1), ("probit", -1), ("heaviside", -1), ("poisson", 0)):
        sigma = np.geomspace(1e-6, 1e8, 40001)
        star = project(name, 0.7, sigma, y)[1]
        assert (np.diff(star) / star[1:] >= -1e-15).all()
        grows = np.diff(exact(name, 0.7, sigma[::20], y)) / star[20::20] > 1e-9
        assert (np.diff(star[::20])[grows] > 0.0).all()


def test_labels_mirror_exactly():
    rng = np.random.default_rng(5)
    mu, sigma = rng.normal(size=500) * 10, 10.0 ** rng.uniform(-3, 3, 500)
    for name in ("probit", "heaviside"):
        found = project(name, mu, sigma, 1)[1]
        np.testing.assert_array_equal(found, project(name, -mu, sigma, -1)[1])
    wanted = project("poisson", -mu, sigma, 3)[1]
    np.testing.assert_array_equal(project("poisson", mu, sigma, 3)[1], wanted)


def test_default_is_the_shipped_table(toy):
    probit = likelihoods.get("probit")
    table = shipped(probit)
    assert table is shipped(probit)
    assert table.path == shipped_path("probit")
    assert not table.values.flags.writeable
    assert Projector("probit").table is table
    assert Projector("probit", "ep").table is None
    assert Projector("probit", "qp", "exact").table is None
    assert open_table("probit-compact").sha256 == table.sha256
    post = infer(toy.K, toy.y)
    assert post.lookups.outside == 0
    assert post.lookups.inside == post.n_sweeps * len(toy.y)
    truth = infer(toy.K, toy.y, table="exact")
    np.testing.assert_allclose(post.mean, truth.mean, rtol=1e-7, atol=1e-9)
    star, inside = table.lookup(toy.K[:, 0], 1.0, 1)
    assert inside.all()
    np.testing.assert_array_equal(star, project("probit", toy.K[:, 0], 1.0, 1)[1])


def test_likelihoods_without_a_table_are_integrated(monkeypatch, tmp_path):
    probit = likelihoods.get("probit")
    for other in (replace(probit), replace(probit, name="mine", reduction=None)):
        assert shipped(other) is None
        assert project(other, 0.3, 2.0, 1) == project("probit", 0.3, 2.0, 1, table="exact")
    # A missing file is an error.
    monkeypatch.setattr(open, "shipped_path", lambda name: tmp_path / f"{name}.h5")
    shipped.cache_clear()
    try:
        refuses(r"no table at .*probit\.h5", project, "probit", 0.0, 1.0, 1, error=TableError)
        assert project("probit", 0.0, 1.0, 1, table="exact")[1] > 0.8
    finally:
        shipped.cache_clear()


HALF = 0.5
POWERED = ("probit", "logistic")
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
        *((name, labelled(400)) for name in POWERED),
        *((student_t(scale), noisy(300, scale)) for scale in SCALES),
    ],
)
def test_tables_hold_what_quadrature_gives(likelihood, cavities, method):
    mu, sigma, y = cavities
    found = projections(likelihood, method, cavities)
    exact = projections(likelihood, method, cavities, "exact")
    assert found.inside.all()
    assert not exact.inside.any()
    labels = likelihood in POWERED
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


def test_tables_ship_certified_and_small():
    sizes = {name: shipped_path(name).stat().st_size for name in NAMES}
    assert sizes["probit"] <= 400_000
    assert sum(sizes.values()) <= 2_000_000
    for name in (*POWERED, "student-t"):
        table = shipped_scaled(name, 1.5) or open_table(shipped_path(name, HALF))
        table.verify_hash()
        certificate = table.metadata.certificate
        assert max(certificate[s]["max_relative_error"] for s in table.metadata.surfaces) < 1e-8
        for f, y, value in table.metadata.traits["probes"] if name in POWERED else ():
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
