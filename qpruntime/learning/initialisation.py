"""Starts of a search: default kernels, and checks of a user's kernel that cannot learn.

A covariance matrix that is diagonal or constant learns nothing from the features, whatever the
labels are: gradients are zero, and the optimiser stays at its start without complaint. This module
finds and describes such kernels from the features alone; `qpruntime.learning.train` acts on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    Hyperparameter,
    Kernel,
    Matern,
    Sum,
)

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.kernels.default import Belief, LogNormal, default_kernel, each_column, table_kernel
from qpruntime.kernels.mixed_inputs import On, Same
from qpruntime.learning.hyperpriors import Priors, priors_of
from qpruntime.learning.scaling import Units

__all__ = [
    "FLATNESS_STEP",
    "Start",
    "at_bounds",
    "automatic_start",
    "default_start",
    "degenerate",
    "given_start",
    "learns_nothing",
    "own_start",
    "preference_start",
    "start_from",
    "unrelated",
]

# --- Default kernel of utilities

_PREFERENCE_VARIANCE_BOUNDS, _SPREAD_BOUNDS, _SPAN_BOUNDS = (1e-4, 1e6), (1e-3, 1e3), (1e-2, 1e2)
# Prior medians of the variance and of its drift in time, in units of the noise variance, and
# standard deviations of the logarithms of variances and of length-scales.
_VARIANCE, _DRIFT, _VARIANCE_SPREAD, _LENGTH_SPREAD = 1.0, 0.3, 2.0, 1.5
# The search starts at the best of these length-scales: features are in units of sqrt(d) times their
# spread, times in units of their range.
_FEATURES, _TIMES = (1.0, 0.25), (1.0, 0.25, 0.05)


def preference_start(spread: Array | None, span: float | None) -> Start:
    """Return the start of a search for the utility of items.

    Items with features have a Matérn 5/2 kernel with one length-scale per feature, and items
    without features have independent values. If there are times, a part of the utility drifts as a
    Matérn 3/2 process.

    Parameters
    ----------
    spread : ndarray, shape (d,), or None
        Spread of the features, or None for items with names. Features of spread 0 are ignored.
    span : float or None
        Range of the times, or None if there are none.
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
    """Return the start for a kernel that the user gives.

    The noise variance of a comparison is 1, so a kernel without a free variance is multiplied by
    one.
    """
    if kernel.n_dims and not any(
        parameter.name.endswith("constant_value") and not parameter.fixed
        for parameter in kernel.hyperparameters
    ):
        return Start(ConstantKernel(1.0, _PREFERENCE_VARIANCE_BOUNDS) * kernel)
    return Start(kernel)


def _items(spread: Array | None, alone: bool) -> tuple[Kernel, int]:
    """Return the correlation of items and its number of length-scales; `alone`: no other column."""
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
# Features are centred and divided by their spread, so that the optimiser works with numbers without
# units and one length-scale. The fitted kernel is returned in the units of the features, as
# scikit-learn writes it. `docs/defaults.md` gives the reasons for this kernel. It does not depend
# on the likelihood.

# The search starts at the length-scale with the highest evidence among these, in units of the
# square root of the number of features, which is about the distance of two rows over sqrt(2).
_LENGTHS = (1.0, 1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0)
_LENGTH_BOUNDS = (1e-3, 1e3)
_VARIANCE_BOUNDS = (1e-6, 1e8)
# Priors of a kernel with a linear part: medians of the variances of the linear and the curved part,
# in units of the squared scale; standard deviations of their logarithms, and of the length-scale's;
# the length-scale of the linear part, in units of the other's prior median.
_LINEAR, _LINEAR_DEVIATION, _LINEAR_BOUNDS = 0.1, 1.0, (1e-6, 1e6)
_CURVED, _CURVED_DEVIATION, _LENGTH_DEVIATION = 0.1, 2.0, 0.5
_LINEAR_LENGTH = 10.0
# The kernel without a linear part is tried if the log prior at the optimum is below this. Sets of
# times and levels are above -2.1; separable classes, strips and circles are from -6 to -15.
_CONFLICT = -4.0
# The lower bound is a level that hardly differs from the others, the upper one a level without any
# similarity to them.
_DISSIMILARITY_BOUNDS = (1e-6, 1e2)
# Upper bound of the length-scale of a single feature, as a multiple of that of the shared one.
_IRRELEVANT = 1e3


