"""Turn plans, tables and reports into plain documents, and documents into readable text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpruntime import likelihoods
from qpruntime._formatting import command, printable, size
from qpruntime.errors import TableError
from qpruntime.table_format.metadata import Metadata
from tablegen.artifacts.publish import SURFACE_WORDS, guarantee, outcomes_in_words
from tablegen.files.recipe import Document, stated

if TYPE_CHECKING:
    from tablegen.files.recipe import Recipe
    from tablegen.verify import VerificationReport

__all__ = ["installed", "listing", "plan", "report", "table", "text"]

REGION_WORDS = {"nodes": "at nodes", "cells": "in cells", "seams": "at seams", "far": "far out"}
AXES = ("mu", "log10_sigma", "u", "v", "y")


def plan(recipe: Recipe, path: Path, workers: int | None, scheduler: str | None = None) -> Document:
    """Describe what a build would do, for ``--dry-run``; a scheduler is not asked."""
    from qpruntime.execution.threads import thread_count
    from tablegen.builder import LARGE

    threads = thread_count(workers) if scheduler is None else 1
    who: Document = {"workers": threads} if scheduler is None else {"scheduler": scheduler}
    if recipe.largest > LARGE:
        who["confirm"] = "with --yes, or when asked"
    return {"path": str(path), **recipe.describe(threads), **who}


def table(path: Path, metadata: Metadata) -> Document:
    """Describe a finished table."""
    return {
        "path": str(path),
        **stated(metadata),
        "sha256": metadata.sha256,
        "guarantee": guarantee(metadata),
        "certificate": metadata.certificate,
    }


def report(found: VerificationReport) -> Document:
    """Describe the result of `tablegen.verify.verify`."""
    return {
        "path": str(found.path),
        "ok": found.ok,
        "accuracy": _accuracy(found),
        "problems": list(found.problems),
        **{name: getattr(found, name) for name in ("seed", "points", "tolerance", "certificate")},
    }


def _accuracy(found: VerificationReport) -> str:
    if found.certificate:
        return "checked"
    if found.ok is None:
        return "not checked: give the table's likelihood, --likelihood package.module:name"
    return "not checked: the data are damaged"


def installed() -> Document:
    """Describe the shipped tables, and every one in the directory of installed tables.

    Unreadable ones are included, with the reason.
    """
    from qpruntime.projection.open import shipped_path, table_directory

    directory = table_directory().absolute()
    paths = sorted([*directory.glob("*.h5"), *directory.glob("*.zarr")])
    shipped = [shipped_path(name) for name in likelihoods.names()]
    return {
        "directory": str(directory),
        "tables": [_entry(path) for path in paths],
        "shipped": [_entry(path) for path in shipped if path.exists()],
    }


def _entry(path: Path) -> Document:
    from qpruntime.projection.open import stated

    try:
        return table(*stated(path))
    except TableError as error:
        return {"path": str(path), "error": str(error)}


def listing(document: Document) -> str:
    """Return the text of ``tablegen list``."""
    lines = [printable(document["directory"]), *_rows(document["tables"])]
    if not document["tables"]:
        build = command("build", "--likelihood", "probit")
        lines.append(f"  no tables; build one: {build}")
    return "\n".join([*lines, "shipped with the package", *_rows(document["shipped"])])


def _rows(entries: list[Document]) -> list[str]:
    lines = []
    for entry in entries:
        path = Path(entry["path"])
        name = printable(path.name if path.suffix == ".zarr" else path.stem)
        if "error" in entry:
            lines.append(f"  {name:<18} {printable(entry['error'])}")
            continue
        sizes = [str(entry[axis]["size"]) for axis in AXES if axis in entry]
        if len(entry["outcomes"]) > 1:
            sizes.insert(0, str(len(entry["outcomes"])))
        lines.append(
            f"  {name:<18} {printable(entry['likelihood']):<10} {entry['dtype']} "
            f"{' x '.join(sizes):<16} {size(entry['bytes']):>9}  {entry['guarantee']}"
        )
    return lines


def text(document: Document) -> str:
    """Return a document as aligned lines, the certificate spelt out."""
    lines = []
    for key, value in document.items():
        if key == "certificate":
            for name, words in (REGION_WORDS | SURFACE_WORDS).items():
                if name in value:
                    label = f"error {words}"
                    lines.append(f"{label:<18} {_error(value[name])}")
            if not value:
                lines.append(f"{'error':<18} not measured")
            continue
        if key in ("bytes", "largest_bytes"):
            value = f"{value} ({size(value)})"
        elif key == "outcomes":
            value = outcomes_in_words(value)
        elif isinstance(value, dict) and "step" in value:
            words = "{start:g} to {stop:g}, step {step:g}, {size} nodes".format(**value)
            value = words + (f": {value['coordinate']}" if "coordinate" in value else "")
        elif isinstance(value, list):
            value = ", ".join(str(v) for v in value)
        if value not in ("", None) and value != {}:
            lines.append(f"{key.replace('_', ' '):<18} {printable(str(value))}")
    return "\n".join(lines)


def _error(entry: dict[str, Any]) -> str:
    try:
        return (
            "at most {max_relative_error:.2g} relative at {points} points, "
            "worst at mu = {mu:g}, log10 sigma = {log10_sigma:g}, y = {outcome:g}"
        ).format(**entry)
    except (TypeError, KeyError, ValueError):
        return "not measured"
