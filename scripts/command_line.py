"""The one command line of all rooms: ``python -m scripts.ROOM NAME``, and what options mean.

A module of a room that has `OPTIONS` is the command of its name. `OPTIONS` maps an option to what
`ArgumentParser.add_argument` takes; of those in `shared` a command says only what differs. Its
`main` is called with what was parsed. ``ONE_THREAD = True`` in a module keeps BLAS and XLA, here
and in processes that are started, to one thread: it is set before anything is imported.
"""

import argparse
import ast
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve().parent
_ONE_THREAD = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


class Usage(Exception):
    """Options that do not go together: the command ends with 2, and its usage is shown."""


class Failure(Exception):
    """What the caller can mend, as data that are missing: one line, and the command ends with 1."""


class Command(NamedTuple):
    """What is known of a command before it is imported."""

    purpose: str
    one_thread: bool


def shared() -> dict[str, dict[str, Any]]:
    """Options that several commands have."""
    return {
        "data": {
            "type": Path,
            "default": os.environ.get("QP_DATA"),
            "metavar": "DIRECTORY",
            "help": "directory of the raw files (default $QP_DATA)",
        },
        "sets": {"nargs": "+", "metavar": "SET", "help": "sets of data, or problems"},
        "models": {"nargs": "+", "metavar": "MODEL"},
        "rows": {"nargs": "+", "type": int, "metavar": "N", "help": "numbers of rows"},
        "inducing": {"type": int, "default": 200, "metavar": "M", "help": "inducing points"},
        "seeds": {"type": int, "help": "so many seeds, draws or splits"},
        "first": {"type": int, "default": 0, "help": "the first of the seeds"},
        "seed": {"type": int, "default": 0, "help": "of everything that is drawn (default 0)"},
        "rounds": {"type": int, "help": "of all folds"},
        "method": {"choices": ("qp", "ep"), "default": "ep"},
        "seconds": {"type": float, "help": "of sampling, per problem"},
        "workers": {"type": int, "help": "processes"},
        "scheduler": {"metavar": "ADDRESS", "help": "of a dask scheduler"},
        "timeout": {"type": float, "default": 60.0, "help": "seconds to wait for it"},
        "python": {"metavar": "PYTHON", "help": "interpreter that has the peers' libraries"},
        "packages": {"type": Path, "metavar": "DIRECTORY", "help": "packages that ship data"},
        "kept": {
            "type": Path,
            "metavar": "FILE",
            "help": "finished work, a line each: what is there is not done again",
        },
        "out": {"type": Path, "help": "where the report goes"},
        "figure": {"type": Path, "metavar": "FILE", "help": "where to draw"},
        "again": {"action": "store_true", "help": "also what is kept"},
        "report": {"action": "store_true", "help": "report what is kept, and do nothing else"},
    }


def commands(room: str) -> dict[str, Command]:
    """Commands of a room by name; nothing is imported."""
    found = {}
    for path in sorted((_HERE / room).glob("*.py")):
        tree = ast.parse(path.read_text())
        targets = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if "OPTIONS" in targets:
            purpose = (ast.get_docstring(tree) or "").splitlines()[0]
            found[path.stem] = Command(purpose, "ONE_THREAD" in targets)
    return found


def parser_of(room: str, name: str, module: Any) -> argparse.ArgumentParser:
    """The parser of one command: shared options, and what it changes or adds."""
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.{room} {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = shared()
    for option, own in module.OPTIONS.items():
        words = option if option.startswith("*") else f"--{option.replace('_', '-')}"
        settings = known.get(option, {}) | own
        if settings.get("default") is not None:
            settings.pop("required", None)
        parser.add_argument(words.lstrip("*"), **settings)
    return parser


def parsed(room: str, name: str, arguments: list[str]) -> argparse.Namespace:
    """Options of a command, without running it."""
    module = import_module(f"scripts.{room}.{name}")
    return parser_of(room, name, module).parse_args(arguments)


def main(room: str, arguments: list[str] | None = None) -> int:
    """Run one command of a room, or list them; return what the process ends with."""
    words = sys.argv[1:] if arguments is None else list(map(str, arguments))
    known = commands(room)
    if not words or words[0] not in known:
        asked = not words or words[0] in ("-h", "--help")
        out = sys.stdout if asked else sys.stderr
        if not asked:
            print(f"error: no command {words[0]!r} in scripts.{room}; it has:", file=out)
        for name, command in known.items():
            print(f"python -m scripts.{room} {name:14} {command.purpose}", file=out)
        return 0 if asked else 2
    if known[words[0]].one_thread:
        for name, value in _ONE_THREAD.items():
            os.environ.setdefault(name, value)
    module = import_module(f"scripts.{room}.{words[0]}")
    parser = parser_of(room, words[0], module)
    options = parser.parse_args(words[1:])
    try:
        return module.main(options) or 0
    except Usage as error:
        parser.error(str(error))
    except Failure as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = "; finished work is kept, the same command goes on" * hasattr(options, "kept")
        print(f"\ninterrupted{kept}", file=sys.stderr)
        return 130
