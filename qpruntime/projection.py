"""Project tilted densities to Gaussians: the one place where a method becomes a standard deviation.

The mean is the tilted mean for every method. The standard deviation is that of the tilted density
(EP), or sigma* from a table or by quadrature (QP).
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods
from qpruntime.errors import InputError, NumericalError
from qpruntime.interpolate import bilinear, quintic
from qpruntime.jit import call_coordinates, call_moments, kernel
from qpruntime.likelihoods import Likelihood
from qpruntime.table import Table, open_table
from qpruntime.wasserstein import DECAY, OK, exact_point

__all__ = ["METHODS", "Projections", "Projector", "project", "project_arrays", "project_site"]

METHODS = ("ep", "qp")

# How `project_site` finds a standard deviation, and what a lookup reports.
EP, GRID, EXACT, COMPACT = 0, 1, 2, 3
COMPUTED, INSIDE, OUTSIDE_GRID = 0, 1, 2

_NO_VALUES = np.zeros((1, 2, 2))
_NO_AXES = np.array([0.0, -1.0, 1.0, 0.0, -1.0, 1.0, 0.0])
for _array in (_NO_VALUES, _NO_AXES):
    _array.flags.writeable = False


@kernel
def project_site(functions, source, mu, sigma, y, scratch):
    """Project one tilted density; return (status, log Z, mean, standard deviation, where).

    `functions` is `Likelihood.functions()`, `source` is `Projector.source`, `sigma` the cavity's
    standard deviation, `scratch` an array of shape (1, 4).
    """
    theta, has_moments, has_frame, split, moments, frame = functions
    kind, mirror, outside_exact, values, axes, coordinates = source
    integrated = False
    if has_moments:
        log_z, mean, variance = call_moments(moments, mu, sigma, y, theta)
    else:
        status = exact_point(split, frame, has_frame, mu, sigma, y, theta, scratch)
        if status != OK:
            return status, 0.0, 0.0, 0.0, COMPUTED
        integrated = True
        log_z, mean, variance = scratch[0, 0], scratch[0, 1], scratch[0, 2]
    std = math.sqrt(variance)
    if kind == EP:
        return OK, log_z, mean, std, COMPUTED
    where = COMPUTED
    if kind == COMPACT:
        place, u, v = call_coordinates(coordinates, mu, sigma, y, theta)
        if 0.0 <= place < values.shape[0]:
            ratio = quintic(values, axes, int(place), u, v)
            return OK, log_z, mean, std * min(ratio, 1.0), INSIDE
    if kind == GRID:
        if mirror:
            row, location = 0, mu * y * axes[6]
        else:
            row, location = int(y - axes[6]), mu
        where = OUTSIDE_GRID
        if 0 <= row < values.shape[0]:
            star, inside = bilinear(values, axes, row, location, math.log10(sigma))
            if inside:
                return OK, log_z, mean, min(star, std), INSIDE
        if not outside_exact:
            return OK, log_z, mean, std, where
    if not integrated:
        status = exact_point(split, frame, has_frame, mu, sigma, y, theta, scratch)
        if status != OK:
            return status, 0.0, 0.0, 0.0, where
    return OK, log_z, mean, min(scratch[0, 3], std), where


@kernel
def _project_many(functions, source, mu, sigma, y, log_z, mean, std, where):
    scratch = np.empty((1, 4))
    for i in range(mu.size):
        status, log_z[i], mean[i], std[i], where[i] = project_site(
            functions, source, mu[i], sigma[i], y[i], scratch
        )
        if status != OK:
            return status, i
    return OK, 0


class Projector:
    """A likelihood, a method and a table, resolved once and handed to the kernels as plain values.

    Parameters
    ----------
    likelihood : str or Likelihood
    method : {"qp", "ep"}
    table : None, "exact", path, name or Table
        Only used by QP. None and "exact" integrate.

    Attributes
    ----------
    functions, source : tuple
        The arguments of `project_site`.
    """

    def __init__(
        self,
        likelihood: str | Likelihood,
        method: str = "qp",
        table: Table | str | os.PathLike[str] | None = None,
    ) -> None:
        if method not in METHODS:
            raise InputError(f"method must be one of {METHODS}, got {method!r}")
        self.likelihood = likelihoods.get(likelihood)
        self.method = method
        if isinstance(table, (str, os.PathLike)) and table != "exact":
            table = open_table(table)
        self.table = table if isinstance(table, Table) else None
        if not (self.table or table is None or table == "exact"):
            raise InputError(f"table must be None, 'exact', a path or a Table, got {table!r}")
        if self.table and self.table.likelihood is not self.likelihood:
            raise InputError(
                f"the table {self.table.path} is for the likelihood "
                f"{self.table.likelihood.name!r}, not {self.likelihood.name!r}; "
                f"build one: tablegen build --likelihood {self.likelihood.name}"
            )
        self.functions = self.likelihood.functions()
        self.source = self._source()
        #: A source that looks nothing up, for log Z alone.
        self.without_table = (EP, False, False, _NO_VALUES, _NO_AXES, self.source[-1])

    def _source(self) -> tuple[Any, ...]:
        coordinates = self.likelihood.coordinates().handle
        if self.method == "ep":
            return EP, False, False, _NO_VALUES, _NO_AXES, coordinates
        if self.table is None:
            return EXACT, False, True, _NO_VALUES, _NO_AXES, coordinates
        axes = self.table.axes()
        axes.flags.writeable = False
        exact = self.table.outside == "exact"
        return GRID, self.likelihood.mirror, exact, self.table.values, axes, coordinates


class Projections(NamedTuple):
    """Result of `project_arrays`, all of the broadcast shape; `std` is a standard deviation."""

    log_z: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    inside: NDArray[np.bool_]


def project_arrays(
    likelihood: str | Likelihood,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    method: str = "qp",
    table: Table | str | os.PathLike[str] | None = None,
) -> Projections:
    """`project`, with log Z and whether the table's grid was hit."""
    projector = Projector(likelihood, method, table)
    m, s, labels = np.broadcast_arrays(
        np.asarray(mu, float), np.asarray(sigma, float), projector.likelihood.validate(y)
    )
    shape = m.shape
    flat = [np.ascontiguousarray(a, dtype=float).reshape(-1) for a in (m, s, labels)]
    if not np.isfinite(flat[0]).all():
        raise InputError("mu must be finite")
    if not (np.isfinite(flat[1]).all() and (flat[1] > 0.0).all()):
        raise InputError("sigma is a standard deviation: it must be positive and finite")
    log_z, mean, std = (np.empty(m.size) for _ in range(3))
    where = np.empty(m.size, dtype=np.int64)
    status, i = _project_many(projector.functions, projector.source, *flat, log_z, mean, std, where)
    if status != OK:
        raise_status(status, projector.likelihood, flat[0][i], flat[1][i], flat[2][i])
    return Projections(
        log_z.reshape(shape),
        mean.reshape(shape),
        std.reshape(shape),
        (where == INSIDE).reshape(shape),
    )


