"""Build a table of surfaces: everything inference needs of a likelihood, from its log density.

Node counts come from measured errors (`node_counts`); the fit is checked between its nodes
and refined until it holds or the file would grow beyond its limit; then every surface is certified
by the second quadrature rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution import fingerprint
from qpruntime.execution.executors import Progress
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.table import Table
from qpruntime.projection.tabulated_likelihood import describe, standin
from qpruntime.table_format.metadata import Metadata
from tablegen import splines
from tablegen.files import hdf5
from tablegen.files.recipe import Document, Recipe, TableJob, projection_of
from tablegen.second_rule.framed import SEED
from tablegen.surfaces import errors as surface_errors
from tablegen.surfaces.domain import Domain, domain
from tablegen.surfaces.node_counts import cells_needed, deviation
from tablegen.surfaces.samples import SampledCavities, Sampler

__all__ = ["SurfacesRecipe", "metadata"]

# Random places between nodes where a fit is checked before it is certified.
_CHECKS = 1500
#: Relative errors from here on are no accuracy that anybody asks for.
_USELESS = 1e-2
_ROUNDS = 5
# Points in one block, the unit of what is kept.
_BLOCK = 4000


def metadata(what: Domain, cells: Sequence[int]) -> Metadata:
    """Return the metadata of a table with so many cells: no hash, no certificate."""
    axes = what.axes(cells)
    return Metadata(
        likelihood=what.likelihood.name,
        parameters=dict(what.likelihood.parameters),
        outcomes=list(what.outcomes),
        axes=axes,
        dtype="float64",
        method="collocation",
        generator=f"tablegen {version('qpruntime')}",
        kind="surfaces",
        surfaces=list(interpolation.NAMES if what.p is None else interpolation.WP_NAMES),
        projection=None if what.p is None else {"name": "wp", "p": what.p},
        traits=describe(what.likelihood, axes[0], what.outcomes, what.mode, what.source),
    )


def resolve(what: Domain, sample: Sampler, tolerance: float, report: Progress) -> list[int]:
    """Return the cells of each axis, within the size limit."""
    axes = what.axes([6, 6, 6])
    cells = []
    for k in range(len(axes)):
        report("resolve", k, len(axes))
        cells.append(cells_needed(sample, axes, k, what.outcomes, tolerance)[0])
    report("resolve", len(axes), len(axes))
    return shrink(what, cells)


def shrink(what: Domain, cells: Sequence[int]) -> list[int]:
    """Take the same share off every axis until the table fits its limit."""
    share = 1.0
    fitting = list(cells)
    while what.nbytes(fitting) > what.limit and max(fitting) > 6:
        share *= 0.98
        fitting = [max(6, int(share * n)) for n in cells]
    return fitting


def fit(what: Domain, cells: Sequence[int], sample: Sampler, report: Progress) -> Array:
    """Integrate at all collocation points; return the coefficients, in the shape of the dataset."""
    axes = what.axes(cells)
    mu, log10_sigma = splines.points(axes[0]), splines.points(axes[1])
    ys = splines.points(axes[2]) if len(axes) == 3 else np.array(what.outcomes)
    step = max(1, _BLOCK // mu.size)
    blocks = []
    for y in ys.tolist():
        for a in range(0, log10_sigma.size, step):
            sigma = np.repeat(10.0 ** log10_sigma[a : a + step], mu.size)
            blocks.append(
                SampledCavities(np.tile(mu, sigma.size // mu.size), sigma, np.full(sigma.size, y))
            )
    report("integrate", 0, len(blocks))
    parts = sample(blocks, partial(report, "integrate"))
    values = np.concatenate(parts)
    values = values.reshape(ys.size, log10_sigma.size, mu.size, interpolation.BANDS)
    values = splines.along(values, 1, axes[1])
    values = splines.along(values, 2, axes[0])
    if len(axes) == 3:
        values = splines.along(values, 0, axes[2])
    values = np.ascontiguousarray(values.transpose(0, 2, 1, 3)).reshape(ys.size, mu.size, -1)
    values.flags.writeable = False
    return values


def check(table: Table, sample: Sampler) -> float:
    """Return the largest error between nodes, by the rule the table was made with."""
    mu, sigma, y = surface_errors.draw(table, _CHECKS, np.random.default_rng(SEED + 1))
    values = surface_errors.lookups(table, mu, sigma, y)
    parts = [slice(a, a + 128) for a in range(0, mu.size, 128)]
    truth = np.concatenate(sample([SampledCavities(mu[p], sigma[p], y[p]) for p in parts]))
    again = interpolation.encode(
        values[:, 0], values[:, 1] - mu, values[:, 2] ** 2, values[:, 3], sigma
    )
    return float(deviation(again, truth).max())


_OURS = {"outcomes", "y_range", "mu_range", "log10_sigma_range", "limit", "projection", "p"}


@dataclass(frozen=True)
class SurfacesRecipe(Recipe[Domain]):
    """Recipe of surfaces; how many nodes there will be is found while they are made."""

    @classmethod
    def of(cls, likelihood: Likelihood, source: str, options: dict[str, Any]) -> SurfacesRecipe:
        """Return the recipe with these options of `domain`, or raise `InputError`."""
        if (counts := options.pop("counts", None)) is not None:
            options["outcomes"] = range(counts[0], counts[1] + 1)
        if wrong := set(options) - _OURS:
            raise InputError(
                f"a table of surfaces has no such options: {', '.join(sorted(wrong))}; "
                "leave them out"
            )
        plan = domain(likelihood, source, **options)
        tolerance = surface_errors.tolerance(plan.p)
        return cls(plan.likelihood, plan, tolerance, plan.limit, order=plan.p)

    def describe(self, threads: int) -> Document:
        """Return the document that describes the domain and the limit of its table."""
        what = self.plan
        return {
            "likelihood": what.likelihood.spelt,
            **projection_of(what.p),
            "outcomes": list(what.outcomes),
            "mu": "{:g} to {:g}".format(*what.mu),
            "log10_sigma": "{:g} to {:g}".format(*what.log10_sigma),
            "nodes": "as many as the tolerance takes",
            "largest_bytes": what.limit,
        }

    def make(self, job: TableJob) -> Metadata:
        """Fit until the errors between nodes hold, and certify."""
        what = self.plan
        workspace, executor, local, tolerance, report = job
        identity = json.dumps(metadata(what, [6, 6, 6]).traits["probes"])
        sample = Sampler(
            self.likelihood, executor, workspace.directory / "samples", identity, self.order
        )
        cells = resolve(what, sample, tolerance, report)
        before = math.inf
        for _ in range(_ROUNDS):
            workspace.check_space(what.nbytes(cells))
            document = metadata(what, cells)
            likelihood = standin(document, workspace.target)
            table = Table(workspace.partial, document, likelihood, fit(what, cells, sample, report))
            error = check(table, sample)
            wider = shrink(what, [math.ceil(n * _growth(error, tolerance)) for n in cells])
            met = error <= 0.8 * tolerance
            # No more nodes where they do not help, or do not fit.
            if met or error > 0.7 * before or math.prod(wider) <= 1.05 * math.prod(cells):
                break
            before, cells = error, wider
        report("certify", 0, 1)
        certificate = surface_errors.certify(table, self.likelihood, run=local.run, seed=SEED)
        if missed := surface_errors.problems(certificate, tolerance):
            raise NumericalError(advice(what, certificate, missed[0], cells))
        certificate |= {"tolerance": float(tolerance), "arithmetic": fingerprint.arithmetic()}
        made = hdf5.finish(workspace, document, table.values, certificate)
        report("certify", 1, 1)
        return made

    def expected(self, existing: Metadata) -> Metadata | None:
        """Return the metadata of a table with as many nodes as an existing one."""
        if existing.kind != "surfaces":
            return None
        return metadata(self.plan, [axis.size - 1 for axis in existing.axes])


def _growth(error: float, tolerance: float) -> float:
    """Factor of the cells that should meet the tolerance, errors falling with the sixth power."""
    return float(min(max((error / (0.5 * tolerance)) ** (1.0 / 6.0), 1.05), 1.6))


def advice(what: Domain, certificate: dict, missed: str, cells: Sequence[int]) -> str:
    """Say what was reached, where, and what can be done about it."""
    worst = max(certificate[name]["max_relative_error"] for name in metadata(what, cells).surfaces)
    full = what.nbytes([math.ceil(1.1 * n) for n in cells]) > what.limit
    step = "raise --size-limit, " if full else ""
    return (
        f"the table misses its tolerance with {' x '.join(str(n) for n in cells)} cells: {missed}; "
        f"{step}narrow --mu-range, begin --log10-sigma-range higher, {_last_resort(worst)}"
    )


def _last_resort(worst: float) -> str:
    """Return what to do if nothing else helps; a table that is nowhere right is not offered."""
    # Within a size limit, another tolerance shares the nodes out differently.
    reached = 10.0 ** (0.25 * math.ceil(4.0 * math.log10(2.0 * max(worst, 1e-300))))
    if reached < _USELESS:
        return f"or accept --tolerance {reached:.2g}"
    return "or do without: infer(..., table='exact') integrates what is narrower than any cell"
