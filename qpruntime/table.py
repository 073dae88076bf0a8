"""Open a table: find it, validate its metadata, map its data read-only.

Nothing is computed here and nothing is read but the metadata; pages of the data come in when they
are looked up. ``open_table(..., verify=True)`` reads everything once and compares the hash.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import platformdirs
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods
from qpruntime.artifact import DATASET, Metadata
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood

__all__ = ["OUTSIDE", "Table", "open_table", "table_directory"]

#: What a lookup outside the grid gives: sigma_EP as in the paper, or the quadrature's sigma*.
OUTSIDE = ("ep", "exact")


def table_directory() -> Path:
    """Return the directory of installed tables: ``$QP_TABLES``, else the user's data directory."""
    named = os.environ.get("QP_TABLES")
    return Path(named) if named else Path(platformdirs.user_data_dir("qpruntime")) / "tables"


@dataclass(frozen=True, eq=False)
class Table:
    """An opened table of sigma* (a standard deviation) over cavity mean and log10 cavity sigma.

    Attributes
    ----------
    path : Path
    metadata : Metadata
    likelihood : Likelihood
    values : ndarray, shape (outcomes, mu, log10_sigma)
        Read-only memory map.
    outside : {"ep", "exact"}
        What a lookup outside the grid gives.
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
        """Return the six numbers `qpruntime.interpolate.bilinear` takes, then the first outcome."""
        m, s = self.metadata.mu, self.metadata.log10_sigma
        per_mu = (m.size - 1) / (m.stop - m.start)
        per_sigma = (s.size - 1) / (s.stop - s.start)
        first = self.metadata.outcomes[0]
        return np.array([m.start, m.stop, per_mu, s.start, s.stop, per_sigma, first])

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
            Standard deviations, never above sigma_EP; outside the grid what `outside` says.
        inside : ndarray of bool
        """
        from qpruntime.projection import project_arrays

        result = project_arrays(self.likelihood, mu, sigma, y, method="qp", table=self)
        return result.std, result.inside

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
                f"tablegen build --likelihood {self.likelihood.name} --force --output {self.path}"
            )


def open_table(
    table: str | os.PathLike[str], *, outside: str = "ep", verify: bool = False
) -> Table:
    """Open a table by path, or by the name of its likelihood if it is installed.

    Parameters
    ----------
    table : str or path
        A file, or a bare name such as ``"probit"``, which is looked for in `table_directory()`.
    outside : {"ep", "exact"}
        Outside the grid: sigma_EP, as published (up to 10 % above sigma*), or quadrature.
    verify : bool
        Read all data once and compare its hash.

    Raises
    ------
    TableError
        If there is no such table, or it does not validate.
    """
    if outside not in OUTSIDE:
        raise InputError(f"outside must be one of {OUTSIDE}, got {outside!r}")
    path = _find(table)
    metadata, offset = _read_header(path)
    if metadata.likelihood not in likelihoods.names():
        known = ", ".join(likelihoods.names())
        raise TableError(
            f"{path}: made for the likelihood {metadata.likelihood!r}; this version knows {known}"
        )
    dtype = np.dtype(metadata.dtype).newbyteorder("<")
    values = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=metadata.shape)
    likelihood = likelihoods.get(metadata.likelihood)
    try:
        likelihood.validate(metadata.outcomes)
    except InputError as error:
        raise TableError(f"{path}: metadata field 'outcomes': {error}") from error
    opened = Table(path, metadata, likelihood, values.view(np.ndarray), outside)
    if verify:
        opened.verify_hash()
    return opened


def _find(table: str | os.PathLike[str]) -> Path:
    path = Path(table)
    if path.is_dir():
        raise TableError(f"{path} is a directory; give the .h5 file in it")
    if path.is_file():
        return path
    if path.name == os.fspath(table) and not path.suffix:
        installed = table_directory() / f"{path.name}.h5"
        if installed.is_file():
            return installed
        raise TableError(
            f"no table {path.name!r} in {table_directory()}; "
            f"build it: tablegen build --likelihood {path.name}"
        )
    raise TableError(f"no table at {path}; build one: tablegen build --output {path}")


def _read_header(path: Path) -> tuple[Metadata, int]:
    """Return the metadata and the byte offset of the data, both checked against the file."""
    try:
        with h5py.File(path, "r") as file:
            text = file.attrs.get("metadata")
            dataset = file.get(DATASET)
            if not isinstance(text, str) or not isinstance(dataset, h5py.Dataset):
                raise TableError(f"{path}: an HDF5 file, but not a table of tablegen")
            metadata = Metadata.from_json(text, str(path))
            plain = dataset.chunks is None and not dataset.external and not dataset.is_virtual
            offset = dataset.id.get_offset() if plain else None
            shape, dtype = dataset.shape, dataset.dtype
    except (OSError, RuntimeError, KeyError, UnicodeDecodeError) as error:
        raise TableError(
            f"{path}: not a readable HDF5 file ({error}); truncated or damaged, build it again"
        ) from error
    expected = np.dtype(metadata.dtype).newbyteorder("<")
    if shape != metadata.shape or dtype != expected:
        raise TableError(
            f"{path}: dataset is {dtype} {shape}, its metadata says {expected} {metadata.shape}"
        )
    if offset is None:
        raise TableError(f"{path}: dataset is not one contiguous block and cannot be mapped")
    if offset + metadata.nbytes > path.stat().st_size:
        raise TableError(
            f"{path}: truncated: {path.stat().st_size} bytes, the data alone ends at "
            f"{offset + metadata.nbytes}; build it again"
        )
    return metadata, offset
