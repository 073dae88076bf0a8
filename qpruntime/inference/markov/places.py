"""Where a series is swept: here as a whole, by threads in blocks, or by workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qpruntime.errors import InputError
from qpruntime.execution.calls import Threads
from qpruntime.execution.executors import executor_of
from qpruntime.inference.markov.blocks import Blocks
from qpruntime.inference.markov.conclude import Sweeper
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.parts import Parts, block_count
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.state_space import StateSpace
from qpruntime.inference.sites import Sites
from qpruntime.validation import whole

__all__ = ["check_places", "sweeping"]


def check_places(workers: int | None, scheduler: str | None, blocks: int | None) -> None:
    """Raise `InputError` unless these say where to sweep."""
    executor_of(workers, scheduler)
    if blocks is not None:
        whole(blocks, "blocks", 1)
        if workers is None and scheduler is None:
            raise InputError("blocks are for n_jobs or a scheduler: give one of these too")


@contextmanager
def sweeping(
    n: int, workers: int | None, scheduler: str | None, blocks: int | None = None
) -> Iterator[Sweeper]:
    """Yield what sweeps n rows; a connection lasts as long as the context."""
    if scheduler is None and workers in (None, 1) and blocks is None:
        yield Rows
        return
    executor = executor_of(workers, scheduler)
    count = block_count(n, blocks, executor.workers if isinstance(executor, Threads) else 1)
    parts: list[Parts] = []
    with executor:

        def sweeper(series: Series, space: StateSpace, sites: Sites) -> Blocks:
            # Fits come back with the same rows.
            if not (parts and parts[0].are_of(series)):
                parts[:] = [Parts(series, space, count)]
            return Blocks(series, space, sites, executor, parts[0])

        yield sweeper
