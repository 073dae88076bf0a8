"""A user's scalar log density as a function that kernels can call.

What numba compiles is compiled, when it first crosses into a kernel, and kept in memory only:
numba's files know neither the globals a function reads nor the notebook it was typed in. Anything
else is called back through ctypes: a compiled function of the signature that kernels call hands f
and y to Python, which takes the GIL for it. That costs microseconds a call but is right.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import math
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher

from qpruntime.arrays import Array
from qpruntime.jit import LANDMARK, SPLIT, Pointer

__all__ = ["Landmarks", "LogDensity", "NotANumber", "number"]

_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)
_C_LANDMARK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_longlong)
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Compiled and interpreted values at the probes may differ by rounding; what differs by more is
# arithmetic that means something else once compiled, such as integers that overflow.
_AGREE = 1e-8

# A site by a function in Python beside one that is compiled: 25 to 33 times were measured, of
# absolute values, SciPy's log_ndtr and math.erfc by EP and QP, 1450 calls a site.
_SLOWER = 30

# Where a failure is looked for, in standard deviations: every cavity is integrated as far as this.
_LOOK = sorted((s * 0.5 * k for k in range(17) for s in (1, -1)), key=abs)


class NotANumber(TypeError):
    """What a user's function returned is not one real number; the message says what it is."""


def number(value: Any) -> float:
    """Return what `log_prob` returned as a float, or raise `NotANumber`."""
    if isinstance(value, float):  # NumPy's are
        return value
    if isinstance(value, np.ndarray) and value.size != 1:
        raise NotANumber(f"an array of shape {value.shape}")
    if isinstance(value, (str, bytes, complex, np.complexfloating)) or (
        isinstance(value, np.ndarray) and value.dtype.kind not in "fiubO"
    ):
        raise NotANumber(f"{value!r}, which is not a real number")
    try:
        return float(value.item() if isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError) as error:
        raise NotANumber(f"{value!r} of type {type(value).__name__}") from error


def takes_theta(log_prob: Callable[..., Any]) -> bool:
    """Whether the function is ``log_prob(f, y, theta)`` rather than ``log_prob(f, y)``."""
    try:
        signature = inspect.signature(log_prob)
    except (TypeError, ValueError):  # written in C
        return True
    try:
        signature.bind(0.0, 0.0, ())
    except TypeError:
        signature.bind(0.0, 0.0)
        return False
    return True


class _Failed(threading.local):
    """What the function raised last in this thread."""

    error: BaseException | None = None


class LogDensity(Pointer):
    """``split(f, y, theta) -> (log_prob, 0)`` of a user's `log_prob`.

    Parameters
    ----------
    log_prob : callable
        ``log_prob(f, y, theta)`` or ``log_prob(f, y)``; returns one real number.
    theta : ndarray
        Parameters, bound where Python is called.
    """

    def __init__(self, log_prob: Callable[..., Any], theta: Array) -> None:
        self.log_prob = log_prob
        self._python = log_prob.py_func if isinstance(log_prob, Dispatcher) else log_prob
        self.theta = theta
        self.with_theta = takes_theta(log_prob)
        #: Whether `log_prob` only takes arrays of f; set by `probe`.
        self.wants_array = False
        #: None until the function has first crossed into a kernel.
        self.compiled: bool | None = None
        self._probes: list[tuple[float, float, float]] = []
        self._failed = _Failed()
        self._signature = SPLIT
        self._address = 0

    def __call__(self, f: float, y: float, theta: Array) -> tuple[float, float]:
        """Run the Python function; exceptions are the user's own."""
        return self.value(f, y), 0.0

    def value(self, f: float, y: float) -> float:
        """Log density by Python; f and y are NumPy floats, for which 1/0 is inf as in kernels."""
        point: Any = np.array([f]) if self.wants_array else np.float64(f)
        with np.errstate(all="ignore"):
            if self.with_theta:
                return number(self._python(point, np.float64(y), self.theta))
            return number(self._python(point, np.float64(y)))

    def probe(self, f: float, y: float) -> float:
        """`value`, tried with an array of one f if the function does not take a number."""
        try:
            value = self.value(f, y)
        except (TypeError, IndexError, AttributeError) as error:
            if self.wants_array or self._probes:
                raise
            self.wants_array = True
            try:
                value = self.value(f, y)
            except Exception:
                self.wants_array = False
                raise error from None
        self._probes.append((f, y, value))
        return value

    def _interpreted(self) -> Any:
        return self._recorded_split

    def _build(self) -> Any:
        split = self._compile()
        self.compiled = split is not None
        if split is not None:
            return split
        tell_once(_uncompiled(self))
        return self._through_python()

    def reset(self) -> None:
        """Forget an exception that nobody asked for."""
        self._failed.error = None

    def failure(
        self, mu: float = 0.0, sigma: float = 0.0, y: float = 0.0
    ) -> tuple[str, BaseException | None] | None:
        """Return, once, what went wrong in this thread since the last `reset`.

        Compiled code keeps no exceptions, and a NaN is no exception: both are looked for around
        the cavity N(mu, sigma^2).
        """
        error = self._failed.error
        self._failed.error = None
        if error is None and sigma > 0.0:
            for z in _LOOK:
                f = mu + z * sigma
                try:
                    value = self.value(f, y)
                except Exception as raised:
                    error = raised
                    break
                if math.isnan(value):
                    return f"is nan at f = {f:g}, y = {y:g}", None
        return None if error is None else (f"raised {type(error).__name__}: {error}", error)

    def record(self, error: BaseException) -> None:
        """Keep an exception for `failure`."""
        self._failed.error = error

    def _recorded(self, f: float, y: float) -> float:
        """`value`, or NaN with the exception kept; after an interrupt everything is NaN.

        Not after other exceptions: whether the density has any mass where the function fails is
        for quadrature to find out.
        """
        error = self._failed.error
        if error is not None and not isinstance(error, Exception):
            return math.nan
        try:
            return self.value(f, y)
        except BaseException as error:
            self.record(error)
            return math.nan

    def _recorded_split(self, f: float, y: float, theta: Array) -> tuple[float, float]:
        return self._recorded(f, y), 0.0

    def _compile(self) -> Any:
        """Return the compiled `split`, or None if numba cannot, or would compute something else."""
        if not isinstance(self.log_prob, Dispatcher) and (
            self.wants_array or not inspect.isfunction(self.log_prob)
        ):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                split = _compiled_split(self.log_prob, self.with_theta)
                split.compile(SPLIT)
            except Exception:  # numba fails in many ways, and none of them is an error here
                return None
        for f, y, expected in self._probes:
            got = split(f, y, self.theta)[0]
            if not np.isclose(got, expected, rtol=_AGREE, atol=_AGREE, equal_nan=True):
                return None
        return split

    def _through_python(self) -> Any:
        """Return a `split` that calls Python; the callback lives as long as its address may."""
        self._callback = _C_FUNCTION(self._recorded)
        return _calling_split(self._callback)


