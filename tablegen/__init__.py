"""Build, check, publish and fetch lookup tables of the QP projection: ``tablegen``, or `build`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["build", "fetch", "publish"]

_HOME = {"build": "builder", "fetch": "artifacts.fetch", "publish": "artifacts.publish"}


def __getattr__(name: str) -> Any:
    # dask, zarr and numba come in with the first build, not with `tablegen --help`.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
