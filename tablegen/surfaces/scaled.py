"""Tables of whole projections at unit scale, for likelihoods that are location and scale families.

`qpruntime.projection.interpolation` says what they hold. A few ship with the package, built by
``scripts/power_tables.py``; at x = 1, which is no cavity, and at e = 0 values are limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.interpolation import NAMES
from qpruntime.projection.projector import project_arrays
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen import splines
from tablegen.files import hdf5
from tablegen.files.looking import largest
from tablegen.files.recipe import unfinished
from tablegen.files.workspace import Workspace
from tablegen.second_rule.framed import RULE, SEED
from tablegen.surfaces.errors import deviations, lookups, problems

__all__ = ["NAMES", "TOLERANCE", "build", "certify", "coefficients", "metadata", "problems"]

#: Largest error allowed, of any surface; and the cells that meet it for 1.5 degrees of freedom.
TOLERANCE, CELLS = 1e-8, (200, 80)

#: e to its end: cavities up to 134 times as wide as the scale.
_WIDEST = 6.0
# Distances at the collocation point x = 0, in standard deviations: what is stored is even in r.
_NEAR = 1e-6
# Random cavities of a certificate, and e at least, log10 of r at most.
_POINTS, _LEAST, _FARTHEST = 3000, -4.0, 4.0


def build(likelihood: Likelihood, target: Path, cells: tuple[int, int] = CELLS) -> Metadata:
    """Build, certify and write the table of a likelihood at unit scale.

    Raises
    ------
    NumericalError
        If it misses `TOLERANCE`: nothing is written.
    """
    document = metadata(likelihood, cells)
    values = coefficients(likelihood, document)
    certificate = certify(likelihood, document, values)
    if missed := problems(certificate, TOLERANCE):
        raise NumericalError(f"the table misses its tolerance: {missed[0]}")
    workspace = Workspace(target)
    with workspace.locked():
        return hdf5.finish(workspace, document, values, certificate, TOLERANCE)


def metadata(likelihood: Likelihood, cells: tuple[int, int]) -> Metadata:
    """Return the metadata of a table with so many cells: no hash, no certificate."""
    x, e = Axis("x", 0.0, 1.0, cells[0] + 1), Axis("e", 0.0, _WIDEST, cells[1] + 1)
    return unfinished(
        likelihood,
        [0.0],
        axes=(x, e),
        kind="surfaces",
        surfaces=list(NAMES),
        traits={"mode": "scaled"},
    )


def coefficients(likelihood: Likelihood, document: Metadata) -> Array:
    """Integrate at all collocation points; return coefficients in the shape of the dataset."""
    nu = likelihood.parameters["nu"]
    x, e = (splines.points(axis) for axis in document.axes)
    values = np.empty((x.size, e.size, len(NAMES)))
    d, s = interpolation.cavities(x[:-1, None], e[None, 1:])
    d = np.where(x[:-1, None] > 0.0, d, _NEAR * np.sqrt(1.0 + s * s))
    s = np.broadcast_to(s, d.shape)
    ep, qp = (
        project_arrays(likelihood, 0.0, s, d, method=method, table="exact")
        for method in ("ep", "qp")
    )
    moments = np.stack([ep.log_z, ep.mean, ep.std, qp.std], axis=-1)
    values[:-1, 1:] = interpolation.encode_scaled(d, s, nu, moments)
    values[:-1, 0] = _narrow(likelihood, nu, x[:-1])
    values[-1] = _far(likelihood, nu, e)
    values = splines.along(splines.along(values, 0, document.axes[0]), 1, document.axes[1])
    return values.reshape(1, x.size, -1)


def _narrow(likelihood: Likelihood, nu: float, x: Array) -> Array:
    """Return what is stored of a cavity of width 0, the slopes of log p: shape (X, 4)."""
    d = interpolation.cavities(x, np.zeros(1))[0]
    share = interpolation.REACH**2 / (d * d + interpolation.REACH**2)
    tail = nu + d * d
    log_p = likelihood.log_prob(d, 0.0) + 0.5 * (nu + 1.0) * np.log1p(d * d / nu)
    curvature = (nu + 1.0) * (nu - d * d) / tail**2
    zero = np.zeros_like(d)
    return np.stack([log_p, (nu + 1.0) / tail / share, -0.5 * curvature / share, zero], axis=-1)


def _far(likelihood: Likelihood, nu: float, e: Array) -> Array:
    """Return what is stored of an observation without end: shape (E, 4)."""
    s = interpolation.cavities(np.zeros(1), e)[1]
    top = float(likelihood.log_prob(0.0, 0.0))
    pull = np.full_like(e, (nu + 1.0) / interpolation.REACH**2)
    log_z = top - 0.5 * (nu + 1.0) * np.log1p(s * s)
    return np.stack([log_z, pull, 0.5 * pull, np.zeros_like(e)], axis=-1)


def certify(
    likelihood: Likelihood, document: Metadata, values: Array, seed: int = SEED
) -> dict[str, Any]:
    """Compare lookups with the second rule at random cavities, of every width the table holds."""
    rng = np.random.default_rng(seed)
    e = 10.0 ** rng.uniform(_LEAST, np.log10(_WIDEST), _POINTS)
    x = rng.uniform(0.0, 1.0 - 10.0 ** (-2.0 * _FARTHEST), _POINTS)
    d, s = interpolation.cavities(x, e)
    mu = -d * rng.choice([-1.0, 1.0], _POINTS)
    axes = interpolation.pack_scaled(
        document.axes[0], document.axes[1], 1.0, likelihood.parameters["nu"], 0.0
    )
    y = np.zeros(_POINTS)
    looked_up = lookups((values, axes, interpolation.lookup_scaled.handle), mu, s, y)
    error = deviations(likelihood, looked_up, mu, s, y)
    return {"rule": RULE, "seed": seed, "random_points": _POINTS} | {
        name: largest(error[:, k], mu, np.log10(s), y) for k, name in enumerate(NAMES)
    }
