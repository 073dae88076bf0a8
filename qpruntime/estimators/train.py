"""Training one process after the other, by default in units of each feature's spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.monotone import train_monotone
from qpruntime.inference.posterior import moved_to
from qpruntime.inference.sparse.lazy import is_lazy, read
from qpruntime.inference.sparse.mapped import mapped
from qpruntime.kernels.units import Units
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, automatic_start, default_start, given_start
from qpruntime.learning.inducing import SAMPLE, rows_at, sample
from qpruntime.learning.policy.acts import acts, acts_on_few
from qpruntime.learning.policy.choice import Choice, looked_at
from qpruntime.learning.policy.few import look
from qpruntime.learning.policy.fit import fitted
from qpruntime.learning.policy.screen import screened
from qpruntime.learning.settings import Settings, numbered
from qpruntime.learning.sparse.checkpoint import remove_checkpoints
from qpruntime.learning.training import Fit, train
from qpruntime.memory import require

__all__ = ["train_all", "whole"]


def train_all(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    theta: Array | None = None,
) -> tuple[list[Fit], Choice | None]:
    """Return the fits of processes with the same X and weights, in the units of X; what was chosen.

    A kernel that is given is taken as it is. Others are learnt in units of each feature's spread,
    for latent functions that vary by about `latent_scale`; they may begin at `theta`.
    """
    X = processes[0].X
    if processes[0].slopes is not None:
        return train_monotone(processes, settings, rng, latent_scale, theta), None
    if acts(processes[0], settings):
        return fitted(processes, settings, rng, latent_scale)
    if settings.sparse is None and is_lazy(X):
        X = whole(X)
        # As they are where X is held: kernels would compile once more for small integers.
        processes = [replace(data, X=X, y=np.asarray(data.y, dtype=float)) for data in processes]
    if isinstance(settings.kernel, Kernel):
        begin = given_start(settings.kernel, settings.priors, processes[0].learn)
        return _trained(processes, [begin] * len(processes), settings, rng), None
    few = acts_on_few(processes[0], settings) and not is_lazy(X)
    looked = look(processes, settings, latent_scale) if few else None
    if looked is not None and looked.warp is not None:
        X = looked.warp(X)
    units = _units(X, processes[0].weights, rng, processes[0].levels)
    some = screened(processes, X, units, settings, latent_scale) if few else None
    if some is not None:
        units = some[0]
    scaled = mapped(X, units.scaled, units.width)
    own = settings.in_units(units)
    if own.solver == "auto" and (int(X.shape[1]) > 1 or units.levels):
        # Constant columns are left out of the units, and one that is left is no series.
        own = replace(own, solver="dense")
    elif own.solver == "markov" and int(X.shape[1]) != int(scaled.shape[1]):
        raise InputError(
            f'solver="markov" takes X of one column, got {X.shape[1]}: leave out what is constant'
        )
    start = default_start if settings.kernel is None else automatic_start
    begin = start(units, latent_scale)
    thetas = looked.thetas if looked is not None and some is None else ()
    begins = [replace(begin, thetas=(end,)) for end in thetas]
    if theta is not None:
        begin = replace(begin, thetas=(theta,))
    begins += [begin] * (len(processes) - len(begins))
    fits = _trained([replace(data, X=scaled) for data in processes], begins, own, rng)
    fits = [_unscaled(fit, X, units) for fit in fits]
    if looked is None and some is None:
        return fits, None
    warp = looked.warp if looked is not None else None
    stages = (looked.stages if looked is not None else ()) + (some[1] if some is not None else ())
    return fits, looked_at(len(X), len(fits), warp, units.count, stages)


def whole(X: Any) -> Array:
    """All rows of inputs, also of those that could be read in parts."""
    if not is_lazy(X):
        return np.asarray(X)
    n, width = (int(size) for size in X.shape)
    require(
        8.0 * n * width,
        f"X of shape {n, width}, read at once",
        "inducing=200 reads it in parts, as does the default where kernel, solver, method, "
        "correction, and in optimize= objective and restarts, are left as they are",
    )
    return read(X, slice(0, n))


def _trained(
    processes: Sequence[Data],
    begins: Sequence[Start],
    settings: Settings,
    rng: np.random.Generator,
) -> list[Fit]:
    each = numbered(settings, len(processes))
    cases = zip(processes, begins, each, strict=True)
    fits = [train(data, begin, own, rng) for data, begin, own in cases]
    remove_checkpoints(each)
    return fits


def _unscaled(fit: Fit, X: Any, units: Units) -> Fit:
    def change(kernel: Kernel, posterior: Any) -> tuple[Kernel, Any]:
        own = units.kernel_of_features(kernel)
        return own, moved_to(posterior, own, X, units.unscaled)

    return fit.moved(change)


def _units(X: Any, weights: Array | None, rng: np.random.Generator, levels: Sequence[int]) -> Units:
    """Units of features; of rows that are read in parts, those of a sample."""
    if not is_lazy(X):
        return Units.of(X, weights, levels)
    some = sample(int(X.shape[0]), SAMPLE, rng)
    return Units.of(rows_at(X, some), None if weights is None else weights[some], levels)
