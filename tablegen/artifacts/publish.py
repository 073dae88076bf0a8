"""Write tables to a directory with a registry, which states what each certificate guarantees."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from qpruntime import _cli_hints, likelihoods
from qpruntime._atomic_file import write_whole
from qpruntime._validation import path_of
from qpruntime.errors import InputError, TableError
from qpruntime.projection.open import find, open_table, shipped_path, table_directory
from qpruntime.table_format.metadata import Metadata
from tablegen import compact
from tablegen.artifacts import registry

__all__ = ["SURFACE_WORDS", "digest_of", "guarantee", "outcomes_in_words", "publish"]


def publish(
    directory: str | os.PathLike[str], tables: Iterable[str | os.PathLike[str]] | None = None
) -> tuple[Path, list[registry.Entry]]:
    """Write tables and ``registry.json`` to a directory that others fetch from.

    Tables that are there already stay, and are listed anew; every table is hashed and opened.

    Parameters
    ----------
    directory : path
        Made if it is not there. Any web server or object store may serve a copy of it.
    tables : list of str or path, optional
        Files of the format HDF5, or names of installed or shipped ones; by default all that are
        installed, and those that ship with the package.

    Returns
    -------
    path : Path
        The registry.
    entries : list of Entry
        All tables of the directory.

    Raises
    ------
    InputError
        If the directory or a file cannot be written.
    TableError
        If a table is damaged, missing, or of another format.

    See Also
    --------
    tablegen.fetch, tablegen.build

    Examples
    --------
    >>> import tempfile
    >>> import tablegen
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path, entries = tablegen.publish(folder, ["probit"])
    ...
    >>> path.name, len(entries)
    ('registry.json', 1)
    """
    target = path_of(directory, "directory").absolute()
    sources = [_source(table) for table in (_everything() if tables is None else tables)]
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is no directory; name another one")
    by_name: dict[str, Path] = {}
    for path in sources:
        if by_name.setdefault(path.name, path) != path:
            raise InputError(
                f"{path} and {by_name[path.name]} have one name; publish one of them, or rename it"
            )
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target} cannot be made: {error.strerror or error}") from error
    for name, path in sorted(by_name.items()):
        _copy(path, target / name)
    entries = [entry_of(path) for path in sorted(target.glob("*.h5"))]
    if not entries:
        raise TableError("there is no table to publish; build one: tablegen build --help")
    document = registry.written(entries)
    registry.read(document, str(target / registry.FILE))  # what others will refuse is not written
    write_whole(target / registry.FILE, lambda file: file.write(document))
    return target / registry.FILE, entries


def entry_of(path: Path) -> registry.Entry:
    """Return what a registry says of a table, all of whose bytes are read."""
    table = open_table(path, verify=True)
    return registry.Entry(
        name=path.name.removesuffix(".h5"),
        file=path.name,
        size=path.stat().st_size,
        sha256=digest_of(path),
        data_sha256=table.sha256,
        guarantee=guarantee(table.metadata),
        certificate=table.metadata.certificate,
        command=_cli_hints.again(table.metadata, table.likelihood),
    )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _everything() -> list[Path]:
    shipped = [shipped_path(name) for name in likelihoods.names()]
    installed = sorted(table_directory().glob("*.h5"))
    known = {path.name for path in installed}
    return [*installed, *(path for path in shipped if path.is_file() and path.name not in known)]


def _source(table: str | os.PathLike[str]) -> Path:
    path = find(table).absolute()
    if path.is_dir():
        raise TableError(
            f"{path} is a zarr table of many files; publish one file of it: "
            + _cli_hints._formatting.command("export", os.fspath(path), "--format", "hdf5")
        )
    return path


def _copy(source: Path, target: Path) -> None:
    """Copy a table unless it is there."""
    if target.exists() and (source.samefile(target) or digest_of(source) == digest_of(target)):
        return
    with source.open("rb") as file:
        write_whole(target, lambda made: shutil.copyfileobj(file, made, 1 << 20))


# --- The certificate of a table in one line

SURFACE_WORDS = {
    "log_z": "of log Z",
    "mean": "of mean",
    "std_ep": "of sigma_EP",
    "std_qp": "of sigma*",
    "mean_wp": "of wp mean",
    "std_wp": "of wp deviation",
}


def guarantee(metadata: Metadata) -> str:
    """Say in one line where the table holds, how well, and how that was measured."""
    certificate = metadata.certificate
    try:
        if metadata.kind == "compact":
            words = likelihoods.get(metadata.likelihood).outcomes
            low, high = compact.DOMAIN
            worst = max(certificate[name]["max_relative_error"] for name in compact.REGIONS)
            count = sum(certificate[name]["points"] for name in compact.REGIONS)
            return (
                "every finite mu, sigma {:g} to {:g}, {}: relative error of sigma* below {:g}; "
                "largest found {:.2g} at {} points by a second quadrature rule"
            ).format(10.0**low, 10.0**high, words, certificate["tolerance"], worst, count)
        if metadata.kind == "surfaces":
            return _of_surfaces(metadata)
        nodes, cells = certificate["nodes"], certificate["cells"]
        return (
            "mu {:g} to {:g}, log10 sigma {:g} to {:g}, y = {}: relative error of sigma* {:.2g} "
            "between nodes (bilinear), {:.2g} at nodes, the largest found at {} points by a second "
            "quadrature rule; outside: sigma_EP, or quadrature on request"
        ).format(
            metadata.mu.start,
            metadata.mu.stop,
            metadata.log10_sigma.start,
            metadata.log10_sigma.stop,
            "-1 and 1" if metadata.outcomes == [1.0] else outcomes_in_words(metadata.outcomes),
            cells["max_relative_error"],
            nodes["max_relative_error"],
            nodes["points"] + cells["points"],
        )
    except (TypeError, KeyError, ValueError):
        return "none: the errors of this table were not measured"


def _of_surfaces(metadata: Metadata) -> str:
    certificate, (mu, log10_sigma) = metadata.certificate, metadata.axes[:2]
    mode = metadata.traits["mode"]
    observations = {"mirror": "-1 and 1", "location": "any"}.get(
        mode, outcomes_in_words(metadata.outcomes)
    )
    errors = [
        f"{certificate[name]['max_relative_error']:.2g} {SURFACE_WORDS[name]}"
        for name in metadata.surfaces
    ]
    rule, outside = "a second quadrature rule", "quadrature if the code is at hand, else an error"
    if metadata.order is not None:
        rule, outside = "a Newton step by a second quadrature rule", "an error"
    return (
        f"{'mu - y' if mode == 'location' else 'mu'} {mu.start:g} to {mu.stop:g}, log10 sigma "
        f"{log10_sigma.start:g} to {log10_sigma.stop:g}, y = {observations}: errors below "
        f"{certificate['tolerance']:g}; largest found {', '.join(errors)} "
        f"at {certificate['random_points']} points by {rule}; outside: {outside}"
    )


def outcomes_in_words(outcomes: list[float]) -> str:
    """Return the first and the last of them."""
    first, last = outcomes[0], outcomes[-1]
    return f"{first:g}" if first == last else f"{first:g} to {last:g}"
