"""What the distribution says of itself, and that what it leaves out is not needed."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import qpruntime

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CITATION = yaml.safe_load((TOP / "CITATION.cff").read_text())
#: Names to import, by those to install.
MODULES = {
    "scikit-learn": {"sklearn"},
    "google-crc32c": {"google_crc32c"},
    "dask": {"dask", "distributed", "cloudpickle"},
    "numba": {"numba", "llvmlite"},
}


def names(requirements):
    """What is to be installed, without versions and extras; our own extras resolved."""
    found = set()
    for line in requirements:
        name = re.match(r"[A-Za-z0-9_-]+", line)[0]
        if name == "qpruntime":
            for extra in re.search(r"\[(.*)\]", line)[1].split(","):
                found |= names(EXTRAS[extra])
        else:
            found |= MODULES.get(name, {name})
    return found


def imported(folder, *, top):
    """Packages imported by the files of a folder: at the top of any, or only inside functions."""
    found = set()
    for path in (TOP / folder).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body if top else ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"qpruntime", "tablegen"}


def test_one_version():
    assert qpruntime.__version__ == importlib.metadata.version("qpruntime")
    assert PROJECT["version"] == CITATION["version"] == qpruntime.__version__
    assert f"## {PROJECT['version']}" in (TOP / "CHANGELOG.md").read_text()


def test_dependencies_and_extras_bring_what_is_imported():
    core = names(PROJECT["dependencies"])
    # Imported when they are named: clusters, another optimiser's sampler, other libraries.
    late = {
        *("cloudpickle", "dask", "distributed", "optuna", "jax", "optax", "torch", "gpjax"),
        *("gpytorch", "GPy", "onnx", "pandas", "sktime"),
    }
    assert imported("qpruntime", top=True) - late == core
    # Anything else comes with an extra, and when it is called for; frames and groups for ArviZ are
    # made where pandas and xarray are there.
    extras = names(["qpruntime[cluster,plot,optuna,deep,gpytorch,gpjax,gpy,onnx,sktime]"])
    assert imported("qpruntime", top=False) - core <= extras | {"pandas", "xarray", "arviz"}
    assert "h5py" in names(EXTRAS["build"]) - core
    offered = names(PROJECT["dependencies"]) | names(["qpruntime[cluster,plot,fetch]"])
    assert imported("tablegen", top=False) <= offered


@pytest.mark.slow
def test_builds_without_a_warning_and_holds_what_its_tests_need(tmp_path):
    """By pip, which fetches setuptools; from the source distribution, outside of the checkout."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run(*command, **options):
        words, options = [str(word) for word in command], {"env": environment, **options}
        done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    source = tmp_path / "source"
    files = run("git", "ls-files", cwd=TOP).split("\n")
    for name in filter(None, files):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((TOP / name).read_bytes())
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "build")
    said = run(python, "-m", "build", "--outdir", tmp_path / "dist", cwd=source)
    # The word is in the name of this directory too.
    said = said.replace(str(tmp_path), "")
    assert not re.search("warning|deprecat", said, re.IGNORECASE), said
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    packages = {n for n in files if n.startswith(("qpruntime/", "tablegen/"))}
    assert packages == {name for name in held if ".dist-info/" not in name}
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    missing = {name for name in filter(None, files) if not (unpacked / name).exists()}
    assert missing <= {".gitignore"}
    # With the packages of this interpreter, and the sources of the archive.
    environment["PYTHONPATH"] = str(unpacked)
    tests = ("tests/table_format/test_metadata.py", "tests/test_imports.py", "tests/test_docs.py")
    run(sys.executable, "-m", "pytest", "-q", *tests, cwd=unpacked)
