"""The rooms of scripts: imports run one way and in no circle, and commands are listed."""

import ast
import re
import shlex
from functools import cache

import pytest

from scripts import command_line
from tests.tools.script_modules import TOP, run_script

#: From the ground up: what is in one floor imports from lower ones, or from its own.
FLOORS = (
    ("scripts.command_line", "scripts.records", "scripts.power_tables"),
    ("scripts.cluster", "scripts.benchmarks.data"),
    ("scripts.benchmarks.metrics", "scripts.benchmarks.timing"),
    ("scripts.benchmarks.peers",),
    ("scripts.reports",),
    ("scripts.benchmarks",),
    ("scripts.studies",),
    ("scripts.examples",),
)
ROOMS = ("benchmarks", "studies", "examples", "reports")


@cache
def imports():
    """Modules of ours that each module imports, at its top and inside functions."""
    found = {}
    for path in (TOP / "scripts").rglob("*.py"):
        name = ".".join(path.relative_to(TOP).with_suffix("").parts)
        if path.stem.startswith("__"):
            continue
        found[name] = {
            f"{node.module}.{alias.name}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "scripts"
            for alias in node.names
        }
    for name, others in found.items():
        found[name] = {o if o in found else o.rpartition(".")[0] for o in others} - {name}
    return found


def floor(module):
    """Number of the floor whose room's name is the longest that fits."""
    rooms = [(len(room), k, room) for k, rooms in enumerate(FLOORS) for room in rooms]
    return max(one for one in rooms if f"{module}.".startswith(f"{one[2]}."))[1]


def test_imports_run_upwards():
    pairs = [(module, other) for module, others in imports().items() for other in others]
    assert [pair for pair in pairs if floor(pair[1]) > floor(pair[0])] == []


def test_no_circles():
    below = {module: set(others) for module, others in imports().items()}
    while lowest := {module for module, others in below.items() if not others & set(below)}:
        below = {module: others for module, others in below.items() if module not in lowest}
    assert sorted(below) == [], "a circle runs through these"


def test_every_command_is_listed_with_its_purpose():
    for room in ROOMS:
        names = command_line.commands(room)
        done = run_script(room, "--help")
        assert done.code == 0
        assert len(done.out.splitlines()) == len(names) > 0
        for name, command in names.items():
            assert f"python -m scripts.{room} {name} " in done.out
            assert command.purpose.endswith((".", ":")), name
    done = run_script("studies", "bench")
    assert done.code == 2
    assert "error: no command 'bench' in scripts.studies; it has:" in done.err
    assert "scripts.studies truth" in done.err


def test_shared_options_are_declared_once():
    """A command says of these only what differs."""
    known = command_line.shared()
    for room in ROOMS:
        for path in (TOP / "scripts" / room).glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS":
                    for option, own in zip(node.value.keys, node.value.values, strict=True):
                        same = {
                            key.value
                            for key, value in zip(own.keys, own.values, strict=True)
                            if key.value in known.get(option.value, {})
                            and ast.unparse(value) == repr(known[option.value][key.value])
                        }
                        assert same == set(), (path.name, option.value)


def test_no_other_parser():
    """But for power_tables, which builds what ships with the package."""
    files = {path.stem: path.read_text() for path in (TOP / "scripts").rglob("*.py")}
    found = {name for name, text in files.items() if "ArgumentParser(" in text}
    assert found == {"command_line", "power_tables"}


def written():
    """Commands that pages and docstrings have in backticks or on lines of their own."""
    command = r"(?:\S*/)?python -m scripts\.(benchmarks|studies|examples|reports) ([^`\n]+)"
    pages = [TOP / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [*(TOP / "docs").glob("*.md"), *(TOP / "tables").rglob("README.md")]
    for path in [*pages, *(TOP / "scripts").rglob("*.py")]:
        found = re.findall(rf"`{command}`|^ *{command}$", path.read_text(), re.MULTILINE)
        for one, inside, other, alone in found:
            yield path.name, one or other, shlex.split(inside or alone, comments=True)


@pytest.mark.slow
def test_commands_that_are_written_are_understood(monkeypatch, capsys):
    monkeypatch.setenv("QP_DATA", "DIRECTORY")
    wrong, count = [], 0
    for page, room, words in written():
        words = words[: words.index(">")] if ">" in words else words
        if not words or words[0] == "NAME":
            continue
        count += 1
        try:
            assert words[0] in command_line.commands(room)
            command_line.parsed(room, words[0], words[1:])
        except (AssertionError, SystemExit):
            wrong.append((page, room, words))
    assert wrong == [], capsys.readouterr().err
    assert count > 60
