"""Functions of a likelihood compiled by numba, for loops that users compile themselves.

Closed forms of a likelihood and compact tables are copied into the function; all else runs through
`qpruntime.projection.site_kernel.project_site`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np

from qpruntime._numba import plain
from qpruntime._pointers import Pointer, call_exact
from qpruntime._special import probit_series
from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.errors import InputError
from qpruntime.interop.derivative_kernels import integrate_expected
from qpruntime.interop.slopes import expected_of
from qpruntime.likelihoods.base import ABSENT_LANDMARK, CLOSED
from qpruntime.projection.interpolation import quintic
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import COMPACT, EP, EXACT, project_site
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = ["NAMES", "compiled"]

NAMES = ("log_partition", "moments", "sigma_star", "expected_log_prob", "log_predictive")


def compiled(name: str, projector: Projector) -> Callable[..., Any]:
    """Return the function of this name; see `LikelihoodFunctions.kernel`.

    Raises
    ------
    InputError
        If there is no such function, or an observation has several numbers.
    """
    choice(name, "name", NAMES)
    likelihood = projector.likelihood
    if likelihood.columns > 1:
        raise InputError(
            f"kernels take one number as an observation, {likelihood.name!r} has "
            f"{likelihood.columns}; call the methods with arrays of them"
        )
    if name == "expected_log_prob":
        projector.need_density("expectations are integrated")
        return _expected(projector)
    source = projector.source if name == "sigma_star" else projector.without_table
    moments = likelihood.moments
    if name == "sigma_star" and source[0] == EXACT:
        return _integrated(projector)
    if name == "sigma_star" and moments and source[0] == COMPACT:
        return _looked_up(projector, moments)
    if moments and source[0] == EP:
        return _from_moments(projector, moments, name == "moments")
    inner = _projected(projector, source)
    if name == "moments":
        return _jitted(lambda mu, sigma, y: inner(mu, sigma, y)[1:3])
    place = 2 if name == "sigma_star" else 0
    return _jitted(lambda mu, sigma, y: inner(mu, sigma, y)[place])


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, in memory alone: what is frozen into it has no name on disk."""
    function.__module__ = "user"
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    return cast("Callable[..., Any]", numba.njit(**options)(function))  # numba has no types


def _from_moments(projector: Projector, moments: Pointer, both: bool) -> Callable[..., Any]:
    """Log Z, or mean and standard deviation, by the likelihood's own moments."""
    theta = projector.likelihood.theta
    inner = _inner(moments)

    def log_partition(mu: float, sigma: float, y: float) -> float:
        return float(inner(float(mu), float(sigma), float(y), theta)[0])

    def mean_and_std(mu: float, sigma: float, y: float) -> tuple[float, float]:
        _, mean, variance = inner(float(mu), float(sigma), float(y), theta)
        return mean, math.sqrt(variance)

    return _jitted(mean_and_std if both else log_partition)


def _probit_variance(mu: float, sigma: float, y: float, theta: Array) -> float:
    """Return the tilted variance of `Likelihood.moments` in half of the time."""
    s2 = sigma * sigma
    total = 1.0 + s2
    return s2 / total * (1.0 + s2 * probit_series(y * mu / math.sqrt(total))[2])


def _looked_up(projector: Projector, moments: Pointer) -> Callable[..., Any]:
    """sigma* from moments and a compact table; rows that it does not have are integrated."""
    likelihood = projector.likelihood
    theta = likelihood.theta
    if likelihood.name == "probit":
        variance = _jitted(_probit_variance)
    else:
        inner = _inner(moments)
        variance = _jitted(lambda mu, sigma, y, theta: inner(mu, sigma, y, theta)[2])
    coordinates = _inner(likelihood.coordinates())
    _, _, _, values, axes, _, _ = projector.source
    rows = float(values.shape[0])
    # A table of one row serves every outcome.
    exact = _integrated(projector) if rows > 1.0 else _jitted(lambda mu, sigma, y: math.nan)

    def sigma_star(mu: float, sigma: float, y: float) -> float:
        """Return sigma* from the table's ratio, or exactly outside the table."""
        mu, sigma, y = float(mu), float(sigma), float(y)
        row, u, v = coordinates(mu, sigma, y, theta)
        if 0.0 <= row < rows:
            ratio = quintic(values, axes, int(row), u, v)
        elif row == CLOSED:
            ratio = u
        else:
            return float(exact(mu, sigma, y))
        return math.sqrt(variance(mu, sigma, y, theta)) * min(ratio, 1.0)

    return _jitted(sigma_star)


def _integrated(projector: Projector) -> Callable[..., Any]:
    """sigma* by quadrature, NaN where it fails."""
    theta, _, has_frame, split, _, frame = plain(projector.likelihood.functions())

    def sigma_star(mu: float, sigma: float, y: float) -> float:
        scratch = np.empty((1, 4))
        status = call_exact(
            frame[5], split, frame, has_frame, float(mu), float(sigma), float(y), theta, scratch
        )
        return min(scratch[0, 3], math.sqrt(scratch[0, 2])) if status == OK else math.nan

    return _jitted(sigma_star)


def _projected(projector: Projector, source: tuple[Any, ...]) -> Callable[..., Any]:
    """(log Z, mean, standard deviation) of any source; NaN where it fails."""
    functions = plain(projector.likelihood.functions())

    def projected(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
        scratch = np.empty((1, 4))
        status, log_z, mean, std, _ = project_site(
            functions, source, 1.0, float(mu), float(sigma), float(y), scratch
        )
        if status != OK:
            return math.nan, math.nan, math.nan
        return log_z, mean, std

    return _jitted(projected)


def _expected(projector: Projector) -> Callable[..., Any]:
    likelihood = projector.likelihood
    theta = likelihood.theta
    expected = expected_of(likelihood)
    if expected is not None:
        inner = _inner(expected)

        def closed(mu: float, sigma: float, y: float) -> float:
            return float(inner(float(mu), float(sigma), float(y), theta)[0])

        return _jitted(closed)
    split = likelihood.split.handle
    landmark = (likelihood.landmarks or ABSENT_LANDMARK).handle

    def integrated(mu: float, sigma: float, y: float) -> float:
        values = np.empty(3)
        status = integrate_expected(
            split, landmark, float(mu), float(sigma), float(y), theta, values
        )
        return values[0] if status == OK else math.nan

    return _jitted(integrated)


def _inner(pointer: Pointer) -> Callable[..., Any]:
    """Return the jitted function behind a pointer, which numba can copy into its callers."""
    pointer.handle  # noqa: B018  compiled, with the cache, for the types that kernels call it with
    return pointer.function
