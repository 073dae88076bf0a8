"""Compact tables: R = sigma*/sigma_EP as splines over the likelihood's own coordinates.

One small file that holds for every cavity: what its rectangle does not cover, the likelihood's
`Reduction` answers in closed form or has integrated. Its error is measured wherever it may be: on
nodes, in cells, at seams, far out. Whole lookups, with coordinates and sigma_EP, are compared with
the second quadrature rule. The splines themselves are compared at nodes, so that a wrong
coefficient cannot remain unnoticed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.threads import Executor, Progress
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import Reduction
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen import splines
from tablegen.files import hdf5
from tablegen.files.looking import Found, Look, Runner, in_blocks, largest, measured
from tablegen.files.recipe import Document, Recipe, Request, refuse_others, stated, unfinished
from tablegen.files.workspace import Workspace
from tablegen.second_rule.framed import RULE, SEED, independent

__all__ = ["DOMAIN", "REGIONS", "TOLERANCE", "CompactRecipe", "certify", "check", "problems"]

#: Largest relative error allowed anywhere.
TOLERANCE = 1e-9
#: And at nodes, where a spline only rounds.
AT_NODES = 1e-11
REGIONS = ("nodes", "cells", "seams", "far")
#: log10 sigma goes from here to there; mu up to `_REACH` times the larger of sigma and 1.
DOMAIN = (-6.0, 8.0)
_REACH = 1e6
#: A double cannot hold mu to 1e-10 sigma beyond this many sigma, so comparisons are meaningless.
_RESOLVED = 1e9
#: Distances from a seam, in lengths of its axis.
_NEAR = (0.0, 1e-12, 1e-9, 1e-6, 1e-3)
#: One node in this many, or more, is integrated again.
_EVERY = 5


def reduction(likelihood: Likelihood) -> Reduction:
    """Return the coordinates of a registered likelihood, or raise `InputError`."""
    coordinates = likelihood.reduction
    if coordinates is None:
        raise InputError(
            f"likelihood {likelihood.spelt!r} has no compact table: it declares no Reduction"
        )
    return coordinates


def metadata(likelihood: Likelihood) -> Metadata:
    """Return the metadata of the table before it is built: no hash, no certificate."""
    r = reduction(likelihood)
    axes = tuple(axis for axis in (r.u, r.v) if axis is not None)
    return unfinished(likelihood, r.outcomes, axes=axes, kind="compact")


def sample(likelihood: Likelihood, v: Array, where: tuple[int, float]) -> Array:
    """Integrate R on a line: one row and one u, every v."""
    row, u = where
    cavity = reduction(likelihood).cavity
    mu, sigma, y = np.array([cavity(row, u, t) for t in v.tolist()]).T
    star = project_arrays(likelihood, mu, sigma, y, table="exact").std
    return np.asarray(star / project_arrays(likelihood, mu, sigma, y, method="ep").std)


def integrate(likelihood: Likelihood, executor: Executor, report: Progress) -> Array:
    """Return R at all collocation points, in the shape of the dataset."""
    r = reduction(likelihood)
    across = splines.points(r.u) if r.u is not None else np.zeros(1)
    along = splines.points(r.v)
    lines = [(row, u) for row in range(len(r.outcomes)) for u in across.tolist()]
    line = partial(sample, likelihood, along)
    values = np.array(executor.run(line, lines, partial(report, "integrate")))
    return values.reshape(len(r.outcomes), across.size, along.size)


class CompactRecipe(Recipe):
    """Recipe whose plan is the metadata without hash and certificate."""

    tolerance = TOLERANCE

    def __init__(self, likelihood: Likelihood, source: str, options: dict[str, Any]) -> None:
        refuse_others(options, None, "a compact table")
        self.likelihood, self.plan = likelihood, metadata(likelihood)
        self.largest = self.space = self.plan.nbytes

    def describe(self, threads: int) -> Document:
        """Return the metadata as a document."""
        return stated(self.plan)

    def make(self, request: Request, workspace: Workspace, report: Progress) -> Metadata:
        """Integrate, fit and certify."""
        axes, tolerance = self.plan.axes, request.tolerance
        report("integrate", 0, 1)
        ratios = integrate(self.likelihood, request.executor, report)
        values = splines.along(ratios, 2, axes[-1])
        if len(axes) == 2:
            values = splines.along(values, 1, axes[0])
        values.flags.writeable = False
        report("certify", 0, 1)
        table = Table(workspace.partial, self.plan, self.likelihood, values)
        certificate = certify(table, run=request.local.run, seed=SEED)
        if missed := problems(certificate, tolerance):
            raise NumericalError(f"the table misses its tolerance: {missed[0]}; raise --tolerance")
        finished = hdf5.finish(workspace, self.plan, values, certificate, tolerance)
        report("certify", 1, 1)
        return finished

    def expected(self, existing: Metadata) -> Metadata:
        """Return the metadata of the table."""
        return self.plan


# --- The error of a table


def certify(table: Table, *, run: Runner, points: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Compare lookups with the second rule, at `points` random places in each region.

    Of the nodes a lattice is looked at instead.

    Returns
    -------
    dict
        For each of `REGIONS` ``max_relative_error``, ``points`` and the place (``mu``,
        ``log10_sigma``, ``outcome``).
    """
    rng = np.random.default_rng(seed)
    certificate: dict[str, Any] = {"rule": RULE, "seed": seed, "random_points": points}
    where = _lattice(table, rng)
    cavities = _cavities(table, where, rng)
    raw = splines.evaluate(table.values, table.axes(), where)
    certificate["nodes"] = _compare(table, cavities, run, raw)
    for name, draw in zip(REGIONS[1:], (_cells, _seams, _far), strict=True):
        certificate[name] = _compare(table, draw(table, points, rng), run)
    return certificate


