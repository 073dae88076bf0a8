"""Build a table: check the options, lock the target, and carry its recipe out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from threadpoolctl import threadpool_limits

from qpruntime import likelihoods
from qpruntime._validation import flag, number, path_of, shown
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.resolve import executor_of
from qpruntime.execution.threads import Executor, ExecutorError, Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.open import table_directory
from qpruntime.table_format.metadata import Metadata
from tablegen import memory, user_code
from tablegen.compact import CompactRecipe
from tablegen.files import formats, target
from tablegen.files.hdf5 import left_over
from tablegen.files.recipe import Recipe, Request, one_of
from tablegen.files.workspace import BuildStopped
from tablegen.grid.build import GridRecipe
from tablegen.surfaces import build as surfaces

__all__ = ["LARGE", "LONGEST", "build", "carry_out", "check"]

#: Seconds to wait for a cluster, and the most that may be asked for.
TIMEOUT, LONGEST = 60.0, 1e6
#: Bytes beyond which the command line wants to be sure.
LARGE = 4_000_000_000


_RECIPES: dict[str, Callable[[Likelihood, str, dict[str, Any]], Recipe]] = {
    "grid": GridRecipe,
    "compact": CompactRecipe,
    "surfaces": surfaces.recipe,
}
#: The grid of the paper's shape, a small table that holds for every cavity, or whole projections of
#: any likelihood.
PRESETS = tuple(_RECIPES)


def check(
    likelihood: str | Likelihood = "probit",
    output: str | os.PathLike[str] | None = None,
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
    recipe = _RECIPES[preset](model, source, options)
    force = flag(force, "force")
    local = Threads(workers)
    timeout = number(timeout, "timeout", above=0.0, most=LONGEST)
    executor: Executor = local
    if scheduler is not None:
        executor = executor_of(workers, scheduler, timeout, ("qpruntime", "tablegen"))
    if tolerance is None:
        tolerance = recipe.tolerance
    tolerance = number(tolerance, "tolerance", above=0.0)
    path = table_directory() / f"{likelihoods.stem(model, preset, recipe.order)}.h5"
    if output is not None:
        path = path_of(output, "output")
    path = formats.named(path, format, output is not None)
    return Request(recipe, path.absolute(), local, executor, tolerance, force)


def default_preset(likelihood: str | Likelihood, preset: str | None) -> str:
    """Return the preset, or raise `InputError`; a user's likelihood has surfaces only."""
    if not isinstance(likelihood, (str, Likelihood)):
        raise InputError(f"likelihood must be a name or a Likelihood, got {shown(likelihood)}")
    if preset is None:
        return "surfaces" if user_code.is_users(likelihood) else "grid"
    one_of(preset, "preset", PRESETS)
    if preset != "surfaces" and user_code.is_users(likelihood):
        raise InputError(f"a likelihood that is not registered has preset surfaces, not {preset}")
    return preset


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
        The file to make; by default, in `qpruntime.projection.open.table_directory`,
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
        projections ``projection="wp"`` and `p`, as `tablegen.surfaces.build.domain` does.

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

    See Also
    --------
    tablegen.fetch, tablegen.publish, qpruntime.open_table

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import tablegen
    >>> from qpruntime import open_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "probit.h5"
    ...     _ = tablegen.build(
    ...         "probit", path, mu_range=(-2.0, 2.0), log10_sigma_range=(-0.5, 0.5), tolerance=1e-3
    ...     )
    ...     name = open_table(path).likelihood.name
    ...
    >>> name
    'probit'
    """
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be None or a function, got {shown(progress)}")
    chosen = likelihood, output, preset, workers, scheduler, timeout, tolerance, format, force
    return carry_out(check(*chosen, **options), progress)


def carry_out(request: Request, progress: Progress | None = None) -> Metadata:
    """Build what was checked: the second half of `build`."""
    recipe, executor, local = request.recipe, request.executor, request.local
    memory.check(local.workers, recipe.mapped)
    if request.path.parent == table_directory().absolute():
        target.installed_directory()
    workspace = request.workspace
    if recipe.space is not None:
        workspace.check_space(recipe.space)
    already_built = workspace.target.exists() and not request.force
    report = progress or (lambda stage, done, total: None)
    try:
        if executor is not local:
            report("connect", 0, 1)
        with threadpool_limits(1, "blas"), executor, workspace.locked():
            try:
                if already_built:
                    return left_over(workspace, recipe.expected)
                return recipe.make(request, workspace, report)
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
