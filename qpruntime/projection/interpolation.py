"""Interpolation in tables: splines, surfaces and tables on a unit scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpruntime._numba import contracted, contracted_inlined, inlined, kernel
from qpruntime._pointers import SURFACES, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.table_format.metadata import Axis

__all__ = [
    "BANDS",
    "LOCATION",
    "MIRROR",
    "NAMES",
    "NARROW",
    "REACH",
    "ROWS",
    "VOLUME",
    "WP_NAMES",
    "bilinear",
    "cavities",
    "encode",
    "encode_scaled",
    "lookup",
    "lookup_scaled",
    "pack",
    "pack_scaled",
    "quintic",
    "quintic_weights",
    "slab",
]

# --- Interpolation

_C1, _C5, _C10, _C20 = 1.0 / 120.0, 5.0 / 120.0, 10.0 / 120.0, 20.0 / 120.0
_C26, _C30, _C50, _C60, _C66 = 26.0 / 120.0, 30.0 / 120.0, 50.0 / 120.0, 60.0 / 120.0, 66.0 / 120.0


@kernel
def bilinear(
    values: Array, axes: Array, row: int, mu: float, log10_sigma: float
) -> tuple[float, bool]:
    """Interpolate bilinearly in slab `row` of a grid; return (value, inside).

    `axes` holds start, stop and nodes per unit of mu, then the same of log10 sigma. All four edges
    are inside; NaN is outside. One branch and unsigned indices let the processor work on several
    lookups at once. Their cache misses are the cost of a dense grid: 30 ns against 78.
    """
    inside = (mu >= axes[0]) & (mu <= axes[1]) & (log10_sigma >= axes[3]) & (log10_sigma <= axes[4])
    if not inside:
        return math.nan, False
    t = (mu - axes[0]) * axes[2]
    u = (log10_sigma - axes[3]) * axes[5]
    unit = np.uint64(1)
    k = np.uint64(row)
    i = min(np.uint64(t), np.uint64(values.shape[1] - 2))
    j = min(np.uint64(u), np.uint64(values.shape[2] - 2))
    t -= i
    u -= j
    low = values[k, i, j] + u * (values[k, i, j + unit] - values[k, i, j])
    high = values[k, i + unit, j] + u * (values[k, i + unit, j + unit] - values[k, i + unit, j])
    return low + t * (high - low), True


@contracted
def quintic_weights(t: float) -> Floats:
    """Return the six uniform quintic B-splines that are not zero at 0 <= t <= 1."""
    # The formulas avoid divisions, six of which would cost as much as everything else.
    s = 1.0 - t
    t2, s2 = t * t, s * s
    return (
        s2 * s2 * s * _C1,
        _C26 + t * (-_C50 + t * (_C20 + t * (_C20 + t * (-_C20 + _C5 * t)))),
        _C66 + t2 * (-_C60 + t2 * (_C30 - _C10 * t)),
        _C66 + s2 * (-_C60 + s2 * (_C30 - _C10 * s)),
        _C26 + s * (-_C50 + s * (_C20 + s * (_C20 + s * (-_C20 + _C5 * s)))),
        t2 * t2 * t * _C1,
    )


@inlined
def quintic(values: Array, axes: Array, row: int, u: float, v: float) -> float:
    """Evaluate the quintic spline of slab `row` of a compact table, clipped to the axes.

    `values` holds B-spline coefficients, five more than cells along an axis; a second-to-last
    dimension of 1 means a table over `v` alone. `axes` is as for `bilinear`. Unsigned indices save
    the test for negative ones, and written-out sums let the compiler use vectors. A view of one
    slab would count as a reference, with an atomic addition that stalls the processor: 6 ns against
    25 along one axis.
    """
    b = min(max(v, axes[3]), axes[4])
    b = (b - axes[3]) * axes[5]
    m = values.shape[2] - 5
    j = max(min(int(b), m - 1), 0)  # NaN becomes a negative integer, and gives NaN
    w0, w1, w2, w3, w4, w5 = quintic_weights(b - j)
    k = np.uint64(row)
    unit = np.uint64(1)
    j0 = np.uint64(j)
    j1 = j0 + unit
    j2 = j1 + unit
    j3 = j2 + unit
    j4 = j3 + unit
    j5 = j4 + unit
    if values.shape[1] == 1:
        o = np.uint64(0)
        low = (w0 * values[k, o, j0] + w1 * values[k, o, j1]) + w2 * values[k, o, j2]
        high = (w3 * values[k, o, j3] + w4 * values[k, o, j4]) + w5 * values[k, o, j5]
        return float(low + high)
    a = min(max(u, axes[0]), axes[1])
    a = (a - axes[0]) * axes[2]
    n = values.shape[1] - 5
    i = max(min(int(a), n - 1), 0)
    x0, x1, x2, x3, x4, x5 = quintic_weights(a - i)
    i0 = np.uint64(i)
    i1 = i0 + unit
    i2 = i1 + unit
    i3 = i2 + unit
    i4 = i3 + unit
    i5 = i4 + unit
    s0 = x0 * values[k, i0, j0] + x1 * values[k, i1, j0] + x2 * values[k, i2, j0]
    s0 += x3 * values[k, i3, j0] + x4 * values[k, i4, j0] + x5 * values[k, i5, j0]
    s1 = x0 * values[k, i0, j1] + x1 * values[k, i1, j1] + x2 * values[k, i2, j1]
    s1 += x3 * values[k, i3, j1] + x4 * values[k, i4, j1] + x5 * values[k, i5, j1]
    s2 = x0 * values[k, i0, j2] + x1 * values[k, i1, j2] + x2 * values[k, i2, j2]
    s2 += x3 * values[k, i3, j2] + x4 * values[k, i4, j2] + x5 * values[k, i5, j2]
    s3 = x0 * values[k, i0, j3] + x1 * values[k, i1, j3] + x2 * values[k, i2, j3]
    s3 += x3 * values[k, i3, j3] + x4 * values[k, i4, j3] + x5 * values[k, i5, j3]
    s4 = x0 * values[k, i0, j4] + x1 * values[k, i1, j4] + x2 * values[k, i2, j4]
    s4 += x3 * values[k, i3, j4] + x4 * values[k, i4, j4] + x5 * values[k, i5, j4]
    s5 = x0 * values[k, i0, j5] + x1 * values[k, i1, j5] + x2 * values[k, i2, j5]
    s5 += x3 * values[k, i3, j5] + x4 * values[k, i4, j5] + x5 * values[k, i5, j5]
    return float(((w0 * s0 + w1 * s1) + (w2 * s2 + w3 * s3)) + (w4 * s4 + w5 * s5))


# --- Surfaces: log Z, mean, sigma_EP and sigma*
#
# A table stores B-spline coefficients of four smooth functions of mu and log10 sigma, next to each
# other for every node:
#
#     log Z,  (mean - mu)/sigma_EP,  log(sigma_EP/sigma),  log(sigma*/sigma_EP).
#
# A table of L_p projections has their mean in place of the tilted one and their standard deviation
# in place of both others. None of the functions loses digits if the likelihood changes the cavity
# little, and none grows faster than log Z does. A kernel calls them through an address, like those
# of a likelihood, so that they compile only if something is looked up.


#: Functions that are stored at every node, in this order.
NAMES = ("log_z", "mean", "std_ep", "std_qp")
BANDS = len(NAMES)
#: Meaning of the bands in a table of L_p projections, whose last two hold one standard deviation.
WP_NAMES = ("log_z", "mean_wp", "std_wp")

#: Modes in which an observation selects its slab: a row for each outcome, one row for y mu, one for
#: mu - y, a third axis.
ROWS, MIRROR, LOCATION, VOLUME = 0, 1, 2, 3

# Indices into the array of axes, after the two axes and the first outcome of `Table.axes`.
_MODE, _COUNT, _OUTCOMES = 7, 8, 9


def pack(
    plane: Sequence[float],
    mode: int,
    outcomes: Sequence[float],
    third: Sequence[float] | None = None,
) -> Array:
    """Return the array of axes that `lookup` takes.

    Parameters
    ----------
    plane : ndarray, shape (7,)
        Start, stop and cells per unit of mu, the same of log10 sigma, the first outcome.
    mode : int
    outcomes : sequence of float
        Observations of the rows, ascending.
    third : (float, float, float), optional
        Start, stop and cells per unit of a third axis, that of y.
    """
    tail = third if third is not None else outcomes
    return np.array([*plane, float(mode), float(len(tail)), *tail])


def encode(log_z: Array, shift: Array, variance: Array, star: Array, sigma: Array) -> Array:
    """Return the stored functions of these projections, in a new last axis.

    `shift` is the tilted mean minus mu, `star` and `sigma` are standard deviations.
    """
    std = np.sqrt(variance)
    ratio = np.log(np.minimum(star / std, 1.0))
    return np.stack([log_z, shift / std, np.log(std / sigma), ratio], axis=-1)


@contracted
def _row(axes: Array, y: float) -> int:
    """Return the row of the observation y by bisection; -1 if there is none."""
    low, high = 0, int(axes[_COUNT]) - 1
    while low < high:
        middle = (low + high) // 2
        if axes[_OUTCOMES + middle] < y:
            low = middle + 1
        else:
            high = middle
    return low if axes[_OUTCOMES + low] == y else -1


@contracted_inlined
def _four(values: Array, k: np.uint64, i: np.uint64, q: np.uint64, x: Floats) -> Floats:
    """Sum six rows of slab k from row i on, weighted, in the four bands from column q on."""
    x0, x1, x2, x3, x4, x5 = x
    unit = np.uint64(1)
    i1 = i + unit
    i2 = i1 + unit
    i3 = i2 + unit
    i4 = i3 + unit
    i5 = i4 + unit
    q1 = q + unit
    q2 = q1 + unit
    q3 = q2 + unit
    s0 = x0 * values[k, i, q] + x1 * values[k, i1, q] + x2 * values[k, i2, q]
    s1 = x0 * values[k, i, q1] + x1 * values[k, i1, q1] + x2 * values[k, i2, q1]
    s2 = x0 * values[k, i, q2] + x1 * values[k, i1, q2] + x2 * values[k, i2, q2]
    s3 = x0 * values[k, i, q3] + x1 * values[k, i1, q3] + x2 * values[k, i2, q3]
    s0 += x3 * values[k, i3, q] + x4 * values[k, i4, q] + x5 * values[k, i5, q]
    s1 += x3 * values[k, i3, q1] + x4 * values[k, i4, q1] + x5 * values[k, i5, q1]
    s2 += x3 * values[k, i3, q2] + x4 * values[k, i4, q2] + x5 * values[k, i5, q2]
    s3 += x3 * values[k, i3, q3] + x4 * values[k, i4, q3] + x5 * values[k, i5, q3]
    return s0, s1, s2, s3


@contracted
def slab(values: Array, k: int, i: int, j: int, x: Floats, w: Floats) -> Floats:
    """Return the four bands of slab k in cell (i, j), with weights x along mu and w along sigma."""
    q = np.uint64(4 * j)
    four = np.uint64(4)
    row = np.uint64(i)
    slab = np.uint64(k)
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for b in range(6):
        c0, c1, c2, c3 = _four(values, slab, row, q, x)
        t = w[b]
        s0 += t * c0
        s1 += t * c1
        s2 += t * c2
        s3 += t * c3
        q += four
    return s0, s1, s2, s3


def _lookup(mu: float, sigma: float, y: float, values: Array, axes: Array) -> Floats:
    """Return (log Z, mean, sigma_EP, sigma*), NaN outside; both last are standard deviations.

    `values` has the shape (rows, mu nodes + 4, 4 (log10 sigma nodes + 4)).
    """
    mode = int(axes[_MODE])
    k = 0
    at, origin = mu, 0.0
    flip = 1.0
    if mode == MIRROR:
        at, flip = mu * y, y
    elif mode == LOCATION:
        at, origin = mu - y, y
    elif mode == ROWS:
        k = _row(axes, y)
    ell = math.log10(sigma)
    inside = (at >= axes[0]) & (at <= axes[1]) & (ell >= axes[3]) & (ell <= axes[4]) & (k >= 0)
    if mode == VOLUME:
        inside &= (y >= axes[_OUTCOMES]) & (y <= axes[_OUTCOMES + 1])
    if not inside:
        return math.nan, math.nan, math.nan, math.nan
    a = (at - axes[0]) * axes[2]
    b = (ell - axes[3]) * axes[5]
    i = min(int(a), values.shape[1] - 6)
    j = min(int(b), values.shape[2] // 4 - 6)
    x, w = quintic_weights(a - i), quintic_weights(b - j)
    if mode == VOLUME:
        c = (y - axes[_OUTCOMES]) * axes[_OUTCOMES + 2]
        k = min(int(c), values.shape[0] - 6)
        v = quintic_weights(c - k)
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for d in range(6):
            t0, t1, t2, t3 = slab(values, k + d, i, j, x, w)
            s0 += v[d] * t0
            s1 += v[d] * t1
            s2 += v[d] * t2
            s3 += v[d] * t3
    else:
        s0, s1, s2, s3 = slab(values, k, i, j, x, w)
    std = sigma * math.exp(s2)
    return s0, origin + flip * (at + std * s1), std, std * math.exp(min(s3, 0.0))


#: Address of the lookup for kernels.
lookup = Pointer(_lookup, SURFACES, contracted)


# --- Surfaces on a unit scale, for location and scale families
#
# Let d = y - mu in units of the scale, s the cavity's standard deviation in those units, and r =
# d/sqrt(1 + s^2). The table is over
#
#     x = |r|/sqrt(r^2 + R^2)  in [0, 1],        e = log(1 + K s^2)/2,
#
# so that it covers every distance and every narrow cavity: both ends of x and e = 0 are limits in
# closed form. Let u = s^2/(1 + s^2) and t = 1 - x^2. For tails like those of |f|^-(nu+1) the table
# stores
#
#     log Z + (nu+1)/2 log(1 + r^2/nu),        (mean - mu)/(u t d),
#     log(sigma_EP/sigma)/(u t),               log(sigma*/sigma_EP)/(u t),
#
# which are even functions of r that neither grow nor vanish. The change of a cavity by a site
# therefore has a small relative error, however narrow the cavity and however far out the
# observation.


#: R is the distance, in its standard deviations, at which a cavity much wider than the scale
#: ignores an observation.
REACH = 5.0
#: K reflects that the relevant widths begin below the scale, where log p is no parabola.
NARROW = 9.0
# Indices into the array of axes, after those of the two axes.
_SCALE, _NU, _CONSTANT = 6, 7, 8


def pack_scaled(x: Axis, e: Axis, scale: float, nu: float, constant: float) -> Array:
    """Return the array of axes that `lookup` takes; `constant` is added to log Z."""
    ends = [v for axis in (x, e) for v in (axis.start, axis.stop, 1.0 / axis.step)]
    return np.array([*ends, scale, nu, constant])


def cavities(x: Array, e: Array) -> tuple[Array, Array]:
    """Return distances d and standard deviations s, in units of the scale, of x < 1 and e."""
    r = REACH * x / np.sqrt((1.0 - x) * (1.0 + x))
    s2 = np.expm1(2.0 * e) / NARROW
    return r * np.sqrt(1.0 + s2), np.sqrt(s2)


def encode_scaled(d: Array, s: Array, nu: float, moments: Array) -> Array:
    """Return the stored functions, in a last axis of 4, at unit scale for d, s > 0.

    `moments` has in its last axis log Z, mean - mu, and the standard deviations of EP and QP.
    """
    total = 1.0 + s * s
    r2 = d * d / total
    unit = s * s / total * REACH**2 / (r2 + REACH**2)
    log_z, shift, std, star = np.moveaxis(moments, -1, 0)
    return np.stack(
        [
            log_z + 0.5 * (nu + 1.0) * np.log1p(r2 / nu),
            shift / (unit * d),
            np.log(std / s) / unit,
            np.log(np.minimum(star / std, 1.0)) / unit,
        ],
        axis=-1,
    )


def _lookup_scaled(mu: float, sigma: float, y: float, values: Array, axes: Array) -> Floats:
    """Return (log Z, mean, sigma_EP, sigma*), NaN outside; both last are standard deviations."""
    scale, nu = axes[_SCALE], axes[_NU]
    d, s = (y - mu) / scale, sigma / scale
    s2 = s * s
    e = 0.5 * math.log1p(NARROW * s2)
    total = 1.0 + s2
    r2 = d * d / total
    far = r2 + REACH * REACH
    # NaN and overflowing arguments are outside too.
    if not (e <= axes[4] and far < 1e300):
        return math.nan, math.nan, math.nan, math.nan
    a = math.sqrt(r2 / far) * axes[2]
    b = e * axes[5]
    i = min(int(a), values.shape[1] - 6)
    j = min(int(b), values.shape[2] // 4 - 6)
    s0, s1, s2nd, s3 = slab(values, 0, i, j, quintic_weights(a - i), quintic_weights(b - j))
    unit = s2 / total * (REACH * REACH / far)
    log_z = axes[_CONSTANT] + s0 - 0.5 * (nu + 1.0) * math.log1p(r2 / nu)
    std = sigma * math.exp(unit * s2nd)
    return log_z, mu + (y - mu) * unit * s1, std, std * math.exp(min(unit * s3, 0.0))


#: Address of the lookup for kernels.
lookup_scaled = Pointer(_lookup_scaled, SURFACES, contracted)
