"""Command lines for the fuzzer: words in any order, every option of every command, little memory.

Line number n is a function of n alone. Most begin as something that works; then values are
replaced. Every `SHARE`-th is done by a process of its own below a limit on its memory.
"""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tablegen.console import arguments, plot
from tablegen.console.cli import main

SHARE = 20

# A grid of 21 x 11 nodes.
SMALL = ["--mu-step", "0.2", "--log10-sigma-step", "0.1", "--mu-range", "-2", "2"]
SMALL += ["--log10-sigma-range", "-0.5", "0.5"]

#: What is no number, or none that is meant.
ODD = [
    *("nan", "inf", "-inf", "NaN", "infinity", "-Infinity", "1e400", "-1e400", "0", "-0.0", "-1"),
    *("1e-320", "1e308", "-1e308", "1e-20", "9" * 400, "99999999999999999999", "0x10", "1_000"),
]
WORDS = [
    *("build", "info", "verify", "plot", "list", "--likelihood", "--output", "--preset", "grid"),
    *("compact", "--method", "direct", "spectral", "--dtype", "float32", "--mu-range", "-10", "10"),
    *("--log10-sigma-range", "-1", "1", "--mu-step", "0.5", "--log10-sigma-step", "0.1"),
    *("--counts", "0:50", "5:1", "--workers", "2", "--tolerance", "--force", "--dry-run", "--json"),
    *("--points", "--seed", "--outcome", "--help", "probit", "poisson", "heaviside", "probit(a=1)"),
    *("probit-compact", "nan", "inf", "-inf", "1e400", "-1e400", "0", "-0.0", "1e-320", "1e308"),
    *("", " ", "--", "-", "-1e1", "9" * 400, "99999999999999999999", "0x10", "1_000", "１", "½"),
    *("\0", "\x1b[2J", "\ud800", "a" * 5000, "../..", "/", "/dev/null", "/dev/zero", "/etc", "~"),
    *("%s", "{0}", "$(id)", "`id`", "'", '"', "=", "--output=", "--json=1", "@file", "--li", "é"),
]
#: Values that options take. Those of `COMMANDS` are for one command alone.
VALUES = {
    "--likelihood": ["probit", "heaviside", "logistic", "student-t(nu=4, scale=0.3)", "poisson"],
    "--preset": ["grid", "compact", "surfaces"],
    "--mu-range": ["-2 2", "-1 1", "0 2"],
    "--mu-step": ["0.2", "0.1", "1"],
    "--log10-sigma-range": ["-0.5 0.5", "-0.5 0"],
    "--log10-sigma-step": ["0.1", "0.05"],
    "--counts": ["0:1", "0:3", "2:5"],
    "--outcomes": ["0,1,2", "0:3", "-1,1"],
    "--y-range": ["-1 1", "0 5"],
    "--projection": ["wp"],
    "--p": ["1.5", "1", "10"],
    "--method": ["direct", "spectral"],
    "--dtype": ["float64", "float32"],
    "--tolerance": ["1e-6", "1e-9", "0.1"],
    "--format": ["hdf5", "zarr"],
    "--output": ["new.h5", "new.zarr", "none/new.h5", "probit.h5"],
    "--size-limit": ["1", "128", "0.5"],
    "--workers": ["1", "2"],
    "--scheduler": ["tcp://localhost:1", "tls://[::1]:8786"],
    "--timeout": ["0.1", "60"],
    "--from": ["shelf", "absent", "file:///absent"],
    "--sha256": ["0" * 64, "abc"],
    "--points": ["1", "20"],
    "--seed": ["0", "17"],
    "--outcome": ["1", "-1"],
}
COMMANDS = {
    ("plot", "--output"): ["new.svg", "new.png"],
    ("export", "--output"): ["new.zarr"],
    ("verify", "--likelihood"): ["probit"],
}
#: Options of one kind of table, that another refuses.
_SURFACES = {"--outcomes", "--y-range", "--projection", "--p", "--size-limit"}
_GRID = {"--mu-step", "--log10-sigma-step", "--method", "--dtype", "--preset"}
TABLES = ["probit", "probit.h5", "poisson", "poisson.h5", "absent", "heaviside-compact"]


def options():
    """Return {command: its options}, as the parser has them, but for ``--help``."""
    return {
        command: [o for o in arguments._options(parser) if o not in ("-h", "--help")]
        for command, parser in arguments._commands(arguments.parser()).items()
    }


_OPTIONS = options()


def _values(command, option):
    return COMMANDS.get((command, option)) or VALUES.get(option)


def valued(command, option):
    """Whether an option that takes a value has some here."""
    actions = arguments._commands(arguments.parser())[command]._option_string_actions
    return actions[option].nargs == 0 or bool(_values(command, option))


