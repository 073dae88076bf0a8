"""Pictures of tables: both kinds, every likelihood, both formats, and what is refused."""

import json

import pytest

from qpruntime import InputError, TableError
from tablegen import builder
from tablegen.console import plot as picture
from tablegen.console.plot import plot
from tests.tools.cases import every_case, refuses


@pytest.fixture(autouse=True)
def few_pixels(monkeypatch):
    """A pixel costs a quadrature."""
    monkeypatch.setattr(picture, "_WIDE", 41)
    monkeypatch.setattr(picture, "_HIGH", 31)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("plot") / "poisson.h5"
    builder.build("poisson", path, counts=(2, 3), mu_step=0.5, log10_sigma_step=0.1)
    return path


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_formats(tmp_path, suffix):
    path = tmp_path / f"picture{suffix}"
    document = plot("heaviside-compact", path)
    assert path.read_bytes()[:4] == (b"\x89PNG" if suffix == ".png" else b"<?xm")
    assert 0.9031972 < document["smallest_ratio"] < 0.9032
    assert document["largest_error"] < 1e-9
    first = path.read_bytes()
    plot("heaviside-compact", path)
    assert path.read_bytes() == first


@pytest.mark.slow
def test_a_grid_and_its_outcomes(grid, tmp_path):
    document = plot(grid, tmp_path / "a.png")
    assert document["outcome"] == 2.0
    assert document["largest_error"] > 1e-4  # bilinear on a coarse grid
    assert plot(grid, tmp_path / "a.png", outcome=3)["outcome"] == 3.0
    refuses("the table holds y = 2 to 3, got 4", plot, grid, tmp_path / "a.png", outcome=4)


@every_case(
    ("table", "options", "error", "words"),
    [
        ("probit-compact", {"output": "a.jpg"}, InputError, r"must end in \.png or \.svg"),
        ("probit-compact", {"output": "none/a.png"}, TableError, "no directory"),
        ("no-such", {}, TableError, "no table 'no-such'"),
        ("probit-compact", {"outcome": 0.0}, InputError, "labels must be -1 or"),
        ("probit-compact", {"mu_range": (1.0, 1.0)}, InputError, "mu needs finite LO < HI"),
        ("probit-compact", {"log10_sigma_range": (0, float("inf"))}, InputError, "finite LO < HI"),
    ],
)
def test_refuses(tmp_path, monkeypatch, table, options, error, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    refuses(words, plot, table, error=error, **{"output": "a.png"} | options)
    assert list(tmp_path.iterdir()) == []


def test_command_line(command, tmp_path):
    path = tmp_path / "a.png"
    ranges = ("--mu-range", "-3", "3", "--log10-sigma-range", "-1", "1")
    result = command("plot", "probit-compact", "--output", path, *ranges, "--json")
    assert result.code == 0
    assert json.loads(result.out)["path"] == str(path)
    assert path.stat().st_size > 10_000
    assert command("plot", "probit-compact", "--output", tmp_path / "a.gif").code == 2
