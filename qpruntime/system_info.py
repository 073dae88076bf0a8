"""Report for bug reports: versions, the machine, threads, kernels kept, tables."""

from __future__ import annotations

import math
import os
import platform
import sys
from importlib import metadata
from typing import Any

from threadpoolctl import threadpool_info

from qpruntime import _memory, _numba
from qpruntime._formatting import printable, size
from qpruntime.errors import QPError
from qpruntime.execution.threads import thread_count
from qpruntime.projection.open import ENDS, stated, table_directory

__all__ = ["facts", "text"]

#: Packages that are needed, and those that extras bring.
_PACKAGES = (
    *("qpruntime", "numpy", "scipy", "numba", "llvmlite", "scikit-learn", "joblib"),
    *("h5py", "zarr", "numcodecs", "dask", "distributed", "rich", "matplotlib", "pooch"),
    *("optuna", "jax", "optax", "torch", "gpytorch", "GPy", "pandas"),
)
_VARIABLES = ("QP_TABLES", "QP_REGISTRY", "NUMBA_", "OMP_", "OPENBLAS_", "MKL_", "JAX_")


def facts() -> dict[str, Any]:
    """Return what there is as plain values; nothing is compiled, and no cluster is asked."""
    import numpy  # noqa: F401  # its BLAS is among the libraries with threads
    import scipy.linalg  # noqa: F401

    folder = _numba.cache_folder()
    remaining, where = _memory.left()
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "cores": thread_count(None),
        "memory left": f"{size(remaining)} ({where})"
        if math.isfinite(remaining)
        else "no limit known",
        "threads": [
            {key: pool.get(key) for key in ("user_api", "internal_api", "version", "num_threads")}
            for pool in threadpool_info()
        ],
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)},
        "package": os.path.dirname(__file__),
        "kernels kept in": folder,
        "tables in": str(table_directory()),
        "tables": _tables(),
    }


def text(found: dict[str, Any]) -> str:
    """Return facts for people, a line each."""
    lines = []
    for name, value in found.items():
        if name == "versions":
            lines += [f"{package:<16} {version}" for package, version in value.items()]
        elif name == "threads":
            lines += [
                f"{pool['user_api']:<16} {pool['internal_api']} {pool['version'] or ''}, "
                f"{pool['num_threads']} threads"
                for pool in value
            ]
        elif name == "environment":
            lines += [
                f"{variable:<16} {value_of_variable}"
                for variable, value_of_variable in value.items()
            ]
        elif name == "tables":
            lines += [f"{'table':<16} {line}" for line in value] or [
                "table            none installed"
            ]
        else:
            lines.append(f"{name:<16} {'nowhere' if value is None else value}")
    return "\n".join(printable(line) for line in lines)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _tables() -> list[str]:
    """Name, kind, likelihood and hash of installed tables; what is wrong with those that are."""
    lines = []
    paths = sorted(path for end in ENDS for path in table_directory().glob(f"*{end}"))
    for path in paths:
        try:
            known = stated(path)[1]
            lines.append(f"{path.name}: {known.kind} of {known.spelt}, {known.sha256[:16]}")
        except QPError as error:
            lines.append(f"{path.name}: {error}")
    return lines
