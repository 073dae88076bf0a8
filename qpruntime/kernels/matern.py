"""Matérn kernels by their nu: 1/2, 3/2 and 5/2 have files of their own, here are all others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import kv

from qpruntime.arrays import Array
from qpruntime.kernels import matern_1, matern_3, matern_5, squared_exponential
from qpruntime.kernels.exponential import student
from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.markov import Factor, NotMarkov
from qpruntime.validation import shown

__all__ = ["matern"]

# Distances between: Bessel functions are infinite at 0, where the kernel is 1, and 0 far away.
_NEAR, _FAR = 1e-10, 1e4


def matern(kernel: Any) -> KernelParts:
    """Return what is known of this Matérn kernel."""
    return _FILES.get(float(kernel.nu), _OTHERS)


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """u^nu K_nu(u), scaled to 1 at 0; its derivative is -u^nu K_(nu - 1)(u), u = sqrt(2 nu) r."""
    nu = float(kernel.nu)
    u = np.clip(math.sqrt(2.0 * nu) * np.sqrt(squares), _NEAR, _FAR)
    front = 2.0 ** (1.0 - nu) / math.gamma(nu)
    f = front * u**nu * kv(nu, u)
    return f, 2.0 * nu * front * u ** (nu - 1.0) * kv(nu - 1.0, u) if slope else f


def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
    """Those of Student's t of 2 nu degrees of freedom."""
    return student(2.0 * float(kernel.nu), count, rng)


def state_space(kernel: Any) -> Factor:
    """Refuse: the state of other smoothnesses is not finite."""
    raise NotMarkov(
        f"{shown(kernel)}: of Matern kernels those of nu = 0.5, 1.5 and 2.5 are Markov here; "
        "use one of these, or the dense solver"
    )


_OTHERS = KernelParts(shape=shape, frequencies=frequencies, state_space=state_space)
_FILES = {
    0.5: matern_1.PARTS,
    1.5: matern_3.PARTS,
    2.5: matern_5.PARTS,
    math.inf: KernelParts(
        shape=squared_exponential.PARTS.shape,
        frequencies=squared_exponential.PARTS.frequencies,
        state_space=state_space,
    ),
}
