"""The tables inside the package: right to 1e-9 for every cavity, continuous, monotone, the default.

The exact projection is the truth here; it is tested against mpmath in
test_sigma_star_kernels.py and in the tests of the likelihoods.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from qpruntime import TableError, infer, likelihoods, open_table, project
from qpruntime._special import power_peak_ratio
from qpruntime.likelihoods.base import CLOSED, INTEGRATE
from qpruntime.likelihoods.poisson_square import LARGEST_COUNT, TABULATED
from qpruntime.projection import open
from qpruntime.projection.open import shipped, shipped_path
from qpruntime.projection.projector import Projector, project_arrays
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


@every_case("k", [-1e6, -30.0, -2.0, 0.0, 1.0, 4.0, 7.9])
@every_case("ell", [-1.6, 5.0])
def test_probit_seams_of_sigma(k, ell):
    sigma = both_sides(probit_sigma(k, ell))
    for y in (1.0, -1.0):
        assert error("probit", y * k * np.sqrt(1.0 + sigma**2), sigma, y) <= BOUND


@every_case("sigma", [1e-6, 0.1, 1.0, 30.0, 1e4, 1e8])
def test_seams_at_k_8(sigma):
    k = both_sides(8.0)
    for y in (1.0, -1.0):
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


def test_sizes_of_the_files():
    sizes = {name: shipped_path(name).stat().st_size for name in NAMES}
    assert sizes["probit"] <= 400_000
    assert sum(sizes.values()) <= 2_000_000


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


def test_likelihoods_without_a_table_are_integrated():
    probit = likelihoods.get("probit")
    for other in (replace(probit), replace(probit, name="mine", reduction=None)):
        assert shipped(other) is None
        assert project(other, 0.3, 2.0, 1) == project("probit", 0.3, 2.0, 1, table="exact")


def test_a_missing_file_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(open, "shipped_path", lambda name: tmp_path / f"{name}.h5")
    shipped.cache_clear()
    try:
        refuses(r"no table at .*probit\.h5", project, "probit", 0.0, 1.0, 1, error=TableError)
        assert project("probit", 0.0, 1.0, 1, table="exact")[1] > 0.8
    finally:
        shipped.cache_clear()
