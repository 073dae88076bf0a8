"""The first stage of a fit by inducing points: on a sample, parameters and then inducing inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rows import Rows
from qpruntime.learning.sparse.ground import Ground
from qpruntime.learning.sparse.objective import Place

__all__ = ["BOTH", "EARLY", "on_sample"]

#: A climb on a sample ends where an iteration raises the evidence per row by less.
EARLY = 2e-5
#: Iterations on a sample at most: of theta and Z; and of theta alone.
BOTH, _THETA = 80, 40
# A length-scale for each feature has to raise the evidence by that much at least, as in dense fits.
_BEYOND_CHANCE = 10.0


def on_sample(
    ground: Ground, rows: Rows, place: Place, choose: Callable[[Kernel], Array] | None
) -> tuple[Place, Engine]:
    """Learn from a sample, beginning at a place.

    Parameters
    ----------
    ground : Ground
    rows : Rows
        The sample.
    place : Place
    choose : callable or None
        Returns the inducing inputs for a kernel, where their number follows from it.

    Returns
    -------
    place : Place
    engine : Engine
        With the sample, there.
    """
    assert ground.report is not None
    engine = ground.engine(rows, place)
    ground.report.begin(0)
    place = _best_start(ground, engine, place)
    place = ground.climbed(engine, place, False, _THETA, EARLY)
    if ground.begin.by_feature:
        place, engine = _by_feature(ground, place, engine)
    if choose is not None:
        place = Place(place.theta, choose(engine.kernel))
        engine = ground.engine(rows, place)
    if ground.sparse.optimize:
        ground.report.begin(1)
        place = ground.climbed(engine, place, True, BOTH, EARLY)
    return place, engine


def _best_start(ground: Ground, engine: Engine, place: Place) -> Place:
    """The best of the places where the default kernel may begin."""
    assert ground.report is not None
    if not ground.begin.thetas:
        return place
    search = ground.search(engine, False)
    rest = place.theta[ground.kernel.n_dims :]
    for theta in ground.begin.thetas:
        engine.tau[:] = engine.nu[:] = 0.0
        found = search.tried(Place(np.concatenate([theta, rest]), place.Z))
        if found is not None:
            ground.report(theta, found[0])
    if search.place is None:
        return place
    search.go(search.place)
    return search.place


def _by_feature(ground: Ground, place: Place, engine: Engine) -> tuple[Place, Engine]:
    """A length-scale for each feature, if that raises the evidence by more than chance."""
    before, begin = ground.optima[0], ground.begin
    ground.refine(place.theta)
    start = Place(ground.begin.thetas[0], place.Z)
    there = ground.engine(engine.rows, start)
    there.tau[:], there.nu[:] = engine.sites
    found = ground.climbed(there, start, False, _THETA, EARLY)
    if ground.optima[0].value - before.value > max(begin.by_feature - 1, _BEYOND_CHANCE):
        return found, there
    ground.begin, ground.refined = begin, None
    ground.optima[:] = [before, *(run for run in ground.optima if run is not before)]
    engine.move(ground.kernel_at(place), place.Z)
    return place, engine
