"""A sound table passes, a damaged one does not, and the report says why."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from qpruntime.errors import TableError
from tablegen import builder
from tablegen.verify import verify
from tests.tools.cases import refuses
from tests.tools.forge import change


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "probit.h5"
    builder.build("probit", path, mu_step=0.25, log10_sigma_step=0.05)
    return path


@pytest.fixture
def copy(sound, tmp_path):
    return Path(shutil.copy(sound, tmp_path / "probit.h5"))


def test_a_sound_table_passes_with_any_seed(sound):
    for seed in (0, 1, 2):
        report = verify(sound, seed=seed, points=500)
        assert report.ok
        assert report.certificate["nodes"]["max_relative_error"] < 1e-13
        assert (report.seed, report.certificate["seed"]) == (seed, seed)
    assert verify(sound, points=10).ok


@pytest.mark.parametrize("rehash", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0, 2.9])
def test_values_outside_the_bounds_are_found(copy, value, rehash):
    def edit(values):
        values[0, 50, 20] = value  # mu = 2.5, sigma = 1, where sigma_EP = 0.98

    change(copy, edit, rehash)
    report = verify(copy, points=10, seed=0)
    assert not report.ok
    assert "1 values outside (0, sigma_EP]" in report.problems[0]
    assert "mu = 2.5, log10 sigma = 0" in report.problems[0].replace("-0", "0")
    assert any("hash" in p for p in report.problems) is not rehash


def test_a_table_that_is_wrong_everywhere_fails_with_a_right_hash(copy):
    def edit(values):
        values *= 1 - 1e-9

    change(copy, edit, rehash=True)
    report = verify(copy, points=10, seed=0)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("relative error 1e-09 at mu = ")
    assert verify(copy, points=10, seed=0, tolerance=1e-8).ok


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A grid of 40 000 nodes, of which verification draws 2000."""
    path = tmp_path_factory.mktemp("verify") / "large.h5"
    builder.build("probit", path, mu_step=0.05, log10_sigma_step=0.02)
    return path


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (400, 3), (200, 100), (333, 77), (399, 50)])
def test_one_node_altered_by_a_millionth_is_found(large, tmp_path, place):
    def edit(values):
        values[0][place] *= 1.0 - 1e-6

    path = Path(shutil.copy(large, tmp_path / "t.h5"))
    change(path, edit, rehash=True)
    report = verify(path, seed=0)
    assert report.problems[0].startswith("relative error 1e-06 at mu = ")
    assert len(report.problems) == 1
    nodes = report.certificate["nodes"]
    assert nodes["mu"] == pytest.approx(-10.0 + 0.05 * place[0])
    assert nodes["log10_sigma"] == pytest.approx(-1.0 + 0.02 * place[1])


def test_small_grids_are_integrated_whole(copy):
    def edit(values):
        values[0, 33, 17] *= 1.0 - 1e-6

    change(copy, edit, rehash=True)
    assert not verify(copy, seed=0).ok


def test_options(sound, tmp_path):
    refuses("points must be at least 1", verify, sound, points=0)
    refuses("seed must not be negative", verify, sound, seed=-1)
    with pytest.raises(TableError):
        verify(tmp_path / "none.h5")
