"""Open a table: find it, validate its metadata, map its data read-only, and look sigma* up in it.

Of a grid nothing is read but the metadata; pages of the data come in when they are looked up. A
compact table is read whole, and its hash compared. Files are read by their `qpruntime.seal`, never
by an HDF5 library.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods, seal
from qpruntime.artifact import Metadata
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.site import COMPACT, GRID, check_range, project_many
from qpruntime.validation import choice, shown

__all__ = ["OUTSIDE", "Table", "open_table", "shipped", "shipped_path", "table_directory"]

#: What a lookup outside the grid gives: sigma_EP as in the paper, or the quadrature's sigma*.
OUTSIDE = ("ep", "exact")


def table_directory() -> Path:
    """Return the directory of installed tables: ``$QP_TABLES``, else the user's data directory."""
    named = os.environ.get("QP_TABLES")
    return Path(named) if named else Path(platformdirs.user_data_dir("qpruntime")) / "tables"


def shipped_path(likelihood: str) -> Path:
    """Return where the compact table of a likelihood stands inside the package."""
    with as_file(files("qpruntime") / "data" / f"{likelihood}-compact.h5") as path:
        return path


@dataclass(frozen=True, eq=False)
class Table:
    """An opened table of sigma* (a standard deviation) for one likelihood.

    Attributes
    ----------
    path : Path
    metadata : Metadata
    likelihood : Likelihood
    values : ndarray, shape ``metadata.shape``
        Read-only: the memory map of a grid, the coefficients of a compact table.
    outside : {"ep", "exact"}
        What a lookup outside a grid gives; a compact table has no outside.
    """

    path: Path
    metadata: Metadata
    likelihood: Likelihood
    values: NDArray[Any]
    outside: str = "ep"

    @property
    def sha256(self) -> str:
        """Hash of the data as the file states it."""
        return self.metadata.sha256

    def axes(self) -> NDArray[np.float64]:
        """Return start, stop and cells per unit of both axes, then the first outcome.

        This is what `qpruntime.interpolate` takes. Of a table with one axis, the first three are
        not used.
        """
        numbers = []
        for axis in (self.metadata.axes[0], self.metadata.axes[-1]):
            numbers += [axis.start, axis.stop, (axis.size - 1) / (axis.stop - axis.start)]
        return np.array([*numbers, self.metadata.outcomes[0]])

    def source(self) -> tuple[Any, ...]:
        """Return what `qpruntime.site.project_site` takes."""
        kind = GRID if self.metadata.kind == "grid" else COMPACT
        axes = self.axes()
        axes.flags.writeable = False
        coordinates = self.likelihood.coordinates().handle
        exact = self.outside == "exact"
        return kind, self.likelihood.mirror, exact, self.values, axes, coordinates

    def lookup(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Look up sigma* for cavities N(mu, sigma^2) and observations y.

        Parameters
        ----------
        mu, sigma, y : array-like
            Broadcast against each other; `sigma` is a standard deviation.

        Returns
        -------
        sigma_star : ndarray
            Standard deviations, never above sigma_EP; outside a grid what `outside` says.
        inside : ndarray of bool
            True everywhere for a compact table.

        Raises
        ------
        InputError
            If an argument is not usable.
        NumericalError
            If a projection cannot be had in double precision.
        TableError
            If the numbers found there cannot be standard deviations: the file is damaged.
        """
        result = project_many(self.likelihood, self.source(), mu, sigma, y, self.path)
        check_range(result, mu, sigma)
        return result.std, result.inside

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference: path, hash and likelihood, never the data."""
        return _reopen, (str(self.path), self.sha256, self.metadata.likelihood, self.outside)

    def verify_hash(self) -> None:
        """Read all data once; raise `TableError` if it is not what was written."""
        digest = hashlib.sha256()
        flat = self.values.reshape(-1)
        for start in range(0, flat.size, 1 << 20):
            digest.update(flat[start : start + (1 << 20)].data)
        if digest.hexdigest() != self.sha256:
            raise TableError(
                f"{self.path}: data hash is {digest.hexdigest()[:16]}..., metadata says "
                f"{self.sha256[:16]}...; the file is damaged, build it again: tablegen build "
                + ("" if self.metadata.kind == "grid" else "--preset compact ")
                + f"--likelihood {self.likelihood.name} --force --output {self.path}"
            )


def open_table(
    table: str | os.PathLike[str], *, outside: str = "ep", verify: bool | None = None
) -> Table:
    """Open a table by path, or by name if it is installed or ships with the package.

    Parameters
    ----------
    table : str or path
        A file, or a bare name: ``"probit"`` is looked for in `table_directory()`,
        ``"probit-compact"`` there and among the tables inside the package.
    outside : {"ep", "exact"}
        Outside a grid: sigma_EP, as published (up to 10 % above sigma*), or quadrature.
    verify : bool, optional
        Read all data once and compare its hash; by default only of compact tables, which are read
        whole in any case.

    Raises
    ------
    TableError
        If there is no such table, or it does not validate.
    """
    choice(outside, "outside", OUTSIDE)
    if not isinstance(table, (str, os.PathLike)):
        raise InputError(f"a table is given by a path or a name, got {shown(table)}")
    try:
        path = _find(table)
        with path.open("rb") as file:
            metadata, values = _read(file, path)
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{shown(table)} cannot be read: {reason}") from error
    if metadata.likelihood not in likelihoods.names():
        known = ", ".join(likelihoods.names())
        raise TableError(
            f"{path}: made for the likelihood {metadata.likelihood!r}; this version knows {known}"
        )
    likelihood = likelihoods.get(metadata.likelihood)
    try:
        likelihood.validate(metadata.outcomes)
    except InputError as error:
        raise TableError(f"{path}: metadata field 'outcomes': {error}") from error
    compact = metadata.kind == "compact"
    if compact:
        _check_coordinates(path, metadata, likelihood)
    opened = Table(path, metadata, likelihood, values, outside)
    if verify or (verify is None and compact):
        opened.verify_hash()
    return opened


@cache
def shipped(likelihood: Likelihood) -> Table | None:
    """Return the compact table of a registered likelihood, opened once; None without a `Reduction`.

    A likelihood that is not in the registry has no table, even if it was made from one that is.

    Raises
    ------
    TableError
        If the package is incomplete.
    """
    name = likelihood.name
    registered = name in likelihoods.names() and likelihoods.get(name) is likelihood
    if not registered or likelihood.reduction is None:
        return None
    return open_table(shipped_path(name))


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
        f"build it again: tablegen build --preset compact --likelihood {likelihood.name}"
    )


