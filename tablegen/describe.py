"""Turn plans, tables and reports into plain documents, and documents into readable text."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpruntime.artifact import Axis, Metadata
from qpruntime.errors import TableError

if TYPE_CHECKING:
    from tablegen.plan import Plan
    from tablegen.verify import Report

__all__ = ["installed", "listing", "plan", "report", "table", "text"]

Document = dict[str, Any]


def _axis(axis: Axis) -> Document:
    return {"start": axis.start, "stop": axis.stop, "step": axis.step, "size": axis.size}


def plan(what: Plan, output: str | os.PathLike[str] | None, workers: int | None) -> Document:
    """Describe what a build would do, for ``--dry-run``."""
    from qpruntime.table import table_directory
    from tablegen.executors import thread_count

    path = Path(output) if output is not None else table_directory() / f"{what.likelihood}.h5"
    threads = thread_count(workers)
    return {
        "path": str(path.absolute()),
        "likelihood": what.likelihood,
        "method": what.method,
        "dtype": what.dtype,
        "mu": _axis(what.mu),
        "log10_sigma": _axis(what.log10_sigma),
        "nodes": what.size,
        "bytes": what.nbytes,
        "chunks": what.chunk_count,
        "chebyshev_nodes": list(what.nodes) if what.nodes else None,
        "workers": threads,
        "estimated_seconds": round(what.estimate_seconds(threads), 1),
    }


def table(path: Path, metadata: Metadata) -> Document:
    """Describe a finished table."""
    return {
        "path": str(path),
        "likelihood": metadata.likelihood,
        "parameters": metadata.parameters,
        "outcomes": metadata.outcomes,
        "mu": _axis(metadata.mu),
        "log10_sigma": _axis(metadata.log10_sigma),
        "nodes": math.prod(metadata.shape),
        "dtype": metadata.dtype,
        "bytes": metadata.nbytes,
        "method": metadata.method,
        "generator": metadata.generator,
        "schema": metadata.schema,
        "sha256": metadata.sha256,
        "certificate": metadata.certificate,
    }


def report(found: Report) -> Document:
    """Describe the result of `tablegen.verify.verify`."""
    return {
        "path": str(found.path),
        "ok": found.ok,
        "problems": list(found.problems),
        "seed": found.seed,
        "points": found.points,
        "tolerance": found.tolerance,
        "certificate": found.certificate,
    }


def installed() -> Document:
    """Describe every table in the directory of installed tables, unreadable ones included."""
    from qpruntime.table import open_table, table_directory

    directory = table_directory().absolute()
    tables = []
    for path in sorted(directory.glob("*.h5")):
        try:
            tables.append(table(path, open_table(path).metadata))
        except TableError as error:
            tables.append({"path": str(path), "error": str(error)})
    return {"directory": str(directory), "tables": tables}


def listing(document: Document) -> str:
    """Return the text of ``tablegen list``."""
    lines = [document["directory"]]
    for entry in document["tables"]:
        name = Path(entry["path"]).stem
        if "error" in entry:
            lines.append(f"  {name:<12} {entry['error']}")
            continue
        error = _error(entry["certificate"].get("nodes"))
        lines.append(
            f"  {name:<12} {entry['likelihood']:<10} {entry['dtype']} "
            f"{entry['mu']['size']} x {entry['log10_sigma']['size']}  "
            f"{_size(entry['bytes']):>9}  {error}"
        )
    if not document["tables"]:
        lines.append("  no tables; build one: tablegen build --likelihood probit")
    return "\n".join(lines)


def text(document: Document) -> str:
    """Return a document as aligned lines, the certificate spelt out."""
    lines = []
    for key, value in document.items():
        if key == "certificate":
            lines += [f"{'error at nodes':<18} {_error(value.get('nodes'))}"]
            lines += [f"{'error in cells':<18} {_error(value.get('cells'))}, bilinear"]
            continue
        if key == "bytes":
            value = f"{value} ({_size(value)})"
        elif isinstance(value, dict) and "step" in value:
            value = "{start:g} to {stop:g}, step {step:g}, {size} nodes".format(**value)
        elif isinstance(value, list):
            value = ", ".join(str(v) for v in value)
        if value not in ("", None) and value != {}:
            lines.append(f"{key.replace('_', ' '):<18} {value}")
    return "\n".join(lines)


def _error(entry: Any) -> str:
    try:
        return (
            "at most {max_relative_error:.2g} relative at {points} points, "
            "worst at mu = {mu:g}, log10 sigma = {log10_sigma:g}"
        ).format(**entry)
    except (TypeError, KeyError, ValueError):
        return "not measured"


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"
