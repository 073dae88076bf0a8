"""Tables of surfaces are certified, reproduced to the byte, resumed, and refused in words."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from qpruntime import InputError, NumericalError, TableError, likelihoods, open_table
from qpruntime.execution.threads import Threads
from qpruntime.projection.projector import project_arrays
from tablegen import build, builder
from tablegen.surfaces import (
    build as surfaces,
    errors as surface_errors,
    node_counts as resolution,
    samples as sampler,
)
from tablegen.verify import verify
from tests.tools.cases import every_case, refuses
from tests.tools.surface_models import gumbel, marked, ordinal


def few(patch):
    """Certify at few points, to save time."""
    patch.setattr(surface_errors, "POINTS", 200)
    patch.setattr(surfaces, "_CHECKS", 200)


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    few(monkeypatch)


#: Small enough to take a fraction of a second.
SMALL = {"mu_range": (-2.0, 2.0), "log10_sigma_range": (-0.5, 0.0), "tolerance": 1e-4}


def test_probit_against_its_closed_moments(tmp_path):
    """All four surfaces of a registered likelihood; EP's are known in closed form."""
    path = tmp_path / "probit.h5"
    metadata = build("probit", path, preset="surfaces", mu_range=(-6, 6))
    assert metadata.certificate["tolerance"] == 1e-8
    worst = max(metadata.certificate[name]["max_relative_error"] for name in metadata.surfaces)
    assert 1e-11 < worst <= 1e-8
    table = open_table(path)
    assert table.likelihood is likelihoods.get("probit")
    rng = np.random.default_rng(2)
    y = rng.choice([-1.0, 1.0], 3000)
    mu, sigma = rng.uniform(-6, 6, 3000), 10.0 ** rng.uniform(-2, 1, 3000)
    found = surface_errors.lookups(table, mu, sigma, y)
    exact = project_arrays("probit", mu, sigma, y, "ep")
    np.testing.assert_allclose(found[:, 0], exact.log_z, rtol=1e-8, atol=1e-8)
    assert np.abs((found[:, 1] - exact.mean) / exact.std).max() < 1e-8
    np.testing.assert_allclose(found[:, 2], exact.std, rtol=1e-8)
    np.testing.assert_allclose(found[:, 3], project_arrays("probit", mu, sigma, y).std, rtol=1e-8)
    assert (found[:, 3] <= found[:, 2]).all()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The bytes of a small table by one worker, and how many blocks it computed."""
    path, whole, blocks = tmp_path_factory.mktemp("alone") / "a.h5", sampler.compute, []
    with pytest.MonkeyPatch.context() as patch:
        few(patch)
        patch.setattr(sampler, "compute", lambda m, p: blocks.append(p) or whole(m, p))
        build(ordinal(), path, workers=1, **SMALL)
    return path.read_bytes(), len(blocks)


@pytest.mark.slow
def test_the_same_bytes_again(tmp_path, alone):
    twice = tmp_path / "b.h5"
    build(ordinal(), twice, workers=3, **SMALL)
    assert alone[0] == twice.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.h5"]
    refuses("exists; replace it with --force", build, ordinal(), twice, error=TableError, **SMALL)


def test_threads_share_a_likelihood_with_landmarks(tmp_path):
    """They meet where its functions are compiled; the bytes are those of one worker."""
    once = tmp_path / "a.h5"
    build(marked(), once, workers=1, **SMALL)
    build(marked(), tmp_path / "b.h5", workers=8, **SMALL)
    assert (tmp_path / "b.h5").read_bytes() == once.read_bytes()


@pytest.mark.slow
def test_an_interrupted_build_takes_up_its_samples(tmp_path, monkeypatch, alone):
    path = tmp_path / "ordinal.h5"
    computed = []
    whole = sampler.compute

    def stopping(likelihood, points):
        if len(computed) == 40:
            raise KeyboardInterrupt
        computed.append(points)
        return whole(likelihood, points)

    monkeypatch.setattr(sampler, "compute", stopping)
    with pytest.raises(KeyboardInterrupt):
        build(ordinal(), path, workers=1, **SMALL)
    assert not path.exists()
    kept = list((tmp_path / ".ordinal.h5.build" / "samples").iterdir())
    assert len(kept) == 40
    # One that lost its bytes is computed again.
    kept[0].write_bytes(b"")
    monkeypatch.setattr(sampler, "compute", lambda m, p: computed.append(p) or whole(m, p))
    del computed[:]
    build(ordinal(), path, workers=1, **SMALL)
    fresh, blocks = alone
    assert len(computed) == blocks - 39
    assert path.read_bytes() == fresh


def test_samples_of_another_density_are_not_taken_up(tmp_path):
    keep = tmp_path / "samples"
    points = sampler.SampledCavities(np.zeros(3), np.ones(3), np.ones(3))
    values = []
    for identity, model in (("a", ordinal()), ("b", ordinal(high=2.0))):
        values.append(sampler.Sampler(model, Threads(1), keep, identity)([points])[0])
    assert len(list(keep.iterdir())) == 2
    assert (values[0] != values[1]).any()


def test_a_wrong_symmetry_does_not_pass(tmp_path):
    for flag, model, words in (
        ("mirror", gumbel(False), "y = -1"),
        ("location", ordinal(), "y = "),
    ):
        claimed = replace(model, **{flag: True}, validate=lambda y: np.asarray(y, float))
        with pytest.raises(NumericalError, match=f"misses its tolerance.*{words}"):
            build(claimed, tmp_path / "x.h5", **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_kink_is_certified_honestly(tmp_path, monkeypatch):
    """What cannot be met is said, with the place and what can; and that is then certified."""
    monkeypatch.setattr(resolution, "LARGEST", 192)  # more do not fit, and take time
    options = {
        "preset": "surfaces",
        "mu_range": (-1, 1),
        "log10_sigma_range": (-2.5, -2.0),
        "limit": 100_000,
    }
    path = tmp_path / "laplace.h5"
    with pytest.raises(NumericalError, match=r"at mu = .*accept --tolerance") as caught:
        build("laplace(scale=0.5)", path, **options)
    message = str(caught.value)
    assert "raise --size-limit" in message
    assert list(tmp_path.iterdir()) == []
    offered = float(message.split("--tolerance ")[1])
    metadata = build("laplace(scale=0.5)", path, tolerance=offered, **options)
    assert metadata.nbytes <= 100_000
    worst = metadata.certificate["mean"]
    assert 1e-8 < worst["max_relative_error"] <= offered
    # The kink is at mu = y, rounded over a few sigma of 0.01.
    assert abs(worst["mu"] - worst["outcome"]) < 0.3


@every_case("worst", [1e-6, 2.5e-3, 6e-3, 280.0])
def test_no_tolerance_is_offered_that_is_none(worst):
    what = surfaces.domain(likelihoods.get("laplace(scale=1e-11)"))
    cells = [6, 6, 1]
    certificate = {
        name: {"max_relative_error": worst} for name in surfaces.metadata(what, cells).surfaces
    }
    message = surfaces.advice(what, certificate, "mean is off", cells)
    assert "narrow --mu-range" in message
    assert ("accept --tolerance" in message) == (worst < 5e-3)
    assert ("infer(..., table='exact')" in message) == (worst > 5e-3)
    if worst < 5e-3:
        assert worst < float(message.split("--tolerance ")[1]) < 1e-2


@pytest.mark.parametrize(
    ("likelihood", "options", "message"),
    [
        ("poisson", {}, "needs either outcomes.*--outcomes 0,1,2 or --y-range LO HI"),
        ("poisson", {"outcomes": [-1]}, "count"),
        ("probit", {"mu_range": (1, 1)}, "axis mu: needs finite LO < HI"),
        ("probit", {"mu_range": (1,)}, "axis mu: needs two numbers"),
        ("probit", {"log10_sigma_range": (-9, 0)}, "must stay within -8 to 8"),
        ("probit", {"limit": 10}, "size limit must be at least"),
        ("probit", {"mu_step": 0.1}, "a table of surfaces has no such options: mu_step"),
        ("no.such.module:x", {}, "no module 'no.such.module'"),
        ("tests.tools.surface_models:nothing", {}, "has no 'nothing'"),
        ("tests.tools.surface_models:math", {}, "is a module, not a qpruntime Likelihood"),
        ("tests.tools.surface_models:", {}, "must be NAME or package.module:name"),
    ],
)
def test_options_that_make_no_sense(tmp_path, likelihood, options, message):
    refuses(message, build, likelihood, tmp_path / "x.h5", preset="surfaces", **options)
    assert list(tmp_path.iterdir()) == []


def test_presets_of_ones_own(tmp_path):
    refuses("has preset surfaces, not grid", build, ordinal(), tmp_path / "x.h5", preset="grid")
    with pytest.raises(InputError, match="a grid has no such options: outcomes"):
        build("probit", tmp_path / "x.h5", outcomes=[1])
    assert builder.default_preset("probit", None) == "grid"
    assert builder.default_preset("a.b:c", None) == "surfaces"


# --- the command line


def test_command_line(tmp_path, monkeypatch, command):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    (tmp_path / "my_model.py").write_text(
        "from tests.tools.surface_models import ordinal\n\n"
        "def make() -> 'Likelihood':\n    return ordinal(high=2.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    where = ("--mu-range", "-2", "2", "--log10-sigma-range", "-0.5", "0", "--tolerance", "1e-5")
    build_it = ("build", "--likelihood", "my_model:make", *where)
    dry = command(*build_it, "--dry-run")
    assert dry.code == 0
    assert "graded,low=-1,high=2-surfaces.h5" in dry.out
    built = command(*build_it, "--workers", 1, "--json")
    assert built.code == 0, built.err
    document = json.loads(built.out)
    assert document["kind"] == "surfaces"
    assert document["parameters"] == {"high": 2.0, "low": -1.0}
    sys.modules.pop("my_model")
    (tmp_path / "my_model.py").unlink()
    info = command("info", "graded-surfaces")
    assert "y = 0 to 2: errors below 1e-05; largest found" in info.out
    assert "error of sigma*" in info.out
    assert info.out == command("info", "graded(low=-1, high=2)-surfaces").out
    assert "graded,low=-1,high=2-surfaces" in command("list").out
    hashed = command("verify", "graded-surfaces")
    assert hashed.code == 3
    assert "not measured" in hashed.out
    assert "accuracy           not checked: give the table's likelihood" in hashed.out
    assert "ok   " not in hashed.out
    assert json.loads(command("verify", "graded-surfaces", "--json").out)["ok"] is None
    damaged = tmp_path / "damaged.h5"
    data = bytearray((tmp_path / "graded,low=-1,high=2-surfaces.h5").read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    refused = command("verify", damaged)
    assert refused.code == 1
    assert "accuracy           not checked: the data are damaged" in refused.out
    plotted = command("plot", "graded-surfaces", "--output", tmp_path / "a.svg", "--outcome", 2)
    assert plotted.code == 0, plotted.err
    assert "log Z" in (tmp_path / "a.svg").read_text()
    gone = command(*build_it)
    assert gone.code == 2
    assert "no module 'my_model'" in gone.err


def test_verify_with_the_code(tmp_path):
    path = tmp_path / "gumbel.h5"
    build(gumbel(), path, **SMALL)
    hashed = verify(path, points=200, seed=1)
    assert hashed.certificate == {}
    assert hashed.ok is None
    report = verify(path, likelihood=gumbel(), points=200, seed=1, workers=1)
    assert report.ok
    assert 0.0 < report.certificate["mean"]["max_relative_error"] < 1e-4
    strict = verify(path, likelihood=gumbel(), points=200, seed=1, tolerance=1e-13, workers=1)
    assert not strict.ok
    assert any("error" in problem for problem in strict.problems)
