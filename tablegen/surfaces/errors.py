"""Measure every surface of a table against the second quadrature rule, and say what missed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_surfaces
from qpruntime._typing import Array
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.table import Table
from tablegen.files.looking import Found, Look, Runner, hash_problems, in_blocks, largest, measured
from tablegen.second_rule import wp as second_wp
from tablegen.second_rule.framed import RULE, independent_all

__all__ = [
    "TOLERANCE",
    "WP_TOLERANCE",
    "certify",
    "check",
    "deviations",
    "draw",
    "lookups",
    "problems",
    "tolerance",
]

#: Largest error allowed by default, of any surface.
TOLERANCE = 1e-8
#: The same of L_p projections, whose second rule is a step of Newton's method.
WP_TOLERANCE = 1e-6
#: Random points of a certificate.
POINTS = 3000


def tolerance(order: float | None) -> float:
    """Return the tolerance of tables of this order, None being those of EP and QP."""
    return TOLERANCE if order is None else WP_TOLERANCE


@kernel
def _lookups(
    handle: int, mu: Array, sigma: Array, y: Array, values: Array, axes: Array, out: Array
) -> None:
    for i in range(mu.size):
        out[i] = call_surfaces(handle, mu[i], sigma[i], y[i], values, axes)


def lookups(table: Table | tuple[Array, Array, Any], mu: Array, sigma: Array, y: Array) -> Array:
    """Return rows (log Z, mean, sigma_EP, sigma*) as the table has them, NaN outside.

    Instead of a `Table`, the values, axes and lookup of `Table.source` do.
    """
    out = np.empty((mu.size, interpolation.BANDS))
    values, axes, handle = table.source()[3:6] if isinstance(table, Table) else table
    _lookups(handle, mu, sigma, y, values, axes, out)
    return out


def draw(table: Table, points: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return random cavities and observations: at nodes, on edges, in cells and amid cells."""
    metadata = table.metadata
    where = []
    for axis in metadata.axes:
        cell = rng.uniform(0.0, axis.size - 1.0, points)
        kind = rng.random(points)
        cell = np.where(kind < 0.1, np.round(cell), cell)
        cell = np.where((kind >= 0.1) & (kind < 0.6), np.floor(cell) + 0.5, cell)
        edge = rng.integers(2, size=points) * (axis.size - 1.0)
        cell = np.where((kind >= 0.9), edge, cell)
        where.append(np.clip(axis.start + cell * axis.step, axis.start, axis.stop))
    mu, sigma = where[0], 10.0 ** where[1]
    # 10^x need not come back as x: the ends belong to the table.
    sigma = _within(sigma, metadata.axes[1].start, metadata.axes[1].stop)
    if len(where) == 3:
        return mu, sigma, where[2]
    y = rng.choice(np.array(metadata.outcomes), points)
    if metadata.traits["mode"] == "mirror":
        y = rng.choice([-1.0, 1.0], points)
        return mu * y, sigma, y
    if metadata.traits["mode"] == "location":
        # Any y does; where mu - y rounds, the ends of the axis are left alone.
        y = rng.integers(-40, 41, points) / 8.0
        y *= np.abs(mu - 0.5 * (metadata.axes[0].start + metadata.axes[0].stop)) < (
            0.499 * (metadata.axes[0].stop - metadata.axes[0].start)
        )
        return mu + y, sigma, y
    return mu, sigma, y


def _within(sigma: Array, start: float, stop: float) -> Array:
    ell = np.log10(sigma)
    sigma = np.where(ell < start, np.nextafter(sigma, np.inf), sigma)
    return np.where(ell > stop, np.nextafter(sigma, 0.0), sigma)


def certify(
    table: Table, likelihood: Likelihood, *, run: Runner, points: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Compare lookups with the second rule at random points.

    Returns
    -------
    dict
        For each name in the metadata's `surfaces` ``max_relative_error``, ``points`` and the place
        (``mu``, ``log10_sigma``, ``outcome``). The error of log Z is absolute where it is less
        than 1; that of the mean is in tilted standard deviations. Errors of L_p projections are
        those of `tablegen.second_rule.wp`, relative to their standard deviation.
    """
    points = POINTS if points is None else points
    mu, sigma, y = draw(table, points, np.random.default_rng(seed))
    order = table.metadata.order

    def block(part: slice) -> Array:
        stored = lookups(table, mu[part], sigma[part], y[part])
        if order is not None:
            at = mu[part], sigma[part], y[part]
            return second_wp.errors(likelihood, order, *at, stored[:, :3])
        return deviations(likelihood, stored, mu[part], sigma[part], y[part])

    error = np.nan_to_num(in_blocks(block, points, run), nan=np.finfo(float).max)
    rule = RULE if order is None else second_wp.RULE
    return {"rule": rule, "seed": seed, "random_points": points} | {
        name: largest(error[:, k], mu, np.log10(sigma), y)
        for k, name in enumerate(table.metadata.surfaces)
    }


def deviations(likelihood: Likelihood, stored: Array, mu: Array, sigma: Array, y: Array) -> Array:
    """Return how far rows (log Z, mean, sigma_EP, sigma*) are from the second rule, in units."""
    truth = independent_all(likelihood, mu, sigma, y)
    truth[:, 2] = np.sqrt(truth[:, 2])
    unit = np.stack([np.maximum(1.0, np.abs(truth[:, 0])), *truth[:, [2, 2, 3]].T], 1)
    return np.asarray(np.abs(stored - truth) / unit)


def check(table: Table, look: Look) -> Found:
    """Return the problems of finished surfaces, and errors measured if there is the density."""
    if not table.likelihood.has_density:
        return hash_problems(table), {}
    return measured(table, look, partial(certify, likelihood=table.likelihood), problems)


def problems(certificate: dict[str, Any], tolerance: float) -> list[str]:
    """Say which surfaces miss the tolerance, the worst first."""
    names = interpolation.WP_NAMES if "mean_wp" in certificate else interpolation.NAMES
    entries = sorted(
        ((certificate[name], name) for name in names),
        key=lambda pair: -pair[0]["max_relative_error"],
    )
    text = (
        "error {max_relative_error:.2g} of {name} at mu = {mu:.17g}, log10 sigma = "
        "{log10_sigma:.17g}, y = {outcome:g}"
    )
    return [
        f"{text.format(**entry, name=name)}, allowed {tolerance:.2g}"
        for entry, name in entries
        if not entry["max_relative_error"] <= tolerance
    ]
