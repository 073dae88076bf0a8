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
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.threads import Progress
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.projector import order
from qpruntime.projection.table import Table
from qpruntime.projection.tabulated_likelihood import describe, mode_of, standin
from qpruntime.table_format.metadata import MOST_OUTCOMES, Axis, Metadata
from tablegen import splines
from tablegen.files import hdf5
from tablegen.files.recipe import (
    Document,
    Recipe,
    Request,
    projection_of,
    refuse_others,
    unfinished,
)
from tablegen.files.workspace import Workspace
from tablegen.second_rule.framed import SEED
from tablegen.surfaces import errors as surface_errors
from tablegen.surfaces.node_counts import cells_needed, deviation
from tablegen.surfaces.samples import SampledCavities, Sampler

__all__ = ["SurfacesRecipe", "domain", "metadata", "recipe"]

# --- The domain: a likelihood, its observations, and the ends of the axes

#: Default domain, and the largest file.
MU_RANGE, SIGMA_RANGE, LIMIT = (-10.0, 10.0), (-2.0, 1.0), 128_000_000


def domain(
    likelihood: Likelihood,
    source: str = "",
    *,
    outcomes: Sequence[float] | None = None,
    y_range: Sequence[float] | None = None,
    mu_range: Sequence[float] = MU_RANGE,
    log10_sigma_range: Sequence[float] = SIGMA_RANGE,
    limit: int = LIMIT,
    projection: str | None = None,
    p: float | None = None,
) -> SurfacesRecipe:
    """Check the options of a table of surfaces.

    Parameters
    ----------
    likelihood : Likelihood
        With a density.
    outcomes : sequence of float, optional
        The finite set of observations, for a likelihood that is neither mirror nor location.
    y_range : (float, float), optional
        The ends of a third axis, for continuous observations.
    mu_range, log10_sigma_range : (float, float)
        Of a location family the first is the range of mu - y.
    limit : int
        Bytes of the largest table.
    projection : {"wp"}, optional
        Store L_p projections of order `p` in place of those of EP and QP.

    Raises
    ------
    InputError
        If an option is not usable.
    """
    if outcomes is None and y_range is None:
        outcomes, y_range = _declared(likelihood)
    mode = mode_of(likelihood, y_range is not None)
    if not likelihood.has_density:
        raise InputError(f"likelihood {likelihood.name!r} has no density to integrate")
    if mode in ("mirror", "location"):
        observations: tuple[float, ...] = (1.0,) if mode == "mirror" else (0.0,)
    elif (outcomes is None) == (y_range is None):
        raise InputError(
            f"likelihood {likelihood.name!r} ({likelihood.outcomes}) needs either outcomes, the "
            "finite set of its observations, or y_range, the ends of a third axis "
            "(--outcomes 0,1,2 or --y-range LO HI)"
        )
    elif y_range is not None:
        observations = _ends("y", y_range)
        likelihood.validate(np.array(observations))
    else:
        assert outcomes is not None
        if len(outcomes) > MOST_OUTCOMES:
            raise InputError(
                f"surfaces hold at most {MOST_OUTCOMES} outcomes, got {len(outcomes)}; of "
                "continuous ones, use y_range (--y-range LO HI)"
            )
        observations = tuple(
            sorted({float(v) for v in likelihood.validate(np.array(list(outcomes)))})
        )
    low, high = _ends("log10_sigma", log10_sigma_range)
    if low < -8.0 or high > 8.0:
        raise InputError(f"log10 sigma must stay within -8 to 8, got {low:g} to {high:g}")
    if limit < 100_000:
        raise InputError(f"the size limit must be at least 100000 bytes, got {limit}")
    return SurfacesRecipe(
        likelihood,
        source,
        mode,
        observations,
        _ends("mu", mu_range),
        (low, high),
        limit,
        _order(projection, p),
    )


def _order(projection: str | None, p: float | None) -> float | None:
    """Return p of L_p projections, None of the others."""
    if projection is None:
        if p is not None:
            raise InputError('p is the order of projection="wp" (--projection wp): ask for both')
        return None
    choice(projection, "projection", ("wp",))
    if p is None:
        raise InputError('projection "wp" needs its order, such as p=1.5 (--p 1.5)')
    return order("wp", p)


