"""Default kernels in scaled units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.kernels.default import Belief, LogNormal, default_kernel, each_column, table_kernel
from qpruntime.kernels.mixed_inputs import On, Same
from qpruntime.kernels.scaling import Units
from qpruntime.learning.hyperpriors import priors_of
from qpruntime.learning.initialisation import degenerate

__all__ = [
    "Start",
    "automatic_start",
    "default_start",
    "given_start",
    "learns_nothing",
    "own_start",
    "preference_start",
]

# --- Default kernel of utilities

_PREFERENCE_VARIANCE_BOUNDS, _SPREAD_BOUNDS, _SPAN_BOUNDS = (1e-4, 1e6), (1e-3, 1e3), (1e-2, 1e2)
# Medians of the variance and of its drift in time, where that of the noise is 1; deviations of
# their logarithms, and of those of length-scales.
_VARIANCE, _DRIFT, _VARIANCE_SPREAD, _LENGTH_SPREAD = 1.0, 0.3, 2.0, 1.5
# The best of these is where lengths begin: of features in units of sqrt(d) spreads, of time in
# units of its range.
_FEATURES, _TIMES = (1.0, 0.25), (1.0, 0.25, 0.05)


def preference_start(spread: Array | None, span: float | None) -> Start:
    """Return where to begin.

    Items with features have a Matérn 5/2 of them, of one length-scale a feature; those without
    have values of their own. With times a share of the utility drifts, as a Matérn 3/2.

    Parameters
    ----------
    spread : ndarray, shape (d,), or None
        Of features; None for items with names. Features of spread 0 are ignored.
    span : float or None
        The range of times; None if there are none.
    """
    width = 1 if spread is None else spread.size
    items, lengths = _items(spread, span is None)
    kernel = ConstantKernel(_VARIANCE, _PREFERENCE_VARIANCE_BOUNDS) * items
    beliefs = [_VARIANCE_SPREAD, *[_LENGTH_SPREAD] * lengths]
    if span is not None:
        bounds = tuple(span * bound for bound in _SPAN_BOUNDS)
        drift = ConstantKernel(_DRIFT, _PREFERENCE_VARIANCE_BOUNDS) * _items(spread, False)[0]
        kernel = kernel + drift * On(Matern(span, bounds, nu=1.5), [width])
        beliefs += [*beliefs, _LENGTH_SPREAD]
    middle: Array = kernel.theta
    is_length = np.array(beliefs) == _LENGTH_SPREAD
    in_time = np.zeros(middle.size, dtype=bool)
    in_time[-1] = span is not None
    starts = product(_FEATURES if lengths else (1.0,), _TIMES if span is not None else (1.0,))
    thetas = tuple(
        middle + math.log(share) * (is_length & ~in_time) + math.log(part) * in_time
        for share, part in starts
    )
    return Start(kernel, LogNormal(middle, np.array(beliefs)), thetas)


def own_start(kernel: Kernel) -> Start:
    """Return where to begin with a kernel that is given.

    The noise of a comparison is 1: a kernel that learns, but has no variance that is free, is
    multiplied by one.
    """
    if kernel.n_dims and not any(
        one.name.endswith("constant_value") and not one.fixed for one in kernel.hyperparameters
    ):
        return Start(ConstantKernel(1.0, _PREFERENCE_VARIANCE_BOUNDS) * kernel)
    return Start(kernel)


def _items(spread: Array | None, alone: bool) -> tuple[Kernel, int]:
    """Correlation of items, and how many length-scales it has; `alone` if no other column is."""
    if spread is None:
        return (Same() if alone else On(Same(), [0])), 0
    kept = np.flatnonzero(spread)
    if not kept.size:
        raise InputError("all items have the same features: nothing tells them apart")
    unit = math.sqrt(kept.size) * spread[kept]
    bounds = np.outer(unit, _SPREAD_BOUNDS)
    shape = Matern(unit, bounds, nu=2.5)
    if kept.size == 1:
        shape = Matern(float(unit[0]), (float(bounds[0, 0]), float(bounds[0, 1])), nu=2.5)
    whole = alone and kept.size == spread.size
    return (shape if whole else On(shape, kept.tolist())), int(kept.size)


# --- Default kernel
#
# Features are centred and divided by their spread, so that the optimiser sees numbers without units
# and one length-scale; the fitted kernel is returned in units of the features, as scikit-learn
# writes it. `docs/defaults.md` says why it is this one. Nothing here knows likelihoods.

# The length-scale begins where the evidence is highest among these, in units of the square root of
# the number of features, which is about the distance of two rows over sqrt(2).
_LENGTHS = (1.0, 1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0)
_LENGTH_BOUNDS = (1e-3, 1e3)
_VARIANCE_BOUNDS = (1e-6, 1e8)
# A level that differs from the others hardly, and one that knows nothing of them.
_DISSIMILARITY_BOUNDS = (1e-6, 1e2)
# Length-scales of single features may be so much longer.
_IRRELEVANT = 1e3


@dataclass(frozen=True)
class Start:
    """Where an optimiser begins.

    Attributes
    ----------
    kernel : scikit-learn kernel
    log_prior : callable or None
        Of the kernel's log parameters, or of theirs and then those of the likelihood, and its
        gradient; it is added to the objective.
    thetas : tuple of ndarray
        Log parameters, of which the best is the start; those of the kernel if there are none.
        Those of the likelihood may follow.
    by_feature : int
        Of how many features each may get a length-scale of its own; 0 if none may.
    others : tuple of Start
        Further kernels, of which the one with the best optimum is taken.
    """

    kernel: Kernel
    log_prior: Any = None
    thetas: tuple[Array, ...] = ()
    by_feature: int = 0
    others: tuple[Start, ...] = ()

    def refined(self, optimum: Array) -> Start:
        """Where to begin with a length-scale for each feature: at the optimum of a common one."""
        theta = optimum[: self.kernel.n_dims]
        (low, high), count = self.kernel.bounds[-1], self.by_feature
        lengths = np.full(count, math.exp(theta[-1]))
        kernel = self.kernel.clone_with_theta(theta)
        prior = self.log_prior
        own = each_column(kernel.k2.k2, _IRRELEVANT)
        if own is not None:
            start = np.concatenate([theta[:2], own.theta, optimum[theta.size :]])
            prior = LogNormal(prior.mean[:2], prior.deviation[:2])
            return Start(kernel.k1 + kernel.k2.k1 * own, prior, (start,))
        bounds = math.exp(low), _IRRELEVANT * math.exp(high)
        shape = clone(kernel.k2.k2).set_params(length_scale=lengths, length_scale_bounds=bounds)
        start = np.concatenate([theta[:-1], np.repeat(theta[-1], count), optimum[theta.size :]])
        if prior is not None:
            prior = LogNormal(prior.mean[:-1], prior.deviation[:-1])
        return Start(kernel.k1 + kernel.k2.k1 * shape, prior, (start,))


def given_start(kernel: Kernel, priors: Any, learnt: Mapping[str, Any]) -> Start:
    """Return where a fit of a kernel that is given begins, with the priors that are."""
    return Start(kernel, priors_of(priors, kernel, learnt))


def default_start(units: Units, scale: float = 1.0, smooth: bool = False, nu: float = 2.5) -> Start:
    """Return the kernel of ``kernel=None`` for scaled features.

    Parameters
    ----------
    units : Units
        With columns of levels the kernel is the product of one of these and one of numbers.
    scale : float
        Standard deviation that the latent function can be expected to have, about.
    smooth : bool
        A squared exponential in place of Matérn 5/2.
    nu : float
        Of another Matérn kernel.
    """
    numbers, levels = units.numbers_and_levels
    length, variance = math.sqrt(max(len(numbers), 1)), scale**2
    low, high = (bound * variance for bound in _VARIANCE_BOUNDS)
    beliefs = (
        Belief(variance, low, high, 4.0 * variance, 10.0),
        Belief(length, _LENGTH_BOUNDS[0] * length, _LENGTH_BOUNDS[1] * length, 1.0),
    )
    offset = Belief(variance, low, high, variance, 4.0)
    if levels:
        unlike = Belief(1.0 / len(levels), *_DISSIMILARITY_BOUNDS, 1.0)
        kernel, prior = table_kernel(
            *beliefs, unlike, offset, numbers, levels, smooth=smooth, nu=nu
        )
    else:
        kernel, prior = default_kernel(*beliefs, offset, smooth=smooth, nu=nu)
    shifts = [np.eye(kernel.n_dims)[-1] * math.log(share) for share in _LENGTHS]
    thetas = tuple(kernel.theta + shift for shift in shifts)
    return Start(kernel, prior, thetas, by_feature=units.count if units.count > 1 else 0)


def automatic_start(units: Units, scale: float = 1.0) -> Start:
    """Return the kernels of ``kernel="auto"``: that of None, and a squared exponential.

    Neither has a linear part: the evidence nearly always takes one, and predictions are as often
    worse as better.
    """
    return replace(default_start(units, scale), others=(default_start(units, scale, smooth=True),))


def learns_nothing(kernel: Kernel, Z: Array) -> str:
    """Say so if the fitted default kernel tells no rows apart, or relates none; "" if it does."""
    shape = degenerate(kernel.k2, Z)
    if shape is None:
        return ""
    how = "relates no rows to each other" if shape == "diagonal" else "tells no rows apart"
    return (
        f"nothing was found in the features: the fitted kernel {how}, and predictions are about "
        "the same everywhere else; check that features vary and belong to their targets"
    )
