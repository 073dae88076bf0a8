"""Likelihoods made from a user's log density: `Likelihood.from_log_prob`."""

from __future__ import annotations

import ctypes
import inspect
import logging
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import numba
import numpy as np
from numba.core.dispatcher import Dispatcher
from numpy.typing import ArrayLike

from qpruntime._pointers import LANDMARK, SPLIT, Pointer
from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError

__all__ = [
    "Claims",
    "Landmarks",
    "LogDensity",
    "NotANumber",
    "Outcomes",
    "called",
    "check_claims",
    "from_log_prob",
    "named_parameters",
    "number",
    "reserve",
    "try_out",
]

# --- Likelihoods of a log density

_NAME = re.compile(r"[A-Za-z][\w.-]*")
#: Functions that return names which are taken.
_RESERVED: list[Callable[[], Iterable[str]]] = []


def reserve(names: Callable[[], Iterable[str]]) -> None:
    """Refuse these names to likelihoods of `from_log_prob`; asked for when one is made."""
    _RESERVED.append(names)


def from_log_prob(
    log_prob: Callable[..., Any],
    *,
    name: str,
    theta: ArrayLike | Mapping[str, float] = (),
    outcomes: Iterable[float] | Outcomes | None = None,
    validate: Callable[[ArrayLike], Array] | None = None,
    log_concave: bool = False,
    mirror: bool = False,
    location: bool = False,
    even: bool = False,
    parameters: Mapping[str, float] | Sequence[str] | None = None,
    landmarks: Sequence[float] | Callable[..., ArrayLike] | None = None,
) -> dict[str, Any]:
    """Return what the `Likelihood` is made of, its arguments checked."""
    if not callable(log_prob):
        raise InputError(f"log_prob must be a function log_prob(f, y, theta), got {log_prob!r}")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError(
            f"name must be letters, digits, '_', '.' or '-', a letter first, got {name!r}"
        )
    if any(name in names() for names in _RESERVED):
        raise InputError(f"the name {name!r} is that of a built-in likelihood; choose another")
    values, named = named_parameters(theta, parameters)
    allowed = Outcomes.of(outcomes)
    if validate is not None and not callable(validate):
        raise InputError(f"validate must be a function of the observations, got {validate!r}")
    try:
        density = LogDensity(log_prob, values)
    except TypeError as error:
        raise InputError(
            f"log_prob must take (f, y, theta) or (f, y), {called(log_prob)} does not: {error}"
        ) from error
    marks = None if landmarks is None else Landmarks(landmarks, density)
    try_out(density, marks, name, allowed, validate)
    claims = Claims(bool(log_concave), bool(mirror), bool(location), bool(even))
    check_claims(name, claims, density, allowed)
    return dict(
        name=name,
        outcomes=str(allowed)
        if validate is None or outcomes is not None
        else "checked by validate",
        split=density,
        validate=validate or allowed,
        theta=values,
        **claims._asdict(),
        parameters=named,
        landmarks=marks,
        recipe=(
            ("log_prob", log_prob),
            ("name", name),
            ("theta", tuple(values.tolist())),
            ("outcomes", allowed),
            ("validate", validate),
            *claims._asdict().items(),
            ("parameters", tuple(named)),
            ("landmarks", landmarks),
        ),
    )


# --- Checks of a log density

# Points at which a log density is tried out: both signs, zero, near and further off.
_PROBES = (0.3, -0.5, 1.0, 0.0, -2.0, 3.0)
# ... and whether it is concave.
_LINE = tuple(0.5 * k for k in range(-16, 17))
# Relative; values at these places may differ by the rounding of exponents.
_ROUNDING = 1e-9


class Claims(NamedTuple):
    """Claims about a log density.

    Concave in f; p(y|f) = p(-y|-f); of f - y alone; p(y|f) = p(y|-f) for every y.
    """

    log_concave: bool
    mirror: bool
    location: bool
    even: bool


