"""Find, open and cache tables."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import platformdirs
from numpy.typing import NDArray

from qpruntime import _cli_hints, _formatting, likelihoods
from qpruntime._restorable import restorable_call
from qpruntime._validation import choice, shown
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import tabulated_likelihood as standin
from qpruntime.projection.table import OUTSIDE, Outside, Table
from qpruntime.table_format import container, zarr
from qpruntime.table_format.metadata import Metadata

__all__ = [
    "ENDS",
    "find",
    "open_table",
    "reopen",
    "scaled_path",
    "shipped",
    "shipped_path",
    "shipped_power",
    "shipped_scaled",
    "stated",
    "stems_of",
    "table_directory",
]

# --- File of a table

#: Endings of the names of tables: a file, or a zarr group.
ENDS = (".h5", ".zarr")


def table_directory() -> Path:
    """Return the directory of installed tables: ``$QP_TABLES``, else the user's data directory."""
    named = os.environ.get("QP_TABLES")
    return Path(named) if named else Path(platformdirs.user_data_dir("qpruntime")) / "tables"


@cache
def shipped_path(likelihood: str, power: float = 1.0) -> Path:
    """Return the path of a likelihood's table inside the package: compact, or surfaces of a power.

    The file need not exist.
    """
    ending = "compact" if power == 1.0 else f"power-{power:g}".replace(".", "_")
    with as_file(files("qpruntime") / "data" / f"{likelihood}-{ending}.h5") as path:
        return path


def scaled_path(likelihood: str, shape: float) -> Path:
    """Return the path inside the package of a family's table at unit scale, if it exists."""
    with as_file(files("qpruntime") / "data" / f"{likelihood}-scaled-{shape:g}.h5") as path:
        return path.with_stem(path.stem.replace(".", "_"))


def find(table: str | os.PathLike[str]) -> Path:
    """Return the path of a table given by path or name, or raise `TableError`."""
    path, text = Path(table), os.fspath(table)
    if path.is_file() or zarr.is_group(path):
        return path
    if path.name == text:
        directory = table_directory()
        for stem in stems_of(text):
            candidates = [directory / f"{stem}{end}" for end in ENDS]
            for candidate in (*candidates, shipped_path(stem.removesuffix("-compact"))):
                if candidate.stem == stem and (candidate.is_file() or zarr.is_group(candidate)):
                    return candidate
        # A bare name means an installed grid, or else the table that ships.
        if _registered_model(text) is not None and (inside := shipped_path(text)).is_file():
            return inside
        if not _formatting.is_file_name(text) and not path.exists():
            raise TableError(f"no table {text!r} in {directory}; {_advice(text)}")
    if path.is_dir():
        raise TableError(f"{path} is a directory, not a zarr table; give the .h5 file in it")
    if path.exists():
        raise TableError(f"{path} is no regular file; give the .h5 file of a table")
    if path.is_symlink():
        raise TableError(f"{path} is a link to {os.readlink(path)}, where no table is")
    raise TableError(
        f"no table at {path}; build one: "
        f"{_formatting.command('build', '--output', os.fspath(path))}"
    )


def stems_of(text: str) -> list[str]:
    """Return possible names of the file of the table that `text` describes."""
    name, preset, p = _formatting.split_ending(text)
    model = _registered_model(name)
    if model is not None:
        return [text, likelihoods.stem(model, preset, p)]
    try:
        spec = _formatting.read(_formatting.from_stem(name))
    except InputError:
        return [text]
    stems = [text, _formatting.file_stem(*spec, preset, p)]
    # A user's likelihood without parameters matches if there is only one table of it.
    begin = _formatting.file_stem(spec[0], {}) + ","
    installed = [
        stem
        for stem in _installed()
        if stem.startswith(begin) and _formatting.split_ending(stem)[1:] == (preset, p)
    ]
    return [*stems, *(installed if len(installed) == 1 and not spec[1] else ())]


def _installed() -> list[str]:
    return sorted({file.stem for end in ENDS for file in table_directory().glob(f"*{end}")})


def _registered_model(name: str) -> Likelihood | None:
    try:
        return likelihoods.get(_formatting.from_stem(name))
    except InputError:
        return None


def _advice(text: str) -> str:
    """Say how to build a table of this name, or which similar name exists."""
    name, preset, p = _formatting.split_ending(text)
    model = _registered_model(name)
    if model is not None:
        return "build it: " + _cli_hints.build(_cli_hints.Wanted(model, preset, p))
    close = _formatting.nearest(text, [*_installed(), *likelihoods.names()])
    words = f"did you mean {close!r}?" if close else "there is no likelihood of this name either;"
    return f"{words} What there is: {_formatting.command('list')}"