def raise_status(status: int, likelihood: Likelihood, mu: float, sigma: float, y: float) -> None:
    """Turn the status of an exact projection into an exception."""
    reason = "does not decay" if status == DECAY else "has no finite mass"
    raise NumericalError(
        f"the tilted density of {likelihood.name} {reason} for the cavity "
        f"N({mu:g}, {sigma:g}^2) and y = {y:g}; move the cavity or check the likelihood"
    )


def project(
    likelihood: str | Likelihood,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    method: str = "qp",
    table: Table | str | os.PathLike[str] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of the Gaussian that replaces each tilted density.

    Parameters
    ----------
    likelihood : str or Likelihood
        For example ``"probit"``.
    mu, sigma, y : array-like
        Cavity mean, cavity standard deviation and observation; they broadcast.
    method : {"qp", "ep"}
        QP keeps the mean and takes sigma* (paper, Eqs. 5 and 8); EP matches both moments.
    table : None, "exact", path, name or Table
        Where QP finds sigma*.

    Returns
    -------
    mean, std : ndarray
        Of the broadcast shape; `std` is a standard deviation.

    Raises
    ------
    InputError
        If an argument is not usable.
    NumericalError
        If a tilted density cannot be integrated.

    Examples
    --------
    >>> from qpruntime import project
    >>> mean, std = project("probit", 0.0, 1.0, 1)
    >>> round(float(mean), 12), round(float(std), 12)
    (0.564189583548, 0.825215532323)
    """
    result = project_arrays(likelihood, mu, sigma, y, method, table)
    return result.mean, result.std
