"""Every command and every example of the README does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def shell(command, **extra):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        command,
        shell=True,
        cwd=TOP,
        env={**environment, **extra},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", [block for kind, block in BLOCKS if kind == "python"])
def test_python(code, capsys):
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_opens_with_two_commands():
    assert commands()[:2] == ["sh scripts/demo.sh", "sh scripts/test.sh"]


@needs_venv
def test_demo_twice_then_the_other_commands():
    for _ in range(2):
        run = shell("sh scripts/demo.sh")
        assert run.returncode == 0, run.stderr
        rows = {line[:2]: line.split() for line in run.stdout.splitlines()}
        assert set(rows) >= {"EP", "QP"}
        for name in ("EP", "QP"):
            error, ntll = float(rows[name][-5]), float(rows[name][-4])
            # Published: errors of 1.5 +- 0.5 %, NTLL of 0.048 +- 0.0034 for 100 rounds of these.
            assert 0.0 <= error < 4.0
            assert 30.0 < ntll < 70.0
        assert (TOP / "tables" / "wine-variances.png").stat().st_size > 5000
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
    for _ in range(2):
        subprocess.run(
            ["sh", "-euc", 'cd "$0"; extras=test; . scripts/env.sh; "$PY" used', str(place)],
            env={**os.environ, "LOG": str(log)},
            check=True,
        )
    calls = log.read_text().splitlines()
    # Installed once, used twice.
    assert [call for call in calls if "install" in call] == [calls[0]]
    assert calls[0].endswith("--editable .[test]")
    assert calls[1:] == ["used", "used"]
