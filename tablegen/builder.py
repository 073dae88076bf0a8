"""Build a table: check the options, lock the target, and hand over to the builder of its kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from qpruntime.artifact import Metadata
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.table import open_table, table_directory
from tablegen import certify, compact, compute, grid, regions
from tablegen.executors import Progress, thread_count
from tablegen.plan import Plan, make_plan
from tablegen.workspace import Workspace

__all__ = ["PRESETS", "build", "prepare", "target_path"]

#: The grid of the paper's shape, or a small table that holds for every cavity.
PRESETS = ("grid", "compact")


def prepare(likelihood: str = "probit", *, preset: str = "grid", **options: Any) -> Plan | Metadata:
    """Return what `build` would carry out with these options; writes nothing.

    The plan of a grid, its method resolved, or the metadata of a compact table.
    """
    described = _describe(likelihood, preset, options)
    if isinstance(described, Metadata):
        return described
    with threadpool_limits(1, "blas"):
        return compute.resolve(described)


def _describe(likelihood: str, preset: str, options: dict[str, Any]) -> Plan | Metadata:
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if preset == "grid":
        return make_plan(likelihood, **options)
    if options:
        names = ", ".join(sorted(options))
        raise InputError(f"a compact table has no such options: {names}; leave them out")
    return compact.metadata(likelihood)


def build(
    likelihood: str = "probit",
    output: str | os.PathLike[str] | None = None,
    *,
    preset: str = "grid",
    workers: int | None = None,
    tolerance: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Metadata:
    """Build a table of sigma* for one likelihood.

    Parameters
    ----------
    likelihood : str
        Registered name.
    output : path, optional
        The file to make; by default ``<likelihood>.h5``, for a compact table
        ``<likelihood>-compact.h5``, in `qpruntime.table.table_directory`.
    preset : {"grid", "compact"}
        A grid over cavity mean and log10 cavity standard deviation, or splines over the
        likelihood's own coordinates, which hold for every cavity and take no `options`.
    workers : int, optional
        Threads; by default all cores. The bytes do not depend on it.
    tolerance : float, optional
        Largest relative error allowed: at the certified nodes of a grid, by default 1e-12, and
        1e-7 for float32, which rounds by 6e-8; anywhere for a compact table, by default 1e-9.
    force : bool
        Replace an existing file.
    progress : callable, optional
        Called as ``progress(stage, done, total)``, from any thread.
    **options
        Of the grid: `method`, `dtype`, `mu_range`, `mu_step`, `log10_sigma_range`,
        `log10_sigma_step` and `counts`, as `tablegen.plan.make_plan` takes them.

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
    plan = _describe(likelihood, preset, options)
    workers = thread_count(workers)
    if tolerance is None:
        tolerance = regions.TOLERANCE if preset == "compact" else certify.TOLERANCES[plan.dtype]
    if not tolerance > 0.0:
        raise InputError(f"tolerance must be positive, got {tolerance:g}")
    workspace = Workspace(target_path(plan.likelihood, output, preset))
    workspace.check_target()
    taken = workspace.target.exists() and not force
    if taken and not workspace.exists:
        raise TableError(f"{workspace.target} exists; replace it with --force")
    workspace.check_space(plan.nbytes)
    report = progress or (lambda stage, done, total: None)

    def make() -> Metadata:
        if isinstance(plan, Metadata):
            return (
                _finished(workspace, plan)
                if taken
                else compact.build(plan, workspace, workers, tolerance, report)
            )
        resolved = compute.resolve(plan)
        if taken:
            return _finished(workspace, resolved.metadata())
        return grid.carry_out(resolved, workspace, workers, tolerance, report)

    return _locked(workspace, make)


def _locked(workspace: Workspace, make: Callable[[], Metadata]) -> Metadata:
    try:
        with threadpool_limits(1, "blas"), workspace.locked():
            try:
                return make()
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


def target_path(
    likelihood: str, output: str | os.PathLike[str] | None, preset: str = "grid"
) -> Path:
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
    suffix = "" if preset == "grid" else f"-{preset}"
    return directory.absolute() / f"{likelihood}{suffix}.h5"


def _finished(workspace: Workspace, expected: Metadata) -> Metadata:
    """Return the metadata of a table whose build was killed between rename and cleaning up."""
    try:
        metadata = open_table(workspace.target).metadata
    except TableError:
        metadata = None
    if metadata is None or replace(metadata, sha256="", certificate={}) != expected:
        raise TableError(f"{workspace.target} exists; replace it with --force")
    workspace.remove()
    return metadata
