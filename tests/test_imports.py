"""What an import loads, and that imports run one way: upwards through the floors, in no circle."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import qpruntime
from tests.tools.commands import python

TOP = Path(qpruntime.__file__).parents[1]
#: Packages, and modules beside them, from the ground up. What stands on one floor imports from
#: lower ones only; a new package gets its floor here and its line in CONTRIBUTING.md.
FLOORS = [
    {"qpruntime._typing", "qpruntime._compile_notice", "qpruntime._restorable", "qpruntime.errors"},
    {"qpruntime._formatting", "qpruntime._numba", "qpruntime._validation"},
    {"qpruntime._atomic_file", "qpruntime._memory", "qpruntime._pointers", "qpruntime._special"},
    {"qpruntime._sealed_file"},
    {
        *("qpruntime.table_format", "qpruntime.dataframes", "qpruntime.execution"),
        "qpruntime.quadrature",
    },
    {
        *("qpruntime.likelihoods", "qpruntime._duration", "qpruntime.kernel_archive"),
        "qpruntime.persistence",
    },
    {"qpruntime._cli_hints", "qpruntime.kernels"},
    {"qpruntime.projection", "tablegen.memory", "tablegen.second_rule", "tablegen.user_code"},
    {"qpruntime.inference", "tablegen.files", "tablegen.splines"},
    {
        *("qpruntime.interop", "qpruntime.learning", "qpruntime.predictive", "tablegen.c_export"),
        *("tablegen.compact", "tablegen.grid", "tablegen.surfaces"),
    },
    {
        *("qpruntime.bayesopt", "qpruntime.estimators", "qpruntime.jax", "qpruntime.torch"),
        *("tablegen.artifacts", "tablegen.verify"),
    },
    {
        *("qpruntime.system_info", "qpruntime.deep", "qpruntime.criticism", "qpruntime.effects"),
        *("qpruntime.onnx", "tablegen.builder"),
    },
    {"qpruntime.forecasting", "qpruntime.plotting", "qpruntime.warmup"},
    {"tablegen.console"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
#: They open every room: public names by first use, and the command line.
DOORS = {"qpruntime", "qpruntime.__main__", "tablegen", "tablegen.__main__"}
#: Imports of the runtime inside functions: rules that few need, whose kernels take milliseconds to
#: declare, and distributed, a second. The command line, which has to answer at once, and builds
#: import as late as they like.
DEFERRED = {
    ("qpruntime.execution.resolve", "qpruntime.execution.dask"),
    ("qpruntime.likelihoods.base", "qpruntime.quadrature.adaptive_kernels"),
    ("qpruntime.projection.projector", "qpruntime.quadrature.wasserstein_kernels"),
}


class Imports(NamedTuple):
    """Modules of the two packages that one module imports, at its top and inside functions."""

    top: frozenset[str]
    deferred: frozenset[str]


@cache
def files():
    """Path of every module by its name; a package's is that of its ``__init__``."""
    found = {}
    for package in ("qpruntime", "tablegen"):
        for path in (TOP / package).rglob("*.py"):
            parts = path.relative_to(TOP).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named(node):
    """Modules of ours that an import statement names."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names if alias.name != "qpruntime"]  # its version
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative import"
        names = [alias.name for alias in node.names if alias.name != "__version__"]
        full = [f"{node.module}.{name}" for name in names]
        found = [name if name in files() else node.module for name in full]
    else:
        return []
    ours = [name for name in found if name.split(".")[0] in ("qpruntime", "tablegen")]
    assert set(ours) <= set(files()), f"no such module: {ours}"
    return ours


@cache
def parsed(module):
    """Return its tree, and the statements anywhere in it that import, but for types alone."""
    tree = ast.parse(files()[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    return tree, [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]


@cache
def imports():
    """Return `Imports` by module."""
    found = {}
    for module in files():
        tree, statements = parsed(module)
        top = frozenset(name for node in tree.body for name in named(node))
        anywhere = {name for node in statements for name in named(node)}
        found[module] = Imports(top, frozenset(anywhere - top))
    return found


def room(module):
    """Package or module that has a floor, which `module` is in."""
    return ".".join(module.split(".")[:2])


def test_the_plan_is_of_rooms_that_exist():
    assert set(FLOOR) == {room(module) for module in files()} - DOORS
    assert sum(map(len, FLOORS)) == len(FLOOR)


def test_imports_run_upwards():
    """And never from the runtime to tablegen, on whatever floor."""
    wrong = []
    for module, (top, deferred) in imports().items():
        if module in DOORS:
            continue
        for other in top | deferred:
            floor = FLOOR.get(room(other), len(FLOORS))  # a door is above all rooms
            upwards = room(other) == room(module) or floor < FLOOR[room(module)]
            if not upwards or (module.startswith("qpruntime.") and other.startswith("tablegen")):
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_no_circles():
    """Of modules, also through imports inside functions; packages' own names count as modules."""
    below = {module: found.top | found.deferred for module, found in imports().items()}
    below = {module: others - DOORS for module, others in below.items() if module not in DOORS}
    while lowest := {module for module, others in below.items() if not others & set(below)}:
        below = {module: others for module, others in below.items() if module not in lowest}
    assert sorted(below) == [], "a circle runs through these"