def check(table: Table, look: Look) -> Found:
    """Return the problems of a finished compact table and the errors measured."""
    return measured(table, look, certify, problems)


def problems(certificate: dict[str, Any], tolerance: float) -> list[str]:
    """Say which regions miss the tolerance; nodes have to be better than 1e-11.

    A coefficient in a corner that is altered by 1e-6 changes the node there by this much.
    """
    reasons = []
    for name in REGIONS:
        allowed = min(tolerance, AT_NODES) if name == "nodes" else tolerance
        entry = certificate[name]
        if not entry["max_relative_error"] <= allowed:
            text = (
                "relative error {max_relative_error:.2g} at mu = {mu:.17g}, log10 sigma = "
                "{log10_sigma:.17g}, y = {outcome:g}"
            )
            reasons.append(f"{text.format(**entry)} ({name}), allowed {allowed:.2g}")
    return reasons


def _axes(table: Table) -> tuple[Axis | None, Axis]:
    axes = table.metadata.axes
    return (axes[0] if len(axes) == 2 else None), axes[-1]


def _cavities(table: Table, where: Array, rng: np.random.Generator) -> Array:
    """Return cavities (mu, sigma, y), shape (N, 3), for rows of (row, u, v)."""
    reduction = table.likelihood.reduction
    assert reduction is not None
    cavities = np.array([reduction.cavity(int(row), u, v) for row, u, v in where.tolist()])
    return _either_label(table, cavities, rng)


def _either_label(table: Table, cavities: Array, rng: np.random.Generator) -> Array:
    if table.likelihood.mirror:
        sign = rng.choice([-1.0, 1.0], len(cavities))
        cavities = cavities * np.stack([sign, np.ones(len(cavities)), sign], 1)
    return cavities


def _lattice(table: Table, rng: np.random.Generator) -> Array:
    """Return nodes (row, u, v) close enough together that every coefficient has a say in one.

    Every fifth node of every row, from a random one on, and the ends. A node weighs the five
    coefficients around it by at least 1/120 along each axis.
    """
    nodes = []
    for axis in _axes(table):
        if axis is None:
            nodes.append(np.zeros(1))
            continue
        sampled = np.arange(rng.integers(_EVERY), axis.size, _EVERY)
        nodes.append(axis.nodes()[np.unique([0, *sampled, axis.size - 1])])
    rows = np.arange(table.metadata.shape[0], dtype=np.float64)
    return np.stack(np.meshgrid(rows, *nodes, indexing="ij"), -1).reshape(-1, 3)


def _cells(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Random points of the rectangle, half of them in the middle of a cell."""
    u, v = _axes(table)
    where = np.zeros((points, 3))
    where[:, 0] = rng.integers(table.metadata.shape[0], size=points)
    middle = rng.random(points) < 0.5
    for column, axis in ((1, u), (2, v)):
        if axis is not None:
            cell = rng.uniform(0, axis.size - 1, points)
            cell = np.where(middle, np.floor(cell) + 0.5, cell)
            where[:, column] = axis.start + cell * axis.step
    return _cavities(table, where, rng)


def _seams(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Both sides of the ends of each axis, and of the last row."""
    u, v = _axes(table)
    rows = table.metadata.shape[0]
    where = np.zeros((points, 3))
    where[:, 0] = rng.integers(rows, size=points)
    for column, axis in ((1, u), (2, v)):
        if axis is not None:
            where[:, column] = rng.uniform(axis.start, axis.stop, points)
    ends = [(k, axis) for k, axis in ((1, u), (2, v)) if axis is not None]
    for i in range(points):
        kind = i % (len(ends) + (rows > 1))
        if kind == len(ends):
            where[i, 0] = rows - 1 + rng.integers(2)
            continue
        column, axis = ends[kind]
        off = rng.choice(_NEAR) * rng.choice([-1.0, 1.0]) * (axis.stop - axis.start)
        where[i, column] = rng.choice([axis.start, axis.stop]) + off
    return _cavities(table, where, rng)


def _far(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Cavities of every width and place, and outcomes of every size."""
    sigma = 10.0 ** rng.uniform(*DOMAIN, points)
    size = np.maximum(sigma, 1.0) * _REACH ** rng.uniform(-1.0, 1.0, points)
    mu = rng.choice([-1.0, 1.0], points) * np.minimum(size, _RESOLVED * sigma)
    y = np.ones(points)
    if not table.likelihood.mirror:
        assert table.likelihood.reduction is not None
        largest = table.likelihood.reduction.largest
        y = np.floor((largest + 1.0) ** rng.uniform(0.0, 1.0, points)) - 1.0
    return _either_label(table, np.stack([mu, sigma, y], 1), rng)


def _compare(
    table: Table, cavities: Array, run: Runner, ratio: Array | None = None
) -> dict[str, Any]:
    """Return the largest error of lookups, or of sigma*/sigma_EP where it is given."""
    mu, sigma, y = np.ascontiguousarray(cavities.T)
    model = table.likelihood

    def block(part: slice) -> Array:
        truth = independent(model, mu[part], sigma[part], y[part])
        if ratio is None:
            star = table.lookup(mu[part], sigma[part], y[part])[0]
        else:
            ep = project_arrays(model, mu[part], sigma[part], y[part], method="ep").std
            star = ratio[part] * ep
        return np.asarray(star / truth - 1.0)

    error = np.abs(in_blocks(block, mu.size, run))
    return largest(error, mu, np.log10(sigma), y)
