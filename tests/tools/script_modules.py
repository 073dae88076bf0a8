"""The scripts as modules, and the raw data of the paper where they are installed."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from commands import Finished

SCRIPTS = Path(__file__).parents[2] / "scripts"
DATA = Path(os.environ.get("QP_DATA", "."))
needs_data = pytest.mark.skipif(
    not (DATA / "wine.data").is_file(), reason="set QP_DATA to the folder of the raw data files"
)


def script(name):
    """Import a script as the module that other scripts import."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            # Scripts import each other by name.
            with mock.patch.object(sys, "path", [*sys.path, str(SCRIPTS)]):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def run_script(name, *arguments):
    """Run the script's `main` in this process: its imports alone take two seconds."""
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        mock.patch.object(sys, "argv", [f"{name}.py", *map(str, arguments)]),
    ):
        try:
            code = script(name).main()
        except SystemExit as stop:
            code = stop.code
    if isinstance(code, str):  # what Python does with a message
        return Finished(1, out.getvalue(), f"{err.getvalue()}{code}\n", 0.0, 0)
    return Finished(code or 0, out.getvalue(), err.getvalue(), 0.0, 0)


datasets = script("datasets")
