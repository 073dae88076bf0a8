"""R as a peer: a script of R that reads one table and returns numbers, where R is installed.

One session of R serves all calls for the same packages, as loading mgcv takes longer than a fit.
"""

import atexit
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

#: Reads names of folders. In each are a script that defines `run`, its table `d` and words,
#: `arguments`. The first run compiles R's functions, so the second one is timed, unless the script
#: says `is_long`.
_SERVE = """
for (package in commandArgs(TRUE)) suppressMessages(library(package, character.only = TRUE))
numbers <- function(z) {
  paste(ifelse(is.finite(z), sprintf("%.17g", z), "NaN"), collapse = ",")
}
answer <- function(folder) {
  own <- new.env()
  own$d <- read.csv(file.path(folder, "data.csv"))
  own$arguments <- readLines(file.path(folder, "arguments"))
  source(file.path(folder, "run.R"), local = own)
  if (is.null(own$is_long)) own$run()
  cpu <- system.time(found <- own$run())
  found$cpu <- sum(cpu[1:2])
  found <- paste0('"', names(found), '":[', sapply(found, numbers), "]", collapse = ",")
  paste0("{", found, "}")
}
input <- file("stdin", "r")
while (length(folder <- readLines(input, 1))) {
  said <- tryCatch(suppressMessages(suppressWarnings(answer(folder))),
    error = function(e) deparse(conditionMessage(e))[1])
  writeLines(said, file.path(folder, "answer"))
  cat("done\\n")
}
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


@functools.cache
def _session(packages: str) -> Any:
    """Start R with packages; it ends when this process does."""
    command = ["Rscript", "-e", _SERVE, *packages.split()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.__exit__, None, None, None)
    return process


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
    session = _session(packages)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frame.to_csv(folder / "data.csv", index=False)
        (folder / "arguments").write_text("".join(f"{word}\n" for word in arguments))
        (folder / "run.R").write_text(script)
        session.stdin.write(f"{folder}\n")
        session.stdin.flush()
        while (line := session.stdout.readline()) != "done\n":
            if not line:
                raise Failure(f"R ended while it ran a script with {packages}")
        numbers = json.loads((folder / "answer").read_text())
    if isinstance(numbers, str):
        raise Failure(f"R ended with an error: {numbers}")
    return {key: np.asarray(values, dtype=float) for key, values in numbers.items()}
