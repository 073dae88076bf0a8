"""Arguments of `Optimizer` that are of one function each, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.paths import terms
from qpruntime.errors import InputError
from qpruntime.validation import choice, finite, number, real, shown

__all__ = ["kernels_of", "noises_of", "outcome", "prices_of"]


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
            terms(k)
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


def outcome(value: Any, name: str, shape: tuple[int, ...]) -> Array:
    """Return values of functions, NaN where not evaluated; infinities are refused."""
    found = real(value, name)
    if found.shape != shape:
        wanted = f"shape {shape}, one value a constraint" if shape else "one number"
        raise InputError(f"{name} must be {wanted}, got shape {found.shape}")
    if np.isinf(found).any() or (np.abs(found[np.isfinite(found)]) > 1e100).any():
        raise InputError(
            f"{name} is {found}: values must be within 1e100; leave out what failed, or make "
            "failure a constraint"
        )
    return found
