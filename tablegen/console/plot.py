"""Draw a table: sigma*/sigma_EP over mu and log10 sigma, and the error of its lookups beside it.

If the density is not available to integrate again, log Z replaces the error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qpruntime._formatting import install_hint
from qpruntime._typing import Array
from qpruntime._validation import path_of
from qpruntime.errors import InputError, TableError
from qpruntime.plotting.table import RatioDisplay, domain, outcome_of
from qpruntime.projection.open import open_table
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis
from tablegen.files.target import replaced, resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "plot"]

FORMATS = (".png", ".svg")
#: Pixels of each picture; the error costs a quadrature a pixel.
_WIDE, _HIGH = 161, 121
#: Errors below this are rounding, and drawn as if they were this.
_ROUNDING = 1e-16
#: Dark where the error is small.
_ERROR_COLOURS = "magma"


def plot(
    table: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    outcome: float | None = None,
    mu_range: Sequence[float] | None = None,
    log10_sigma_range: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Draw a table of any likelihood and kind to a PNG or SVG file.

    Parameters
    ----------
    table : str or path
        A file, or the name of an installed or shipped table.
    output : path
        Ends in .png or .svg; an existing file is replaced.
    outcome : float, optional
        The observation y; by default 1.
    mu_range, log10_sigma_range : (float, float), optional
        What to draw; by default the axes of a grid or of surfaces, -10 to 10 and -2 to 2 of a
        compact table.

    Returns
    -------
    dict
        The path and what the picture shows, in numbers.

    Raises
    ------
    InputError
        If an option is not usable, or matplotlib is missing.
    TableError
        If the table cannot be opened or the picture cannot be written.
    """
    path = path_of(output, "output")
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"output must end in {' or '.join(FORMATS)}, got {path.name!r}")
    target = resolve(path)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise InputError(f"plotting needs matplotlib: {install_hint('plot')}") from missing
    opened = open_table(table)
    if opened.metadata.order is not None:
        raise InputError(f"{opened.path} holds L_p projections: no sigma* to draw")
    y = outcome_of(opened, outcome)
    mu_ends, ends = domain(opened, y)
    mu = _range("mu", mu_range, mu_ends, _WIDE)
    log10_sigma = _range("log10 sigma", log10_sigma_range, ends, _HIGH)
    ratio, error = _measure(opened, mu, log10_sigma, y)
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    log_z = None if opened.likelihood.has_density else _log_z(opened, mu, log10_sigma, y)
    _draw(figure, opened, mu, log10_sigma, y, ratio, error, log_z)
    try:
        # No date and fixed names: the same table gives the same picture.
        kind = path.suffix.lower()[1:]
        metadata = {"Date": None} if kind == "svg" else None
        with replaced(target) as partial, rc_context({"svg.hashsalt": "tablegen"}):
            figure.savefig(partial, dpi=150, format=kind, metadata=metadata)
    except OSError as problem:
        raise TableError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return {
        "path": str(path),
        "table": str(opened.path),
        "outcome": y,
        "smallest_ratio": float(ratio.min()),
        "largest_error": None if log_z is not None else float(error.max()),
    }


def _range(name: str, given: Sequence[float] | None, default: Sequence[float], size: int) -> Array:
    low, high = default if given is None else given
    if not (np.isfinite([low, high]).all() and low < high):
        raise InputError(f"{name} needs finite LO < HI, got {low:g} and {high:g}")
    return np.linspace(low, high, size)


def _measure(table: Table, mu: Array, log10_sigma: Array, y: float) -> tuple[Array, Array]:
    """Return sigma*/sigma_EP and the relative error of lookups, shape (log10 sigma, mu).

    The error is taken between the points drawn, half a pixel off: these could be nodes.
    """
    sigma = 10.0 ** log10_sigma[:, None]
    whole = table if table.metadata.kind == "surfaces" else None
    ep = project_arrays(table.likelihood, mu, sigma, y, "ep", whole).std
    ratio = table.lookup(mu, sigma, y)[0] / ep
    if not table.likelihood.has_density:
        return ratio, np.zeros((1, 1))
    mu, log10_sigma = (0.5 * (a[1:] + a[:-1]) for a in (mu, log10_sigma))
    if table.metadata.kind == "grid":
        mu, log10_sigma = (
            _to_centre(a, axis)
            for a, axis in zip((mu, log10_sigma), table.metadata.axes, strict=True)
        )
    sigma = 10.0 ** log10_sigma[:, None]
    exact = project_arrays(table.likelihood, mu, sigma, y, "qp", "exact").std
    return ratio, np.abs(table.lookup(mu, sigma, y)[0] / exact - 1.0)


def _log_z(table: Table, mu: Array, log10_sigma: Array, y: float) -> Array:
    sigma = 10.0 ** log10_sigma[:, None]
    return project_arrays(table.likelihood, mu, sigma, y, "ep", table).log_z


def _to_centre(places: Array, axis: Axis) -> Array:
    """Move places to the centres of their cells, where bilinear interpolation is worst."""
    moved = axis.start + (np.floor((places - axis.start) / axis.step) + 0.5) * axis.step
    return np.where((places > axis.start) & (places < axis.stop), moved, places)


def _draw(
    figure: Figure,
    table: Table,
    mu: Array,
    log10_sigma: Array,
    y: float,
    ratio: Array,
    error: Array,
    log_z: Array | None,
) -> None:
    from matplotlib.colors import LogNorm

    left_axes, right = figure.subplots(1, 2, sharey=True)
    extent = (mu[0], mu[-1], log10_sigma[0], log10_sigma[-1])
    look = {"origin": "lower", "extent": extent, "aspect": "auto", "rasterized": True}
    RatioDisplay(
        mu=mu, log10_sigma=log10_sigma, ratio=ratio, likelihood=table.likelihood.name, outcome=y
    ).plot(left_axes)
    if log_z is not None:
        image = right.imshow(log_z, cmap=_ERROR_COLOURS, **look)
        figure.colorbar(image, ax=right, label=r"$\log Z$")
        right.set_title("log Z; no density to measure errors by")
    else:
        shown = np.maximum(error, _ROUNDING)
        top = max(float(shown.max()), 10.0 * _ROUNDING)
        norm = LogNorm(max(_ROUNDING, 1e-8 * top), top)
        image = right.imshow(shown, cmap=_ERROR_COLOURS, norm=norm, **look)
        figure.colorbar(image, ax=right, label=r"relative error of $\sigma^*$")
        kind = table.metadata.kind
        right.set_title(f"{kind} table against quadrature, at most {error.max():.1e}")
    right.set_xlabel(r"cavity mean $\mu$")
