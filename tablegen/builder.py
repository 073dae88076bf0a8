"""Build a table: check the options, lock the target, and hand over to the builder of its kind."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from qpruntime import likelihoods
from qpruntime.artifact.metadata import Metadata
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.execution.calls import Executor, ExecutorError, Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.finding import table_directory
from qpruntime.projection.opening import open_table
from qpruntime.validation import number, path_of, shown
from tablegen import memory, user_code
from tablegen.compact import build as compact
from tablegen.compact import errors as regions
from tablegen.files import formats, target
from tablegen.files import zarr as zarr_files
from tablegen.files.workspace import BuildStopped, Workspace
from tablegen.grid import build as grid
from tablegen.grid import chebyshev as compute
from tablegen.grid import errors as certify
from tablegen.grid.plan import Plan, make_plan
from tablegen.surfaces import build as surfaces
from tablegen.surfaces import errors as surface_errors
from tablegen.surfaces.domain import Domain, domain

__all__ = [
    "LARGE",
    "PRESETS",
    "Request",
    "build",
    "carry_out",
    "check",
    "estimated",
    "largest",
    "prepare",
]

#: The grid of the paper's shape, a small table that holds for every cavity, or whole projections of
#: any likelihood.
PRESETS = ("grid", "compact", "surfaces")
#: Seconds to wait for a cluster, and the most that may be asked for.
TIMEOUT, LONGEST = 60.0, 1e6
#: Bytes beyond which the command line wants to be sure.
LARGE = 4_000_000_000
# Options of L_p projections.
_PROJECTION = ("projection", "p")


Described = Plan | Metadata | Domain


@dataclass(frozen=True)
class Request:
    """A build whose options have been checked.

    Attributes
    ----------
    plan : Plan, Metadata or Domain
        Of a grid, whose method is not resolved yet, of a compact table, or of surfaces.
    path : Path
        Where the table goes, as it was asked for: maybe a link to that place.
    local, executor : Executor
        What certifies, and what computes.
    tolerance : float
    force : bool
    """

    plan: Described
    path: Path
    local: Threads
    executor: Executor
    tolerance: float
    force: bool

    @property
    def workspace(self) -> Workspace:
        """Where it is built, or `TableError` if no file may be made there."""
        workspace = Workspace(target.resolve(self.path, force=self.force))
        zarr_files.check_replaceable(workspace.target)
        if workspace.target.exists() and not self.force and not workspace.exists:
            raise TableError(f"{self.path} exists; replace it with --force")
        return workspace


def prepare(
    likelihood: str | Likelihood = "probit", *, preset: str | None = None, **options: Any
) -> Described:
    """Return what `build` would carry out with these options; writes nothing.

    The plan of a grid, its method resolved, the metadata of a compact table, or the domain of
    surfaces.
    """
    return resolved(check(likelihood, preset=preset, **options).plan)


def resolved(plan: Described) -> Described:
    """Return the plan with the method that its grid takes."""
    if not isinstance(plan, Plan):
        return plan
    with threadpool_limits(1, "blas"):
        return compute.resolve(plan)


def estimated(plan: Described) -> Described:
    """Return what `resolved` does, or soon a guess at it where there are many outcomes."""
    if not isinstance(plan, Plan):
        return plan
    with threadpool_limits(1, "blas"):
        return compute.estimate(plan)


def largest(plan: Described) -> int:
    """Return how many bytes the finished table may have."""
    return plan.limit if isinstance(plan, Domain) else plan.nbytes


def check(
    likelihood: str | Likelihood = "probit",
    output: str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    timeout: float = TIMEOUT,
    tolerance: float | None = None,
    format: str | None = None,
    force: bool = False,
    **options: Any,
) -> Request:
    """Check the arguments of `build` and nothing else: no disk, no cluster is asked.

    Raises
    ------
    InputError
        If an option is not usable.
    """
    preset = default_preset(likelihood, preset)
    model = user_code.load(likelihood)
    if model.columns > 1:
        raise InputError(
            f"an observation of likelihood {model.name!r} is {model.columns} numbers, "
            f"{model.outcomes}; a table is looked up by one: infer without a table"
        )
    source = likelihood if isinstance(likelihood, str) else ""
    plan = _describe(model, source, preset, options)
    if not isinstance(force, (bool, np.bool_)):
        raise InputError(f"force must be True or False, got {shown(force)}")
    local = Threads(workers)
    timeout = number(timeout, "timeout", above=0.0, most=LONGEST)
    executor = _executor(local, workers, scheduler, timeout)
    if tolerance is None:
        tolerance = _tolerance(plan)
    tolerance = number(tolerance, "tolerance", above=0.0)
    order = plan.p if isinstance(plan, Domain) else None
    path = table_directory() / f"{likelihoods.stem(model, preset, order)}.h5"
    if output is not None:
        path = path_of(output, "output")
    path = formats.named(path, format, output is not None)
    return Request(plan, path.absolute(), local, executor, tolerance, bool(force))


def default_preset(likelihood: str | Likelihood, preset: str | None) -> str:
    """Return the preset, or raise `InputError`; a user's likelihood has surfaces only."""
    if not isinstance(likelihood, (str, Likelihood)):
        raise InputError(f"likelihood must be a name or a Likelihood, got {shown(likelihood)}")
    if preset is None:
        return "surfaces" if user_code.is_users(likelihood) else "grid"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {shown(preset)}")
    if preset != "surfaces" and user_code.is_users(likelihood):
        raise InputError(f"a likelihood that is not registered has preset surfaces, not {preset}")
    return preset


