"""Tables: opened, looked up, and of Wasserstein projections."""

import json
import math
import pickle
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from qpruntime import TableError, _formatting, infer, likelihoods, open_table, project
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.interpolation import bilinear
from qpruntime.projection.open import shipped_path, table_directory
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen import build
from tablegen.console import plot
from tablegen.console.cli import main
from tablegen.files.hdf5 import seal
from tablegen.second_rule import wp as second_wp
from tablegen.surfaces import build as tables
from tablegen.surfaces import errors as surface_errors
from tablegen.verify import verify
from tests.tools.cases import every_case, refuses


def test_open(small_table):
    table = open_table(small_table, verify=True)
    assert table.values.shape == table.metadata.shape == (1, 41, 21)
    assert table.values.dtype == np.float64
    assert not table.values.flags.writeable
    assert isinstance(table.values.base, np.memmap)
    assert table.values.base.mode == "r"
    assert (table.path, table.outside, table.likelihood.name) == (small_table, "ep", "probit")
    with pytest.raises(ValueError, match="read-only"):
        table.values[0, 0, 0] = 1.0
    nodes = table.metadata.mu.nodes()[:, None], 10.0 ** table.metadata.log10_sigma.nodes()
    # What the table promises about itself.
    expected = project("probit", *nodes, 1, table="exact")[1]
    np.testing.assert_allclose(table.values[0], expected, rtol=1e-12)