def line(number):
    """Return command line `number`."""
    rng = np.random.default_rng([2, number])
    words = _any(rng) if rng.random() < 0.25 else _sensible(rng)
    if words and words[0] == "build":
        words.insert(1, "--dry-run")
    if words and words[0] == "publish":
        # It writes to the directory that it is given, whatever that is.
        words = [w for w in words if not set(w) & set("/~")]
    if words and words[0] in ("verify", "plot"):
        # Sound tables would be verified, which takes its time.
        words = [w for w in words if "compact" not in w]
    return words


def _any(rng):
    """Words in any order."""
    chosen = [WORDS[i] for i in rng.integers(len(WORDS), size=rng.integers(0, 9))]
    if rng.random() < 0.7:
        chosen.insert(0, str(rng.choice([*_OPTIONS, "build"])))
    return chosen


def _sensible(rng):
    """A command with some of its options, often with one value replaced."""
    command = str(rng.choice([*_OPTIONS, *["build"] * 3]))
    words = [[command]]
    if command not in ("build", "list"):
        words.append([str(rng.choice(TABLES))])
    known = _OPTIONS[command]
    if command == "build" and rng.random() < 0.8:
        surfaces = rng.random() < 0.3
        words += [["--preset", "surfaces"]] if surfaces else []
        known = [o for o in known if o not in (_GRID if surfaces else _SURFACES)]
    if command == "build" and rng.random() < 0.6:
        # The default output exists.
        words.append(["--force"])
    if command == "plot":
        words.append(["--output", str(rng.choice(COMMANDS["plot", "--output"]))])
        known = [o for o in known if o != "--output"]
    for option in rng.permutation(known)[: rng.integers(0, 4)].tolist():
        values = _values(command, option)
        given = str(rng.choice(values)).split() if values else []
        if option == "--likelihood" and values:
            given = [str(rng.choice(values))]
        words.append([option, *given])
    if rng.random() < 0.4:
        places = [(i, j) for i, w in enumerate(words[1:], 1) for j in range(len(w)) if j or i == 1]
        if places:
            i, j = places[rng.integers(len(places))]
            words[i][j] = str(rng.choice(ODD if rng.random() < 0.7 else WORDS))
    return [word for group in words for word in group]


class Commands:
    """Call the command line; builds are dry runs, but for those with little memory."""

    limited = False
    #: Seconds of processor time: a figure of a table takes most.
    seconds = 5.0

    def __init__(self, directory):
        self.directory = Path(directory)
        os.chdir(directory)
        os.environ["QP_TABLES"] = str(directory)
        # A pixel costs a quadrature.
        plot._WIDE, plot._HIGH = 41, 31
        with self._silence():
            # All that is compiled or imported once.
            for likelihood in ("probit", "poisson"):
                counts = ["--counts", "0:2"] if likelihood == "poisson" else []
                main(["build", "--force", "--likelihood", likelihood, *SMALL, *counts])
            main(["verify", "poisson", "--points", "20"])
            main(["plot", "probit", "--output", "first.svg"])
            main(["export", "probit", "--output", "first.zarr", "--force"])

    @staticmethod
    def _silence():
        silent = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        stack = contextlib.ExitStack()
        stack.enter_context(contextlib.redirect_stdout(silent))
        stack.enter_context(contextlib.redirect_stderr(silent))
        return stack

    def run(self, number):
        if number % SHARE == SHARE - 1:
            return self._below_a_limit(number)
        with self._silence():
            try:
                code = main(line(number))
            except SystemExit as stop:
                code = stop.code
        assert code in (0, 1, 2), code
        self._check_nothing_is_left()
        return f"exit {code}"

    def _check_nothing_is_left(self):
        left = [p.name for p in self.directory.glob(".*.build")]
        assert not left, left

    def _below_a_limit(self, number):
        """Run one of the commands in a process that may not have more memory than a random limit.

        Below 640 MB nothing is imported; more than that, and something has to give in the middle.
        """
        rng = np.random.default_rng([3, number])
        limit = round(10.0 ** rng.uniform(7.8, 9.2))
        workers = ["--workers", str(rng.integers(1, 5))]
        fresh = f"limited-{number}.h5"
        lines = [
            ["build", "--output", fresh, *SMALL, *workers],
            ["build", "--output", fresh, "--preset", "surfaces", "--dry-run"],
            ["verify", "poisson", "--points", "20", *workers],
            ["info", "probit"],
            ["list"],
        ]
        chosen = lines[rng.integers(len(lines))]
        code = (
            "import resource, sys; from tablegen.console.cli import main\n"
            f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code, *chosen], capture_output=True, text=True, timeout=50.0
        )
        told = f"{limit} bytes, {chosen}: {ended.returncode}, {ended.stderr[-400:]}"
        assert ended.returncode in (0, 1), told
        assert "Traceback" not in ended.stderr, told
        if ended.returncode:
            assert ended.stderr.startswith("tablegen: error: not enough memory"), told
            assert ended.stderr.count("\n") == 1, told
            assert not Path(fresh).exists(), told
        self._check_nothing_is_left()
        return f"limited, exit {ended.returncode}"
