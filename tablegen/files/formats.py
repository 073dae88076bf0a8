"""The formats of a table: one HDF5 file, or a zarr group in a directory; and how to change them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from qpruntime._validation import path_of
from qpruntime.errors import InputError, TableError
from qpruntime.projection.open import open_table, shipped_path
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Metadata
from tablegen.files import hdf5, zarr as zarr_files
from tablegen.files.recipe import one_of
from tablegen.files.target import installed_directory, resolve
from tablegen.files.workspace import Workspace

__all__ = ["FORMATS", "convert", "named"]

#: Formats, and how the names of their tables end. A file may be called anything but ``.zarr``.
FORMATS = {"hdf5": ".h5", "zarr": ".zarr"}


def named(path: Path, format: str | None, chosen: bool) -> Path:
    """Return the place of a table of this format, by default the one that `path` ends in.

    A path that the user has `chosen` stays; `InputError` if it is one of the other format.
    """
    if format is None:
        return path
    one_of(format, "format", FORMATS)
    if not chosen:
        return path.with_name(path.name.removesuffix(".h5") + FORMATS[format])
    if (path.suffix == ".zarr") != (format == "zarr"):
        raise InputError(
            f"the format of {path.name} is not {format}: by its end it is "
            f"{'zarr' if path.suffix == '.zarr' else 'hdf5'}; name it {path.stem}{FORMATS[format]}"
        )
    return path


def convert(
    table: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    format: str = "zarr",
    force: bool = False,
) -> tuple[Path, Metadata]:
    """Write a table again in another format: the same data, metadata, certificate and hash.

    There and back gives the same file.

    Parameters
    ----------
    table : str or path
        A table, or the name of an installed or shipped one.
    output : path, optional
        By default beside the table; of one that ships with the package, in
        `qpruntime.projection.open.table_directory`.
    format : {"zarr", "hdf5"}
    force : bool
        Replace an existing table.

    Returns
    -------
    path : Path
        Absolute.
    metadata : Metadata

    Raises
    ------
    InputError
        If an option is not usable.
    TableError
        If the table is damaged, or the new one cannot be made.
    """
    source = open_table(table, verify=False)
    if output is not None:
        target = named(path_of(output, "output").absolute(), format, True)
    else:
        directory = source.path.absolute().parent
        if directory == shipped_path("probit").absolute().parent:
            directory = installed_directory()
        stem = source.path.name.removesuffix(".h5").removesuffix(".zarr")
        target = named(directory / f"{stem}.h5", format, False)
    if target.exists() and target.samefile(source.path):
        raise InputError(f"{source.path} is of format {format} already; choose another --output")
    target = resolve(target, force=force)
    workspace = Workspace(target)
    if target.exists() and not force:
        raise TableError(f"{target} exists; replace it with --force")
    zarr_files.check_replaceable(target)
    workspace.check_space(source.metadata.nbytes, 1)
    with workspace.locked():
        try:
            if format == "zarr":
                zarr_files.publish(source, target, workspace.directory)
            else:
                _write(source, workspace.partial)
                hdf5.publish(workspace.partial, target)
        finally:
            workspace.remove()
    return target, source.metadata


def _write(table: Table, path: Path) -> None:
    """Write a table as one file; raise `TableError` if its data are not what its hash says."""
    metadata = table.metadata
    flat = table.values.astype(np.dtype(metadata.dtype).newbyteorder("<"), copy=False).reshape(-1)
    parts = (flat[start : start + (1 << 20)] for start in range(0, flat.size, 1 << 20))
    if hdf5.write_data(path, metadata, parts)[0] != metadata.sha256:
        table.verify_hash()
    hdf5.write_metadata(path, metadata)