def test_imports_of_the_runtime_are_at_the_top():
    deferred = {
        (module, other)
        for module, found in imports().items()
        for other in found.deferred
        if module.split(".")[0] == "qpruntime" and module not in DOORS
    }
    assert deferred == DEFERRED


def test_every_room_is_on_the_map():
    """CONTRIBUTING.md has every room and its floor; each package says what it is for."""
    listed, package = {}, ""
    for line in (TOP / "CONTRIBUTING.md").read_text().splitlines():
        if heading := re.match(r"(qpruntime|tablegen)/ ", line):
            package = heading[1]
        elif room := re.match(r"    (\w+) +\[(\d+)\]  .+", line):
            listed[f"{package}.{room[1]}"] = int(room[2])
    assert listed == FLOOR
    for module, path in files().items():
        if path.name == "__init__.py":
            purpose = ast.get_docstring(parsed(module)[0])
            assert purpose, f"{module} does not say what it is for"
            assert purpose.splitlines()[0].endswith(".")


def test_what_an_import_loads():
    infer = "dask zarr numcodecs google_crc32c h5py sklearn tablegen scipy.optimize scipy.stats"
    infer += " jax torch"
    # In one process what comes later loads more: ever fewer are absent.
    of_qpruntime = {
        "import qpruntime": f"{infer} distributed scipy numba matplotlib importlib.metadata",
        "from qpruntime import infer, project, open_table": infer,
        "from qpruntime import GPClassifier": "dask distributed zarr tablegen matplotlib jax torch",
        "import qpruntime.plotting": "dask distributed zarr tablegen matplotlib jax torch",
    }
    cli = {"import tablegen.console.cli": "dask distributed zarr h5py scipy sklearn matplotlib"}
    for process in (of_qpruntime, cli):
        code = "import sys\n"
        for statement, absent in process.items():
            code += f"{statement}\nprint(*{{*{absent.split()!r}}} & {{*sys.modules}})\n"
        run = python("-c", code)
        assert run.stdout.splitlines() == [""] * len(process), run.stdout


#: Libraries that are extras, and the rooms that may import them.
FOREIGN = {
    "jax": {"qpruntime.deep", "qpruntime.jax"},
    "jaxlib": {"qpruntime.deep", "qpruntime.jax"},
    "optax": {"qpruntime.deep"},
    "torch": {"qpruntime.torch"},
    "gpytorch": {"qpruntime.torch"},
    "GPy": {"qpruntime.interop"},
    "gpjax": {"qpruntime.jax"},
}


def test_only_their_rooms_import_extras():
    """Also where they are not installed, which the test above needs to see them loaded."""
    wrong = []
    for module in files():
        for node in parsed(module)[1]:
            root = (getattr(node, "module", None) or node.names[0].name).split(".")[0]
            if root in FOREIGN and room(module) not in FOREIGN[root]:
                wrong.append(module)
    assert wrong == []


def test_public_names_resolve_and_others_do_not():
    for name in qpruntime.__all__:
        value = getattr(qpruntime, name)
        assert value.__module__.startswith("qpruntime"), name
        assert value.__doc__, name
        assert name in dir(qpruntime)
    with pytest.raises(AttributeError, match="no attribute 'Infer'"):
        qpruntime.Infer  # noqa: B018
