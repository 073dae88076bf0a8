"""The arguments of the command line, read without importing anything that is slow to import."""

from __future__ import annotations

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from qpruntime._formatting import meant, printable

__all__ = ["USAGE", "parser"]

USAGE = 2
#: Examples at the end of each command's help; tests run the lines that stand alone.
EXAMPLES = {
    "build": (
        "tablegen build --likelihood probit --output probit.h5",
        "tablegen build --likelihood poisson --preset compact --dry-run",
        "tablegen build --likelihood my_module:likelihood --output mine.h5",
    ),
    "info": ("tablegen info probit-compact", "tablegen info probit.h5 --json"),
    "verify": ("tablegen verify probit-compact --points 200", "tablegen verify probit.h5 --seed 1"),
    "plot": ("tablegen plot probit-compact --output probit.png",),
    "export": ("tablegen export probit-compact --format zarr --output probit.zarr",),
    "publish": ("tablegen publish shelf", "tablegen publish shelf probit poisson"),
    "fetch": (
        "tablegen fetch probit-compact --from https://example.org/tables",
        "tablegen fetch https://example.org/tables/probit-compact.h5 --sha256 HASH",
    ),
    "list": ("tablegen list", "tablegen list --json"),
}
_FORMATS = "hdf5: one file; zarr: a directory of compressed chunks, for object stores"


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        # argparse takes -10 for a number, but before Python 3.14 not -1e1, nor ever -inf.
        self._negative_number_matcher = re.compile(
            r"^-((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$", re.I
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            options = [*_options(self), *_options(self, getattr(parsed, "command", None))]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0], options)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)'", message)
        if choice and "did you mean" not in message:
            message += meant(choice[1], _commands(self))
        self.exit(USAGE, f"tablegen: error: {printable(message)} (see {self.prog} --help)\n")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser, command: str | None = None) -> list[str]:
    parser = _commands(parser).get(command or "", parser)
    return [name for action in parser._actions for name in action.option_strings]


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Examples stay lines; a description is filled as ever."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        import shtab

        print(shtab.complete(parser, shell))
        parser.exit()


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import qpruntime

        print(f"tablegen {qpruntime.__version__}")
        parser.exit()


