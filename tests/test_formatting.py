"""Spelling, file names, suggestions and printed commands: what is written is read back."""

import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest

import qpruntime as qp
from qpruntime.projection.open import table_directory
from qpruntime.projection.projector import Projector
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen import builder
from tablegen.console.cli import main
from tests.tools.cases import every_case, refuses
from tests.tools.commands import SMALL


@every_case("scale", [0.3, 1e20, 1e-20, math.pi, 5e-50, 123456789.0])
def test_spelling_is_read_back(scale):
    own = "student-t", {"nu": 3.0, "scale": scale}
    assert qp._formatting.read(qp._formatting.spell(*own)) == own
    stem = qp._formatting.file_stem(*own)
    assert qp._formatting.read(qp._formatting.from_stem(stem)) == own


def test_different_likelihoods_have_different_files_that_need_no_quotes():
    values = [0.3, 3.0, 1e20, 1e-20, 1e2, 1e-2, 0.03]
    pairs = itertools.product(values, values)
    stems = {qp._formatting.file_stem("student-t", {"nu": a, "scale": b}) for a, b in pairs}
    assert len(stems) == len(values) ** 2
    odd = ["a b", "a/b", "a,b", "a=b", "a%b", "a\nb", "ä", "-a", ".a", "", "..", "~", "a" * 400]
    stems |= {qp._formatting.file_stem(name, {}) for name in [*odd, "a-b", "a.b", "a_b", "a" * 401]}
    assert len(stems) == len(values) ** 2 + len(odd) + 4
    for stem in stems:
        assert re.fullmatch(r"[A-Za-z0-9%][A-Za-z0-9%+=,._-]*", stem)
        assert len(stem) < 230
        assert qp._formatting.quoted(stem) == stem


@pytest.mark.parametrize(
    ("preset", "p"), [("grid", None), ("compact", None), ("surfaces", None), ("surfaces", 1.25)]
)
def test_a_table_is_found_by_the_name_it_was_given(preset, p, tmp_path, monkeypatch):
    """By every spelling of the likelihood, and by what `list` shows."""
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    for spelt in ("negative-binomial(dispersion=0.2)", "student-t(scale=1e+20)", "probit"):
        model = qp.likelihoods.get(spelt)
        stem = qp.likelihoods.stem(model, preset, p)
        (tmp_path / f"{stem}.h5").write_bytes(b"not a table")
        ending = qp._formatting.ending(preset, p)
        for name in (spelt, spelt.replace("0.2", ".20"), model.spelt):
            with pytest.raises(qp.TableError, match=f"{re.escape(stem)}.h5: .*not an HDF5 file"):
                qp.open_table(name + ending)
        refuses("not an HDF5 file", qp.open_table, stem, error=qp.TableError)