def _declared(likelihood: Likelihood) -> tuple[Sequence[float] | None, tuple[float, float] | None]:
    """Return outcomes or the range of y, if a user's likelihood was made with them."""
    allowed = dict(likelihood.recipe or ()).get("outcomes")
    if allowed is None or likelihood.mirror or likelihood.location:
        return None, None
    if allowed.values is not None:
        return allowed.values, None
    ends = (allowed.low, allowed.high)
    return None, ends if math.isfinite(ends[1] - ends[0]) else None


def _ends(name: str, ends: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in ends)
    except (TypeError, ValueError) as error:
        raise InputError(f"axis {name}: needs two numbers, got {ends!r}") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"axis {name}: needs finite LO < HI, got {low:g} and {high:g}")
    return low, high


# --- Build

# Random places between nodes where a fit is checked before it is certified.
_CHECKS = 1500
#: Relative errors from here on are no accuracy that anybody asks for.
_USELESS = 1e-2
_ROUNDS = 5
# Points in one block, the unit of what is kept.
_BLOCK = 4000


def metadata(what: SurfacesRecipe, cells: Sequence[int]) -> Metadata:
    """Return the metadata of a table with so many cells: no hash, no certificate."""
    axes = what.axes(cells)
    return unfinished(
        what.likelihood,
        what.outcomes,
        axes=axes,
        kind="surfaces",
        surfaces=list(interpolation.NAMES if what.order is None else interpolation.WP_NAMES),
        projection=None if what.order is None else {"name": "wp", "p": what.order},
        traits=describe(what.likelihood, axes[0], what.outcomes, what.mode, what.source),
    )


def resolve(what: SurfacesRecipe, sample: Sampler, tolerance: float, report: Progress) -> list[int]:
    """Return the cells of each axis, within the size limit."""
    axes = what.axes([6, 6, 6])
    cells = []
    for k in range(len(axes)):
        report("resolve", k, len(axes))
        cells.append(cells_needed(sample, axes, k, what.outcomes, tolerance)[0])
    report("resolve", len(axes), len(axes))
    return shrink(what, cells)


def shrink(what: SurfacesRecipe, cells: Sequence[int]) -> list[int]:
    """Take the same share off every axis until the table fits its limit."""
    share = 1.0
    fitting = list(cells)
    while what.nbytes(fitting) > what.largest and max(fitting) > 6:
        share *= 0.98
        fitting = [max(6, int(share * n)) for n in cells]
    return fitting


def fit(what: SurfacesRecipe, cells: Sequence[int], sample: Sampler, report: Progress) -> Array:
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


