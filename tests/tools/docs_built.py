"""The documentation built as a site, for its tests."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["DOCS", "built"]

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = ("-b", "html", "-n", "-W", "--keep-going", "-q")
NEEDS = ("sphinx", "myst_parser", "numpydoc", "sphinx_gallery", "pydata_sphinx_theme")
#: What pages on extras import, which the quick build leaves out.
WHOLE = ("optax", "onnx", "optuna", "sktime")


def built(folder: Path, quick: bool = False) -> Path:
    """Build the site with warnings for errors; skip where what builds it is not installed."""
    needed = NEEDS if quick else NEEDS + WHOLE
    if absent := [name for name in needed if not find_spec(name)]:
        pytest.skip(f"{absent[0]} is not installed: the extra docs")
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    chosen = {"QP_DOCS_QUICK": "1"} if quick else {}
    html = folder / "html"
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *OPTIONS, "-d", folder / "doctrees", DOCS, html],
        env={**kept, "OMP_NUM_THREADS": "1", **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return html
