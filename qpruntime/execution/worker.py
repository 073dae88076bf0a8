"""What a worker of a dask cluster does for `qpruntime.execution.cluster`: check itself, then call.

Here and there it is one BLAS thread that multiplies, as in a build without a cluster.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cloudpickle
from distributed import get_worker
from threadpoolctl import threadpool_limits

from qpruntime.execution.provenance import difference, provenance

__all__ = ["Unlike", "call", "one_blas_thread", "pack"]


class Unlike(Exception):
    """A worker cannot compute our bytes; its address, and why."""


_limit: Any = None
_limited = 0
_limiting = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS while any thread of this process is at work for us: limits do not nest."""
    global _limit, _limited
    with _limiting:
        if _limited == 0:
            _limit = threadpool_limits(1, "blas")
        _limited += 1
    try:
        yield
    finally:
        with _limiting:
            _limited -= 1
            if _limited == 0:
                _limit.restore_original_limits()


def pack(
    packages: tuple[str, ...], expected: dict[str, str], function: Callable[[Any], Any]
) -> bytes:
    """Return what `call` takes: the provenance a worker has to have, and the function."""
    return pickle.dumps((packages, expected, cloudpickle.dumps(function)))


@lru_cache(maxsize=4)
def _loaded(shared: bytes) -> tuple[str, Callable[[Any], Any]]:
    """Return why this worker cannot take part, if it cannot, and the function."""
    packages, expected, function = pickle.loads(shared)
    words = difference(expected, provenance(packages))
    return words, (str if words else pickle.loads(function))


def call(shared: bytes, item: Any) -> Any:
    """Do what a worker does: check itself, then call."""
    with one_blas_thread():
        words, function = _loaded(shared)
        if words:
            raise Unlike(get_worker().address, words)
        return function(item)
