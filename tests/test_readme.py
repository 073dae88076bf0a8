"""Every command and every example of the README does what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

TOP = Path(__file__).parents[1]
TEXT = (TOP / "README.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", TEXT, re.DOTALL)
IN_CHECKOUT = Path(sys.prefix).resolve() == (TOP / ".venv").resolve()
needs_venv = pytest.mark.skipif(
    not IN_CHECKOUT, reason="installs into .venv: run by scripts/test.sh, whose interpreter it is"
)


def commands():
    """Shell commands of the README, without their comments."""
    lines = "".join(block for kind, block in BLOCKS if kind == "sh").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.strip()]


def shell(command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, shell=True, cwd=TOP, env=environment, **options)


def test_opens_with_two_commands_and_python_prints_what_is_shown(capsys):
    assert commands()[:2] == ["sh scripts/demo.sh", "sh scripts/test.sh"]
    (code,) = (block for kind, block in BLOCKS if kind == "python")
    (output,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output
    assert f"```python\n{code}```" in (TOP / "docs" / "index.md").read_text()


class Row(NamedTuple):
    """What the demonstration prints for one method."""

    error: float
    ntll: float
    variance: float
    seconds: float
    inside: str


def rows(text):
    """Rows of the demonstration, by how many features and which method."""
    found, features = {}, 0
    for line in text.splitlines():
        if match := re.search(r", (\d+) features, 10 folds", line):
            features = int(match[1])
        elif match := re.match(r"(EP|QP, shipped|QP, grid) +(\S.*)$", line):
            *numbers, inside = match[2].removesuffix(" %").split()
            found[features, match[1]] = Row(*map(float, numbers), inside)
    return found


def check_shipped(found):
    """Wine with all features, by the table that ships with the package."""
    for name in ("EP", "QP, shipped"):
        # Published: errors of 1.5 +- 0.5 %, NTLL of 0.048 +- 0.0034 for 100 rounds of these.
        assert 0.0 <= found[13, name].error < 4.0
        assert 30.0 < found[13, name].ntll < 70.0
    # QP's variances are smaller, and that can be seen: 0.96 of EP's, NTLL lower by 0.6.
    assert 0.9 < found[13, "QP, shipped"].variance < 0.98
    assert found[13, "QP, shipped"].ntll < found[13, "EP"].ntll - 0.2
    assert (found[13, "EP"].variance, found[13, "EP"].inside) == (1.0, "-")


def check_first_part(text):
    found = rows(text)
    assert set(found) == {(13, "EP"), (13, "QP, shipped")}
    check_shipped(found)
    # A screen of output: short and readable.
    assert len(text.splitlines()) < 10
    assert max(map(len, text.splitlines())) < 90


def check_grid(found):
    """Two features inside the paper's grid, thirteen outside of it."""
    assert found[2, "QP, grid"].inside == "100"
    assert found[13, "QP, grid"].inside == "0"
    # Inside, both tables hold the same function; outside, the grid gives EP's deviations.
    assert found[2, "QP, grid"][:3] == found[2, "QP, shipped"][:3]
    assert found[2, "QP, grid"].variance < 1.0
    assert found[13, "QP, grid"][:3] == found[13, "EP"][:3]


@pytest.mark.slow
@pytest.mark.skipif(IN_CHECKOUT, reason="the demonstration begins with it")
def test_demo_by_the_shipped_table():
    """Needs no build and no environment of its own."""
    run = shell(f"{shlex.quote(sys.executable)} -m scripts.examples wine")
    assert run.returncode == 0, run.stderr
    assert "Warning:" not in run.stderr
    check_first_part(run.stdout)


@needs_venv
def test_demo_then_the_other_commands():
    run = shell("sh scripts/demo.sh")
    assert run.returncode == 0, run.stderr
    assert "Warning:" not in run.stderr
    first, second = run.stdout.split("2. The grid of the paper")
    check_first_part(first.partition("1. The shipped table\n")[2])
    check_shipped(rows(second))
    check_grid(rows(second))
    assert len(run.stdout.splitlines()) < 32
    assert (TOP / "tables" / "wine-variances.png").stat().st_size > 5000
    # What the demonstration asks before it builds: a second run keeps this table.
    assert shell(f"{shlex.quote(sys.executable)} -m tablegen info tables/probit.h5").returncode == 0
    done = {"sh scripts/demo.sh", "sh scripts/test.sh"}
    for command in commands():
        if command not in done and "build" not in command:
            run = shell(command)
            assert run.returncode == 0, f"{command}: {run.stderr}"
            assert run.stdout


def test_environment_in_a_directory_with_a_space(tmp_path):
    place = tmp_path / "a b"
    python = place / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # Stands in for the interpreter and writes down what it is asked to do.
    python.write_text('#!/bin/sh\necho "$@" >> "$LOG"\n')
    python.chmod(0o755)
    for name in ("scripts/env.sh", "pyproject.toml"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text((TOP / name).read_text())
    log = tmp_path / "log"
    for extras in ("build,plot", "test", "test", "build,plot"):
        command = f'cd "$0"; extras={extras}; . scripts/env.sh; "$PY" used'
        env = {**os.environ, "LOG": str(log)}
        subprocess.run(["sh", "-euc", command, str(place)], env=env, check=True)
    calls = log.read_text().splitlines()
    # Installed once each, used twice each; what the tests install is all that the demo needs.
    installed = [call for call in calls if "--editable" in call]
    assert [call.rpartition(" ")[2] for call in installed] == [".[build,plot]", ".[test]"]
    assert all(call.startswith("-m uv pip install") for call in installed)
    last = [calls.index(call) for call in installed]
    assert calls[last[0] + 1] == "used"
    assert calls[last[1] + 1 :] == ["used"] * 3


def installed(folder, stub):
    """Install into a folder, whose interpreter is a script."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(stub)
    python.chmod(0o755)
    (folder / "pyproject.toml").touch()
    command = f'cd "$0"; extras=test; . {shlex.quote(str(TOP))}/scripts/env.sh'
    return subprocess.run(["sh", "-euc", command, str(folder)], capture_output=True, text=True)


@pytest.mark.parametrize("fails", ["-m uv *", "-m pip install *uv"])
def test_pip_installs_where_uv_does_not(tmp_path, fails):
    """Nor where it is not to be had; and where both fail, that is said and nothing is stamped."""
    stub = '#!/bin/sh\necho "$@" >> log\ncase "$*" in ({}) exit 1;; esac\n'
    for cases, ends in ((fails, 0), (f"{fails}|*editable*", 1)):
        run = installed(tmp_path, stub.format(cases.replace(" ", "\\ ")))
        assert run.returncode == ends
        assert ("error: the installation failed" in run.stderr) == bool(ends)
        stamp = tmp_path / ".venv" / "installed-test"
        assert stamp.exists() != bool(ends)
        stamp.unlink(missing_ok=True)
        assert "--no-compile --editable .[test]" in (tmp_path / "log").read_text()


def test_pip_installs_where_its_settings_name_an_index(tmp_path):
    says = "echo \":env:.index-url='somewhere'\""
    stub = f'#!/bin/sh\necho "$@" >> log\ncase "$*" in (*list) {says};; esac\n'
    assert installed(tmp_path, stub).returncode == 0
    assert "uv" not in (tmp_path / "log").read_text()
