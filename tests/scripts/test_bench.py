"""The benchmark's own manners: JSON alone on stdout, and what is missing is named."""

import json
import os

import pytest

from scripts import command_line
from scripts.benchmarks import speed as bench, speed_fits


def noisy(*path):
    """A section whose peer prints, from C as well."""
    print("hello from Python")
    os.write(1, b"hello from C\n")
    return [("a time", 0.25, "s"), ("no time at all", float("inf"), "s")]


@pytest.fixture
def run(monkeypatch, capfd):
    def run(*arguments, installed=()):
        monkeypatch.setattr(bench, "has", lambda module: module in installed)
        for name in ("fit", "sweep", "table"):
            monkeypatch.setitem(bench.SECTIONS, name, noisy)
        assert command_line.main("benchmarks", ["speed", *arguments]) == 0
        return capfd.readouterr()

    return run


def test_json_is_all_there_is_on_stdout(run):
    out, err = run("--json", "--sets", "fit", "sweep", "--table", "nowhere.h5")
    document = json.loads(out, parse_constant=pytest.fail)
    assert document["results"]["fit"] == [
        {"what": "a time", "value": 0.25, "unit": "s"},
        {"what": "no time at all", "value": None, "unit": "s"},
    ]
    assert "hello from C" in err
    assert "hello from Python" in err
    assert len(document["skipped"]) == 3


def test_what_is_missing_is_named(run, tmp_path):
    path = str(tmp_path / "none.h5")
    _, err = run("--sets", "fit", "sweep", "--table", path)
    assert "GPy is not installed (extra bench): skipped in sweep, fit\n" in err
    assert "gpboost is not installed (extra bench): skipped in fit\n" in err
    assert f"{path} is no file: the grid is skipped in sweep; build it: tablegen build" in err
    for peer in bench.PEERS:
        _, err = run("--sets", "fit", "sweep", installed=(peer,))
        assert f"{peer} is not installed" not in err
    out, err = run("--sets", "table", "--table", __file__, installed=("GPy", "gpboost"))
    assert "skipped" not in err
    assert out.splitlines()[1] == "table"
    assert "0.25 s" in out


def test_predictions_are_measured():
    found = {what: value for what, value, _ in speed_fits.predictions(20, 100)}
    assert len(found) == 14
    assert all(value > 0.0 for value in found.values())
