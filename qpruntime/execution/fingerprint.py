"""Versions of the software and rounding of this machine, as a fingerprint of results."""

from __future__ import annotations

import hashlib
import math
import platform
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qpruntime._numba import contracted, kernel
from qpruntime._typing import Array

__all__ = [
    "arithmetic",
    "arrays",
    "difference",
    "provenance",
]

# --- What decides the bytes of a result besides the call: versions, sources and rounding.

#: Packages whose kernels or compilers make numbers.
PACKAGES = ("qpruntime", "numpy", "scipy", "numba", "llvmlite")


@cache
def provenance(packages: tuple[str, ...]) -> dict[str, str]:
    """Return versions, a hash of the sources of `packages`, and fingerprints of rounding.

    If two of them agree, the same call gives the same bytes. Call it with one BLAS thread.
    """
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in PACKAGES},
        "sources": _sources(packages),
        "rounding": arithmetic() + arrays(),
    }


def _sources(packages: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return f"without {package}"
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """Say in which entries two of them differ; nothing if they agree."""
    names = [name for name in ours if ours[name] != theirs.get(name)]
    if names == ["rounding"]:
        return (
            "it rounds differently (another processor or libm), so that its chunks "
            "would not be those computed here; use workers like this machine"
        )
    words = [f"{name} {theirs.get(name, 'missing')} (here {ours[name]})" for name in names]
    return f"it has {', '.join(words)}; install the same packages there as here" if words else ""


# --- How this machine rounds: fingerprints of elementary functions and of what numpy vectorises.


@contracted
def _fused(t: float) -> float:
    return t * t - 0.1 * t


@kernel
def _sample(x: Array, out: Array) -> None:
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

    IEEE arithmetic is the same everywhere; exp, log and their like are not rounded alike by every C
    library. If fingerprints agree, tables built from the same sources agree bit for bit.
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
