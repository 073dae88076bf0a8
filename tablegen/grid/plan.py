"""Plan of a table before any computation: axes, chunks, method, size. All functions are pure.

A `Plan` determines every byte of the table, and its fingerprint stands for it: chunks of an
interrupted build are kept only if they were made by the same plan. `tablegen.grid.chebyshev`
computes chunks, and `tablegen.builder` carries out a plan.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version

import numpy as np

from qpruntime import _cli_hints, likelihoods
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import MOST_OUTCOMES, Axis, Metadata
from tablegen.files.recipe import one_of, unfinished

__all__ = ["DTYPES", "METHODS", "GridChunk", "Plan", "make_plan"]

METHODS = ("spectral", "direct")
DTYPES = ("float64", "float32")
CHUNK_BYTES = 8_000_000
#: Raised whenever the same options would give other bytes.
ALGORITHM = 1

# Measured on 2 cores of a 2.4 GHz server; only `Plan.estimate_seconds` uses them.
_DIRECT_SECONDS = 4e-6
_POINT_SECONDS = 3.5e-5
_EXPAND_SECONDS = 4e-8
_AXIS_SECONDS = 0.25
_BYTES_PER_SECOND = 2e8
_OVERHEAD_SECONDS = 3.0


@dataclass(frozen=True)
class GridChunk:
    """Rows ``start:stop`` of the mu axis, all columns, of outcome number `outcome`."""

    outcome: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan(Metadata):
    """Metadata of the table to be built, and how it is cut and computed.

    `method` is one of `METHODS`, or "one-axis" once resolved. A chunk has `rows` rows of mu, the
    last one of a slab maybe fewer. `nodes` are the Chebyshev nodes in mu and in log10 sigma, None
    where there is no series.
    """

    rows: int = 1
    nodes: tuple[int, int] | None = None

    @property
    def model(self) -> Likelihood:
        """The likelihood of that name; workers on other machines have it from their registry."""
        return _registered(self.spelt)

    @property
    def size(self) -> int:
        """Number of grid nodes."""
        return math.prod(self.shape)

    @property
    def chunks(self) -> tuple[GridChunk, ...]:
        """All chunks in the order of the file."""
        return tuple(
            GridChunk(k, start, min(start + self.rows, self.mu.size))
            for k in range(len(self.outcomes))
            for start in range(0, self.mu.size, self.rows)
        )

    def fingerprint(self) -> str:
        """Return the hash of all that determines the bytes, the libraries that round included."""
        made_by = [ALGORITHM, *(version(name) for name in ("qpruntime", "numpy", "numba"))]
        text = json.dumps([made_by, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def metadata(self) -> Metadata:
        """Return the metadata alone, hash and certificate still empty."""
        return Metadata(**{field.name: getattr(self, field.name) for field in fields(Metadata)})

    def estimate_seconds(self, workers: int) -> float:
        """Return a rough time for the whole build on a machine like the one measured."""
        if self.method == "one-axis":
            work = len(self.outcomes) * _AXIS_SECONDS + self.size * _EXPAND_SECONDS
        elif self.nodes is None:
            work = self.size * _DIRECT_SECONDS
        else:
            points = len(self.outcomes) * math.prod(self.nodes)
            work = points * _POINT_SECONDS + self.size * _EXPAND_SECONDS
        return _OVERHEAD_SECONDS + work / workers + 2 * self.nbytes / _BYTES_PER_SECOND


# Every chunk asks its plan for the likelihood.
_registered = cache(likelihoods.get)


def make_plan(
    likelihood: str | Likelihood,
    *,
    method: str = "spectral",
    dtype: str = "float64",
    mu_range: Sequence[float] = (-10.0, 10.0),
    mu_step: float = 1e-3,
    log10_sigma_range: Sequence[float] = (-1.0, 1.0),
    log10_sigma_step: float = 1e-3,
    counts: Sequence[int] | None = None,
) -> Plan:
    """Check the options and return the plan; `nodes` is left to `tablegen.grid.chebyshev.resolve`.

    Parameters
    ----------
    likelihood : str or Likelihood
        A registered one, or its name.
    method : {"spectral", "direct"}
        Expand a series, along one axis where the likelihood declares that one is enough, or
        integrate at every node. Grids too small or too wild for a series are integrated directly
        either way; the metadata says what was done.
    dtype : {"float64", "float32"}
    mu_range, log10_sigma_range : (float, float)
        First and last node of each axis.
    mu_step, log10_sigma_step : float
        Must divide the ranges.
    counts : (int, int), optional
        First and last observation, for likelihoods of counts; by default 0 and 50.

    Raises
    ------
    InputError
        If an option is not usable; the message names it and what would be.
    """
    model = likelihood if isinstance(likelihood, Likelihood) else likelihoods.get(likelihood)
    outcomes = _outcomes(model, counts)
    for name, value, known in (("method", method, METHODS), ("dtype", dtype, DTYPES)):
        one_of(value, name, known)
    mu = _axis("mu", mu_range, mu_step)
    sigma = _axis("log10_sigma", log10_sigma_range, log10_sigma_step)
    if max(abs(sigma.start), abs(sigma.stop)) > 8 or max(abs(mu.start), abs(mu.stop)) > 1e8:
        raise InputError("log10 sigma must stay within -8 to 8, and mu within -1e8 to 1e8")
    row = sigma.size * np.dtype(dtype).itemsize
    rows = min(mu.size, max(1, CHUNK_BYTES // row))
    entries = {"axes": (mu, sigma), "dtype": dtype, "method": method, "rows": rows}
    return unfinished(model, outcomes, Plan, **entries)


def _outcomes(model: Likelihood, counts: Sequence[int] | None) -> Sequence[int]:
    if model.mirror:
        if counts is not None:
            raise InputError(f"likelihood {model.name!r} takes no counts: one slab for both labels")
        return (1,)
    try:
        first, last = (0, 50) if counts is None else (operator.index(c) for c in counts)
    except (TypeError, ValueError) as error:
        raise InputError(f"counts need two whole numbers FIRST:LAST, got {counts!r}") from error
    if first > last:
        raise InputError(f"counts need FIRST <= LAST, got {first}:{last}")
    if not _cli_hints.has_grid(model):
        raise InputError(
            f"likelihood {model.name!r} takes {model.outcomes}: a grid has one slab per "
            'observation, and there is no end of them; use table="exact", or build surfaces: '
            + _cli_hints.build(_cli_hints.Wanted(model, "surfaces"))
        )
    model.validate([first, last])
    if last - first >= MOST_OUTCOMES:
        raise InputError(f"a grid holds at most {MOST_OUTCOMES} counts, got {first}:{last}")
    return range(first, last + 1)


def _axis(name: str, ends: Sequence[float], step: float) -> Axis:
    try:
        low, high = (float(v) for v in ends)
        step = float(step)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"axis {name}: needs two numbers and a step, got {shown(ends)} and {shown(step)}"
        ) from error
    try:
        return Axis.from_step(name, low, high, step)
    except OverflowError as error:
        raise InputError(
            f"axis {name}: step {step:g} gives more nodes than can be counted"
        ) from error