@dataclass(frozen=True)
class Outcomes:
    """Possible values of y: one of `values`, or any finite number from `low` to `high`.

    Calling it turns observations into a float array, or raises `InputError`.
    """

    values: tuple[float, ...] | None = None
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def of(cls, outcomes: Iterable[float] | Outcomes | None) -> Outcomes:
        """Read ``outcomes`` of `Likelihood.from_log_prob`."""
        if outcomes is None:
            return cls()
        if isinstance(outcomes, Outcomes):
            return outcomes
        try:
            values = [float(v) for v in outcomes]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"outcomes must be None, a list of numbers or a tuple (low, high), got {outcomes!r}"
            ) from error
        if isinstance(outcomes, tuple) and len(values) == 2:
            low, high = values
            if not low < high:
                raise InputError(f"outcomes: low must be below high, got ({low:g}, {high:g})")
            return cls(None, low, high)
        if not values or not np.isfinite(values).all():
            raise InputError(f"outcomes must be finite numbers, at least one, got {outcomes!r}")
        return cls(tuple(sorted(set(values))))

    def __call__(self, y: ArrayLike) -> Array:
        """Validate observations and return them as floats."""
        array = finite(y, "y")
        if self.values is not None:
            wrong = ~np.isin(array, self.values)
        else:
            wrong = (array < self.low) | (array > self.high)
        if wrong.any():
            raise InputError(f"y must be {self}, got {array[wrong].flat[0]:g}")
        return array

    @property
    def all_reals(self) -> bool:
        """True if every finite number is accepted."""
        return self.values is None and self.low == -np.inf and self.high == np.inf

    def __contains__(self, y: float) -> bool:
        return y in self.values if self.values is not None else self.low <= y <= self.high

    def __str__(self) -> str:
        if self.values is not None:
            return "one of " + ", ".join(f"{v:g}" for v in self.values)
        if self.low == -np.inf and self.high == np.inf:
            return "any finite number"
        return f"numbers from {self.low:g} to {self.high:g}"

    def examples(self) -> tuple[float, ...]:
        """All values, or some from inside the interval; whole numbers if there are any."""
        if self.values is not None:
            return self.values
        if self.low == -np.inf:
            return (1.0,) if self.high > 1.0 else (self.high - 1.0,)
        if self.high == np.inf:
            return (self.low + 1.0, self.low + 2.0)
        middle = 0.5 * (self.low + self.high)
        whole = round(middle)
        return (float(whole) if self.low < whole < self.high else middle,)


