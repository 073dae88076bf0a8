"""Checkpoints of a staged fit, to go on from when this process, or its cluster, went away.

A stage on a sample is written when it has ended, with the posterior it leaves; the one of all rows
after evaluations, at the best place so far and with the sites there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._atomic_file import remove_parts
from qpruntime._sealed_file import DamagedFile
from qpruntime._typing import Array
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.checkpoint import (
    FORMAT,
    Checkpoint,
    array_of,
    digest,
    kernel_words,
    projector_words,
)
from qpruntime.inference.sparse.data import ChunkedRows
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.state import State
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.objective import Place

__all__ = ["FitFile", "FitState", "problem_of", "remove_checkpoints"]

# Settings that change a fit, in addition to those of inducing points.
_MOVING = ("optimize", "tol", "max_sweeps", "approximate")
_SEARCHED = ("objective", "max_iter", "ftol")


@dataclass(frozen=True, eq=False)
class FitState:
    """State of a fit.

    Attributes
    ----------
    stages : int
        Number of stages that have ended.
    place : Place
        Best hyper-parameters and inducing inputs so far.
    optima : tuple of Optimum
        Optima of the stages that have ended, the last first.
    refined : ndarray or None
        Parameters at which the kernel became ARD, if it did.
    state : (root, h, mean) or None
        Posterior of the rows of the stage before, until all rows have sites.
    sites : Sites or None
        Sites of all rows.
    random : str
        State of the generator.
    """

    stages: int
    place: Place
    optima: tuple[Optimum, ...]
    refined: Array | None
    state: tuple[Array, Array, Array] | None
    sites: Sites | None
    random: str

    def seed(self, engine: Engine) -> None:
        """Give an engine of all rows the stored sites, or those that the stored state implies."""
        if self.sites is not None:
            engine.sites = self.sites
        elif self.state is not None:
            engine.seed(State(engine.state.inducing, engine.rule, *self.state))


class FitFile:
    """The checkpoint of one fit.

    Parameters
    ----------
    path : path
    problem : dict
        Words that tell this fit from others: `problem_of`.
    """

    def __init__(self, path: str | os.PathLike[str], problem: dict[str, str]) -> None:
        self._file, self._problem = Checkpoint(path, "fit"), problem

    @property
    def due(self) -> bool:
        """True if the last checkpoint is old enough for a new one."""
        return self._file.due

    def hint(self) -> str:
        """Say how to go on from the file, if there is one."""
        return self._file.hint("fit again")

    def write(self, standing: FitState) -> None:
        """Write where the fit stands."""
        content: dict[str, Any] = {
            "stages": standing.stages,
            "theta": standing.place.theta,
            "Z": standing.place.Z,
            "optima": json.dumps([_plain(optimum) for optimum in standing.optima]),
            "random": standing.random,
        }
        if standing.refined is not None:
            content["refined"] = standing.refined
        if standing.state is not None:
            content |= dict(zip(("root", "h", "mean"), standing.state, strict=True))
        if standing.sites is not None:
            content |= {"tau": standing.sites.tau, "nu": standing.sites.nu}
        self._file.write(self._problem, content)

    def read(self, n: int, width: int) -> FitState | None:
        """Return where the fit of n rows of so many columns stood, None if there is no file.

        Raises
        ------
        InputError
            If it is the file of another fit, or none.
        """
        kept = self._file.read(self._problem)
        if kept is None:
            return None
        with self.understood():
            return _standing(kept, n, width)

    def understood(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors raised inside into an `InputError` that names the file."""
        return self._file.understood()


def _standing(fields: dict[str, Any], n: int, width: int) -> FitState:
    """Return the state in a file, or raise an error that `Checkpoint.understood` catches."""
    place = Place(array_of(fields, "theta", None), array_of(fields, "Z", None, width))
    m = len(place.Z)
    state = sites = None
    if "root" in fields:
        state = (
            array_of(fields, "root", m, m),
            array_of(fields, "h", m),
            array_of(fields, "mean", m),
        )
    if "tau" in fields:
        sites = Sites(array_of(fields, "tau", n), array_of(fields, "nu", n))
    return FitState(
        stages=_stages(fields["stages"]),
        place=place,
        optima=tuple(_optimum(optimum) for optimum in json.loads(str(fields["optima"]))),
        refined=array_of(fields, "refined", None) if "refined" in fields else None,
        state=state,
        sites=sites,
        random=str(fields["random"]),
    )


def _stages(number: NDArray[Any]) -> int:
    if number.ndim or number.dtype.kind not in "iu" or number < 0:
        raise DamagedFile(f"its number of stages is {number}")
    return int(number)


def problem_of(data: Data, settings: Settings, rows: ChunkedRows, points: Array) -> dict[str, str]:
    """Return what tells a fit from another one: its data, and every setting that moves it.

    `points` are the rows of the sample, which depend on the seed too.
    """
    sparse = settings.sparse
    assert sparse is not None
    points_option = sparse.points
    array = isinstance(points_option, np.ndarray)
    options = {name: getattr(sparse, name) for name in ("power", "learn", "subsample", "dtype")}
    options |= {"points": "given" if array else points_option}
    options |= {name: getattr(settings, name) for name in _MOVING}
    options |= {name: getattr(settings.search, name) for name in _SEARCHED}
    learnt = {name: [float(end) for end in ends] for name, ends in data.learn.items()}
    return {
        "format": FORMAT,
        "kernel": kernel_words(settings.kernel, bounds=settings.optimize),
        **projector_words(data.projector, data.y),
        "learnt": json.dumps(learnt, sort_keys=True),
        "options": json.dumps(options, sort_keys=True),
        "rows": str(rows.n),
        "data": digest(rows, points, *([points_option] if array else [])),
    }


def remove_checkpoints(ended: Iterable[Settings]) -> None:
    """Remove the files of fits that have ended: all processes of one model."""
    for settings in ended:
        if (path := settings.checkpoint) is not None:
            # A warning has named what could not be written, a folder among them.
            with contextlib.suppress(OSError):
                path.unlink()
            remove_parts(path.absolute())


def _plain(optimum: Optimum) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in asdict(optimum).items()
    }


def _optimum(fields: dict[str, Any]) -> Optimum:
    arrays = {name: np.array(value) for name, value in fields.items() if isinstance(value, list)}
    whole: dict[str, Any] = fields | arrays
    return Optimum(**whole)
