"""What an import loads, and that imports run one way: upwards, and never into tablegen."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qpruntime

ROOT = Path(qpruntime.__file__).parent
FILES = {p.relative_to(ROOT).with_suffix("").as_posix(): p for p in ROOT.rglob("*.py")}

# From the ground up. A module imports at its top only from lower ranks; a new one goes in here.
RANKS = [
    {"errors", "jit", "notice"},
    {"names"},
    {"special", "validation", "blocks", "artifact"},
    {"quadrature", "execution"},
    {"likelihoods"},
    {"commands"},
    {"projection"},
    {"inference"},
    {"learning"},
    {"estimators"},
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
# Imports inside functions, each with its reason.
# Rules that few need, and whose kernels take milliseconds to declare.
DEFERRED: set[tuple[str, str]] = {("likelihoods", "quadrature"), ("projection", "quadrature")}


def imported(node):
    """Modules of qpruntime that an import statement names."""
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        names = [node.module]
        if node.module == "qpruntime":
            names = [f"qpruntime.{alias.name}" for alias in node.names]
    return [n.split(".")[1] for n in names if n.startswith("qpruntime.")]


def imports(path):
    """Return (modules imported at the top, modules imported anywhere else)."""
    tree = ast.parse(path.read_text())
    top = {m for node in tree.body for m in imported(node)}
    return top, {m for node in ast.walk(tree) for m in imported(node)} - top


@pytest.mark.parametrize("name", sorted(set(FILES) - {"__init__"}))
def test_imports_run_upwards(name):
    own = name.split("/")[0]
    assert own in RANK, f"{own} has no rank in this file"
    top, deferred = imports(FILES[name])
    for module in top - {own}:
        assert RANK[module] < RANK[own], f"{own} imports {module}"
    assert {(own, module) for module in deferred - {own}} <= DEFERRED


def test_ranks_are_of_modules_that_exist():
    assert {name.split("/")[0] for name in FILES} >= set(RANK)


@pytest.mark.parametrize("name", sorted(FILES))
def test_never_tablegen(name):
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            assert not any(a.name.split(".")[0] == "tablegen" for a in node.names)
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "tablegen"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import qpruntime", "dask distributed zarr sklearn scipy h5py numba tablegen matplotlib"),
        ("from qpruntime import infer, project, open_table", "dask zarr h5py sklearn tablegen"),
        ("from qpruntime import infer, project, open_table", "scipy.optimize scipy.stats"),
        ("from qpruntime import GPClassifier", "dask zarr tablegen matplotlib"),
    ],
)
def test_what_an_import_loads(statement, absent):
    code = f"{statement}; import sys; print(*[m for m in {absent.split()!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize("name", qpruntime.__all__)
def test_public_names_resolve(name):
    value = getattr(qpruntime, name)
    assert value.__module__.startswith("qpruntime")
    assert value.__doc__
    assert name in dir(qpruntime)


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no attribute 'Infer'"):
        qpruntime.Infer  # noqa: B018
