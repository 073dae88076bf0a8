"""The scripts as modules, and the raw data of the paper where they are installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
DATA = Path(os.environ.get("QP_DATA", "."))
needs_data = pytest.mark.skipif(
    not (DATA / "wine.data").is_file(), reason="set QP_DATA to the folder of the raw data files"
)


def script(name):
    """Import a script as the module that other scripts import."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


datasets = script("datasets")
