# mypy: disable-error-code=no-untyped-def
"""Lookups of a whole projection: log Z, mean, sigma_EP and sigma* from one set of spline weights.

What is stored are B-spline coefficients of four smooth functions of mu and log10 sigma, next to
each other for every node:

    log Z,  (mean - mu)/sigma_EP,  log(sigma_EP/sigma),  log(sigma*/sigma_EP).

A table of L_p projections has their mean in place of the tilted one and their standard deviation in
place of both others. None of them loses digits where the likelihood moves the cavity little, and
none grows faster than log Z does. A kernel reaches these functions through an address, like those
of a likelihood, so that nobody compiles them who does not look anything up.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import SURFACES, Pointer, contracted, inlined
from qpruntime.projection.splines import quintic_weights

__all__ = [
    "BANDS",
    "LOCATION",
    "MIRROR",
    "NAMES",
    "ROWS",
    "VOLUME",
    "WP_NAMES",
    "encode",
    "lookup",
    "pack",
    "slab",
]

#: What is stored at every node, in this order.
NAMES = ("log_z", "mean", "std_ep", "std_qp")
BANDS = len(NAMES)
#: What the bands mean in a table of L_p projections, whose last two hold one standard deviation.
WP_NAMES = ("log_z", "mean_wp", "std_wp")

#: How an observation finds its slab: a row each, one row for y mu, one for mu - y, a third axis.
ROWS, MIRROR, LOCATION, VOLUME = 0, 1, 2, 3

# Places in the array of axes, after the two axes and the first outcome of `Table.axes`.
_MODE, _COUNT, _OUTCOMES = 7, 8, 9


def pack(plane, mode, outcomes, third=None):
    """Return the array of axes that `lookup` takes.

    Parameters
    ----------
    plane : ndarray, shape (7,)
        Start, stop and cells per unit of mu, the same of log10 sigma, the first outcome.
    mode : int
    outcomes : sequence of float
        Ascending: the observation of each row.
    third : (float, float, float), optional
        Start, stop and cells per unit of a third axis, that of y.
    """
    tail = third if third is not None else outcomes
    return np.array([*plane, float(mode), float(len(tail)), *tail])


def encode(log_z, shift, variance, star, sigma):
    """Return what is stored for these projections, in a new last axis.

    `shift` is the tilted mean less mu, `star` and `sigma` are standard deviations.
    """
    std = np.sqrt(variance)
    ratio = np.log(np.minimum(star / std, 1.0))
    return np.stack([log_z, shift / std, np.log(std / sigma), ratio], axis=-1)


@contracted
def _row(axes, y):
    """Row of the observation y, by bisection; -1 if there is none."""
    low, high = 0, int(axes[_COUNT]) - 1
    while low < high:
        middle = (low + high) // 2
        if axes[_OUTCOMES + middle] < y:
            low = middle + 1
        else:
            high = middle
    return low if axes[_OUTCOMES + low] == y else -1


@inlined
def _four(values, k, i, q, x):
    """Sum six rows of slab k from row i on, weighted, in the four bands from column q on."""
    x0, x1, x2, x3, x4, x5 = x
    one = np.uint64(1)
    i1 = i + one
    i2 = i1 + one
    i3 = i2 + one
    i4 = i3 + one
    i5 = i4 + one
    q1 = q + one
    q2 = q1 + one
    q3 = q2 + one
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
def slab(values, k, i, j, x, w):
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


def _lookup(mu, sigma, y, values, axes):
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


#: What kernels call.
lookup = Pointer(_lookup, SURFACES, contracted)
