"""Build, check, publish and fetch lookup tables of the QP projection: ``tablegen``, or `build`."""

from __future__ import annotations

from typing import Any

__all__ = ["build", "fetch", "publish"]


def __getattr__(name: str) -> Any:
    # dask, zarr and numba come in with the first build, not with `tablegen --help`.
    if name == "build":
        from tablegen.builder import build

        return build
    if name == "fetch":
        from tablegen.artifacts.fetch import fetch

        return fetch
    if name == "publish":
        from tablegen.artifacts.publish import publish

        return publish
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
