"""Build a compact table: R = sigma*/sigma_EP as splines over the likelihood's own coordinates.

One small file that holds for every cavity: what its rectangle does not cover, the likelihood's
`Reduction` answers in closed form or has integrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution import fingerprint
from qpruntime.execution.executors import Executor, Progress
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import Reduction
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Metadata
from tablegen import splines
from tablegen.compact import errors as regions
from tablegen.files import finish
from tablegen.files.recipe import Document, Recipe, TableJob, stated
from tablegen.second_rule.framed import SEED

__all__ = ["CompactRecipe", "metadata", "sample"]


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
    return Metadata(
        likelihood=likelihood.name,
        parameters=dict(likelihood.parameters),
        outcomes=[float(y) for y in r.outcomes],
        axes=tuple(axis for axis in (r.u, r.v) if axis is not None),
        dtype="float64",
        method="collocation",
        generator=f"tablegen {version('qpruntime')}",
        kind="compact",
    )


def sample(likelihood: Likelihood, row: int, u: float, v: Array) -> Array:
    """Integrate R on a line: one row, one u, every v."""
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
    line = partial(_line, likelihood, along)
    values = np.array(executor.run(line, lines, partial(report, "integrate")))
    return values.reshape(len(r.outcomes), across.size, along.size)


def _line(likelihood: Likelihood, along: Array, where: tuple[int, float]) -> Array:
    return sample(likelihood, *where, along)


@dataclass(frozen=True)
class CompactRecipe(Recipe[Metadata]):
    """Recipe whose plan is the metadata without hash and certificate."""

    @classmethod
    def of(cls, likelihood: Likelihood, source: str, options: dict[str, Any]) -> CompactRecipe:
        """Return the recipe of a likelihood, or raise `InputError` if there are options."""
        if options:
            raise InputError(
                f"a compact table has no such options: {', '.join(sorted(options))}; leave them out"
            )
        plan = metadata(likelihood)
        return cls(likelihood, plan, regions.TOLERANCE, plan.nbytes, space=plan.nbytes)

    def describe(self, threads: int) -> Document:
        """Return the metadata as a document."""
        return stated(self.plan)

    def make(self, job: TableJob) -> Metadata:
        """Integrate, fit and certify."""
        workspace, executor, local, tolerance, report = job
        axes = self.plan.axes
        report("integrate", 0, 1)
        ratios = integrate(self.likelihood, executor, report)
        values = splines.along(ratios, 2, axes[-1])
        if len(axes) == 2:
            values = splines.along(values, 1, axes[0])
        values.flags.writeable = False
        report("certify", 0, 1)
        table = Table(workspace.partial, self.plan, self.likelihood, values)
        certificate = regions.certify(table, run=local.run, seed=SEED)
        if missed := regions.problems(certificate, tolerance):
            raise NumericalError(f"the table misses its tolerance: {missed[0]}; raise --tolerance")
        certificate |= {"tolerance": tolerance, "arithmetic": fingerprint.arithmetic()}
        finished = finish.write(workspace, self.plan, values, certificate)
        report("certify", 1, 1)
        return finished

    def expected(self, existing: Metadata) -> Metadata:
        """Return the metadata of the table."""
        return self.plan
