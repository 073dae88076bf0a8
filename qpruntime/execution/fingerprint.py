"""What decides the bytes of a result besides the call: versions, sources and rounding."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from qpruntime.execution import rounding

__all__ = ["difference", "provenance"]

#: Packages whose kernels or compilers make numbers.
PACKAGES = ("qpruntime", "numpy", "scipy", "numba", "llvmlite")


@cache
def provenance(packages: tuple[str, ...]) -> dict[str, str]:
    """Return versions, a hash of the sources of `packages`, and fingerprints of rounding.

    Where two of them agree, the same call gives the same bytes. Call it with one BLAS thread.
    """
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in PACKAGES},
        "sources": _sources(packages),
        "rounding": rounding.arithmetic() + rounding.arrays(),
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