def test_parameters_of_ones_own_may_be_left_out_if_one_table_has_them(tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    (tmp_path / "mine,scale=2-surfaces.h5").write_bytes(b"")
    first, second = (
        r"scale=2-surfaces\.h5: not an HDF5",
        r"did you mean 'mine,scale=[23]-surfaces'\?",
    )
    refuses(first, qp.open_table, "mine-surfaces", error=qp.TableError)
    (tmp_path / "mine,scale=3-surfaces.h5").write_bytes(b"")
    refuses(second, qp.open_table, "mine-surfaces", error=qp.TableError)


@every_case(
    "call",
    [
        lambda: qp.likelihoods.get("probt"),
        lambda: qp.infer([[1.0]], [1], "probt"),
        lambda: qp.project("Probit ", 0.0, 1.0, 1),
        lambda: qp.open_table("probt"),
        lambda: builder.check("probitt"),
    ],
)
def test_unknown_names_suggest_the_nearest(call):
    with pytest.raises((qp.InputError, qp.TableError), match=r"did you mean 'probit'\?") as caught:
        call()
    assert "tablegen build" not in str(caught.value)


def test_what_is_like_nothing_suggests_nothing():
    refuses(r"unknown likelihood 'zzz'; known are", qp.likelihoods.get, "zzz")
    message = r"no parameter 'disperson' \(did you mean 'dispersion'"
    refuses(message, qp.likelihoods.get, "negative-binomial", disperson=2.0)


def test_quoted_words_reach_a_program_as_they_are():
    """What bash makes of them is compared, byte by byte."""
    words = ["a b", "a  b", "$(id)", "`id`", "a'b", 'a"b', "a\nb", "\x1b[2J", "é", "a\\nb", "*", ""]
    line = qp._formatting.quoted(*words)
    assert line.isprintable()
    code = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    command = f"{qp._formatting.quoted(sys.executable, '-c', code)} {line}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert run.stdout.decode().split("\0") == words


AXES = (Axis("mu", -1.0, 1.0, 3), Axis("log10_sigma", -1.0, 0.0, 3))


def grid(name, outcomes=(1.0,), **parameters):
    """Return metadata of a grid."""
    more = {"certificate": {"tolerance": 1e-9}, "parameters": parameters}
    return Metadata(name, list(outcomes), AXES, "float64", "one-axis", "", **more)


def surface(name, mode, outcomes, source="", projection=None, **parameters):
    """Return metadata of surfaces."""
    more = {"traits": {"mode": mode, "source": source}, "projection": projection}
    more |= {"kind": "surfaces", "parameters": parameters}
    return Metadata(name, outcomes, AXES, "float64", "collocation", "", **more)


def table(metadata, path):
    model = qp.likelihoods.get(metadata.likelihood, **metadata.parameters)
    return Table(path / "t.h5", metadata, model, None)


def pasted(message, monkeypatch, tmp_path):
    """Have a shell read the command at the end of a message, and do what it says as a dry run."""
    line = message[message.index("tablegen build") :]
    read = subprocess.run(["bash", "-c", rf"printf '%s\0' {line}"], capture_output=True, check=True)
    words = [word.decode() for word in read.stdout.split(b"\0")[1:-1]]
    if "--preset" not in words:
        words += SMALL  # the paper's grid takes seconds to plan
    monkeypatch.chdir(tmp_path)
    return main([*words, "--dry-run"])


def counts_beyond(path):
    projector = Projector(NAMED, "ep")
    projector.table = table(NEGATIVE, path)
    projector.check_outcomes(np.array([20.0]))


def again(metadata, likelihood, path, **options):
    return qp._cli_hints.output(qp._cli_hints.again(metadata, likelihood), path, **options)


MINE = qp.Likelihood.from_log_prob(lambda f, y: -abs(f - y), name="mine")
NAMED = "negative-binomial(dispersion=0.2)"
NEGATIVE = grid("negative-binomial", [0.0, 1.0], dispersion=0.2)
LOGISTIC, COUNTED = (
    surface("logistic", "mirror", [1.0]),
    surface("poisson", "rows", [0.0, 2.0, 5.0]),
)
HEAVY = surface("student-t", "location", [0.0], nu=3.0, scale=2.0)
#: Words, or what raises them.
MESSAGES = {
    "a name with parameters": lambda path: qp.open_table("student-t(nu=3, scale=2)"),
    "a name of a likelihood of counts": lambda path: qp.open_table("poisson-surfaces"),
    "a name of L_p projections": lambda path: qp.open_table("logistic-wp-1.5"),
    "a compact table that cannot be": lambda path: qp.open_table("logistic-compact"),
    "a path": lambda path: qp.open_table(path / "a  b.h5"),
    "a grid of real numbers": lambda path: builder.check("laplace(scale=2)"),
    "another likelihood": lambda path: table(grid("probit"), path).serving("student-t(nu=3)"),
    "another likelihood of surfaces": lambda path: table(LOGISTIC, path).serving("poisson-exp"),
    "more counts": counts_beyond,
    "another method": lambda path: table(COUNTED, path).other_projection("wp", 1.5),
    "beyond surfaces": lambda path: table(HEAVY, path).beyond(-12345678.9, 3e7, 4.0),
    "beyond L_p projections": lambda path: table(
        surface("logistic", "mirror", [1.0], projection={"name": "wp", "p": 1.5}), path
    ).beyond(3.0, 2.0, 1.0),
    "not where it was": lambda path: again(
        NEGATIVE, qp.likelihoods.get(NAMED), path / "it's here.h5"
    ),
    "damaged, of one's own": lambda path: again(
        surface("mine", "rows", [-1.0, 0.5], source="own:mine"), MINE, path / "new\nline.h5",
        force=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_commands_in_messages_work_when_pasted(name, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    (tmp_path / "own.py").write_text(
        "from qpruntime import Likelihood\n"
        "mine = Likelihood.from_log_prob(lambda f, y: -abs(f - y), name='mine')\n"
    )
    try:
        words = MESSAGES[name](tmp_path)
    except (qp.InputError, qp.TableError) as error:
        words = str(error)
    assert pasted(words, monkeypatch, tmp_path) == 0, words


def test_a_file_cannot_have_a_command_of_its_own_pasted():
    """What a file from a stranger calls its source is quoted or left out."""
    for source in ("x; rm -rf ~", "$(id):x", "os:system\nid", "a:b c"):
        command = qp._cli_hints.again(surface("mine", "mirror", [1.0], source=source), MINE)
        assert command.startswith("tablegen.build(likelihood, preset='surfaces'")
        assert source not in command


def test_a_likelihood_handed_over_keeps_its_parameters(tmp_path, monkeypatch):
    """A grid of an object was once that of its name, with default parameters."""
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    request = builder.check(qp.likelihoods.get(NAMED))
    assert request.recipe.plan.spelt == NAMED
    assert request.path == table_directory() / "negative-binomial,dispersion=0.2.h5"
