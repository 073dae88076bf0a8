"""Compact tables are made again to the same bytes, and no change to one goes unseen."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.interpolate import BSpline

from qpruntime import InputError, NumericalError, TableError, likelihoods, open_table
from qpruntime.projection.interpolation import quintic
from qpruntime.projection.open import shipped_path
from qpruntime.table_format.metadata import Axis
from tablegen import builder, splines
from tablegen.files import hdf5 as export
from tablegen.verify import verify
from tests.tools.cases import refuses
from tests.tools.forge import change

NAMES = [n for n in likelihoods.names() if likelihoods.get(n).reduction is not None]


def test_there_is_one_for_every_likelihood_with_coordinates():
    assert {"probit", "heaviside", "poisson"} <= set(NAMES)
    for name in likelihoods.names():
        assert shipped_path(name).is_file() == (name in NAMES)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "probit")) for n in NAMES]
)
def test_shipped_tables_are_made_by_these_sources(name, tmp_path, monkeypatch):
    """Bit for bit where exp, log and their like round as they did, else to a few of their ulps."""
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    metadata = builder.build(name, preset="compact", workers=1)
    path = tmp_path / f"{name}-compact.h5"
    shipped = open_table(shipped_path(name))
    if metadata.certificate["arithmetic"] == shipped.metadata.certificate["arithmetic"]:
        assert path.read_bytes() == shipped_path(name).read_bytes()
    unsigned = {"sha256": "", "certificate": {}}
    assert replace(metadata, **unsigned) == replace(shipped.metadata, **unsigned)
    np.testing.assert_allclose(open_table(path).values, shipped.values, rtol=1e-12, atol=1e-12)
    if name == "heaviside":
        once = path.read_bytes()
        builder.build(name, preset="compact", workers=3, force=True)
        assert path.read_bytes() == once
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("cells", [5, 6, 40])
def test_splines_reproduce_quintics_and_interpolate(cells):
    axis = Axis("v", -1.0, 2.5, cells + 1)
    x = splines.points(axis)
    assert (np.diff(x) > 0.0).all()
    assert (x[0], x[-1]) == (-1.0, 2.5)
    values = np.array([[1.0 - x + 0.2 * x**5], [np.sin(x)]])
    found = splines.along(values, 2, axis)
    knots = axis.start + axis.step * np.arange(-5, cells + 6)
    for row in range(2):
        # Rounding, times the condition of the collocation matrix (about 100).
        np.testing.assert_allclose(BSpline(knots, found[row, 0], 5)(x), values[row, 0], atol=1e-13)
    t = np.linspace(-1.0, 2.5, 301)
    np.testing.assert_allclose(BSpline(knots, found[0, 0], 5)(t), 1.0 - t + 0.2 * t**5, atol=1e-13)


def test_splines_along_two_axes():
    u, v = Axis("u", 0.0, 1.0, 21), Axis("v", -2.0, 0.0, 31)
    surface = np.cos(splines.points(u))[:, None] * np.exp(splines.points(v))
    found = splines.along(splines.along(surface[None], 1, u), 2, v)
    axes = np.array([0.0, 1.0, 20.0, -2.0, 0.0, 15.0, 1.0])
    for a, b in [(0.0, -2.0), (0.123, -0.77), (1.0, 0.0), (0.5, -0.01)]:
        # The spline's error is (h/2)^6 or so.
        assert quintic(found, axes, 0, a, b) == pytest.approx(np.cos(a) * np.exp(b), rel=2e-9)


def test_a_spline_needs_room():
    refuses("at least 6 nodes", splines.points, Axis("v", 0.0, 1.0, 5), error=ValueError)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # Of 25 000 quadratures; `projection.test_open` integrates again what it holds.
        *(pytest.param(name, 0, marks=[pytest.mark.slow] * (name == "poisson")) for name in NAMES),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in NAMES),
    ],
)
def test_shipped_tables_verify_with_any_seed(name, seed):
    report = verify(shipped_path(name), seed=seed, points=600)
    assert report.problems == ()
    assert report.tolerance == 1e-9
    assert report.certificate["nodes"]["max_relative_error"] < 1e-12
    for region in ("cells", "seams", "far"):
        assert report.certificate[region]["points"] >= 600
        assert report.certificate[region]["max_relative_error"] < 8e-10


@pytest.fixture
def altered(tmp_path):
    """Return a function that copies a shipped table and changes one coefficient."""

    def alter(name, where, amount, rehash):
        def edit(values):
            values[where] += amount

        path = Path(shutil.copy(shipped_path(name), tmp_path / "t.h5"))
        change(path, edit, rehash)
        return path

    return alter


PLACES = [
    ("probit", (0, 0, 0)),
    ("probit", (0, 40, 60)),
    ("probit", (0, 57, 123)),
    ("probit", (0, 116, 2)),
    ("probit", (0, 3, 244)),
    ("heaviside", (0, 0, 0)),
    ("heaviside", (0, 0, 77)),
    ("heaviside", (0, 0, 196)),
    *(
        # 25 000 quadratures each.
        pytest.param("poisson", where, marks=pytest.mark.slow)
        for where in ((0, 0, 30), (250, 0, 4), (499, 0, 244), (499, 0, 120))
    ),
]


@pytest.mark.parametrize(("name", "where"), PLACES)
def test_one_coefficient_altered_by_a_millionth_is_found(altered, name, where):
    """Also with a hash that fits: the numbers themselves give it away, with their place."""
    path = altered(name, where, 1e-6 if where[2] % 2 else -1e-6, rehash=True)
    report = verify(path, points=20, seed=1)
    assert report.problems[0].startswith("relative error ")
    # At least 1e-6/120^2, the weight of a corner.
    assert report.certificate["nodes"]["max_relative_error"] > 6e-11


def test_the_hash_gives_it_away_as_well(altered):
    path = altered("probit", (0, 57, 123), 1e-6, rehash=False)
    problems = verify(path, points=20, seed=1).problems
    assert problems[0].startswith("data hash is ")
    assert problems[1].startswith("relative error ")
    message = "again: tablegen build --likelihood probit --preset compact"
    refuses(message, open_table, path, error=TableError)
    assert open_table(path, verify=False).values.shape == (1, 117, 245)


def test_numbers_that_are_none(altered):
    path = altered("heaviside", (0, 0, 5), np.nan, rehash=False)
    refuses("coefficients that are not finite", verify, path, error=TableError, points=20, seed=1)


def test_other_coordinates_are_refused(tmp_path):
    path = Path(shutil.copy(shipped_path("heaviside"), tmp_path / "t.h5"))
    with h5py.File(path, "r+") as file:
        document = json.loads(file.attrs["metadata"])
        document["axes"][0]["name"] = "another z"
        file.attrs["metadata"] = json.dumps(document)
    export.seal(path)
    refuses("over other coordinates than those of 'heaviside'", open_table, path, error=TableError)


def test_options(tmp_path):
    with pytest.raises(InputError, match="preset must be one of grid, compact"):
        builder.build("probit", tmp_path / "t.h5", preset="tiny")
    with pytest.raises(InputError, match="no such options: mu_step"):
        builder.build("probit", tmp_path / "t.h5", preset="compact", mu_step=0.5)
    with pytest.raises(NumericalError, match=r"misses its tolerance: relative error .* at mu = "):
        builder.build("heaviside", tmp_path / "t.h5", preset="compact", tolerance=1e-15)
    assert list(tmp_path.iterdir()) == []


def test_command_line(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    dry = command("build", "--preset", "compact", "--likelihood", "heaviside", "--dry-run")
    assert (dry.code, list(tmp_path.iterdir())) == (0, [])
    assert "heaviside-compact.h5" in dry.out
    built = command("build", "--preset", "compact", "--likelihood", "heaviside")
    assert built.code == 0
    info = command("info", "heaviside-compact")
    assert info.out == built.out
    (line,) = (line for line in info.out.splitlines() if line.startswith("guarantee"))
    for words in ("every finite mu", "sigma 1e-06 to 1e+08", "below 1e-09", "second quadrature"):
        assert words in line
    document = json.loads(command("list", "--json").out)
    assert [t["likelihood"] for t in document["tables"]] == ["heaviside"]
    assert sorted(t["likelihood"] for t in document["shipped"]) == list(NAMES)
    assert "shipped with the package" in command("list").out
    verified = command("verify", "heaviside-compact", "--seed", "3", "--points", "50")
    assert verified.code == 0
    assert "error far out" in verified.out