def called(log_prob: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return getattr(log_prob, "__qualname__", repr(log_prob))


def named_parameters(
    theta: ArrayLike | Mapping[str, float], parameters: Mapping[str, float] | Sequence[str] | None
) -> tuple[Array, dict[str, float]]:
    """Return the values as a read-only array, and by name if they have names."""
    if isinstance(theta, Mapping):
        if parameters is not None:
            raise InputError("give the parameters in theta or in parameters, not in both")
        parameters = theta
        theta = tuple(parameters.values())
    values = np.array(finite(theta, "theta"), dtype=float).reshape(-1)
    names = () if parameters is None else tuple(parameters)
    if isinstance(parameters, Mapping):
        passed = finite(list(parameters.values()), "parameters")
        if values.size and not np.array_equal(values, passed):
            raise InputError(f"theta is {values.tolist()} but parameters are {dict(parameters)}")
        values = passed
    if names and len(names) != values.size:
        raise InputError(f"parameters names {len(names)} entries, theta has {values.size}")
    values.flags.writeable = False
    return values, {str(k): float(v) for k, v in zip(names, values, strict=False)}


def try_out(
    density: LogDensity,
    marks: Landmarks | None,
    name: str,
    allowed: Outcomes,
    validate: Callable[..., Array] | None,
) -> None:
    """Call the density once for every outcome and probe, so that it fails here and in words."""
    for y in allowed.examples():
        if validate is not None:
            try:
                y = float(np.asarray(validate([y]), dtype=float)[0])
            except (ValueError, TypeError, IndexError):
                continue
        if marks is not None:
            try:
                marks.points(y)
            except Exception as error:
                raise InputError(
                    f"landmarks of {name} must be finite numbers, or a function of (y, theta) that "
                    f"returns them; for y = {y:g}: {error}"
                ) from error
        values = []
        for f in _PROBES:
            try:
                values.append(density.probe(f, y))
            except NotANumber as error:
                raise InputError(
                    f"log_prob of {name} returned {error} at f = {f:g}, y = {y:g}; "
                    "it must return one real number for one f"
                ) from error
            except Exception as error:
                raise InputError(
                    f"log_prob of {name} raised {type(error).__name__}: {error} "
                    f"at f = {f:g}, y = {y:g}; every real f is asked for: "
                    "return -inf where there is no density"
                ) from error
        if np.isnan(values).all():
            raise InputError(
                f"log_prob of {name} returned NaN for y = {y:g} at every f in {_PROBES}; "
                "check its parameters, or give the y there are with outcomes="
            )


def check_claims(name: str, claims: Claims, density: LogDensity, allowed: Outcomes) -> None:
    """Raise `InputError` where a few values contradict what is claimed of the likelihood.

    A wrong claim would give wrong results without a word.
    """

    def log_p(f: float, y: float) -> float:
        try:
            return density.value(f, y)
        except Exception:  # said elsewhere, if this is where anything is integrated
            return np.nan

    def refuse(claim: str, why: str) -> None:
        raise InputError(f"log_prob of {name} is not {claim}: {why}; leave out {claim}=True")

    def differ(a: float, b: float) -> bool:
        return abs(a - b) > _ROUNDING * (1.0 + abs(a))  # False for NaN and equal infinities

    for y in allowed.examples():
        for f in _PROBES:
            a = log_p(f, y)
            if claims.mirror and -y in allowed and differ(a, b := log_p(-f, -y)):
                refuse("mirror", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} at {-f:g}, {-y:g}")
            if claims.even and differ(a, b := log_p(-f, y)):
                refuse("even", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} at {-f:g}")
            if claims.location and y + 0.5 in allowed and differ(a, b := log_p(f + 0.5, y + 0.5)):
                refuse(
                    "location", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} with 0.5 added to both"
                )
        if claims.log_concave:
            values = [log_p(f, y) for f in _LINE]
            for f, a, b, c in zip(_LINE[1:], values, values[1:], values[2:], strict=False):
                if 0.5 * (a + c) - b > _ROUNDING * (1.0 + abs(a) + abs(c)):
                    refuse("log_concave", f"it is convex around f = {f:g} for y = {y:g}")


# --- Log densities as functions of kernels
#
# A function that numba can compile is compiled when it is first passed to a kernel, and kept in
# memory only: numba's cache files know neither the globals a function reads nor the notebook it was
# typed in. Anything else is called back through ctypes: a compiled function of the signature that
# kernels call hands f and y to Python, which takes the GIL for it. That costs microseconds a call
# but is right.

_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)
_C_LANDMARK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_longlong)
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Compiled and interpreted values at the probes may differ by rounding; what differs by more is
# arithmetic that means something else once compiled, such as integers that overflow.
_AGREE = 1e-8

# A site by a function in Python beside one that is compiled: 25 to 33 times were measured, of
# absolute values, SciPy's log_ndtr and math.erfc by EP and QP, 1450 calls a site.
_SLOWER = 30

# Points at which a failure is searched for, in standard deviations; every cavity is integrated this
# far.
_LOOK = sorted((s * 0.5 * k for k in range(17) for s in (1, -1)), key=abs)


class NotANumber(TypeError):
    """Error of a user's function that did not return one real number, with its result."""


def number(value: object) -> float:
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
        return float(value.item() if isinstance(value, np.ndarray) else cast("float", value))
    except (TypeError, ValueError) as error:
        raise NotANumber(f"{value!r} of type {type(value).__name__}") from error


