"""Engines on any rows of a fit by inducing points, and climbs with them: what its stages share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.calls import Executor, Threads, threads_of
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.lazy import rows_of
from qpruntime.inference.sparse.rows import Held, Rows
from qpruntime.inference.sparse.rule import Rule
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.inducing import rows_at
from qpruntime.learning.maximise import Optimum, all_bounds
from qpruntime.learning.parameter_slopes import reparametrised
from qpruntime.learning.progress import both
from qpruntime.learning.settings import Settings, Sparse
from qpruntime.learning.sparse.end import optimum_of
from qpruntime.learning.sparse.objective import Place, Search, climb
from qpruntime.learning.sparse.stages import Stages

__all__ = ["Ground"]


@dataclass(eq=False)
class Ground:
    """What is fitted, and how.

    Parameters
    ----------
    data : Data
    begin : Start
        The kernel, and where it begins.
    settings : Settings
    spread : ndarray, shape (d,)
        What a step of the inducing inputs is measured in.
    offer : callable
        Called with the best place so far, the engine and the sites there after every evaluation.

    Attributes
    ----------
    optima : list of Optimum
        What climbs have found, the last first.
    executor, local : Executor
        For all rows, and for some.
    judge : Projector
        EP's.
    report : Stages or None
        Called with theta and the score after every evaluation.
    refined : ndarray or None
        Parameters at which each feature was given a length-scale of its own, if it was.
    """

    data: Data
    begin: Start
    settings: Settings
    spread: Array
    offer: Callable[[Place, Engine, Sites | None], None]
    optima: list[Optimum] = field(default_factory=list)
    report: Stages | None = None
    refined: Array | None = None

    def __post_init__(self) -> None:
        self.local = Threads(threads_of(self.settings.n_jobs))
        self.executor: Executor = self.local
        self.judge = self.data.projector.for_evidence()

    @property
    def n(self) -> int:
        """Number of all rows."""
        return len(self.data.y)

    @property
    def sparse(self) -> Sparse:
        """The settings for inducing points."""
        assert self.settings.sparse is not None
        return self.settings.sparse

    @property
    def kernel(self) -> Kernel:
        """The kernel with its initial parameters."""
        return self.begin.kernel

    def kernel_at(self, place: Place) -> Kernel:
        """Return the kernel with the parameters of a place."""
        return self.kernel.clone_with_theta(place.theta[: self.kernel.n_dims])

    def refine(self, theta: Array) -> None:
        """Give each feature a length-scale of its own, from these parameters of the kernel."""
        self.begin, self.refined = self.begin.refined(theta), theta

    def engine(self, rows: Rows, place: Place) -> Engine:
        """Return an EP engine for these rows at a place; its sites are still zero."""
        projector = self.judge
        if self.data.learn:
            logs = place.theta[self.kernel.n_dims :]
            projector = reparametrised(projector, tuple(self.data.learn), logs)
        dtype = np.float32 if self.sparse.dtype == "mixed" else np.float64
        rule = Rule(projector, self.sparse.power)
        here = self.executor if rows.n == self.n else self.local
        options: Any = {"dtype": dtype, "executor": here, "memory": self.sparse.memory}
        return Engine(rows, rule, self.kernel_at(place), place.Z, **options)

    def rows(self, some: NDArray[np.intp] | None = None) -> Rows:
        """Return the rows of these numbers, or all."""
        data = self.data
        others = (data.y, data.weights, data.prior if data.prior.any() else None, data.scale)
        if some is None or len(some) == self.n:
            return rows_of(data.X, *others)
        y, weights, prior, scale = (None if a is None else a[some] for a in others)
        assert y is not None
        return Held(rows_at(data.X, some), y, weights, prior, scale)

    def search(self, engine: Engine, moving: bool) -> Search:
        """Return a search of theta, and of the inducing inputs if these are moving."""
        units = self.spread if moving else None
        return Search(engine, self.kernel, self.data.learn, self.begin.log_prior, units)

    def climbed(
        self, engine: Engine, place: Place, moving: bool, iterations: int, change: float
    ) -> Place:
        """Maximise from a place in so many iterations, until one raises the score by less a row.

        The engine is left at the best place, which is returned; its optimum is the first of them.
        """
        search = self.search(engine, moving)
        bounds = all_bounds(self.kernel, self.data.learn)

        def offer(*_: Any) -> None:
            if search.place is not None:
                self.offer(search.place, engine, search.kept)

        report = both(both(self.report, offer), self.settings.callback)
        most = min(iterations, self.settings.max_iter)
        go = partial(climb, search, place, bounds, iterations=most, change=change, report=report)
        try:
            ended = go()
        except NumericalError:
            if engine.dtype == np.float64:
                raise
            engine.dtype = np.float64  # single precision has lost the factor
            engine.tau[:] = engine.nu[:] = 0.0
            ended = go()
        assert search.place is not None
        search.go(search.place)
        self.optima.insert(0, optimum_of(search, ended, place.theta))
        return search.place