def _describe(model: Likelihood, source: str, preset: str, options: dict[str, Any]) -> Described:
    if preset == "surfaces":
        if (counts := options.pop("counts", None)) is not None:
            options["outcomes"] = range(counts[0], counts[1] + 1)
        known = ("outcomes", "y_range", "mu_range", "log10_sigma_range", "limit", *_PROJECTION)
        _refuse("a table of surfaces", set(options) - set(known))
        return domain(model, source, **options)
    if preset == "grid":
        _refuse("a grid", set(options) & {"outcomes", "y_range", "limit", *_PROJECTION})
        return make_plan(model.spelt, **options)
    _refuse("a compact table", set(options))
    return compact.metadata(model.spelt)


def _refuse(what: str, names: set[str]) -> None:
    if names:
        raise InputError(f"{what} has no such options: {', '.join(sorted(names))}; leave them out")


def build(
    likelihood: str | Likelihood = "probit",
    output: str | os.PathLike[str] | None = None,
    *,
    preset: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    timeout: float = TIMEOUT,
    tolerance: float | None = None,
    format: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Metadata:
    """Build a table of sigma* for one likelihood.

    Parameters
    ----------
    likelihood : str or Likelihood
        Registered name, ``"package.module:name"``, which is imported, or the likelihood itself.
    output : path, optional
        The file to make; by default, in `qpruntime.projection.finding.table_directory`,
        ``probit.h5`` for a grid, ``probit-compact.h5`` for a compact table, and with parameters
        ``student-t,nu=4,scale=0.3-surfaces.h5``. A link is followed; devices, FIFOs and sockets
        are refused.
    preset : {"grid", "compact", "surfaces"}, optional
        A grid over cavity mean and log10 cavity standard deviation, or splines over the
        likelihood's own coordinates, which hold for every cavity and take no `options`, or all
        that inference needs of any likelihood, which then does without its code. By default a
        grid, of likelihoods that are not registered surfaces.
    workers : int, optional
        Threads of this process; by default all cores. The bytes do not depend on it.
    scheduler : str, optional
        Address of a dask cluster that computes the chunks, such as ``"tcp://host:8786"``. They come
        back through dask, and this process alone writes: workers need no file system of ours, but
        the same packages and arithmetic. The bytes are those of a build on this machine.
    timeout : float
        Seconds to wait for the scheduler, and for a first worker whenever there is none.
    tolerance : float, optional
        Largest relative error allowed: at the certified nodes of a grid, by default 1e-12, and
        1e-7 for float32, which rounds by 6e-8; anywhere for a compact table, by default 1e-9, and
        for surfaces, by default 1e-8, and 1e-6 of L_p projections.
    format : {"hdf5", "zarr"}, optional
        One file, or a zarr v3 group: a directory of compressed chunks, for object stores. By
        default zarr where `output` ends in ``.zarr``.
    force : bool
        Replace an existing file, or make the one that a link leads to.
    progress : callable, optional
        Called as ``progress(stage, done, total)``, from any thread.
    **options
        Of the grid: `method`, `dtype`, `mu_range`, `mu_step`, `log10_sigma_range`,
        `log10_sigma_step` and `counts`, as `tablegen.grid.plan.make_plan` takes them. Of surfaces:
        `outcomes` or `y_range`, `mu_range`, `log10_sigma_range` and `limit`, and for tables of L_p
        projections ``projection="wp"`` and `p`, as `tablegen.surfaces.domain.domain` does.

    Returns
    -------
    Metadata
        Of the finished table, its certificate included.

    Raises
    ------
    InputError
        If an option is not usable.
    TableError
        If the file cannot be made: it exists, the directory is missing, another build is at it.
    BuildStopped
        A TableError: the disk is full or gone, or the cluster is. The same call resumes.
    NumericalError
        If the table misses the tolerance; nothing is left behind.
    """
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be None or a function, got {shown(progress)}")
    request = check(
        likelihood,
        output,
        preset=preset,
        workers=workers,
        scheduler=scheduler,
        timeout=timeout,
        tolerance=tolerance,
        format=format,
        force=force,
        **options,
    )
    return carry_out(request, progress)


def carry_out(request: Request, progress: Progress | None = None) -> Metadata:
    """Build what was checked: the second half of `build`."""
    plan, executor, local = request.plan, request.executor, request.local
    memory.check(local.workers, plan.nbytes if isinstance(plan, Plan) else 0)
    if request.path.parent == table_directory().absolute():
        _make_directory()
    workspace = request.workspace
    if not isinstance(plan, Domain):
        workspace.check_space(plan.nbytes)
    taken = workspace.target.exists() and not request.force
    report = progress or (lambda stage, done, total: None)

    def make() -> Metadata:
        if isinstance(plan, Domain):
            if taken:
                return surfaces.finished(plan, workspace)
            return surfaces.build(plan, workspace, executor, local, request.tolerance, report)
        if isinstance(plan, Metadata):
            if taken:
                return _finished(workspace, plan)
            return compact.build(plan, workspace, executor, local, request.tolerance, report)
        grid_plan = compute.resolve(plan)
        if taken:
            return _finished(workspace, grid_plan.metadata())
        return grid.carry_out(grid_plan, workspace, executor, local, request.tolerance, report)

    try:
        if executor is not local:
            report("connect", 0, 1)
        with threadpool_limits(1, "blas"), executor, workspace.locked():
            try:
                return make()
            except NumericalError:
                # The same command would fail again: there is nothing to resume.
                workspace.remove()
                raise
            except (OSError, ExecutorError):
                raise
            except BaseException:
                with suppress(OSError):
                    workspace.remove_if_empty()
                raise
    except (OSError, ExecutorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and not workspace.exists:
            reason = f"{workspace.directory} was removed during the build"
        kept = f"finished chunks are kept in {workspace.directory}, " if workspace.exists else ""
        raise BuildStopped(
            f"cannot build {workspace.target}: {reason}; {kept}the same command resumes"
        ) from error


def _tolerance(plan: Described) -> float:
    if isinstance(plan, Domain):
        return surface_errors.TOLERANCE if plan.p is None else surface_errors.WP_TOLERANCE
    return regions.TOLERANCE if isinstance(plan, Metadata) else certify.TOLERANCES[plan.dtype]


def _executor(
    local: Threads, workers: int | None, scheduler: str | None, timeout: float
) -> Executor:
    if scheduler is None:
        return local
    if workers is not None:
        raise InputError("workers are threads of this machine; with a scheduler leave them out")
    # distributed takes a second to import.
    from qpruntime.execution.cluster import Cluster

    return Cluster(scheduler, timeout, packages=("qpruntime", "tablegen"))


def _make_directory() -> None:
    """Make the directory of installed tables."""
    directory = table_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(
            f"cannot make the directory of installed tables {directory}: {error.strerror}; "
            "set QP_TABLES or use --output"
        ) from error


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
