"""Open a table: find it, validate its metadata, map its data read-only, and look sigma* up in it.

Of a grid nothing is read but the metadata; pages of the data come in when they are looked up. A
compact table is read whole, and its hash compared. Files are read by their
`qpruntime.artifact.seal`, never by an HDF5 library.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

import numpy as np
import platformdirs
from numpy.typing import ArrayLike, NDArray

from qpruntime import commands, likelihoods, names
from qpruntime.artifact import seal, zarr_group
from qpruntime.artifact.metadata import Axis, Metadata
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import surfaces
from qpruntime.projection import without_code as standin
from qpruntime.projection.kernel import (
    COMPACT,
    GRID,
    SURFACES_QP,
    SURFACES_WP,
    check_range,
    project_many,
)
from qpruntime.validation import choice, shown

__all__ = [
    "OUTSIDE",
    "Table",
    "open_table",
    "reopen",
    "shipped",
    "shipped_path",
    "stated",
    "table_directory",
]

#: What a lookup outside the grid gives: sigma_EP as in the paper, the quadrature's sigma*, or,
#: where a table of surfaces is all there is, an error.
Outside = Literal["ep", "exact", "error"]
OUTSIDE = get_args(Outside)
# How the names of tables end: one file, or a zarr group.
_ENDS = (".h5", ".zarr")


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
    """An opened table of sigma* (a standard deviation), or of surfaces, for one likelihood.

    Attributes
    ----------
    path : Path
    metadata : Metadata
    likelihood : Likelihood
        Of a table of surfaces whose code is not at hand: a stand-in without a density.
    values : ndarray, shape ``metadata.shape``
        Read-only: the memory map of a grid, or spline coefficients.
    outside : {"ep", "exact", "error"}
        What a lookup outside a grid gives; a compact table has no outside, and L_p projections
        outside their table are an error.
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

        This is what `qpruntime.projection.splines` takes. Of a table with one axis, the first three
        are not used.
        """
        numbers = []
        for axis in (self.metadata.axes[0], self.metadata.axes[-1]):
            numbers += _numbers(axis)
        return np.array([*numbers, self.metadata.outcomes[0]])

    def source(self, kind: int | None = None) -> tuple[Any, ...]:
        """Return what `qpruntime.projection.kernel.project_site` takes.

        `kind` says which standard deviation of a table of surfaces is asked for: sigma* by default.
        A table of L_p projections has one only, and answers inside its domain only.
        """
        exact = self.outside == "exact" and self.likelihood.has_density
        if self.metadata.kind == "surfaces":
            axes, lookup = self._surface_axes(), surfaces.lookup.handle
            if self.metadata.projection is not None:
                return SURFACES_WP, False, False, self.values, axes, lookup
            return SURFACES_QP if kind is None else kind, False, exact, self.values, axes, lookup
        kind = GRID if self.metadata.kind == "grid" else COMPACT
        axes = self.axes()
        axes.flags.writeable = False
        coordinates = self.likelihood.coordinates().handle
        return kind, self.likelihood.mirror, exact, self.values, axes, coordinates

    def _surface_axes(self) -> NDArray[np.float64]:
        """Return the axes as `qpruntime.projection.surfaces.lookup` takes them."""
        mu, log10_sigma, *third = self.metadata.axes
        outcomes = self.metadata.outcomes
        axes = surfaces.pack(
            [*_numbers(mu), *_numbers(log10_sigma), outcomes[0]],
            standin.MODES[self.metadata.traits["mode"]],
            outcomes,
            _numbers(third[0]) if third else None,
        )
        axes.flags.writeable = False
        return axes

    def serving(self, likelihood: str | Likelihood | None) -> Table:
        """Return the table for use with a likelihood, None being its own.

        Code that was not at hand when the table was opened then answers outside its domain.

        Raises
        ------
        InputError
            If the table was made for another likelihood.
        """
        own = self.likelihood
        if likelihood is None or likelihood is own:
            return self
        mine = self.metadata.kind == "surfaces"
        if mine and likelihood == own.name and own.name not in likelihoods.names():
            return self
        given = likelihoods.get(likelihood)
        if given is own:
            return self
        reason = f"not {given.spelt!r}"
        if mine:
            reason = standin.difference(given, self.metadata)
            if not reason:
                return replace(self, likelihood=given)
        raise InputError(
            f"the table {self.path} is for the likelihood {own.spelt!r}, {reason}; build one: "
            + commands.build(commands.Wanted(given, self.metadata.kind, self.metadata.order))
        )

    def beyond(self, mu: float, sigma: float, y: float) -> str:
        """Say that a cavity is outside a table of surfaces, and what to do about it."""
        (m, s), traits = self.metadata.axes[:2], self.metadata.traits
        location = traits["mode"] == "location"
        where, place, ell = "mu - y" if location else "mu", mu - y * location, math.log10(sigma)
        ends = (float(min(m.start, math.floor(place))), float(max(m.stop, math.ceil(place))))
        narrow = min(s.start, 0.5 * math.floor(2.0 * ell))
        wide = max(s.stop, 0.5 * math.ceil(2.0 * ell))
        remedy = (
            f"and the code of {self.likelihood.name!r} is not at hand: hand it over as "
            "likelihood=..."
        )
        if self.metadata.projection is not None:
            remedy = "and L_p projections are not integrated beside a table: leave it out"
        if -8.0 <= narrow < wide <= 8.0:
            made = commands.Wanted(
                self.likelihood, "surfaces", self.metadata.order, traits["source"]
            )
            remedy += ", or build a wider table: " + commands.build(
                made,
                **commands.observations(self.metadata),
                mu_range=ends,
                log10_sigma_range=(narrow, wide),
            )
        return (
            f"the cavity N({mu:g}, {sigma:g}^2) of y = {y:g} is outside the table {self.path}, "
            f"which holds {where} {m.start:g} to {m.stop:g} and log10 sigma {s.start:g} to "
            f"{s.stop:g}, {remedy}"
        )

    def other_projection(self, method: str, p: float | None = None) -> str:
        """Say that the table does not serve this method or order, and what to build."""
        held = "EP and QP" if self.metadata.kind == "surfaces" else "QP"
        if self.metadata.order is not None:
            held = f'method "wp" with p={self.metadata.order:g}'
        asked = f'method "{method}"' + ("" if p is None else f" with p={p:g}")
        source = str(self.metadata.traits.get("source") or "")
        wanted = commands.Wanted(self.likelihood, "surfaces", p, source)
        surfaces = self.metadata.kind == "surfaces"
        options = commands.observations(self.metadata) if surfaces else {}
        return (
            f"the table {self.path} serves {held}, not {asked}: leave it out, or build one: "
            + commands.build(wanted, **options)
        )

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
            Standard deviations, never above sigma_EP; outside a grid what `outside` says. Of a
            table of L_p projections: their standard deviations.
        inside : ndarray of bool
            True everywhere for a compact table.

        Raises
        ------
        InputError
            If an argument is not usable.
        NumericalError
            If a projection cannot be had in double precision.
        TableError
            If the numbers found there cannot be standard deviations: the file is damaged; or
            outside a table of surfaces that has no code to fall back on.
        """
        result = project_many(self.likelihood, self.source(), mu, sigma, y, self)
        check_range(result, mu, sigma)
        return result.std, result.inside

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reference: path, hash and likelihood, never the data."""
        return reopen, self.reference()

    def reference(self) -> tuple[str, str, str, str, str]:
        """Return what `reopen` finds this very table by: plain words."""
        command = commands.again(self.metadata, self.likelihood)
        return str(self.path), self.sha256, self.metadata.spelt, self.outside, command

    def verify_hash(self) -> None:
        """Read all data once; raise `TableError` if it is not what was written."""
        digest = hashlib.sha256()
        flat = self.values.reshape(-1)
        for start in range(0, flat.size, 1 << 20):
            digest.update(flat[start : start + (1 << 20)].data)
        if digest.hexdigest() != self.sha256:
            raise TableError(
                f"{self.path}: data hash is {digest.hexdigest()[:16]}..., metadata says "
                f"{self.sha256[:16]}...; the file is damaged, build it again: "
                + commands.output(
                    commands.again(self.metadata, self.likelihood), self.path, force=True
                )
            )


def open_table(
    table: str | os.PathLike[str], *, outside: Outside | None = None, verify: bool | None = None
) -> Table:
    """Open a table by path, or by name if it is installed or ships with the package.

    Parameters
    ----------
    table : str or path
        A file, the directory of a zarr table, or a bare name: ``"probit"`` is looked for in
        `table_directory()`, ``"probit-compact"`` there and among the tables inside the package.
    outside : {"ep", "exact", "error"}, optional
        Outside a grid: sigma_EP, as published (up to 10 % above sigma*) and the default, or
        quadrature. Outside surfaces: quadrature where the code of the likelihood is at hand, by
        default, or an error.
    verify : bool, optional
        Read all data once and compare its hash; by default not of grids, which are mapped. The
        chunks of a zarr table are read once, with their hash; a large grid is kept decompressed in
        `qpruntime.artifact.zarr_group.cache_directory`, and ``verify=True`` reads its chunks again.

    Raises
    ------
    TableError
        If there is no such table, or it does not validate.
    """
    if outside is not None:
        choice(outside, "outside", OUTSIDE)
    if not isinstance(table, (str, os.PathLike)):
        raise InputError(f"a table is given by a path or a name, got {shown(table)}")
    with _readable(table):
        path = _find(table)
        if path.is_dir():
            metadata, values = zarr_group.read(path, verify=bool(verify))
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
        path = _find(table)
    if path.is_dir():
        return path, zarr_group.read_metadata(path)
    return path, open_table(path).metadata


@contextmanager
def _readable(table: object) -> Iterator[None]:
    """Turn what the system says of a path into a `TableError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, TableError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{shown(table)} cannot be read: {reason}") from error


def _open_surfaces(
    path: Path,
    metadata: Metadata,
    values: NDArray[Any],
    outside: str | None,
    verify: bool | None,
) -> Table:
    """Open a table of surfaces, with the likelihood it is for or a stand-in."""
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


def _numbers(axis: Axis) -> list[float]:
    """Start, stop and cells per unit."""
    return [axis.start, axis.stop, (axis.size - 1) / (axis.stop - axis.start)]


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
        "build it again: "
        + commands.output(commands.build(commands.Wanted(likelihood, "compact")), path, force=True)
    )


def reopen(path: str, sha256: str, likelihood: str, outside: str, command: str) -> Table:
    """Open the very table that a `Table.reference` is of, which may have moved.

    It is looked for at its path, among the installed tables and among those of the package.

    Parameters
    ----------
    path : str
        Where it was.
    sha256 : str
        Of its data.
    likelihood : str
        Name and parameters.
    outside : {"ep", "exact", "error"}
    command : str
        What builds it, but for its place.

    Raises
    ------
    TableError
        If no table with this hash is there.
    """
    directory = table_directory()
    stems = [stem for end in ("", "-surfaces") for stem in _stems(likelihood + end)]
    name = likelihood.split("(")[0]
    installed = [directory / f"{stem}{end}" for stem in stems for end in _ENDS]
    places = [Path(path), shipped_path(name), *installed]
    instead = ""
    for place in places:
        if not (place.is_file() or zarr_group.is_group(place)):
            continue
        try:
            kept = cast(Outside, outside) if outside != "error" else None
            table = open_table(place, outside=kept)
        except TableError:
            found = "a damaged file"
        else:
            if table.sha256 == sha256:
                return replace(table, outside=outside)
            found = f"another table (data sha256 {table.sha256})"
        if place == places[0]:
            instead = f", where there is {found},"
    raise TableError(
        f"the table this model was fitted with (likelihood {likelihood}, data sha256 {sha256}) is "
        f"not at {path}{instead} nor in {directory}; copy it there, or build it: "
        + commands.output(command, path, force=bool(instead))
    )


def _find(table: str | os.PathLike[str]) -> Path:
    path, text = Path(table), os.fspath(table)
    if path.is_file() or zarr_group.is_group(path):
        return path
    if path.name == text:
        directory = table_directory()
        for stem in _stems(text):
            here = [directory / f"{stem}{end}" for end in _ENDS]
            for known in (*here, shipped_path(stem.removesuffix("-compact"))):
                if known.stem == stem and (known.is_file() or zarr_group.is_group(known)):
                    return known
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


def _stems(text: str) -> list[str]:
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
    return sorted({file.stem for end in _ENDS for file in table_directory().glob(f"*{end}")})


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
    _check_finite(path, metadata, values)
    return metadata, values


def _check_finite(path: Path, metadata: Metadata, values: NDArray[Any]) -> None:
    """Refuse splines that give no numbers; values of a grid are looked at when they are used."""
    if metadata.kind != "grid" and not np.isfinite(values).all():
        raise TableError(f"{path}: coefficients that are not finite; the file is damaged")
