"""Choice of the executor of calls: threads of this machine, or the workers of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from qpruntime.errors import InputError
from qpruntime.execution.threads import Executor, Threads

__all__ = ["executor_of"]


def executor_of(
    workers: int | None,
    scheduler: str | None,
    timeout: float = 60.0,
    packages: Sequence[str] = ("qpruntime",),
) -> Executor:
    """Return threads of this machine, or a `Cluster` where a scheduler is named.

    Raises
    ------
    InputError
        If both are, or one is of no use.
    """
    local = Threads(workers)
    if scheduler is None:
        return local
    if workers is not None:
        raise InputError(
            "threads are of this machine, n_jobs or workers: with a scheduler leave them out"
        )
    # distributed takes a second to import.
    from qpruntime.execution.dask import Cluster

    return Cluster(scheduler, timeout, packages=packages)
