"""Metadata and axes of a table file, and the check that both make sense.

Knows nothing of how tables are computed or opened. The metadata of a table is one JSON document,
kept as the attribute ``metadata`` of an HDF5 file or zarr group.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._formatting import spell
from qpruntime.errors import InputError, TableError
from qpruntime.table_format import container

__all__ = ["DATASET", "KINDS", "LARGEST", "MOST_OUTCOMES", "SCHEMA", "SMALLEST", "Axis", "Metadata"]

#: Version of the metadata document; a reader refuses any other.
SCHEMA = 1
#: Name of the one dataset of a table file.
DATASET = "sigma_star"
#: Nodes of a grid, spline coefficients over a likelihood's own coordinates, or those of whole
#: projections.
KINDS = ("grid", "compact", "surfaces")
#: Possible numbers of axes of each kind.
AXES = {"grid": (2,), "compact": (1, 2), "surfaces": (2, 3)}
#: Orders p of L_p projections: beyond 10, q^(1/p) varies too little for double precision.
SMALLEST, LARGEST = 1.0, 10.0
#: The metadata name every outcome, and have to stay below `qpruntime.table_format.container.LIMIT`
#: bytes.
MOST_OUTCOMES = 20_000
# Numbers at every node of surfaces; those of L_p projections hold one of them twice.
_BANDS = 4


@dataclass(frozen=True)
class Axis:
    """Equidistant nodes from `start` to `stop`, both included."""

    name: str
    start: float
    stop: float
    size: int
    unit: str = ""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.stop) and self.stop > self.start):
            raise InputError(
                f"axis {self.name}: needs finite start < stop, got {self.start} and {self.stop}"
            )
        if self.size < 2:
            raise InputError(f"axis {self.name}: needs at least 2 nodes, got {self.size}")
        if not 0.0 < (self.size - 1) / (self.stop - self.start) < math.inf:
            raise InputError(
                f"axis {self.name}: {self.size} nodes from {self.start:g} to {self.stop:g} have no "
                "step in double precision"
            )

    @classmethod
    def from_step(cls, name: str, start: float, stop: float, step: float, unit: str = "") -> Axis:
        """Return the axis with this step, or raise `InputError` if the step does not divide it."""
        if not (math.isfinite(step) and step > 0.0):
            raise InputError(f"axis {name}: step must be a positive number, got {step}")
        if not (math.isfinite(start) and math.isfinite(stop) and stop > start):
            raise InputError(
                f"axis {name}: needs finite start < stop, got {start} and {stop}; "
                "a range of one node cannot be interpolated"
            )
        intervals = (stop - start) / step
        whole = round(intervals)
        if whole < 1 or abs(intervals - whole) > 1e-6:
            fitting = (stop - start) / max(whole, 1)
            raise InputError(
                f"axis {name}: step {step:g} does not divide {start:g} to {stop:g}; "
                f"the nearest step that does is {fitting:.10g}"
            )
        return cls(name, start, stop, whole + 1, unit)

    @property
    def step(self) -> float:
        """Distance of nodes."""
        return (self.stop - self.start) / (self.size - 1)

    def nodes(self) -> NDArray[np.float64]:
        """Node positions, shape (size,)."""
        return np.linspace(self.start, self.stop, self.size)


@dataclass(frozen=True)
class Metadata:
    """The document that travels with a table.

    Attributes
    ----------
    likelihood : str
        Registered name; `parameters` are its parameters.
    outcomes : list of float
        The y of each slab of the dataset, one apart; ``[1.0]`` if one slab serves every label. Of
        surfaces: ascending; the ends of the third axis where there is one, ``[0.0]`` of a location
        family.
    axes : tuple of Axis
        Of a grid: cavity mean, and log10 of the cavity standard deviation. Of a compact table:
        one or two coordinates of the likelihood's `qpruntime.likelihoods.base.Reduction`. Of
        surfaces: those of a grid, and for continuous y a third.
    dtype : str
        ``float64`` or ``float32``, little-endian, row-major; the axes are outcomes, then `axes`.
    sha256 : str
        Of the bytes of the dataset.
    certificate : dict
        The measured error: see `tablegen.grid.errors`.
    kind : {"grid", "compact", "surfaces"}
        Values of sigma* at the nodes, or coefficients of quintic B-splines of sigma*/sigma_EP,
        four more than nodes along an axis. Of surfaces: coefficients of everything a projection
        gives, see `qpruntime.projection.interpolation`; the last axis of the dataset holds them
        next to each other.
    surfaces : list of str
        Names of the stored surfaces.
    traits : dict
        What has to be known of the likelihood where its code is not at hand: see
        `qpruntime.projection.tabulated_likelihood`.
    projection : dict or None
        None for the surfaces of EP and QP; ``{"name": "wp", "p": 1.5}`` for those of the L_p
        projection of that order.
    """

    likelihood: str
    outcomes: list[float]
    axes: tuple[Axis, ...]
    dtype: str
    method: str
    generator: str
    sha256: str = ""
    parameters: dict[str, float] = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)
    kind: str = "grid"
    byte_order: str = "little"
    schema: int = SCHEMA
    surfaces: list[str] = field(default_factory=list)
    traits: dict[str, Any] = field(default_factory=dict)
    projection: dict[str, Any] | None = None

    @property
    def spelt(self) -> str:
        """Name and parameters of the likelihood in one string."""
        return spell(self.likelihood, self.parameters)

    @property
    def order(self) -> float | None:
        """Order p of a table of L_p projections, None of others."""
        return None if self.projection is None else float(self.projection["p"])

    @property
    def mu(self) -> Axis:
        """Cavity means of a grid."""
        return self.axes[0]

    @property
    def log10_sigma(self) -> Axis:
        """log10 of the cavity standard deviations of a grid."""
        return self.axes[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the dataset."""
        if self.kind == "grid":
            return len(self.outcomes), self.axes[0].size, self.axes[1].size
        if self.kind == "surfaces":
            rows = self.axes[2].size + 4 if len(self.axes) == 3 else len(self.outcomes)
            return rows, self.axes[0].size + 4, _BANDS * (self.axes[1].size + 4)
        first = self.axes[0].size + 4 if len(self.axes) == 2 else 1
        return len(self.outcomes), first, self.axes[-1].size + 4

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def to_json(self) -> str:
        """Return the document; equal metadata give equal bytes."""
        document = asdict(self)
        if self.kind != "surfaces":
            del document["surfaces"], document["traits"]
        if self.projection is None:
            del document["projection"]
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> Metadata:
        """Parse and check a document; `source` names the file in messages.

        Raises
        ------
        TableError
            If the document is not one this version reads.
        """
        try:
            document = container.loads(text)
        except ValueError as error:
            raise TableError(f"{source}: metadata is not plain JSON: {error}") from error
        schema = document.get("schema")
        if schema != SCHEMA:
            raise TableError(
                f"{source}: table schema is {schema!r}, this version reads {SCHEMA}; "
                "build the table again with the tablegen of this version"
            )
        try:
            if not isinstance(document["axes"], list):
                raise TypeError(f"axes is {document['axes']!r}")
            document["axes"] = tuple(_axis(entry) for entry in document["axes"])
            self = cls(**document)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TableError(f"{source}: metadata is incomplete or malformed: {error}") from error
        self._check(source)
        return self

    def _check(self, source: str) -> None:
        problems = {
            "kind": self.kind not in KINDS,
            "axes": len(self.axes) not in AXES.get(str(self.kind), ()),
            "likelihood": not isinstance(self.likelihood, str),
            "dtype": self.dtype not in ("float64", "float32"),
            "byte_order": self.byte_order != "little",
            "outcomes": not (
                _ascending(self.outcomes)
                if self.kind == "surfaces"
                else _consecutive(self.outcomes)
            ),
            "surfaces": not _names(self.surfaces, self.kind == "surfaces"),
            "traits": not isinstance(self.traits, dict),
            "projection": not _projection(self.projection, self.kind == "surfaces"),
            "parameters": not _numbers(self.parameters),
            "certificate": not isinstance(self.certificate, dict),
            "sha256": not isinstance(self.sha256, str),
            "method": not isinstance(self.method, str),
            "generator": not isinstance(self.generator, str),
        }
        for name, wrong in problems.items():
            if wrong:
                raise TableError(f"{source}: metadata field {name!r} is {getattr(self, name)!r}")