@dataclass(frozen=True)
class Start:
    """Start of a search for hyper-parameters.

    Attributes
    ----------
    kernel : scikit-learn kernel
    log_prior : callable or None
        Log density of the log parameters of the kernel, or of the kernel and the likelihood, with
        its gradient. It is added to the objective.
    thetas : tuple of ndarray
        Candidate log parameters of the kernel, perhaps followed by those of the likelihood. The
        best one is the start; without any, the kernel's own parameters are.
    by_feature : int
        Number of features that may get a length-scale each; 0 for none.
    others : tuple of Start
        Starts with other kernels. The kernel with the best optimum is used.
    least_log_prior : float
        The others are tried if the log prior at the optimum is below this.
    """

    kernel: Kernel
    log_prior: Priors | LogNormal | None = None
    thetas: tuple[Array, ...] = ()
    by_feature: int = 0
    others: tuple[Start, ...] = ()
    least_log_prior: float = math.inf

    @property
    def least_gain(self) -> float:
        """Rise of the objective that one length-scale per feature has to give.

        Less than the second number is rarely more than chance.
        """
        return max(self.by_feature - 1, 10.0)

    def refined(self, optimum: Array) -> Start:
        """Return the start with one length-scale per feature at the optimum of a shared one."""
        theta = optimum[: self.kernel.n_dims]
        (low, high), count = self.kernel.bounds[-1], self.by_feature
        lengths = np.full(count, math.exp(theta[-1]))
        kernel = self.kernel.clone_with_theta(theta)
        prior = self.log_prior
        by_column = each_column(kernel.k2.k2, _IRRELEVANT)
        if by_column is not None:
            first = kernel.k1.n_dims + 1
            start = np.concatenate([theta[:first], by_column.theta, optimum[theta.size :]])
            if isinstance(prior, LogNormal):
                prior = LogNormal(prior.mean[:first], prior.deviation[:first])
            return Start(kernel.k1 + kernel.k2.k1 * by_column, prior, (start,))
        bounds = math.exp(low), _IRRELEVANT * math.exp(high)
        shape = clone(kernel.k2.k2).set_params(length_scale=lengths, length_scale_bounds=bounds)
        start = np.concatenate([theta[:-1], np.repeat(theta[-1], count), optimum[theta.size :]])
        if isinstance(prior, LogNormal):
            prior = LogNormal(prior.mean[:-1], prior.deviation[:-1])
        return Start(kernel.k1 + kernel.k2.k1 * shape, prior, (start,))


def given_start(
    kernel: Kernel, priors: Mapping[str, Any] | None, learnt: Mapping[str, Any]
) -> Start:
    """Return where a fit of a kernel that is given begins, with the priors that are."""
    return Start(kernel, priors_of(priors, kernel, learnt))