def takes_theta(log_prob: Callable[..., Any]) -> bool:
    """Decide whether the function is ``log_prob(f, y, theta)`` rather than ``log_prob(f, y)``."""
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
    """Last exception that the function raised in this thread."""

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
        #: True if `log_prob` takes only arrays of f; set by `probe`.
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

    def _interpreted(self) -> Callable[..., tuple[float, float]]:
        return self._recorded_split

    def _build(self) -> Dispatcher:
        split = self._compile()
        self.compiled = split is not None
        if split is not None:
            return split
        tell_once(_uncompiled(self))
        # The callback lives as long as its address may.
        callback = self._callback = _C_FUNCTION(self._recorded)

        def through_python(f: float, y: float, theta: Array) -> tuple[float, float]:
            return callback(f, y), 0.0

        return _unannounced(through_python)

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

    def _compile(self) -> Dispatcher | None:
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


class Landmarks(Pointer):
    """``landmarks(y, theta, k) -> f`` of a user's points, or function that returns them.

    Parameters
    ----------
    landmarks : sequence of float or callable
        Values of f, or ``landmarks(y, theta)`` that returns them.
    density : LogDensity
        Whose parameters these are, and where failures are kept.
    """

    def __init__(
        self, landmarks: Sequence[float] | Callable[..., ArrayLike], density: LogDensity
    ) -> None:
        self.landmarks = landmarks
        self.density = density
        self._signature = LANDMARK
        self._address = 0

    def points(self, y: float) -> tuple[float, ...]:
        """Landmarks for this y; exceptions are the user's own."""
        landmarks = self.landmarks
        values = landmarks(np.float64(y), self.density.theta) if callable(landmarks) else landmarks
        points = tuple(number(f) for f in np.atleast_1d(values))
        if not np.isfinite(points).all():
            raise ValueError(f"landmarks must be finite, got {points} for y = {y:g}")
        return points

    def __call__(self, y: float, theta: Array, k: int) -> float:
        """Return the k-th of them, NaN beyond the last."""
        return self._recorded(y, k)

    def _interpreted(self) -> Callable[..., float]:
        return self.__call__

    def _build(self) -> Dispatcher:
        """Python is called, a few times for every cavity."""
        callback = self._callback = _C_LANDMARK(self._recorded)

        def landmark(y: float, theta: Array, k: int) -> float:
            return float(callback(y, k))

        return _unannounced(landmark)

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
    """Return what to say of a function that numba does not compile."""
    function = density.log_prob
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if density.wants_array:
        why = "it takes arrays of f; let it take one number"
    elif not isinstance(function, Dispatcher) and not inspect.isfunction(function):
        why = f"it is a {type(function).__name__}; numba compiles functions"
    else:
        arguments = "0.0, y, theta" if density.with_theta else "0.0, y"
        why = f"numba.njit({name})({arguments}) says why, or gives other numbers"
    return (
        f"log_prob {name} runs in Python, uncompiled, and a site takes about {_SLOWER} times as "
        f"long ({why}); a table of it takes that time away: tablegen.build"
    )


def _compiled_split(log_prob: Callable[..., Any], with_theta: bool) -> Dispatcher:
    jitted = log_prob if isinstance(log_prob, Dispatcher) else numba.njit(**_OPTIONS)(log_prob)

    call = jitted if with_theta else numba.njit(**_OPTIONS)(lambda f, y, theta: jitted(f, y))

    # An exception of a compiled function cannot pass through a kernel, but NaN can.
    def split(f: float, y: float, theta: Array) -> tuple[float, float]:
        value = math.nan
        try:
            value = float(call(f, y, theta))
        except Exception:
            value = math.nan
        return value, 0.0

    return _unannounced(split)


def _unannounced(function: Callable[..., Any]) -> Dispatcher:
    """Compile a function of the user's, about which `qpruntime._numba` gives no notice."""
    function.__module__ = "user"
    return cast("Dispatcher", numba.njit(**_OPTIONS)(function))  # numba has no types
