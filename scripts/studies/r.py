"""R as a peer: a script of R that reads one table and returns numbers, where R is installed."""

import functools
import json
import subprocess
import tempfile
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.command_line import Failure

Array = NDArray[np.float64]

#: The table is `d`, and words that a caller adds are `arguments`. A script defines `run`, which
#: fits, predicts and returns a list of numbers by name.
_BEGIN = """
arguments <- commandArgs(TRUE)
d <- read.csv(arguments[1])
for (package in strsplit(arguments[2], " ")[[1]])
  suppressMessages(library(package, character.only = TRUE))
arguments <- arguments[-(1:2)]
"""
#: The first run compiles R's functions, so the second one is timed, unless runs are long.
_END = """
if (!exists("is_long")) invisible(suppressMessages(suppressWarnings(run())))
cpu <- system.time(found <- suppressMessages(suppressWarnings(run())))
found$cpu <- sum(cpu[1:2])
numbers <- function(z) {
  paste(ifelse(is.finite(z), sprintf("%.17g", z), "NaN"), collapse = ",")
}
cat("{", paste0('"', names(found), '":[', sapply(found, numbers), "]", collapse = ","), "}")
"""


class MissingPeer(ImportError):
    """R, or a package of it, is not installed."""


@functools.cache
def has(packages: str) -> bool:
    """Decide whether R has these packages; their names have blanks between."""
    if not which("Rscript"):
        return False
    quoted = ", ".join(f"'{name}'" for name in packages.split())
    code = f"quit(status = !all(sapply(c({quoted}), requireNamespace, quietly = TRUE)))"
    return subprocess.run(["Rscript", "-e", code], capture_output=True).returncode == 0


def run(script: str, packages: str, frame: Any, *arguments: str) -> dict[str, Array]:
    """Run a script on a data frame; return its numbers, and ``cpu``, the CPU seconds of `run`.

    Raises
    ------
    MissingPeer
        R or a package is not installed.
    Failure
        The script ended with an error.
    """
    if not has(packages):
        raise MissingPeer(f"R with {packages} is not installed; apt-get install r-cran-NAME")
    with tempfile.TemporaryDirectory() as folder:
        data, code = Path(folder) / "data.csv", Path(folder) / "run.R"
        frame.to_csv(data, index=False)
        code.write_text(_BEGIN + script + _END)
        command = ["Rscript", str(code), str(data), packages, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"R ended with an error: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}