def _reopen(path: str, sha256: str, likelihood: str, outside: str) -> Table:
    """Open the table a pickle refers to: at its path, shipped, or installed, by its hash."""
    places = [Path(path), shipped_path(likelihood), table_directory() / f"{likelihood}.h5"]
    for place in places:
        if place.is_file():
            table = open_table(place, outside=outside)
            if table.sha256 == sha256:
                return table
    raise TableError(
        f"the table of this model (data sha256 {sha256}) is not at {path} nor in "
        f"{table_directory()}; copy it there, or build it: "
        f"tablegen build --likelihood {likelihood} --output {path}"
    )


def _find(table: str | os.PathLike[str]) -> Path:
    path = Path(table)
    if path.is_file():
        return path
    if path.name == os.fspath(table) and not path.suffix:
        installed = table_directory() / f"{path.name}.h5"
        inside = shipped_path(path.name.removesuffix("-compact"))
        for known in (installed, inside):
            if known.is_file() and known.stem == path.name:
                return known
        if not path.is_dir():
            raise TableError(
                f"no table {path.name!r} in {table_directory()}; "
                f"build it: tablegen build --likelihood {path.name}"
            )
    if path.is_dir():
        raise TableError(f"{path} is a directory; give the .h5 file in it")
    raise TableError(f"no table at {path}; build one: tablegen build --output {path}")


def _read(file: BinaryIO, path: Path) -> tuple[Metadata, NDArray[Any]]:
    """Return metadata and data, which stay in the file if they are a grid's."""
    sealed, text = seal.read(file, str(path))
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
        if not np.isfinite(values).all():
            raise TableError(f"{path}: coefficients that are not finite; the file is damaged")
    return metadata, values