class Landmarks(Pointer):
    """``landmarks(y, theta, k) -> f`` of a user's points, or function that returns them.

    Parameters
    ----------
    landmarks : sequence of float or callable
        Values of f, or ``landmarks(y, theta)`` that returns them.
    density : LogDensity
        Whose parameters these are, and where failures are kept.
    """

    def __init__(self, landmarks: Any, density: LogDensity) -> None:
        self.landmarks = landmarks
        self.density = density
        self._signature = LANDMARK
        self._address = 0

    def points(self, y: float) -> tuple[float, ...]:
        """Landmarks for this y; exceptions are the user's own."""
        given = self.landmarks
        if callable(given):
            given = given(np.float64(y), self.density.theta)
        points = tuple(number(f) for f in np.atleast_1d(given))
        if not np.isfinite(points).all():
            raise ValueError(f"landmarks must be finite, got {points} for y = {y:g}")
        return points

    def __call__(self, y: float, theta: Array, k: int) -> float:
        """Return the k-th of them, NaN beyond the last."""
        return self._recorded(y, k)

    def _interpreted(self) -> Any:
        return self.__call__

    def _build(self) -> Any:
        """Python is called, a few times for every cavity."""
        self._callback = _C_LANDMARK(self._recorded)
        return _calling_landmark(self._callback)

    def _recorded(self, y: float, k: int) -> float:
        try:
            points = self.points(y)
        except BaseException as error:
            self.density.record(error)
            return math.nan
        return points[k] if k < len(points) else math.nan


@cache
def tell_once(text: str) -> None:
    """Say something once per process, by the logger that estimates of time are said by."""
    logging.getLogger("qpruntime").warning("qpruntime: %s", text)


def _uncompiled(density: LogDensity) -> str:
    """What to say of a function that numba does not compile."""
    given = density.log_prob
    name = getattr(given, "__qualname__", type(given).__qualname__)
    if density.wants_array:
        why = "it takes arrays of f; let it take one number"
    elif not isinstance(given, Dispatcher) and not inspect.isfunction(given):
        why = f"it is a {type(given).__name__}; numba compiles functions"
    else:
        why = f"numba.njit({name})(0.0, y, theta) says why, or gives other numbers"
    return (
        f"log_prob {name} runs in Python, uncompiled, and a site takes about {_SLOWER} times as "
        f"long ({why}); a table of it takes that time away: tablegen.build"
    )


def _compiled_split(log_prob: Callable[..., Any], with_theta: bool) -> Any:
    jitted = log_prob if isinstance(log_prob, Dispatcher) else numba.njit(**_OPTIONS)(log_prob)

    # What a compiled function raises cannot cross into a kernel; NaN can.
    def full(f, y, theta):  # type: ignore[no-untyped-def]
        value = math.nan
        try:
            value = float(jitted(f, y, theta))
        except Exception:
            value = math.nan
        return value, 0.0

    def short(f, y, theta):  # type: ignore[no-untyped-def]
        value = math.nan
        try:
            value = float(jitted(f, y))
        except Exception:
            value = math.nan
        return value, 0.0

    return _unannounced(full if with_theta else short)


def _calling_split(callback: Any) -> Any:
    def split(f, y, theta):  # type: ignore[no-untyped-def]
        return callback(f, y), 0.0

    return _unannounced(split)


def _calling_landmark(callback: Any) -> Any:
    def landmark(y, theta, k):  # type: ignore[no-untyped-def]
        return callback(y, k)

    return _unannounced(landmark)


def _unannounced(function: Callable[..., Any]) -> Any:
    """Compile a function of the user's, about which `qpruntime.jit` gives no notice."""
    function.__module__ = "user"
    return numba.njit(**_OPTIONS)(function)
