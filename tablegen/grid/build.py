"""Carry the plan of a dense grid out: fill the chunks, export, certify, publish.

Interrupted at any moment, the same call takes up the finished chunks and ends with the same bytes.
Only this process writes: chunks come back to it from wherever they are computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from qpruntime.errors import NumericalError
from qpruntime.execution.threads import Call, Executor, Progress, Stop
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata
from tablegen.files import hdf5 as export
from tablegen.files.recipe import Document, Recipe, Request, axis_of, refuse_others
from tablegen.files.workspace import BuildStopped, Workspace
from tablegen.grid import chebyshev as compute, errors as certify
from tablegen.grid.plan import Plan, make_plan
from tablegen.grid.store import ChunkStore
from tablegen.second_rule.framed import SEED

__all__ = ["GridRecipe"]


class GridRecipe(Recipe):
    """Recipe of a grid; the method of the plan is not resolved before it is made."""

    def __init__(self, likelihood: Likelihood, source: str, options: dict[str, Any]) -> None:
        refuse_others(options, make_plan.__kwdefaults__, "a grid")
        self.plan = make_plan(likelihood, **options)
        self.tolerance = certify.TOLERANCES[self.plan.dtype]
        self.largest = self.mapped = self.space = self.plan.nbytes

    def describe(self, threads: int) -> Document:
        """Describe the plan, with its estimated time; nodes are guessed from a few outcomes."""
        with threadpool_limits(1, "blas"):
            plan = compute.estimate(self.plan)
        few = plan.nodes and len(plan.outcomes) > compute.FEW
        return {
            "likelihood": plan.spelt,
            "method": plan.method,
            "dtype": plan.dtype,
            "mu": axis_of(plan.mu),
            "log10_sigma": axis_of(plan.log10_sigma),
            "nodes": plan.size,
            "bytes": plan.nbytes,
            "chunks": len(plan.outcomes) * -(-plan.mu.size // plan.rows),
            "chebyshev_nodes": list(plan.nodes) if plan.nodes else None,
            **({"estimated_from_outcomes": compute.FEW} if few else {}),
            # This is the time of one worker and of this process if there is a cluster.
            "estimated_seconds": round(plan.estimate_seconds(threads), 1),
        }

    def make(self, request: Request, workspace: Workspace, report: Progress) -> Metadata:
        """Fill the chunks, export and certify."""
        plan, tolerance = compute.resolve(self.plan), request.tolerance
        workspace.partial.unlink(missing_ok=True)
        store = ChunkStore(workspace.chunks, plan, workspace.check)
        _fill(plan, store, request.executor, report)
        workspace.check()
        worst: certify.Places = []
        chunks = _finished(plan, store, workspace, report, worst)
        digest, offset = export.write_data(workspace.partial, plan, chunks)
        report("certify", 0, 1)
        values = export.map_file(workspace.partial, plan, offset)
        run = request.local.run
        certificate = certify.certify(values, plan.metadata(), worst, run=run, seed=SEED)
        certificate |= {"tolerance": tolerance, "chebyshev_nodes": list(plan.nodes or ())}
        if missed := certify.missed(certificate, tolerance):
            raise NumericalError(
                f"the table misses its tolerance: {missed[0]}; raise --tolerance"
                + ("" if plan.method == "direct" else " or use --method direct")
            )
        metadata = replace(plan.metadata(), sha256=digest, certificate=certificate)
        export.publish_from(workspace, metadata)
        report("certify", 1, 1)
        return metadata

    def expected(self, existing: Metadata) -> Metadata:
        """Return the metadata of the table."""
        return compute.resolve(self.plan).metadata()


def _fill(plan: Plan, store: ChunkStore, executor: Executor, report: Progress) -> None:
    missing = store.missing()
    if not missing:
        return
    if plan.method != "direct":
        report("integrate", 0, 1)
    expansion = compute.expand(plan, partial(executor.run, progress=partial(report, "integrate")))
    steps = _Steps(plan, len(missing), executor.stop, partial(report, "fill"))

    def calls() -> Iterator[Call]:
        outcome, function = -1, None
        for chunk in missing:
            if chunk.outcome != outcome or function is None:
                outcome = chunk.outcome
                part = None if expansion is None else expansion.only(outcome)
                function = partial(compute.fill, plan, part, steps)
            yield function, chunk

    def take(number: int, values: NDArray[Any]) -> None:
        store.write(missing[number], values)
        steps.finished()

    executor.each(calls(), take)


class _Steps:
    """Reports progress in blocks of columns, which it counts as chunks look whether to stop.

    It travels as a `Stop`: what a cluster computes is counted when a whole chunk is back.
    """

    def __init__(
        self, plan: Plan, missing: int, stop: Stop, report: Callable[[int, int], None]
    ) -> None:
        self._blocks = compute.blocks(plan)
        self._total = len(plan.chunks) * self._blocks
        self._done = self._total - missing * self._blocks
        self._stop, self._report = stop, report
        self._lock = threading.Lock()
        # A chunk is computed and taken by the same thread.
        self._thread = threading.local()
        self._add(0)

    def __call__(self) -> bool:
        """Decide whether to stop; the second look tells that the first block is done."""
        begun = getattr(self._thread, "begun", 0)
        self._thread.begun = begun + 1
        if begun:
            self._add(1)
        return self._stop()

    def finished(self) -> None:
        """Count what is left of a chunk."""
        begun = getattr(self._thread, "begun", 0)
        self._thread.begun = 0
        self._add(self._blocks - max(begun - 1, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, ()

    def _add(self, blocks: int) -> None:
        with self._lock:
            self._done += blocks
            self._report(self._done, self._total)


def _finished(
    plan: Plan, store: ChunkStore, workspace: Workspace, report: Progress, worst: certify.Places
) -> Iterator[NDArray[Any]]:
    """Yield the chunks in the order of the file, and add the most curved nodes to `worst`."""
    for number, chunk in enumerate(plan.chunks):
        report("export", number, len(plan.chunks))
        values = store.read(chunk)
        if values is None:
            workspace.check()
            raise BuildStopped(
                f"chunk {number} in {store.path} changed while the table was built; "
                "the same command repairs it"
            )
        worst += certify.worst_nodes(values, chunk.outcome, chunk.start)
        yield values
