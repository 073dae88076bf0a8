"""Carry a plan out: fill the chunks, export, certify, publish.

Interrupted at any moment, the same call takes up the finished chunks and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from qpruntime.artifact import Metadata
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.table import open_table, table_directory
from tablegen import certify, compute, export
from tablegen.executors import run, thread_count
from tablegen.plan import Chunk, Plan, make_plan
from tablegen.store import ChunkStore
from tablegen.workspace import Workspace

__all__ = ["Progress", "build", "prepare"]

#: ``progress(stage, done, total)``: stages are "integrate", "fill", "export" and "certify".
Progress = Callable[[str, int, int], None]

SEED = 20200612


def prepare(likelihood: str = "probit", **options: Any) -> Plan:
    """Return the plan `build` would carry out with these options; writes nothing."""
    with threadpool_limits(1, "blas"):
        return compute.resolve(make_plan(likelihood, **options))


def build(
    likelihood: str = "probit",
    output: str | os.PathLike[str] | None = None,
    *,
    method: str = "spectral",
    dtype: str = "float64",
    mu_range: Sequence[float] = (-10.0, 10.0),
    mu_step: float = 1e-3,
    log10_sigma_range: Sequence[float] = (-1.0, 1.0),
    log10_sigma_step: float = 1e-3,
    workers: int | None = None,
    tolerance: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Metadata:
    """Build a table of sigma* over cavity mean and log10 cavity standard deviation.

    Parameters
    ----------
    likelihood : str
        Registered name.
    output : path, optional
        The file to make; by default ``<likelihood>.h5`` in `qpruntime.table.table_directory`.
    method : {"spectral", "direct"}
        Expand a Chebyshev series, or integrate at every node. Grids too small or too wild for a
        series are integrated directly either way; the metadata says what was done.
    dtype : {"float64", "float32"}
    mu_range, log10_sigma_range : (float, float)
        First and last node of each axis.
    mu_step, log10_sigma_step : float
        Must divide the ranges.
    workers : int, optional
        Threads; by default all cores. The bytes do not depend on it.
    tolerance : float, optional
        Largest relative error allowed at the certified nodes; by default 1e-12, and 1e-7 for
        float32, which rounds by 6e-8.
    force : bool
        Replace an existing file.
    progress : callable, optional
        Called as ``progress(stage, done, total)``, from any thread.

    Returns
    -------
    Metadata
        Of the finished table, its certificate included.

    Raises
    ------
    InputError
        If an option is not usable.
    TableError
        If the file cannot be made: it exists, the directory is missing, the disk is full.
    NumericalError
        If the table misses the tolerance; nothing is left behind.
    """
    plan = make_plan(
        likelihood,
        method=method,
        dtype=dtype,
        mu_range=mu_range,
        mu_step=mu_step,
        log10_sigma_range=log10_sigma_range,
        log10_sigma_step=log10_sigma_step,
    )
    workers = thread_count(workers)
    tolerance = certify.TOLERANCES[dtype] if tolerance is None else tolerance
    if not tolerance > 0.0:
        raise InputError(f"tolerance must be positive, got {tolerance:g}")
    workspace = Workspace(target_path(plan.likelihood, output))
    workspace.check_target()
    taken = workspace.target.exists() and not force
    if taken and not workspace.exists:
        raise TableError(f"{workspace.target} exists; replace it with --force")
    workspace.check_space(plan.nbytes)
    report = progress or (lambda stage, done, total: None)
    try:
        with threadpool_limits(1, "blas"), workspace.locked():
            try:
                plan = compute.resolve(plan)
                if taken:
                    return _finished(workspace, plan)
                return _carry_out(plan, workspace, workers, tolerance, report)
            except NumericalError:
                # The same command would fail again: there is nothing to resume.
                workspace.remove()
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise TableError(
            f"cannot build {workspace.target}: {reason}; finished chunks are kept in "
            f"{workspace.directory}, the same command resumes"
        ) from error


def target_path(likelihood: str, output: str | os.PathLike[str] | None) -> Path:
    """Return the absolute path of the table; the directory of installed tables is made."""
    if output is not None:
        return Path(output).absolute()
    directory = table_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(
            f"cannot make the directory of installed tables {directory}: {error.strerror}; "
            "set QP_TABLES or use --output"
        ) from error
    return directory.absolute() / f"{likelihood}.h5"


def _finished(workspace: Workspace, plan: Plan) -> Metadata:
    """Return the metadata of a table whose build was killed between rename and cleaning up."""
    try:
        metadata = open_table(workspace.target).metadata
    except TableError:
        metadata = None
    if metadata is None or replace(metadata, sha256="", certificate={}) != plan.metadata():
        raise TableError(f"{workspace.target} exists; replace it with --force")
    workspace.remove()
    return metadata


def _carry_out(
    plan: Plan, workspace: Workspace, workers: int, tolerance: float, report: Progress
) -> Metadata:
    workspace.partial.unlink(missing_ok=True)
    store = ChunkStore(workspace.chunks, plan)
    _fill(plan, store, workers, report)
    digest, worst, offset = _export(plan, store, workspace.partial, report)
    report("certify", 0, 1)
    values = export.map_file(workspace.partial, plan, offset)
    certificate = certify.certify(
        values, plan.metadata(), worst, run=partial(run, workers=workers), seed=SEED
    )
    certificate |= {"tolerance": tolerance, "chebyshev_nodes": list(plan.nodes or ())}
    nodes = certificate["nodes"]
    if nodes["max_relative_error"] > tolerance:
        raise NumericalError(
            f"the table misses its tolerance: relative error {nodes['max_relative_error']:.2g} at "
            f"mu = {nodes['mu']:g}, log10 sigma = {nodes['log10_sigma']:g}, allowed "
            f"{tolerance:.2g}; raise --tolerance"
            + ("" if plan.method == "direct" else " or use --method direct")
        )
    metadata = replace(plan.metadata(), sha256=digest, certificate=certificate)
    export.write_metadata(workspace.partial, metadata)
    export.publish(workspace.partial, workspace.target)
    workspace.remove()
    report("certify", 1, 1)
    return metadata


def _fill(plan: Plan, store: ChunkStore, workers: int, report: Progress) -> None:
    missing = store.missing()
    if not missing:
        return
    expansion = None
    stop = threading.Event()
    lock = threading.Lock()
    total = len(plan.chunks)
    done = total - len(missing)

    def task(chunk: Chunk) -> None:
        nonlocal done
        if stop.is_set():
            return
        store.write(chunk, compute.fill(plan, chunk, expansion, stop.is_set))
        with lock:
            done += 1
            report("fill", done, total)

    if plan.nodes is not None:
        report("integrate", 0, 1)
        expansion = compute.expand(plan, partial(run, workers=workers))
    report("fill", done, total)
    run(task, missing, workers, cancel=stop.set)


def _export(
    plan: Plan, store: ChunkStore, path: Path, report: Progress
) -> tuple[str, list[tuple[float, int, int, int]], int]:
    """Stream the chunks to the file; return their hash, the most curved nodes and the offset."""
    offset = position = export.create_file(path, plan)
    digest = hashlib.sha256()
    worst = []
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for number, chunk in enumerate(plan.chunks):
            report("export", number, len(plan.chunks))
            values = store.read(chunk)
            if values is None:
                raise TableError(
                    f"chunk {number} in {store.path} changed while the table was built; "
                    "the same command repairs it"
                )
            digest.update(values.data)
            position += _write_all(descriptor, values, position)
            worst += certify.worst_nodes(values, chunk.outcome, chunk.start)
    finally:
        os.close(descriptor)
    return digest.hexdigest(), worst, offset


def _write_all(descriptor: int, values: NDArray[Any], position: int) -> int:
    view = memoryview(values.data).cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], position + written)
    return written