def _consecutive(value: object) -> bool:
    """Return True for numbers in steps of one, so that the row of y is y - y[0]."""
    steps = pairwise(value) if isinstance(value, list) else ()
    return _ascending(value) and all(after - before == 1 for before, after in steps)


def _ascending(value: object) -> bool:
    """Decide whether this is a list of finite numbers, each larger than the last."""
    if not isinstance(value, list) or not value:
        return False
    for v in value:
        if not isinstance(v, (int, float)) or isinstance(v, bool) or not abs(v) < 1e15:
            return False
    return all(after > before for before, after in pairwise(value))


def _names(value: object, expected: bool) -> bool:
    """Decide whether this is a list of names, empty unless some are expected."""
    return (
        isinstance(value, list)
        and bool(value) == expected
        and all(isinstance(v, str) for v in value)
    )


def _numbers(value: object) -> bool:
    """Decide whether this is a dict of numbers."""
    return isinstance(value, dict) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in value.values()
    )


def _projection(value: object, allowed: bool) -> bool:
    """Decide whether this is None or, where it may be, a well-formed L_p projection."""
    if value is None:
        return True
    if not (allowed and isinstance(value, dict) and set(value) == {"name", "p"}):
        return False
    p = value["p"]
    return value["name"] == "wp" and _numbers({"p": p}) and SMALLEST <= p <= LARGEST


def _axis(entry: dict[str, Any]) -> Axis:
    if not isinstance(entry["size"], int) or isinstance(entry["size"], bool):
        raise TypeError(f"axis size is {entry['size']!r}")
    return Axis(
        str(entry["name"]),
        float(entry["start"]),
        float(entry["stop"]),
        entry["size"],
        str(entry.get("unit", "")),
    )
