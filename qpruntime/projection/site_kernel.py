"""Projection of one tilted density to a Gaussian: the kernel of `project`, tables and sweeps.

The mean is the tilted mean. The standard deviation is that of the tilted density (EP), or sigma*
from a table or by quadrature (QP). L_p projections have a mean of their own.
`qpruntime.projection.projector` chooses the table and checks arguments.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import _cli_hints
from qpruntime._numba import contracted, inlined, kernel, plain
from qpruntime._pointers import (
    RATIO,
    LatePointer,
    LateStatus,
    call_coordinates,
    call_exact,
    call_moments,
    call_powered,
    call_ratio,
    call_surfaces,
    call_wp_rule,
)
from qpruntime._typing import Array, IntArray
from qpruntime._validation import broadcast, real
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import CLOSED
from qpruntime.projection.interpolation import bilinear, quintic
from qpruntime.quadrature.sigma_star_kernels import (
    DECAY,
    EXHAUSTED,
    NO_MASS,
    NOT_A_NUMBER,
    OK,
    PlainFunctions,
)

__all__ = [
    "COMPACT_RATIO",
    "Projections",
    "check_range",
    "project_many",
    "project_rows",
    "project_site",
    "raise_status",
]

#: Source of a projection: its kind, whether observations mirror the table, whether cavities outside
#: it are integrated, values, axes, and the addresses of the lookup and of the coordinates in a
#: compact table, each 0 if the kind has none.
Source = tuple[int, bool, bool, Array, Array, int, int]

# Sources of a standard deviation for `project_site`, and reports of a lookup.
EP, GRID, EXACT, COMPACT, SURFACES_EP, SURFACES_QP, WP, SURFACES_WP = 0, 1, 2, 3, 4, 5, 6, 7
#: Surfaces of the likelihood to the power that is last among the axes. They serve that power alone,
#: and other cavities are integrated.
RAISED_EP, RAISED_QP = 8, 9
COMPUTED, INSIDE, OUTSIDE_GRID = 0, 1, 2
#: Status: a table has a value that cannot be sigma*. Values above sigma_EP are allowed: a coarse
#: grid has them between its nodes, and they are cut to sigma_EP.
DAMAGED = -1
# A smaller sigma*/sigma_EP in a table means damage, because it would need a second peak of mass
# 1e-20.
_LEAST_RATIO = 1e-9

#: Status of a cavity outside a table of surfaces whose likelihood has no code.
BEYOND = -2
#: Status of a power other than 1 with a table of L_p projections, which does not have it.
POWERED = -3

NO_VALUES = np.zeros((1, 2, 2))
NO_AXES = np.array([0.0, -1.0, 1.0, 0.0, -1.0, 1.0, 0.0])
for _array in (NO_VALUES, NO_AXES):
    _array.flags.writeable = False


def _compact_ratio(
    coordinates: int, mu: float, sigma: float, y: float, theta: Array, values: Array, axes: Array
) -> float:
    """Return sigma*/sigma_EP by a compact table or in closed form, NaN if it has to be integrated.

    The table's rows are the outcomes from ``axes[6]`` on, which the coordinates use.
    """
    row, u, v = call_coordinates(coordinates, mu, sigma, y, theta)
    if 0.0 <= row < values.shape[0]:
        return min(quintic(values, axes, int(row), u, v), 1.0)
    return min(u, 1.0) if row == CLOSED else math.nan


#: Compiles if a likelihood has a compact table, which takes a twentieth of a first fit.
COMPACT_RATIO = LatePointer(_compact_ratio, RATIO, contracted)


@inlined
def project_site(
    functions: PlainFunctions,
    source: Source,
    power: float,
    mu: float,
    sigma: float,
    y: float,
    scratch: Array,
) -> tuple[int, float, float, float, int]:
    """Project one tilted density; return (status, log Z, mean, standard deviation, where).

    `functions` is `Likelihood.functions()`, `source` is `Projector.source`, `sigma` the cavity's
    standard deviation, `scratch` an array of shape (1, 4). A likelihood to a power other than 1 is
    integrated, for EP too, because closed moments and tables are those of the first power. The
    caller unpacks the arrays, because passing them costs more than moments in closed form: 150 ns a
    site against 80.
    """
    theta, has_moments, has_frame, split, moments, frame = functions
    kind, mirror, outside_exact, values, axes, lookup, coordinates = source
    if kind == WP:
        status, log_z, mean, std, _ = call_wp_rule(
            lookup, split, frame[2], power, mu, sigma, y, theta, axes
        )
        return int(status), log_z, mean, std, COMPUTED
    if power != 1.0:
        if kind == SURFACES_WP:
            return POWERED, 0.0, 0.0, 0.0, COMPUTED
        if kind >= RAISED_EP and power == axes[-1]:
            log_z, mean, std, star = call_surfaces(lookup, mu, sigma, y, values, axes)
            if not math.isnan(log_z):
                star = star if kind == RAISED_QP else std
                if not (abs(log_z) < math.inf and abs(mean) < math.inf and 0.0 < star <= std):
                    return DAMAGED, 0.0, 0.0, 0.0, INSIDE
                return OK, log_z, mean, star, INSIDE
        ep = kind in (EP, SURFACES_EP, RAISED_EP)
        status = call_powered(frame[6], split, frame, ep, power, mu, sigma, y, theta, scratch)
        std = math.sqrt(scratch[0, 2])
        if not ep:
            std = min(std, scratch[0, 3])
        return status, scratch[0, 0], scratch[0, 1], std, COMPUTED
    where = COMPUTED
    if kind >= RAISED_EP:
        kind = EXACT if kind == RAISED_QP else EP
    if kind >= SURFACES_EP:
        log_z, mean, std, star = call_surfaces(lookup, mu, sigma, y, values, axes)
        if not math.isnan(log_z):
            finite = abs(log_z) < math.inf and abs(mean) < math.inf and 0.0 < std < math.inf
            if not finite or star < _LEAST_RATIO * std:
                return DAMAGED, 0.0, 0.0, 0.0, INSIDE
            return OK, log_z, mean, star if kind == SURFACES_QP else std, INSIDE
        if not outside_exact:
            return BEYOND, 0.0, 0.0, 0.0, OUTSIDE_GRID
        where = OUTSIDE_GRID
        kind = EXACT if kind == SURFACES_QP else EP
    integrated = False
    if has_moments:
        log_z, mean, variance = call_moments(moments, mu, sigma, y, theta)
    else:
        status = call_exact(frame[5], split, frame, has_frame, mu, sigma, y, theta, scratch)
        if status != OK:
            return status, 0.0, 0.0, 0.0, COMPUTED
        integrated = True
        log_z, mean, variance = scratch[0, 0], scratch[0, 1], scratch[0, 2]
    std = math.sqrt(variance)
    if kind == EP:
        return OK, log_z, mean, std, where
    if kind == COMPACT:
        where = INSIDE
        ratio = call_ratio(lookup, coordinates, mu, sigma, y, theta, values, axes)
        if ratio >= _LEAST_RATIO:
            return OK, log_z, mean, std * ratio, where
        if not math.isnan(ratio):
            return DAMAGED, 0.0, 0.0, 0.0, where
    if kind == GRID:
        if mirror:
            row, location = 0, mu * y * axes[6]
        else:
            row, location = int(y - axes[6]), mu
        where = OUTSIDE_GRID
        if 0 <= row < values.shape[0]:
            star, inside = bilinear(values, axes, row, location, math.log10(sigma))
            if inside:
                # The comparison makes NaN count as damage in a table, but not in the moments.
                if not 0.0 < star < math.inf or star < _LEAST_RATIO * std:
                    return DAMAGED, 0.0, 0.0, 0.0, INSIDE
                return OK, log_z, mean, min(star, std), INSIDE
        if not outside_exact:
            return OK, log_z, mean, std, where
    if not integrated:
        status = call_exact(frame[5], split, frame, has_frame, mu, sigma, y, theta, scratch)
        if status != OK:
            return status, 0.0, 0.0, 0.0, where
    return OK, log_z, mean, min(scratch[0, 3], std), where


@kernel
def _project_many(
    functions: PlainFunctions,
    source: Source,
    powers: Array,
    cavities: tuple[Array, Array],
    y: Array,
    found: tuple[Array, Array, Array, IntArray],
) -> tuple[int, int]:
    mu, sigma = cavities
    log_z, mean, std, where = found
    scratch = np.empty((1, 4))
    for i in range(mu.size):
        if powers[i] == 0.0:
            # An observation of weight 0 leaves the cavity unchanged, to the last bit.
            log_z[i], mean[i], std[i], where[i] = 0.0, mu[i], sigma[i], COMPUTED
            continue
        status, log_z[i], mean[i], std[i], where[i] = project_site(
            functions, source, powers[i], mu[i], sigma[i], y[i], scratch
        )
        if status != OK:
            return status, i
    return OK, 0


def project_rows(
    likelihood: Likelihood,
    rules: tuple[PlainFunctions, Source],
    powers: NDArray[np.float64],
    cavities: tuple[NDArray[np.float64], NDArray[np.float64]],
    y: NDArray[np.float64],
    table: LookedIn | None = None,
) -> tuple[Array, Array, Array, IntArray]:
    """Project sites with checked arguments; return (log Z, mean, std, where).

    `rules` are functions of the likelihood, as plain tuples, and a source; `cavities` are means and
    standard deviations. Arrays have shape (N,).
    """
    n = y.size
    projected = np.empty(n), np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    status, i = _project_many(*rules, powers, cavities, y, projected)
    if status != OK:
        raise_status(status, likelihood, cavities[0][i], cavities[1][i], y[i], table)
    return projected


_MOVE = "move the cavity or check the likelihood"
_REASONS = {
    DECAY: ("does not decay", _MOVE),
    NO_MASS: ("has no finite mass", _MOVE),
    NOT_A_NUMBER: ("is not a number somewhere", "check the likelihood for every real f"),
    EXHAUSTED: (
        "varies too fast to be integrated to 1e-6",
        "look for noise or fast oscillations in its log density",
    ),
}


class LookedIn(Protocol):
    """Table named in messages about a lookup; `qpruntime.projection.table` has it."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """Path of the file."""

    def beyond(self, mu: float, sigma: float, y: float) -> str:
        """Say where the table ends, and what to do about a cavity outside."""


class Projections(NamedTuple):
    """Project sites, all of the broadcast shape; `std` is a standard deviation."""

    log_z: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    inside: NDArray[np.bool_]


def project_many(
    likelihood: Likelihood,
    source: Source,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    table: LookedIn | None = None,
    powers: NDArray[np.float64] | None = None,
) -> Projections:
    """Check the arguments, which broadcast, and project every site; `table` is for messages.

    `powers`, at least 0 and of the shape of `mu`, are those of the likelihood, 1 by default.
    """
    likelihood, labels = likelihood.observing(y)
    m, s, labels = broadcast(mu=real(mu, "mu"), sigma=real(sigma, "sigma"), y=labels)
    shape = m.shape
    flat = [np.array(a, dtype=float).reshape(-1) for a in (m, s, labels)]
    if not np.isfinite(flat[0]).all():
        raise InputError("mu must be finite")
    if not (np.isfinite(flat[1]).all() and (flat[1] > 0.0).all()):
        raise InputError("sigma is a standard deviation: it must be positive and finite")
    functions = plain(likelihood.functions(powers=powers is not None))
    exponents = np.ones(m.size) if powers is None else powers.reshape(-1)
    log_z, mean, std, where = project_rows(
        likelihood, (functions, source), exponents, (flat[0], flat[1]), flat[2], table
    )
    return Projections(
        log_z.reshape(shape),
        mean.reshape(shape),
        std.reshape(shape),
        (where == INSIDE).reshape(shape),
    )


def check_range(found: Projections, mu: ArrayLike, sigma: ArrayLike) -> None:
    """Raise `NumericalError` if a projection is not finite, or not of positive width."""
    wrong = ~(np.isfinite(found.mean) & (found.std > 0.0) & np.isfinite(found.std))
    if wrong.any():
        m, s = (np.broadcast_to(real(a, ""), wrong.shape)[wrong][0] for a in (mu, sigma))
        raise NumericalError(
            f"the projection of the cavity N({m:g}, {s:g}^2) leaves double precision, whose "
            "squares reach from 1e-308 to 1e308: rescale the latent function"
        )


def raise_status(
    status: int,
    likelihood: Likelihood,
    mu: float,
    sigma: float,
    y: float,
    table: LookedIn | None = None,
) -> None:
    """Turn the status of a projection into an exception, or re-raise that of the user's function.

    `table` is the table of the lookup, if there was one.
    """
    LateStatus.raise_failure()
    likelihood.raise_failure(mu, sigma, y)
    place = f"the cavity N({mu:g}, {sigma:g}^2) and y = {likelihood.worded(y)}"
    if status in (DAMAGED, POWERED, BEYOND):
        assert table is not None, "no lookup, no such status"
        if status == BEYOND:
            raise TableError(table.beyond(mu, sigma, y))
        if status == POWERED:
            raise InputError(
                f"{table.path}: a table of L_p projections serves no powers; leave it out"
            )
        raise TableError(
            f"{table.path}: damaged: what it holds for {place} is no standard deviation; "
            f"{_cli_hints.verify(table.path)} says more; build it again"
        )
    reason, remedy = _REASONS.get(status, _REASONS[NO_MASS])
    raise NumericalError(f"the tilted density of {likelihood.name} {reason} for {place}; {remedy}")
