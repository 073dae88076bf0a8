"""What a command writes is a regular file: devices, FIFOs and sockets stay, links are followed.

No test writes to a device: of those only the check of the path is run.
"""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from qpruntime import Likelihood, TableError, likelihoods, open_table
from tablegen import build, user_code
from tablegen.console import plot as drawn
from tablegen.console.plot import plot
from tablegen.files import target
from tests.tools.build_processes import names
from tests.tools.cases import refuses
from tests.tools.commands import SMALL


def fifo(path):
    os.mkfifo(path)


def bound(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(("make", "word"), [(fifo, "FIFO"), (bound, "socket")])
@pytest.mark.parametrize("link", [False, True])
def test_special_files_are_refused_and_stay(command, make, word, link, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    special = Path("special.svg")
    make(special)
    before = os.lstat(special)
    given = special
    if link:
        given = Path("link.svg")
        given.symlink_to(special)
    there = names(tmp_path)
    for arguments in (
        ("build", *SMALL, "--output", given),
        ("build", *SMALL, "--output", given, "--force"),
        ("build", *SMALL, "--output", given, "--dry-run"),
        ("plot", "heaviside-compact", "--output", given),
    ):
        result = command(*arguments)
        assert result.code == 1
        assert f"is a {word}, not a regular file; choose another --output" in result.err
    refuses("is no regular file", open_table, given, error=TableError)
    assert names(tmp_path) == there
    after = os.lstat(special)
    assert (stat.S_IFMT(after.st_mode), after.st_ino) == (
        stat.S_IFMT(before.st_mode),
        before.st_ino,
    )


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/stdin"])
def test_devices_are_refused_by_the_check_of_paths(path):
    if not stat.S_ISCHR(os.stat(path).st_mode):
        pytest.skip("not a device here")
    with pytest.raises(TableError, match="is a character device, not a regular file"):
        target.resolve(Path(path), force=True)


def test_what_became_special_while_the_file_was_made_is_not_replaced(tmp_path):
    path = tmp_path / "t.svg"

    def write():
        with target.replaced(path) as partial:
            partial.write_bytes(b"new")
            os.mkfifo(path)

    refuses("is a FIFO", write, error=TableError)
    assert names(tmp_path) == ["t.svg"]


def test_a_link_is_followed_and_stays(command, tmp_path):
    (tmp_path / "there").mkdir()
    real = tmp_path / "there" / "real.h5"
    link, outer = tmp_path / "link.h5", tmp_path / "outer.h5"
    link.symlink_to(real)
    outer.symlink_to("link.h5")
    dangling = command("build", *SMALL, "--output", outer)
    assert dangling.code == 1
    assert "is a link to" in dangling.err
    assert "--force" in dangling.err
    assert names(tmp_path / "there") == []
    assert command("build", *SMALL, "--output", outer, "--force").code == 0
    assert outer.is_symlink()
    assert link.is_symlink()
    assert open_table(outer).sha256 == open_table(real).sha256
    assert "exists; replace it with --force" in command("build", *SMALL, "--output", link).err
    assert command("build", *SMALL, "--dtype", "float32", "--output", link, "--force").code == 0
    assert link.is_symlink()
    assert open_table(real).metadata.dtype == "float32"
    assert names(tmp_path / "there") == ["real.h5"]
    assert names(tmp_path) == ["link.h5", "outer.h5", "there"]


def test_plot_follows_links_and_replaces_in_one_step(tmp_path, monkeypatch):
    monkeypatch.setattr(drawn, "_WIDE", 41)  # a pixel costs a quadrature
    monkeypatch.setattr(drawn, "_HIGH", 31)
    real, link = tmp_path / "real.svg", tmp_path / "link.svg"
    link.symlink_to(real)
    refuses("is a link to", plot, "heaviside-compact", link, error=TableError)
    real.write_text("old")
    plot("heaviside-compact", link)
    assert link.is_symlink()
    picture = real.read_bytes()
    assert picture[:5] == b"<?xml"
    from matplotlib.figure import Figure

    def full(self, path, **options):
        Path(path).write_text("half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full)
    refuses("No space left", plot, "heaviside-compact", link, error=TableError)
    assert real.read_bytes() == picture
    assert names(tmp_path) == ["link.svg", "real.svg"]


def test_links_in_a_circle(command, tmp_path):
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    a.symlink_to(b)
    b.symlink_to(a)
    result = command("build", *SMALL, "--output", a, "--force")
    assert result.code == 1
    assert "leads in a circle" in result.err


# --- code of the user's


CALLED = """
from qpruntime import Likelihood
called = []
noise = Likelihood.from_log_prob(lambda f, y: -abs(f - y), name="noise")

def plain():
    called.append("plain")
    return noise

def needs(scale) -> Likelihood:
    called.append("needs")
    return noise

def made(scale=1.0) -> Likelihood:
    return noise

def quoted() -> "Likelihood":
    return noise

def liar() -> Likelihood:
    return 3

def fails() -> Likelihood:
    raise SystemExit(0)

class Type:
    def __new__(cls):
        called.append("Type")
        return noise
"""


def test_only_likelihoods_and_functions_that_say_so_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("called_code.py").write_text(CALLED)
    assert isinstance(user_code.load("called_code:noise"), Likelihood)
    assert user_code.load("called_code:made") is user_code.load("called_code:quoted")
    remedies = {
        "plain": r"annotate it, def plain\(\) -> Likelihood, or call it.*made = plain\(\)",
        "needs": r"if it returns one, call it in the module, made = needs\(scale\), and name that",
        "Type": r"is a type, .*made = Type\(\.\.\.\), and name that: called_code:made",
        "called": "is a list, not a qpruntime Likelihood; name one, or a function annotated",
    }
    for name, words in remedies.items():
        refuses(words, user_code.load, f"called_code:{name}")
    # What the message says works.
    called_code = sys.modules["called_code"]
    monkeypatch.setattr(called_code, "made_of_it", called_code.noise, raising=False)
    monkeypatch.setitem(called_code.plain.__annotations__, "return", Likelihood)
    assert user_code.load("called_code:made_of_it") is user_code.load("called_code:plain")
    assert called_code.called == ["plain"]
    called_code.called.clear()
    refuses("returned a int", user_code.load, "called_code:liar")
    refuses("failed: SystemExit", user_code.load, "called_code:fails")
    assert called_code.called == []


@pytest.mark.parametrize("spec", ["os:system", "os:getcwd", "os:abort", "builtins:exit", "pdb:pm"])
def test_what_is_found_is_not_called(command, spec):
    result = command("build", "--likelihood", spec, "--dry-run")
    assert result.code == 2
    assert "not a qpruntime Likelihood" in result.err
    assert result.err.count("\n") == 1


def test_a_script_that_prints_and_exits_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a_script.py").write_text("import sys\nprint('noise')\nsys.exit(0)\n")
    result = command("build", "--likelihood", "a_script:x", "--dry-run", "--json")
    assert result.code == 2
    assert result.out == ""
    assert "cannot import a_script: SystemExit" in result.err


def test_the_object_of_a_likelihood_with_parameters_is_built(tmp_path):
    path = tmp_path / "t.h5"
    model = likelihoods.get("negative-binomial(dispersion=0.2)")
    build(model, path, counts=(0, 1), mu_step=0.5, log10_sigma_step=0.1, workers=1)
    assert open_table(path).likelihood is model
