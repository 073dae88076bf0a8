"""Arguments of `Optimizer` that are of one function each, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.spectrum import stationary_terms
from qpruntime.validation import choice, finite, number, real, shown

__all__ = ["LARGEST", "kernels_of", "name_of", "noises_of", "prices_of", "spelt", "told"]

#: Values of functions are within; their squares are finite.
LARGEST = 1e100


def kernels_of(kernel: Any, outputs: int) -> list[Any]:
    """Return a kernel, its name or None for every function, the objective first."""
    kernels = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel] * outputs
    if len(kernels) != outputs:
        raise InputError(
            f"kernel must be one kernel or a list of {outputs}, the objective's first; "
            f"got {len(kernels)}"
        )
    for k in kernels:
        if isinstance(k, str):
            choice(k, "kernel", ("rbf", "matern"))
        elif k is not None and not hasattr(k, "is_stationary"):
            raise InputError(f"kernel must be None or one of scikit-learn's, got {shown(k)}")
        elif k is not None:
            stationary_terms(k)
    return kernels


def noises_of(noise: Any, outputs: int) -> list[float | None]:
    """Return the variance of every function's noise, None where it is to be learnt."""
    noises = list(noise) if isinstance(noise, (list, tuple, np.ndarray)) else [noise] * outputs
    if len(noises) != outputs:
        raise InputError(
            f"noise must be one variance or a list of {outputs}, the objective's first; "
            f"got {len(noises)}"
        )
    found: list[float | None] = []
    for value in noises:
        if value is None:
            found.append(None)
            continue
        given = number(value, "noise")
        if given < 0.0:
            raise InputError(f"noise is a variance: it must not be negative, got {given:g}")
        found.append(given)
    return found


def prices_of(cost: Any, outputs: int) -> Array:
    """Return what evaluating each function costs, 1 by default."""
    if cost is None:
        return np.ones(outputs)
    prices = finite(cost, "cost", (outputs,))
    if (prices <= 0.0).any():
        raise InputError(f"costs must be positive, got {prices.min():g}")
    return prices


def spelt(kernel: Any) -> str:
    """A kernel with all its digits and bounds, which `repr` rounds."""
    if kernel is None or isinstance(kernel, str):
        return repr(kernel)
    parameters = kernel.get_params(deep=False)
    words = []
    for name, value in sorted(parameters.items()):
        if hasattr(value, "is_stationary"):
            value = spelt(value)
        elif isinstance(value, (np.ndarray, np.generic, list, tuple)):
            value = np.asarray(value).tolist()
        words.append(f"{name}={value}")
    return f"{type(kernel).__name__}({', '.join(words)})"


def told(f: Any, c: Any, constraints: int) -> tuple[Array, set[int]]:
    """Return values of (f, c_1, ..., c_K), NaN where there are none, and which were left out."""
    values = np.full(constraints + 1, np.nan)
    left_out = {0} if f is None else set()
    if f is not None:
        values[0] = outcome(f, "f", ())
    if c is None:
        return values, left_out | set(range(1, constraints + 1))
    if constraints == 1 and np.ndim(c) == 0:
        c = [c]
    if constraints and np.ndim(c) == 0:
        raise InputError(
            f"c must be a list of {constraints} values, one a constraint, got {shown(c)}: those "
            "that are not evaluated are None"
        )
    values[1:] = outcome(c, "c", (constraints,))
    if isinstance(c, (list, tuple)):
        left_out |= {k for k, value in enumerate(c, 1) if value is None}
    return values, left_out


def name_of(id: Any) -> str | None:
    """Return the id of an evaluation as text, or raise `InputError`."""
    if id is None:
        return None
    if isinstance(id, bool) or not isinstance(id, (str, int, np.integer)):
        raise InputError(f"id must be a text or a whole number, got {shown(id)}")
    return str(id)


def outcome(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    """Return values of functions, NaN where not evaluated; infinities are refused."""
    found = real(value, name)
    if found.shape != shape:
        wanted = f"of shape {shape}, one value a constraint" if shape else "one number"
        if shape == (0,):
            wanted = "left out, as there are no constraints"
        raise InputError(f"{name} must be {wanted}, got shape {found.shape}")
    if np.isinf(found).any() or (np.abs(found[np.isfinite(found)]) > LARGEST).any():
        raise InputError(
            f"{name} is {found}: values must be within 1e100; tell NaN for what failed"
        )
    return found
