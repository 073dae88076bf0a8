"""Find the file of a table by its path, or by the name under which it is installed or shipped."""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from pathlib import Path

import platformdirs

from qpruntime import commands, likelihoods, names
from qpruntime.artifact import zarr_group
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood

__all__ = ["ENDS", "find", "scaled_path", "shipped_path", "stems_of", "table_directory"]

#: How the names of tables end: one file, or a zarr group.
ENDS = (".h5", ".zarr")


def table_directory() -> Path:
    """Return the directory of installed tables: ``$QP_TABLES``, else the user's data directory."""
    named = os.environ.get("QP_TABLES")
    return Path(named) if named else Path(platformdirs.user_data_dir("qpruntime")) / "tables"


def shipped_path(likelihood: str, power: float = 1.0) -> Path:
    """Return where a likelihood's table stands inside the package: compact, or surfaces of a power.

    There may be none.
    """
    ending = "compact" if power == 1.0 else f"power-{power:g}".replace(".", "_")
    with as_file(files("qpruntime") / "data" / f"{likelihood}-{ending}.h5") as path:
        return path


def scaled_path(likelihood: str, shape: float) -> Path:
    """Return where the table of a family at unit scale stands inside the package, if it does."""
    with as_file(files("qpruntime") / "data" / f"{likelihood}-scaled-{shape:g}.h5") as path:
        return path.with_stem(path.stem.replace(".", "_"))


def find(table: str | os.PathLike[str]) -> Path:
    path, text = Path(table), os.fspath(table)
    if path.is_file() or zarr_group.is_group(path):
        return path
    if path.name == text:
        directory = table_directory()
        for stem in stems_of(text):
            here = [directory / f"{stem}{end}" for end in ENDS]
            for known in (*here, shipped_path(stem.removesuffix("-compact"))):
                if known.stem == stem and (known.is_file() or zarr_group.is_group(known)):
                    return known
        # A bare name is that of a grid, if one is installed; else of the table that ships.
        if _registered(text) is not None and (inside := shipped_path(text)).is_file():
            return inside
        if not names.is_file_name(text) and not path.exists():
            raise TableError(f"no table {text!r} in {directory}; {_advice(text)}")
    if path.is_dir():
        raise TableError(f"{path} is a directory, not a zarr table; give the .h5 file in it")
    if path.exists():
        raise TableError(f"{path} is no regular file; give the .h5 file of a table")
    if path.is_symlink():
        raise TableError(f"{path} is a link to {os.readlink(path)}, where no table is")
    raise TableError(
        f"no table at {path}; build one: {names.command('build', '--output', os.fspath(path))}"
    )


def stems_of(text: str) -> list[str]:
    """Return the names that the file of a table may have that is asked for in these words."""
    name, preset, p = names.split_ending(text)
    model = _registered(name)
    if model is not None:
        return [text, likelihoods.stem(model, preset, p)]
    try:
        given = names.read(names.from_stem(name))
    except InputError:
        return [text]
    found = [text, names.file_stem(*given, preset, p)]
    # A user's likelihood, its parameters left out, if there is one table of it only.
    begin = names.file_stem(given[0], {}) + ","
    there = [
        stem
        for stem in _installed()
        if stem.startswith(begin) and names.split_ending(stem)[1:] == (preset, p)
    ]
    return [*found, *(there if len(there) == 1 and not given[1] else ())]


def _installed() -> list[str]:
    return sorted({file.stem for end in ENDS for file in table_directory().glob(f"*{end}")})


def _registered(name: str) -> Likelihood | None:
    try:
        return likelihoods.get(names.from_stem(name))
    except InputError:
        return None


def _advice(text: str) -> str:
    """Say what builds a table of this name, or which name may have been meant."""
    name, preset, p = names.split_ending(text)
    model = _registered(name)
    if model is not None:
        return "build it: " + commands.build(commands.Wanted(model, preset, p))
    close = names.nearest(text, [*_installed(), *likelihoods.names()])
    words = f"did you mean {close!r}?" if close else "there is no likelihood of this name either;"
    return f"{words} What there is: {names.command('list')}"