# --- `open_table`
#
# Opening a grid reads only the metadata; the system loads pages of the data when they are looked
# up. A compact table is read whole, and its hash compared. `qpruntime.table_format.container` reads
# the files, never an HDF5 library.


def open_table(
    table: str | os.PathLike[str], *, outside: Outside | None = None, verify: bool | None = None
) -> Table:
    """Open a table by path, or by name if it is installed or ships with the package.

    Parameters
    ----------
    table : str or path
        A file, the directory of a zarr table, or a bare name. ``"probit"`` is the grid of this name
        in `table_directory()`, or else the compact table inside the package, which
        ``"probit-compact"`` also names.
    outside : {"ep", "exact", "error"}, optional
        Result outside a grid: sigma_EP, as published (up to 10 % above sigma*) and the default, or
        quadrature. Outside surfaces: quadrature if the code of the likelihood is available, by
        default, or an error.
    verify : bool, optional
        Whether to read all data once and compare its hash; by default not for grids, which are
        mapped. The chunks of a zarr table are read once, with their hash; a large grid is kept
        decompressed in `qpruntime.table_format.zarr.cache_directory`, and ``verify=True`` reads its
        chunks again.

    Returns
    -------
    Table

    Raises
    ------
    InputError
        If an argument is not usable.
    TableError
        If there is no such table, or it does not validate.

    See Also
    --------
    qpruntime.Table, qpruntime.project, qpruntime.TableError

    Examples
    --------
    >>> from qpruntime import open_table, project
    >>> table = open_table("probit-compact")
    >>> mean, std = project("probit", 0.0, 1.0, 1, table=table)
    >>> round(float(std), 9)
    0.825215532
    """
    if outside is not None:
        choice(outside, "outside", OUTSIDE)
    if not isinstance(table, (str, os.PathLike)):
        raise InputError(f"a table is given by a path or a name, got {shown(table)}")
    with _readable(table):
        path = find(table)
        if path.is_dir():
            metadata, values = zarr.read(path, verify=bool(verify))
            _check_finite(path, metadata, values)
        else:
            with path.open("rb") as file:
                metadata, values = _read(file, path)
    if metadata.kind == "surfaces":
        return _open_surfaces(path, metadata, values, outside, verify)
    if outside == "error":
        raise InputError('outside="error" is for tables of surfaces; use "ep" or "exact"')
    if metadata.likelihood not in likelihoods.names():
        known = ", ".join(likelihoods.names())
        raise TableError(
            f"{path}: made for the likelihood {metadata.likelihood!r}; this version knows {known}"
        )
    try:
        likelihood = likelihoods.get(metadata.likelihood, **metadata.parameters)
    except (InputError, TypeError) as error:
        raise TableError(f"{path}: metadata field 'parameters': {error}") from error
    try:
        likelihood.validate(metadata.outcomes)
    except InputError as error:
        raise TableError(f"{path}: metadata field 'outcomes': {error}") from error
    compact = metadata.kind == "compact"
    if compact:
        _check_coordinates(path, metadata, likelihood)
    opened = Table(path, metadata, likelihood, values, outside or "ep")
    if verify or (verify is None and compact):
        opened.verify_hash()
    return opened


def stated(table: str | os.PathLike[str]) -> tuple[Path, Metadata]:
    """Return path and metadata of a table, given as to `open_table`; no chunk of zarr is read."""
    with _readable(table):
        path = find(table)
    if path.is_dir():
        return path, zarr.read_metadata(path)
    return path, open_table(path).metadata


