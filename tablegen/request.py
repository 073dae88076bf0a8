"""A build that is asked for: its options checked, its recipe made; nothing is computed here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime import likelihoods
from qpruntime._validation import number, path_of, shown
from qpruntime.errors import InputError, TableError
from qpruntime.execution.executors import Executor, Threads
from qpruntime.execution.resolve import executor_of
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.open import table_directory
from tablegen import user_code
from tablegen.compact.build import CompactRecipe
from tablegen.files import formats, target
from tablegen.files import zarr as zarr_files
from tablegen.files.recipe import Recipe
from tablegen.files.workspace import Workspace
from tablegen.grid.build import GridRecipe
from tablegen.surfaces.build import SurfacesRecipe

__all__ = ["LARGE", "LONGEST", "PRESETS", "TIMEOUT", "Request", "check"]

#: Seconds to wait for a cluster, and the most that may be asked for.
TIMEOUT, LONGEST = 60.0, 1e6
#: Bytes beyond which the command line wants to be sure.
LARGE = 4_000_000_000


_RECIPES: dict[str, Callable[[Likelihood, str, dict[str, Any]], Recipe[Any]]] = {
    "grid": GridRecipe.of,
    "compact": CompactRecipe.of,
    "surfaces": SurfacesRecipe.of,
}
#: The grid of the paper's shape, a small table that holds for every cavity, or whole projections of
#: any likelihood.
PRESETS = tuple(_RECIPES)


@dataclass(frozen=True)
class Request:
    """A build whose options have been checked.

    Attributes
    ----------
    recipe : Recipe
        What is built; of a grid the method is not resolved yet.
    path : Path
        Where the table goes, as it was asked for: maybe a link to that place.
    local, executor : Executor
        What certifies, and what computes.
    tolerance : float
    force : bool
    """

    recipe: Recipe[Any]
    path: Path
    local: Threads
    executor: Executor
    tolerance: float
    force: bool

    @property
    def workspace(self) -> Workspace:
        """Working directory of the build; raises `TableError` if no file may be made there."""
        workspace = Workspace(target.resolve(self.path, force=self.force))
        zarr_files.check_replaceable(workspace.target)
        if workspace.target.exists() and not self.force and not workspace.exists:
            raise TableError(f"{self.path} exists; replace it with --force")
        return workspace


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
    recipe = _RECIPES[preset](model, source, options)
    if not isinstance(force, (bool, np.bool_)):
        raise InputError(f"force must be True or False, got {shown(force)}")
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
    return Request(recipe, path.absolute(), local, executor, tolerance, bool(force))


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