@dataclass
class SurfacesRecipe(Recipe):
    """Recipe of surfaces: likelihood, observations and ends of the axes.

    `source` is how the command line names the likelihood, `mode` one of
    `qpruntime.projection.tabulated_likelihood.MODES`; `outcomes` are the y of each row, or the ends
    of the third axis. How many nodes there will be is found while the table is made.
    """

    likelihood: Likelihood
    source: str
    mode: str
    outcomes: tuple[float, ...]
    mu: tuple[float, float]
    log10_sigma: tuple[float, float]
    largest: int
    order: float | None

    def __post_init__(self) -> None:
        self.tolerance = surface_errors.tolerance(self.order)

    def axes(self, cells: Sequence[int]) -> tuple[Axis, ...]:
        """Return the axes with so many cells."""
        where = "mu - y" if self.mode == "location" else "y mu" if self.mode == "mirror" else "mu"
        names = (where, "log10_sigma", "y")
        ends = [self.mu, self.log10_sigma]
        if self.mode == "volume":
            ends.append((self.outcomes[0], self.outcomes[1]))
        return tuple(
            Axis(name, low, high, n + 1)
            for name, (low, high), n in zip(names, ends, cells, strict=False)
        )

    def nbytes(self, cells: Sequence[int]) -> int:
        """Size of a table with so many cells."""
        rows = cells[2] + 5 if self.mode == "volume" else len(self.outcomes)
        return 8 * interpolation.BANDS * rows * (cells[0] + 5) * (cells[1] + 5)

    def describe(self, threads: int) -> Document:
        """Return the document that describes the domain and the limit of its table."""
        return {
            "likelihood": self.likelihood.spelt,
            **projection_of(self.order),
            "outcomes": list(self.outcomes),
            "mu": "{:g} to {:g}".format(*self.mu),
            "log10_sigma": "{:g} to {:g}".format(*self.log10_sigma),
            "nodes": "as many as the tolerance takes",
            "largest_bytes": self.largest,
        }

    def make(self, request: Request, workspace: Workspace, report: Progress) -> Metadata:
        """Fit until the errors between nodes hold, and certify."""
        tolerance = request.tolerance
        identity = json.dumps(metadata(self, [6, 6, 6]).traits["probes"])
        keep = workspace.directory / "samples"
        sample = Sampler(self.likelihood, request.executor, keep, identity, self.order)
        cells = resolve(self, sample, tolerance, report)
        before = math.inf
        for _ in range(_ROUNDS):
            workspace.check_space(self.nbytes(cells))
            document = metadata(self, cells)
            likelihood = standin(document, workspace.target)
            table = Table(workspace.partial, document, likelihood, fit(self, cells, sample, report))
            error = check(table, sample)
            wider = shrink(self, [math.ceil(n * _growth(error, tolerance)) for n in cells])
            met = error <= 0.8 * tolerance
            # No more nodes where they do not help, or do not fit.
            if met or error > 0.7 * before or math.prod(wider) <= 1.05 * math.prod(cells):
                break
            before, cells = error, wider
        report("certify", 0, 1)
        run = request.local.run
        certificate = surface_errors.certify(table, self.likelihood, run=run, seed=SEED)
        if missed := surface_errors.problems(certificate, tolerance):
            raise NumericalError(advice(self, certificate, missed[0], cells))
        made = hdf5.finish(workspace, document, table.values, certificate, tolerance)
        report("certify", 1, 1)
        return made

    def expected(self, existing: Metadata) -> Metadata | None:
        """Return the metadata of a table with as many nodes as an existing one."""
        if existing.kind != "surfaces":
            return None
        return metadata(self, [axis.size - 1 for axis in existing.axes])


def recipe(likelihood: Likelihood, source: str, options: dict[str, Any]) -> SurfacesRecipe:
    """Return the recipe with these options of `domain`, or raise `InputError`."""
    if (counts := options.pop("counts", None)) is not None:
        options["outcomes"] = range(counts[0], counts[1] + 1)
    refuse_others(options, domain.__kwdefaults__, "a table of surfaces")
    return domain(likelihood, source, **options)


def _growth(error: float, tolerance: float) -> float:
    """Factor of the cells that should meet the tolerance, errors falling with the sixth power."""
    return float(min(max((error / (0.5 * tolerance)) ** (1.0 / 6.0), 1.05), 1.6))


def advice(what: SurfacesRecipe, certificate: dict, missed: str, cells: Sequence[int]) -> str:
    """Say what was reached, where, and what can be done about it.

    A tolerance at which the table is nowhere right is not offered.
    """
    worst = max(certificate[name]["max_relative_error"] for name in metadata(what, cells).surfaces)
    full = what.nbytes([math.ceil(1.1 * n) for n in cells]) > what.largest
    step = "raise --size-limit, " if full else ""
    # Within a size limit, another tolerance shares the nodes out differently.
    reached = 10.0 ** (0.25 * math.ceil(4.0 * math.log10(2.0 * max(worst, 1e-300))))
    last = "or do without: infer(..., table='exact') integrates what is narrower than any cell"
    if reached < _USELESS:
        last = f"or accept --tolerance {reached:.2g}"
    return (
        f"the table misses its tolerance with {' x '.join(str(n) for n in cells)} cells: {missed}; "
        f"{step}narrow --mu-range, begin --log10-sigma-range higher, {last}"
    )