@contextmanager
def _readable(table: object) -> Iterator[None]:
    """Turn errors of the system about a path into a `TableError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{shown(table)} cannot be read: {reason}") from error


def _open_surfaces(
    path: Path, metadata: Metadata, values: NDArray[Any], outside: str | None, verify: bool | None
) -> Table:
    """Open a table of surfaces, with its likelihood or a stand-in."""
    if outside == "ep":
        raise InputError('a table of surfaces has no sigma_EP outside: use "exact" or "error"')
    if metadata.dtype != "float64":
        raise TableError(f"{path}: metadata field 'dtype' is {metadata.dtype!r}, not 'float64'")
    likelihood = standin.standin(metadata, path)
    if (registered := standin.known(metadata)) is not None:
        likelihood = registered
    opened = Table(path, metadata, likelihood, values, outside or "exact")
    if verify is not False:
        opened.verify_hash()
    return opened


@cache
def shipped(likelihood: Likelihood) -> Table | None:
    """Return the compact table of a registered likelihood, opened once; None without a `Reduction`.

    An unregistered likelihood has no table, even if it was made from one that has.

    Raises
    ------
    TableError
        If the package is incomplete.
    """
    if not _registered(likelihood) or likelihood.reduction is None:
        return None
    return open_table(shipped_path(likelihood.name))


@cache
def shipped_power(likelihood: Likelihood, power: float) -> Table | None:
    """Return the table of surfaces of a registered likelihood to a power; None if none ships."""
    path = shipped_path(likelihood.name, power)
    if power == 1.0 or not _registered(likelihood) or not path.is_file():
        return None
    return open_table(path)


@cache
def shipped_scaled(name: str, shape: float) -> Table | None:
    """Return the table of a location and scale family at unit scale; None if none ships."""
    path = scaled_path(name, shape)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        metadata, values = _read(file, path)
    opened = Table(path, metadata, likelihoods.get(name, **metadata.parameters), values)
    opened.verify_hash()
    return opened


def _registered(likelihood: Likelihood) -> bool:
    name = likelihood.name
    return name in likelihoods.names() and likelihoods.get(name) is likelihood


def _check_coordinates(path: Path, metadata: Metadata, likelihood: Likelihood) -> None:
    """Refuse a compact table over coordinates that are not the likelihood's."""
    reduction = likelihood.reduction
    if reduction is not None:
        ours = [axis.name for axis in (reduction.u, reduction.v) if axis]
        same_rows = metadata.outcomes[0] == reduction.outcomes[0]
        if [axis.name for axis in metadata.axes] == ours and same_rows:
            return
    raise TableError(
        f"{path}: a compact table over other coordinates than those of {likelihood.name!r}; "
        "build it again: "
        + _cli_hints.output(
            _cli_hints.build(_cli_hints.Wanted(likelihood, "compact")), path, force=True
        )
    )


@restorable_call("table/1")
def reopen(path: str, sha256: str, likelihood: str, outside: str, command: str) -> Table:
    """Open the same table that a `Table.reference` was made from, even if it has moved.

    The search covers its path, the installed tables and those of the package.

    Parameters
    ----------
    path : str
        Path when the reference was made.
    sha256 : str
        Hash of its data.
    likelihood : str
        Name and parameters of the likelihood.
    outside : {"ep", "exact", "error"}
    command : str
        Command that builds it, without its place.

    Raises
    ------
    TableError
        If no table with this hash is found.
    """
    directory = table_directory()
    stems = [stem for end in ("", "-surfaces") for stem in stems_of(likelihood + end)]
    name = likelihood.split("(")[0]
    installed = [directory / f"{stem}{end}" for stem in stems for end in ENDS]
    places = [Path(path), shipped_path(name), *installed]
    instead = ""
    for place in places:
        if not (place.is_file() or zarr.is_group(place)):
            continue
        try:
            kept = cast(Outside, outside) if outside != "error" else None
            table = open_table(place, outside=kept)
        except TableError:
            instead_file = "a damaged file"
        else:
            if table.sha256 == sha256:
                return replace(table, outside=outside)
            instead_file = f"another table (data sha256 {table.sha256})"
        if place == places[0]:
            instead = f", where there is {instead_file},"
    raise TableError(
        f"the table this model was fitted with (likelihood {likelihood}, data sha256 {sha256}) is "
        f"not at {path}{instead} nor in {directory}; copy it there, fetch it if $QP_REGISTRY has "
        f"it: {_formatting.command('fetch', sha256)}, or build it: "
        + _cli_hints.output(command, path, force=bool(instead))
    )


def _read(file: BinaryIO, path: Path) -> tuple[Metadata, NDArray[Any]]:
    """Return metadata and data; the data of a grid stay in the file."""
    sealed, text = container.read(file, str(path))
    metadata = Metadata.from_json(text, str(path))
    dtype, shape = np.dtype(metadata.dtype).newbyteorder("<"), metadata.shape
    if sealed.nbytes != metadata.nbytes or sealed.start % dtype.itemsize:
        raise TableError(
            f"{path}: {sealed.nbytes} bytes of data at {sealed.start}, but its metadata says "
            f"{metadata.dtype} {shape}, {metadata.nbytes} bytes"
        )
    if metadata.kind == "grid":
        values = np.memmap(file, dtype, "r", sealed.start, shape).view(np.ndarray)
    else:
        file.seek(sealed.start)
        data = file.read(sealed.nbytes)
        if len(data) < sealed.nbytes:
            raise TableError(f"{path}: became shorter while it was read")
        values = np.frombuffer(data, dtype).reshape(shape)
    _check_finite(path, metadata, values)
    return metadata, values


def _check_finite(path: Path, metadata: Metadata, values: NDArray[Any]) -> None:
    """Refuse splines with values that are not finite; values of a grid are checked when used."""
    if metadata.kind != "grid" and not np.isfinite(values).all():
        raise TableError(f"{path}: coefficients that are not finite; the file is damaged")


def _reduced(table: Table) -> tuple[Any, ...]:
    """Return how a table pickles: as a reference of path, hash and likelihood."""
    return reopen, table.reference()


copyreg.pickle(Table, _reduced)
