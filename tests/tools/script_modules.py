"""The commands of a checkout in this process, and the paper's raw data where they are installed."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from scripts import command_line
from tests.tools.commands import Finished

TOP = Path(__file__).parents[2]
DATA = Path(os.environ.get("QP_DATA", "."))
needs_data = pytest.mark.skipif(
    not (DATA / "wine.data").is_file(), reason="set QP_DATA to the folder of the raw data files"
)


def command(room, name, *arguments):
    """Words that run a command in a process of its own, at the top of the checkout."""
    return [sys.executable, "-W", "ignore", "-m", f"scripts.{room}", name, *map(str, arguments)]


def run_script(room, name, *arguments):
    """Run a command in this process: imports alone take two seconds."""
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        mock.patch.dict(os.environ),  # a command may set the number of threads
    ):
        try:
            code = command_line.main(room, [name, *map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
    return Finished(code or 0, out.getvalue(), err.getvalue(), 0.0, 0)
