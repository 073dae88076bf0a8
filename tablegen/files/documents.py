"""Metadata as plain documents for people and for JSON."""

from __future__ import annotations

import math
from typing import Any

from qpruntime.table_format.metadata import Axis, Metadata

__all__ = ["Document", "axis_of", "projection_of", "stated"]

Document = dict[str, Any]


def axis_of(axis: Axis) -> Document:
    """Describe an even axis."""
    return {"start": axis.start, "stop": axis.stop, "step": axis.step, "size": axis.size}


def projection_of(p: float | None) -> Document:
    """Say of which order L_p projections are; nothing of the others."""
    return {} if p is None else {"projection": f"wp, p = {p:g}"}


def stated(metadata: Metadata) -> Document:
    """Describe a table, made or to be made, but for its place, hash and certificate."""
    compact, whole = metadata.kind == "compact", metadata.kind == "surfaces"
    names: tuple[str, ...] = ("mu", "log10_sigma", "y")[: len(metadata.axes)]
    if compact:
        names = ("u", "v")[-len(metadata.axes) :]
    return {
        "kind": metadata.kind,
        "likelihood": metadata.likelihood,
        "parameters": metadata.parameters,
        **projection_of(metadata.order),
        "outcomes": metadata.outcomes,
        **{
            name: axis_of(axis) | ({"coordinate": axis.name} if compact else {})
            for name, axis in zip(names, metadata.axes, strict=True)
        },
        **({"surfaces": metadata.surfaces, "slabs": metadata.traits.get("mode")} if whole else {}),
        "coefficients" if compact or whole else "nodes": math.prod(metadata.shape),
        "dtype": metadata.dtype,
        "bytes": metadata.nbytes,
        "method": metadata.method,
        "generator": metadata.generator,
        "schema": metadata.schema,
    }
