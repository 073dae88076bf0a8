"""What a worker of a dask cluster does for `qpruntime.execution.cluster`: check itself, then call.

Here and there it is one BLAS thread that multiplies, as in a build without a cluster.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cloudpickle
from distributed import get_worker

from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.execution.provenance import difference, provenance

__all__ = ["Unlike", "call", "keep", "pack"]


class Unlike(Exception):
    """A worker cannot compute our bytes; its address, and why."""


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


def keep(pickled: bytes) -> Any:
    """Return the lasting part of arguments, which dask keeps here for the calls that want it."""
    return pickle.loads(pickled)


def call(shared: bytes, item: Any, *lasting: Any) -> Any:
    """Do what a worker does: check itself, then call; with (lasting, item), if there is such."""
    with one_blas_thread():
        words, function = _loaded(shared)
        if words:
            raise Unlike(get_worker().address, words)
        return function((*lasting, item) if lasting else item)