#: Every command: its help, its description, and its arguments by group, each with its metavar.
COMMANDS = {
    "build": f"""
        build a table, or resume an interrupted build

        Build a table and certify its error. If a build is interrupted or killed, the same command
        resumes it.

        which table:
        --likelihood NAME: a registered name, with parameters as in 'student-t(nu=4, scale=0.3)', or
            package.module:name of your own Likelihood, or of a function without arguments that is
            annotated '-> Likelihood'; the module is imported from the current directory and run;
            default: probit
        --preset PRESET: grid: the grid of the paper (default); compact: a small table for every
            cavity; surfaces: all quantities that inference needs, for any likelihood (default for
            your own)
        --mu-range LO HI: ends of the axis mu; default: -10 10
        --mu-step STEP: distance of nodes of a grid; default: 0.001
        --log10-sigma-range LO HI: ends of the axis log10-sigma; default: -1 1; surfaces: -2 1
        --log10-sigma-step STEP: distance of nodes of a grid; default: 0.001
        --counts FIRST:LAST: counts y in the table; default: 0:50
        --outcomes Y,Y,...: surfaces only: every value that y takes
        --y-range LO HI: surfaces only: range of a continuous y
        --projection NAME: surfaces only: "wp" stores L_p projections of order --p, for method="wp"
        --p P: order of --projection wp, from 1 to 10
        --method METHOD: grid only; spectral: expand a Chebyshev series (default); direct: integrate
            at every node
        --dtype TYPE: grid only: float64 (default) or float32
        --tolerance ERROR: largest relative error; the build fails above it; default: 1e-12,
            float32: 1e-7, compact: 1e-9, surfaces: 1e-8, --projection wp: 1e-6

        where to:
        --output FILE: file to write; default: a name made of likelihood, parameters and preset, in
            $QP_TABLES or the user's data directory, where tablegen and open_table find it
        --force: replace an existing table; follow a link that leads nowhere
        --format FORMAT: {_FORMATS}; default: by the ending of --output
        --size-limit MB: surfaces only: largest size of the table; default: 128
        --yes: build more than 4 GB without asking
        --dry-run: print path, size, nodes and estimated time, and build nothing

        who computes:
        --workers N: number of threads; default: all cores
        --scheduler ADDRESS: address of a dask cluster, such as tcp://host:8786
        --timeout SECONDS: time to wait for the cluster, or for a worker; default: 60
        """,
    "info": """
        print the metadata and the certificate of a table

        table FILE|NAME: a file, or a name that tablegen list prints
        """,
    "verify": """
        check the hash of a table, and integrate random points again

        Check the hash of a table, and integrate random points again. The exit status is 0 if the
        table is sound, 1 if it is not, and 3 if its bytes are right but its accuracy was not
        checked because --likelihood was not given.

        table FILE|NAME: a file, or a name that tablegen list prints
        --likelihood NAME: package.module:name of your own likelihood
        --points N: number of points; default: 2000
        --seed N: seed of the points; default: a new one each time
        --tolerance ERROR: largest relative error; default: that of the table
        --workers N: number of threads; default: all cores
        """,
    "plot": """
        draw sigma*/sigma_EP and the error of a table

        table FILE|NAME: a file, or a name that tablegen list prints
        --output FILE: a .png or .svg file
        --outcome Y: value of y to draw; default: 1
        --mu-range LO HI: part of the axis mu to draw; default: all of it
        --log10-sigma-range LO HI: part of the axis log10-sigma to draw; default: all of it
        """,
    "export": f"""
        write a table in another format

        table FILE|NAME: a file, or a name that tablegen list prints
        --format FORMAT: {_FORMATS} (default); c: a C99 header, from a compact table
        --output FILE: file to write; default: beside the table; c: qp_NAME.h in this directory
        --force: replace an existing table
        """,
    "publish": """
        write tables and registry.json to a directory for others

        Write tables and registry.json to a directory that any web server or object store can serve.
        The registry has names, sizes, hashes, certificates and the commands of builds.

        directory DIR: directory to write to; it is made if it does not exist
        tables FILE|NAME: tables to publish; default: all that tablegen list prints; tables that DIR
            has stay in its registry
        """,
    "fetch": """
        download a published table, and check it

        Download a table or resume a download, check its hashes, and install it. Proxies are read
        from the environment.

        table NAME|URL: a name in the registry, the hash of the data of a table, or a URL or path of
            NAME.h5
        --from DIR|URL: directory or URL of registry.json: http, https, or a protocol of fsspec;
            default: $QP_REGISTRY
        --sha256 HASH: hash of the file, or of its data as tablegen info prints it; others are
            refused
        --output FILE: file to write; default: an installed table
        --force: replace an existing table
        """,
    "list": "list the installed tables and those inside the package",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``tablegen``."""
    made = _Parser(prog="tablegen", description="Build and check lookup tables of sigma*.")
    made.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    made.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        metavar="SHELL",
        help="print a completion script for bash, zsh or tcsh, and exit",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        words, *paragraphs = textwrap.dedent(text).strip().split("\n\n")
        command = commands.add_parser(name, help=words)
        for paragraph in paragraphs:
            if paragraph[0].isupper():
                command.description = paragraph
            else:
                _add_group(command, name, re.split(r"\n(?! )", paragraph))
        command.add_argument("--json", action="store_true", help="print one JSON document")
        command.epilog = "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[name])])
        command.formatter_class = _Plain
    return made


def _add_group(command: argparse.ArgumentParser, name: str, lines: list[str]) -> None:
    """Add arguments, a line each, in the group that a first line with a colon at its end names."""
    group: argparse._ActionsContainer = command
    if lines[0].endswith(":"):
        group = command.add_argument_group(lines.pop(0).removesuffix(":"))
    for line in lines:
        argument, words = re.split(": ", re.sub(r"\s+", " ", line), maxsplit=1)
        option, *metavar = argument.split(" ")
        settings: dict[str, Any] = {"action": "store_true"}
        if metavar:
            settings = {"type": _TYPES.get(metavar[0]), "metavar": metavar[0]}
        if len(metavar) == 2:
            settings |= {"nargs": 2, "metavar": tuple(metavar)}
        group.add_argument(option, help=words, **settings | _SPECIAL.get((name, option), {}))


def _counts(text: str) -> tuple[int, int]:
    """Parse ``FIRST:LAST``."""
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"needs FIRST:LAST, two counts, got {text!r}")
    return int(match[1]), int(match[2])


def _outcomes(text: str) -> Sequence[float]:
    """Parse ``0,1,2`` or ``FIRST:LAST``."""
    try:
        if ":" in text:
            first, last = _counts(text)
            return range(first, last + 1)
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"needs numbers Y,Y,..., got {text!r}") from error


def _megabytes(text: str) -> int:
    """Parse a number of megabytes; return bytes."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"needs a positive number of MB, got {text!r}")
    return round(1e6 * number)


#: Types of values by their metavar; all others are text.
_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("ERROR", "LO", "P", "SECONDS", "STEP", "Y"), float),
    "FIRST:LAST": _counts,
    "MB": _megabytes,
    "N": int,
    "Y,Y,...": _outcomes,
}
#: What neither a metavar nor a help says.
_SPECIAL: dict[tuple[str, str], dict[str, Any]] = {
    ("build", "--likelihood"): {"default": "probit"},
    ("export", "--format"): {"default": "zarr"},
    ("fetch", "--from"): {"dest": "source"},
    ("plot", "--output"): {"required": True},
    ("publish", "tables"): {"nargs": "*"},
    ("verify", "--points"): {"default": 2000},
}