def default_start(
    units: Units,
    scale: float = 1.0,
    smooth: bool = False,
    nu: float = 2.5,
    linear: bool = False,
) -> Start:
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
    linear : bool
        Add a nearly linear part, with narrower priors. The units are standard deviations then.
    """
    numbers, levels = units.numbers_and_levels
    # One feature is a series, whose engines take Markov kernels.
    linear = linear and bool(numbers) and units.count > 1
    length, variance = math.sqrt(max(len(numbers), 1)), scale**2
    low, high = (bound * variance for bound in _VARIANCE_BOUNDS)
    beliefs = (
        Belief(variance, low, high, 4.0 * variance, 10.0),
        Belief(length, _LENGTH_BOUNDS[0] * length, _LENGTH_BOUNDS[1] * length, 1.0),
    )
    offset = Belief(variance, low, high, variance, 4.0)
    if linear:
        beliefs = (
            Belief(_CURVED * variance, low, high, _CURVED * variance, _CURVED_DEVIATION),
            beliefs[1]._replace(median=length, deviation=_LENGTH_DEVIATION),
        )
    if levels:
        unlike = Belief(1.0 / len(levels), *_DISSIMILARITY_BOUNDS, 1.0)
        kernel, prior = table_kernel(
            *beliefs, unlike, offset, numbers, levels, smooth=smooth, nu=nu
        )
    else:
        kernel, prior = default_kernel(*beliefs, offset, smooth=smooth, nu=nu)
    if linear:
        columns = numbers if levels else None
        kernel, prior = _with_linear_part(kernel, prior, columns, variance, length)
        # Priors that the data contradict say that the function is far from linear.
        plain = default_start(units, scale, smooth, nu)
        return replace(
            plain,
            kernel=kernel,
            log_prior=prior,
            thetas=(),
            others=(plain,),
            least_log_prior=_CONFLICT,
        )
    shifts = [np.eye(kernel.n_dims)[-1] * math.log(share) for share in _LENGTHS]
    thetas = tuple(kernel.theta + shift for shift in shifts)
    return Start(kernel, prior, thetas, by_feature=units.count if units.count > 1 else 0)


def _with_linear_part(
    kernel: Kernel, prior: LogNormal, columns: Sequence[int] | None, variance: float, length: float
) -> tuple[Kernel, LogNormal]:
    """Return the kernel with a part that is linear to about a hundredth, and its prior.

    The part is a squared exponential whose length-scale is ten times that of the curved part's
    prior. Unlike a product of features it has no origin, and all engines have it.
    """
    size = _LINEAR_LENGTH**2 * _LINEAR * variance
    wide: Kernel = RBF(_LINEAR_LENGTH * length, "fixed")
    if columns is not None:
        wide = On(wide, list(columns))
    bounds = tuple(size * bound for bound in _LINEAR_BOUNDS)
    part = ConstantKernel(size, bounds) * wide
    mean = np.insert(prior.mean, 1, math.log(size))
    deviation = np.insert(prior.deviation, 1, _LINEAR_DEVIATION)
    return kernel.k1 + part + kernel.k2, LogNormal(mean, deviation)


def automatic_start(units: Units, scale: float = 1.0, linear: bool = False) -> Start:
    """Return the kernels of ``kernel="auto"``: that of None, and a squared exponential."""
    start = default_start(units, scale, linear=linear)
    others = *start.others, default_start(units, scale, smooth=True)
    return replace(start, others=others, least_log_prior=math.inf)


def learns_nothing(kernel: Kernel, Z: Array) -> str:
    """Say so if the fitted default kernel tells no rows apart, or relates none; "" if it does."""
    if isinstance(kernel.k1, Sum):
        return ""  # a linear part tells rows apart
    shape = degenerate(kernel.k2, Z)
    if shape is None:
        return ""
    how = "relates no rows to each other" if shape == "diagonal" else "tells no rows apart"
    return (
        f"nothing was found in the features: the fitted kernel {how}, and predictions are about "
        "the same everywhere else; check that features vary and belong to their targets"
    )


#: Correlations, and differences of correlations, below this count as zero.
_ZERO_CORRELATION = 1e-6
#: A variance of all latent values below this counts as zero.
_ZERO_VARIANCE = 1e-4
# K counts as diagonal if no more than this share of the rows is related to any other. Pairs of rows
# that happen to be close, or are equal, determine no length-scale.
_DIAGONAL_SHARE = 0.1
# Number of rows that are tested first. A kernel that relates them all, but not all alike, is sound.
_PROBE_ROWS = 16
# Largest number of rows whose distances are computed once a kernel is found unsound.
_DISTANCE_ROWS = 500
# Largest number of rows whose covariance matrix is computed for the checks.
_MAX_CHECKED_ROWS = 10_000
# Slopes of the objective below this do not count as being held at a bound: the objective gains
# about as much beyond it, as for a length-scale of 1e5 of an irrelevant feature.
_MIN_HELD_SLOPE = 1e-3
#: Change of the log parameters that tests whether an objective is flat.
FLATNESS_STEP = 0.5


@dataclass(frozen=True)
class _Scale:
    """Length-scale parameter of a kernel, its value, and the value from the data, shape (n,)."""

    parameter: Hyperparameter
    value: Array
    measured: Array


def degenerate(kernel: Kernel, X: Array) -> str | None:
    """Return "diagonal" or "constant" if that is what K is, to 1e-6; None if it is sound.

    White noise is left out, so that it hides nothing. A kernel with a sound K costs 16 of its rows.
    """
    n = len(X)
    if not 2 <= n <= _MAX_CHECKED_ROWS:
        return None
    rows = np.unique(np.linspace(0, n - 1, _PROBE_ROWS).astype(int))
    deviation = np.sqrt(np.maximum(kernel.diag(X), 0.0))
    related, alike = _related_rows(kernel(X[rows], X), rows, deviation)
    if related.all() and not alike:
        return None
    K = kernel(X, X)
    if not np.isfinite(K).all():
        return None  # inference says what is wrong with it
    related, alike = _related_rows(K, np.arange(n), deviation)
    if related.mean() <= _DIAGONAL_SHARE:
        return "diagonal"
    return "constant" if alike else None


def _related_rows(
    K: Array, rows: NDArray[np.intp], deviation: Array
) -> tuple[NDArray[np.bool_], bool]:
    """Return which rows are related to any other row, and whether all rows are alike.

    K is the covariance of `rows` with all rows.
    """
    # A matrix between two sets of rows has no white noise, not even on its diagonal.
    alike = bool(np.ptp(K) <= _ZERO_CORRELATION * np.abs(K).max())
    K = np.array(K, dtype=float)
    K[np.arange(len(rows)), rows] = 0.0
    strong = np.abs(K) > _ZERO_CORRELATION * (deviation[rows, None] * deviation)
    return np.any(strong, axis=1), alike


def has_no_variance(kernel: Kernel, X: Array) -> bool:
    """Decide whether the latent values have hardly any variance, so that no label can move them."""
    return bool(np.mean(kernel.diag(X)) < _ZERO_VARIANCE)


def start_from(kernel: Kernel, X: Array) -> Array | None:
    """Return log parameters with length-scales from the data, within the kernel's bounds.

    If the variance of the latent values is below 1e-4, constants start at 1 as well. Return None if
    nothing changes, for example because all parameters are fixed.
    """
    scales = {s.parameter.name: s.measured for s in _scales(kernel, X)}
    small = has_no_variance(kernel, X)
    logs = []
    parameters = kernel.get_params()
    for parameter in kernel.hyperparameters:
        if parameter.fixed:
            continue
        value = np.atleast_1d(parameters[parameter.name])
        if parameter.name in scales:
            value = scales[parameter.name]
        elif small and parameter.name.endswith("constant_value"):
            value = np.ones(1)
        logs.append(np.log(value))
    if not logs:
        return None
    low, high = kernel.bounds.T
    theta: Array = np.clip(np.concatenate(logs), low, high)
    return None if np.allclose(theta, kernel.theta, rtol=0.0, atol=1e-5) else theta


def at_bounds(kernel: Kernel, X: Array, theta: Array, slope: Array, objective: str) -> list[str]:
    """Describe the kernel parameters that ended at a bound beyond which the objective rises.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    theta, slope : ndarray, shape (p,) or more
        Optimum and the gradient of the objective there; those of the kernel come first.
    objective : str
        Name of the objective.
    """
    low, high = kernel.bounds.reshape(-1, 2).T
    theta, slope = theta[: low.size], slope[: low.size]
    # Rounding takes a parameter off its bound by less than this.
    near = 1e-10 * (1.0 + np.abs(theta))
    below = (theta <= low + near) & (slope < -_MIN_HELD_SLOPE)
    above = (theta >= high - near) & (slope > _MIN_HELD_SLOPE)
    if not (below | above).any():
        return []
    texts, first = [], 0
    scales = {s.parameter.name: s.measured for s in _scales(kernel, X)}
    for parameter in kernel.hyperparameters:
        if parameter.fixed:
            continue
        part = slice(first, first + parameter.n_elements)
        first += parameter.n_elements
        for side, hit, bound in (("lower", below, low), ("upper", above, high)):
            # Levels that are all alike, w = 0, are a limit of the model and not of its bounds.
            alike = side == "lower" and parameter.name.endswith("dissimilarity")
            if alike or not hit[part].any():
                continue
            at_bound = np.flatnonzero(hit[part])
            label = "" if parameter.n_elements == 1 else f"[{', '.join(map(str, at_bound))}]"
            text = (
                f"{parameter.name}{label} ended at its {side} bound {_span(np.exp(bound[part]))}, "
                f"and the {objective} rises beyond: widen the bound, or fix the parameter if it is "
                "meant"
            )
            if parameter.name in scales:
                text += f"; rows are {_span(scales[parameter.name][at_bound])} apart in the median"
            texts.append(text)
    return texts


def unrelated(kernel: Kernel, X: Array, shape: str | None, tried: str) -> str:
    """Say what is wrong with a kernel, and what its length-scales could be.

    Parameters
    ----------
    kernel : scikit-learn kernel
        At the parameters that are wrong.
    X : ndarray, shape (N, d)
    shape : {"diagonal", "constant", None}
        From `degenerate`; None if the objective does not change with the parameters.
    tried : str
        What was done about it.
    """
    if shape == "diagonal":
        what = "the kernel relates no rows: its matrix is diagonal to 1e-06"
    elif shape == "constant":
        what = "the kernel tells no rows apart: its matrix is constant to 1e-06"
    else:
        what = "the fit ended where it began: the objective does not change with the kernel"
    scales = list(_scales(kernel, X))
    parts = [
        f"{s.parameter.name} {_span(s.value)}{_limits(s.parameter)} where rows are "
        f"{_span(s.measured)} apart in the median"
        for s in scales
    ]
    if scales:
        remedy = f"start it at {_span(scales[0].measured)}"
    elif (distance := _distance(X)) is not None:
        parts = ["it has no length-scale"]
        remedy = f"add a part that has one, as RBF({distance:.3g})"
    else:
        parts = ["all rows are equal"]
        remedy = "check the features"
    values = (
        f", with latent variance {np.mean(kernel.diag(X)):.3g}"
        if has_no_variance(kernel, X)
        else ""
    )
    return (
        f"{what}{values} ({'; '.join(parts)}){tried}: {remedy}, scale the features, or leave "
        "kernel=None"
    )


def _scales(kernel: Kernel, X: Array) -> Iterator[_Scale]:
    """Yield the length-scales of all parts, with the data's; none if all rows are equal."""
    parameters = kernel.get_params()
    for parameter in kernel.hyperparameters:
        if not parameter.name.endswith("length_scale"):
            continue
        part: Kernel = parameters.get(parameter.name[: -len("__length_scale")], kernel)
        value = np.atleast_1d(np.asarray(parameters[parameter.name], dtype=float))
        if isinstance(part, ExpSineSquared):
            # The length-scale is in units of the sine, so it is 1 for any distances.
            yield _Scale(parameter, value, np.ones(1))
        elif value.size == 1 and (distance := _distance(X)) is not None:
            yield _Scale(parameter, value, np.array([distance]))
        elif value.size == X.shape[1] > 1:
            yield _Scale(parameter, value, _distances_by_feature(X, value))


def _distance(X: Array) -> float | None:
    """Return the median distance between distinct rows, or None if there are none."""
    sample = X[np.unique(np.linspace(0, len(X) - 1, _DISTANCE_ROWS).astype(int))]
    distances = pdist(sample)
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if distances.size else None


def _distances_by_feature(X: Array, current: Array) -> Array:
    """Return the median distance in each feature times the root of their number.

    The scaled distance of two rows is then about 1, as with one length-scale. A constant feature
    keeps its value.
    """
    distances = [_distance(column[:, None]) for column in X.T]
    varying = sum(d is not None for d in distances)
    return np.array(
        [o if d is None else d * varying**0.5 for d, o in zip(distances, current, strict=True)]
    )


def _limits(parameter: Hyperparameter) -> str:
    """Describe how far a parameter may go."""
    if parameter.fixed:
        return " (fixed)"
    low, high = np.atleast_2d(parameter.bounds).T
    return f" (bounds {low.min():.3g} to {high.max():.3g})"


def _span(values: Array) -> str:
    """Format one number, or the least and the greatest."""
    low, high = f"{np.min(values):.3g}", f"{np.max(values):.3g}"
    return low if low == high else f"{low} to {high}"
