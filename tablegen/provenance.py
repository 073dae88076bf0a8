"""What decides the bytes of a table besides the plan: versions, sources and rounding."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

import qpruntime
from tablegen import splines

__all__ = ["difference", "provenance"]

#: Packages whose kernels or compilers make numbers.
PACKAGES = ("qpruntime", "numpy", "scipy", "numba", "llvmlite")


@cache
def provenance() -> dict[str, str]:
    """Return versions, a hash of the sources of both packages, and fingerprints of rounding.

    Where two of them agree, the same plan gives the same bytes. Call it with one BLAS thread.
    """
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in PACKAGES},
        "sources": _sources(),
        "rounding": splines.arithmetic() + _arrays(),
    }


def _sources() -> str:
    digest = hashlib.sha256()
    for package in (qpruntime.__file__, __file__):
        root = Path(package).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _arrays() -> str:
    """Fingerprint what numpy vectorises by processor: cos, arccos, powers, matrix products."""
    x = np.linspace(-1.0, 1.0, 4001)
    square = np.cos(np.outer(np.arccos(x[:301]), np.arange(67)))
    parts = (10.0**x, square, square @ square[:67].T, square.T @ square)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]


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