def test_open_by_name(small_table, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    assert table_directory() == tmp_path
    words = r"no table 'student-t' in .*tablegen build --likelihood"
    refuses(words, open_table, "student-t", error=TableError)
    # Without a grid of this name the table that ships, which is what table=None takes.
    assert open_table("probit").sha256 == open_table("probit-compact").sha256
    refuses("no table at", open_table, tmp_path / "probit", error=TableError)
    shutil.copy(small_table, tmp_path / "probit.h5")
    # Also where a folder of this name is beside.
    (tmp_path / "elsewhere" / "probit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert open_table("probit").path == tmp_path / "probit.h5"
    monkeypatch.delenv("QP_TABLES")
    assert table_directory().is_absolute()


def test_refuses_other_files(tmp_path, small_table):
    text = tmp_path / "table.h5"
    words = r"no table at .*table\.h5.*tablegen build --output"
    refuses(words, open_table, text, error=TableError)
    refuses("is a directory", open_table, tmp_path, error=TableError)
    refuses("outside must be one of", open_table, small_table, outside="extrapolate")
    for content in (b"", b"not HDF5 at all\n" * 1000):
        text.write_bytes(content)
        refuses("not an HDF5 file", open_table, text, error=TableError)
    with h5py.File(text, "w") as file:
        file["other"] = 1.0
    refuses(r"no seal at its end.*build it again", open_table, text, error=TableError)
    # HDF5 itself drops the seal when it writes; what leaves it in place no longer fits it.
    copy = Path(shutil.copy(small_table, tmp_path / "probit.h5"))
    sealed = copy.read_bytes()
    with h5py.File(copy, "r+") as file:
        file.attrs["note"] = "edited"
    refuses("no seal at its end: truncated, edited", open_table, copy, error=TableError)
    copy.write_bytes(copy.read_bytes() + sealed[-72:])
    refuses("the seal does not fit", open_table, copy, error=TableError)
    seal(copy)
    assert open_table(copy, verify=True).values.shape == (1, 41, 21)


def test_pickles_refer_to_the_table_by_its_hash(small_table, tmp_path, monkeypatch):
    moved = tmp_path / "here.h5"
    moved.write_bytes(small_table.read_bytes())
    table = open_table(moved, outside="exact")
    document = pickle.dumps(table)
    assert len(document) < 1000
    again = pickle.loads(document)
    assert (again.path, again.sha256, again.outside) == (moved, table.sha256, "exact")
    # Elsewhere it is found among the installed tables, by what it holds.
    installed = tmp_path / "installed" / "probit.h5"
    installed.parent.mkdir()
    moved.rename(installed)
    monkeypatch.setenv("QP_TABLES", str(installed.parent))
    assert pickle.loads(document).path == installed
    installed.unlink()
    with pytest.raises(TableError, match=rf"{table.sha256}.*tablegen build --likelihood probit"):
        pickle.loads(document)


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
@every_case(("mu_edge", "ell_edge", "sign"), [(-2.0, -1.0, -1), (1.0, 0.5, 1)])
def test_edges(mu_edge, ell_edge, sign):
    table, axes = synthetic(), synthetic().axes()
    mu_beyond, ell_beyond = (np.nextafter(edge, sign * np.inf) for edge in (mu_edge, ell_edge))
    assert bilinear(table.values, axes, 0, 0.3, ell_edge)[1]
    assert not bilinear(table.values, axes, 0, 0.3, ell_beyond)[1]
    for y in (1, -1):
        star, inside = table.lookup(y * np.array([mu_edge, mu_beyond]), 1.0, y)
        assert inside.tolist() == [True, False]
        assert star[0] == pytest.approx(surface(mu_edge, 0.0), rel=1e-14)
        assert star[1] == project("probit", y * mu_beyond, 1.0, y, method="ep")[1]
        # 8 eps of sigma are 2 ulp of its logarithm.
        sigma = 10.0**ell_edge * (1.0 + np.array([-8, 8]) * sign * EPS)
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
    # The table of another likelihood is refused.
    probit = likelihoods.get("probit")
    other = Likelihood("mine", "labels", probit.split, probit.validate)
    refuses(r"is for the likelihood 'probit', not 'mine'", Projector, other, "qp", small_table)


def log_prob(f, y, theta):
    x = -theta[0] * y * f
    return -x - math.log1p(math.exp(-x)) if x > 0.0 else -math.log1p(math.exp(x))


@cache  # compiled once
def graded(slope=1.7):
    options = {"theta": {"slope": slope}, "outcomes": [-1, 1], "log_concave": True}
    made = Likelihood.from_log_prob(log_prob, name="graded", **options)
    return replace(made, mirror=True)


RANGE = {"mu_range": (-1.4, 1.4), "log10_sigma_range": (-0.25, 0.02)}
TINY = {"mu_range": (-0.5, 0.5), "log10_sigma_range": (-0.1, 0.1)}


@pytest.fixture(scope="module")
def built(few_points, tmp_path_factory):
    path = tmp_path_factory.mktemp("wp") / "graded.h5"
    build(graded(), path, preset="surfaces", projection="wp", p=1.5, workers=2, **RANGE)
    return path


@pytest.fixture(scope="module")
def data():
    x = np.linspace(-3.0, 3.0, 12)
    K = np.exp(-0.5 * ((x[:, None] - x) / 0.6) ** 2)
    return K, np.where(np.sin(2.0 * x) > -0.2, 1.0, -1.0)


def test_lookups_equal_quadrature(built):
    metadata = open_table(built).metadata
    assert metadata.projection == {"name": "wp", "p": 1.5}
    assert tuple(metadata.surfaces) == interpolation.WP_NAMES
    errors = [metadata.certificate[name]["max_relative_error"] for name in metadata.surfaces]
    assert metadata.certificate["tolerance"] == 1e-6
    assert 1e-12 < max(errors) <= 1e-6
    assert open_table(built).likelihood.has_density is False
    rng = np.random.default_rng(3)
    mu, sigma = rng.uniform(-1.4, 1.4, 100), 10.0 ** rng.uniform(-0.25, 0.02, 100)
    y = rng.choice([-1.0, 1.0], 100)
    found = project_arrays(None, mu, sigma, y, "wp", built)
    exact = project_arrays(graded(), mu, sigma, y, "wp", p=1.5)
    assert found.inside.all()
    np.testing.assert_allclose(found.log_z, exact.log_z, rtol=1e-6, atol=1e-6)
    assert np.abs((found.mean - exact.mean) / exact.std).max() < 1e-6
    np.testing.assert_allclose(found.std, exact.std, rtol=1e-6)
    # Tables of EP and QP would be seen: both differ by more than ten times the tolerance.
    ep_mean, ep_std = project(graded(), mu, sigma, y, "ep")
    qp_std = project(graded(), mu, sigma, y, "qp", "exact")[1]
    assert np.abs(found.mean - ep_mean).max() > 1e-5
    assert np.abs(found.std / ep_std - 1.0).max() > 1e-5
    assert np.abs(found.std / qp_std - 1.0).max() > 1e-5
    star, inside = open_table(built).lookup(mu, sigma, y)
    np.testing.assert_array_equal(star, found.std)
    assert inside.all()


@pytest.mark.parametrize("p", [pytest.param(1.0, marks=pytest.mark.slow), 4.0])
def test_other_orders(few_points, tmp_path, p):
    path = tmp_path / "x.h5"
    options = {"projection": "wp", "p": p, "tolerance": 1e-4, "workers": 2, **TINY}
    build(graded(), path, preset="surfaces", **options)
    mu, sigma = np.linspace(-0.5, 0.5, 40), 10.0 ** np.linspace(-0.0999, 0.0999, 40)
    mean, std = project(None, mu, sigma, 1.0, "wp", path)
    exact_mean, exact_std = project(graded(), mu, sigma, 1.0, "wp", p=p)
    assert np.abs((mean - exact_mean) / exact_std).max() < 1e-4
    np.testing.assert_allclose(std, exact_std, rtol=1e-4)


@every_case("order", ["sequential", "parallel"])
def test_infer_equals_quadrature(built, data, order):
    """With the code at hand and without."""
    K, y = data
    kwargs = {"method": "wp", "order": order, "tol": 1e-9}
    exact = infer(K, y, graded(), p=1.5, **kwargs)
    for code in (None, graded()):
        found = infer(K, y, code, table=built, **kwargs)
        assert found.converged
        assert found.lookups.inside >= y.size
        assert found.lookups.outside == 0
        np.testing.assert_allclose(found.mean, exact.mean, atol=1e-5)
        np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-5)
        np.testing.assert_allclose(found.sites.tau, exact.sites.tau, rtol=1e-5, atol=1e-5)
        assert found.log_evidence == pytest.approx(exact.log_evidence, rel=1e-5)


# --- the certificate


@every_case("p", [1.0, 1.5, 2.0, 4.0])
@every_case("name", ["probit", "student-t"])
def test_newton_steps_find_errors(name, p):
    """Where the projection is right the step is none; what is added to it comes back."""
    likelihood = likelihoods.get(name)
    rng = np.random.default_rng(7)
    mu, sigma, y = rng.uniform(-3, 3, 15), 10.0 ** rng.uniform(-0.3, 0.5, 15), np.ones(15)
    found = project_arrays(likelihood, mu, sigma, y, "wp", p=p)
    stored = np.stack([found.log_z, found.mean, found.std], 1)
    assert second_wp.errors(likelihood, p, mu, sigma, y, stored).max() < 1e-7
    wrong = stored + np.stack([np.full(15, 3e-5), 1e-6 * found.std, 0.0 * mu], 1)
    errors = second_wp.errors(likelihood, p, mu, sigma, y, wrong)
    np.testing.assert_allclose(errors[:, 0] * np.maximum(1, abs(stored[:, 0])), 3e-5, rtol=1e-5)
    assert (np.abs(np.log(errors[:, 1] / 1e-6)) < math.log(4.0)).all()
    assert np.median(errors[:, 1]) == pytest.approx(1e-6, rel=0.1)
    wrong = stored + np.stack([0.0 * mu, 0.0 * mu, 1e-6 * found.std], 1)
    errors = second_wp.errors(likelihood, p, mu, sigma, y, wrong)
    assert (np.abs(np.log(errors[:, 2] / 1e-6)) < math.log(4.0)).all()
    assert np.median(errors[:, 2]) == pytest.approx(1e-6, rel=0.1)


def test_verify_integrates_again(built):
    report = verify(built, likelihood=graded(), points=100, seed=3, workers=1)
    assert report.ok
    assert 0.0 < report.certificate["std_wp"]["max_relative_error"] <= 1e-6
    assert verify(built, points=100, seed=3, workers=1).certificate == {}
    # The surfaces of another order do not pass for this one's.
    table = open_table(built)
    other = replace(table.metadata, projection={"name": "wp", "p": 1.6})
    wrong = Table(table.path, other, table.likelihood, table.values)
    found = surface_errors.certify(
        wrong, graded(), run=lambda f, parts: [f(p) for p in parts], points=50
    )
    assert any("_wp" in problem for problem in surface_errors.problems(found, 1e-6))


# --- what is refused


def test_mismatches_say_what_to_build(built, data, tmp_path):
    K, y = data
    compact = shipped_path("probit")
    words = r"with p=1.5, not.*p=3: .*projection='wp', p=3.0\) in Python"
    refuses(words, infer, K, y, method="wp", p=3, table=built)
    for method in ("ep", "qp", "vb"):
        message = rf"not method .{method}.*preset='surfaces'\) in Python$"
        refuses(message, infer, K, y, method=method, table=built)
    words, given = r"serves QP, not method .wp.*--projection wp --p 1.5", ("probit", 0.0, 1.0, 1)
    refuses(words, project, *given, method="wp", p=1.5, table=compact)
    refuses('"wp" needs p', project, "probit", 0.0, 1.0, 1, method="wp", table=compact)
    refuses("weights and powers", infer, K, y, graded(), method="wp", table=built, power=0.5)
    words, given = r"outside the table.*projection='wp', p=1.5, mu_range=", (graded(), 9.0, 1.0, 1)
    refuses(words, project, *given, method="wp", table=built, error=TableError)
    refuses("no sigma", plot.plot, built, tmp_path / "x.svg")
    assert Projector(graded(), "wp", built).for_evidence().table is None


@every_case(
    ("options", "words"),
    [
        ({"p": 1.5}, "--projection wp"),
        ({"projection": "wp"}, "needs its order"),
        ({"projection": "wp", "p": 0.5}, "p must be from 1"),
        ({"projection": "qp", "p": 1.5}, "projection"),
        ({"projection": "wp", "p": 1.5, "preset": "grid"}, "a grid has no such options"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, words):
    refuses(words, build, "probit", tmp_path / "x.h5", **{"preset": "surfaces", **options})
    assert list(tmp_path.iterdir()) == []


def test_metadata(built):
    metadata = open_table(built).metadata
    assert Metadata.from_json(metadata.to_json(), "x") == metadata
    document = json.loads(metadata.to_json())
    plain = document | {"surfaces": list(interpolation.NAMES), "projection": None}
    assert "projection" not in json.loads(Metadata.from_json(json.dumps(plain), "x").to_json())
    for wrong in (
        *({}, "wp", {"name": "wp"}, {"name": "lp", "p": 1.5}, {"name": "wp", "p": "1.5"}),
        *({"name": "wp", "p": True}, {"name": "wp", "p": 1e300}, {"name": "wp", "p": 0.9}),
        {"name": "wp", "p": 1.5, "q": 1},
    ):
        text = json.dumps(document | {"projection": wrong})
        refuses("'projection'", Metadata.from_json, text, "x", error=TableError)
    plain = replace(metadata, projection=None)
    refuses("holds the surfaces", tables.standin, plain, "x", error=TableError)


@pytest.mark.slow
def test_command_line(few_points, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    where = ["--mu-range", "-0.5", "0.5", "--log10-sigma-range", "-0.1", "0.1"]
    what = ["build", "--likelihood", "logistic", "--preset", "surfaces", *where]
    what += ["--projection", "wp", "--p", "1.5", "--tolerance", "1e-4"]
    assert main([*what, "--dry-run"]) == 0
    assert "logistic-wp-1_5.h5" in capsys.readouterr().out
    assert main([*what, "--workers", "1"]) == 0
    assert "wp, p = 1.5" in capsys.readouterr().out
    assert main(["verify", "logistic-wp-1_5", "--points", "50", "--workers", "1"]) == 0
    assert "of wp deviation" in capsys.readouterr().out
    assert _formatting.ending("surfaces", 2.0) == "-wp-2"
    mean, std = project("logistic", 0.1, 1.0, -1, method="wp", table="logistic-wp-1_5")
    exact = project("logistic", 0.1, 1.0, -1, method="wp", p=1.5)
    assert (mean, std) == (pytest.approx(exact[0], rel=1e-4), pytest.approx(exact[1], rel=1e-4))
