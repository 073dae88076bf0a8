# mypy: disable-error-code=no-untyped-def
"""How this machine rounds: fingerprints of elementary functions and of what numpy vectorises."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from qpruntime.jit import contracted, kernel

__all__ = ["arithmetic", "arrays"]


@contracted
def _fused(t):
    return t * t - 0.1 * t


@kernel
def _sample(x, out):
    for i in range(x.size):
        t = x[i]
        out[i, 0] = math.exp(-t)
        out[i, 1] = math.log(t)
        out[i, 2] = math.log1p(t)
        out[i, 3] = math.expm1(-t)
        out[i, 4] = math.tanh(t)
        out[i, 5] = math.sinh(t)
        out[i, 6] = math.asinh(t)
        out[i, 7] = math.lgamma(t)
        out[i, 8] = 10.0**t
        out[i, 9] = _fused(t)


def arithmetic() -> str:
    """Return a fingerprint of the elementary functions and of fused operations.

    IEEE arithmetic is the same everywhere; exp, log and their like are not rounded alike by every
    C library. Where fingerprints agree, tables built from the same sources agree bit for bit.
    """
    x = np.arange(1, 20001) * 0.0009765625 * 0.8
    out = np.empty((x.size, 10))
    _sample(x, out)
    return hashlib.sha256(out.tobytes()).hexdigest()[:16]


def arrays() -> str:
    """Fingerprint what numpy vectorises by processor: cos, arccos, powers, matrix products."""
    x = np.linspace(-1.0, 1.0, 4001)
    square = np.cos(np.outer(np.arccos(x[:301]), np.arange(67)))
    parts = (10.0**x, square, square @ square[:67].T, square.T @ square)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]
