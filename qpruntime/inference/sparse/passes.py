"""Passes over one chunk of rows: what it adds to the sums, given a state and the chunk's sites.

A pass is a pure function: carried out twice, or somewhere else, it gives the same. A chunk is
walked through in blocks that stay in the cache, always the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.sparse.blas import add_square, divide
from qpruntime.inference.sparse.block_updates import (
    Block,
    Cavities,
    cavities,
    changes,
    project,
    propose,
    settled,
    terms,
)
from qpruntime.inference.sparse.rows import Chunk, Piece
from qpruntime.inference.sparse.state import State
from qpruntime.inference.sparse.sums import Sums, packed

__all__ = ["Done", "Features", "Job", "Variances", "gather", "means", "outcome", "sweep"]

# Numbers in the features of a block, 4 MB of float64, and rows at least. What a block needs is
# allocated once for a thread: fresh pages for every block cost more than what is written there.
_NUMBERS = 2**19
_FEWEST = 256
_ROOMS = threading.local()


class Features(NamedTuple):
    """Features and r of a chunk, kept from pass to pass; `full` once they are computed."""

    phi: Any
    r: Array
    full: NDArray[np.bool_]


class Variances(NamedTuple):
    """Variances of g at the rows of a chunk under one root of B; `full` once they are known."""

    w: Array
    full: NDArray[np.bool_]


class Job(NamedTuple):
    """A chunk, the number of its first row, its sites about the prior mean, and what is kept."""

    piece: Piece
    first: int
    tau: Array
    nu: Array
    kept: Features | None = None
    variances: Variances | None = None


class Done(NamedTuple):
    """Sums over the rows of a chunk, and what is asked of each: its sites, or other columns."""

    sums: Sums
    columns: tuple[Array, ...] = ()


class Part(NamedTuple):
    """A block of a chunk, its features and r, and room of the shape of the features.

    `w` are variances of g, if they are kept: to be filled in, or `known`.
    """

    some: slice
    X: Array
    block: Block
    phi: Any
    r: Array
    room: Any
    w: Array | None = None
    known: bool = False


def parts(state: State, job: Job, chunk: Chunk) -> Iterator[Part]:
    """Walk through the blocks of a chunk; the room of a block is the next one's."""
    inducing, kept = state.inducing, job.kept
    n = len(chunk.y)
    count = -(-n // block_rows(inducing.size))
    step = -(-n // max(count, 1))  # a small block at the end would cost as much as others
    width = inducing.size, inducing.dtype
    room = room_for("room", min(step, n), *width)
    phi = room_for("phi", min(step, n), *width) if kept is None else kept.phi
    for start in range(0, n, step):
        some = slice(start, min(start + step, n))
        X = chunk.X[some]
        columns = chunk.weights, chunk.prior, chunk.scale
        weights, prior, scale = (None if a is None else a[some] for a in columns)
        block = Block(chunk.y[some], weights, prior, job.tau[some], job.nu[some], scale)
        length = some.stop - start
        if kept is None:
            found = inducing.features(X, phi[:length])
        elif kept.full[0]:
            found = phi[some], kept.r[some]
        else:
            found = inducing.features(X, phi[some])
            kept.r[some] = found[1]
        w, known = None, False
        if job.variances is not None:
            w, known = job.variances.w[some], bool(job.variances.full[0])
        yield Part(some, X, block, *found, room[:length], w, known)
    if kept is not None:
        kept.full[0] = True


def block_rows(size: int) -> int:
    """Rows in a block for so many inducing inputs."""
    return max(_FEWEST, _NUMBERS // size)


def room_for(name: str, rows: int, size: int, dtype: Any) -> Any:
    """Return what this thread wrote to last under a name, (rows, size), or fresh memory."""
    kept = vars(_ROOMS).get(name)
    if kept is None or kept.dtype != dtype or kept.size < rows * size:
        kept = np.empty(max(rows, block_rows(size)) * size, dtype)
        setattr(_ROOMS, name, kept)
    return kept[: rows * size].reshape(rows, size)


class Accumulated:
    """The sums B and h of a chunk, in float64 whatever the dtype of the features."""

    def __init__(self, state: State) -> None:
        m, self._dtype = state.inducing.size, state.inducing.dtype
        self.B, self.h = np.zeros((m, m)), np.zeros(m)

    def square(self, phi: Any, T: Array, room: Any) -> None:
        """Add sum T phi phi^T; `room` is overwritten."""
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(sign * T > 0.0)
            if not chosen.size:
                continue
            root = np.sqrt(np.abs(T[chosen])).astype(self._dtype)[:, None]
            rows = room[: chosen.size]
            if chosen.size == T.size:
                np.multiply(phi, root, out=rows)
            else:
                np.take(phi, chosen, axis=0, out=rows, mode="clip")
                rows *= root
            if self._dtype == self.B.dtype:
                add_square(rows, sign, self.B)
            else:
                total = np.zeros(self.B.shape, self._dtype)
                add_square(rows, sign, total)
                self.B += total

    def project(self, phi: Any, N: Array) -> None:
        """Add sum N phi."""
        self.h += phi.T @ N.astype(self._dtype)

    def sums(self) -> Sums:
        """Return the arrays to add up over chunks."""
        return {"B": packed(self.B), "h": self.h}


def marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Means and variances of g; the features divided by the root of B are left in the room."""
    solved = part.room
    np.copyto(solved, part.phi)
    divide(solved, state.rounded)
    return _means(state, part), np.einsum("nm,nm->n", solved, solved).astype(float)


def _marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Means and variances of g, which is all of the work where variances are not known."""
    if part.known:
        assert part.w is not None
        return _means(state, part), part.w.copy()
    mean, w = marginals(state, part)
    if part.w is not None:
        part.w[:] = w
    return mean, w


def _means(state: State, part: Part) -> Array:
    found: Array = (part.phi @ state.mean.astype(part.phi.dtype)).astype(float)
    return found


def _variances_are_known(job: Job) -> None:
    """Mark the variances of the chunk as complete."""
    if job.variances is not None:
        job.variances.full[0] = True


def _sites(block: Block, r: Array, power: float) -> tuple[Array, Array]:
    """Return the sites of g that follow from those of f."""
    share = 1.0 + power * r * block.tau
    return block.tau / share, block.nu / share


def gather(state: State, job: Job) -> Done:
    """B and h of the sites as they are; sites that r leaves no room for are forgotten."""
    total, power = Accumulated(state), state.rule.power
    tau, nu = job.tau.copy(), job.nu.copy()
    for part in parts(state, job._replace(tau=tau, nu=nu), job.piece.load()):
        # Negative precisions that were found where r was smaller.
        wrong = ~(1.0 + power * part.r * part.block.tau > 0.0)
        part.block.tau[wrong] = part.block.nu[wrong] = 0.0
        T, N = _sites(part.block, part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    return Done(total.sums(), (tau, nu))


def sweep(state: State, job: Job, share: float = 1.0) -> Done:
    """Update all sites by the share of what the posterior asks for.

    Sums are B and h of the new sites; "change", "counts" and "worst", of whole updates.
    """
    total, power = Accumulated(state), state.rule.power
    tau, nu = np.empty(job.tau.size), np.empty(job.tau.size)
    change, counts, worst = np.zeros(4), np.zeros(4), (-1.0, 0)
    for part in parts(state, job, job.piece.load()):
        block = part.block
        mean, w = _marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        new = propose(state.rule, block, at)
        squares, sizes = changes(block, new, at, power)
        change, counts = change + squares, counts + new.counts
        largest = int(np.argmax(sizes))
        if sizes[largest] > worst[0]:
            worst = (float(sizes[largest]), job.first + part.some.start + largest)
        tau[part.some] = block.tau + share * (new.tau - block.tau)
        nu[part.some] = block.nu + share * (new.nu - block.nu)
        T, N = _sites(block._replace(tau=tau[part.some], nu=nu[part.some]), part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    _variances_are_known(job)
    own = {"change": change, "counts": counts, "worst": worst}
    return Done({**total.sums(), **own}, (tau, nu))


def means(state: State, job: Job) -> Done:
    """Settle the means with B, and what rows have of it, as they are: sums "h"."""
    total, power = Accumulated(state), state.rule.power
    nu = np.empty(job.tau.size)
    for part in parts(state, job, job.piece.load()):
        mean, w = _marginals(state, part)
        at = cavities(part.block, mean, w, part.r, power, power)
        nu[part.some] = settled(state.rule, part.block, at, mean, part.r)
        _, N = _sites(part.block._replace(nu=nu[part.some]), part.r, power)
        total.project(part.phi, N)
    _variances_are_known(job)
    return Done({"h": total.h}, (job.tau, nu))


def outcome(state: State, job: Job, rows: bool = False) -> Done:
    """Terms of the evidence; "worst" is the least expected row and its negative log density.

    With `rows` also mean and variance of f, and leave-one-out log densities, of every row.
    """
    power, evidence, least = state.rule.power, 0.0, (-np.inf, 0)
    columns = np.empty((3, job.tau.size if rows else 0))
    for part in parts(state, job, job.piece.load()):
        block = part.block
        mean, w = _marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        log_z = project(state.rule, block, at, "log_z")[0]
        evidence += float(np.sum(terms(at, log_z, power)))
        without = cavities(block, mean, w, part.r, power, 1.0)
        alone = project(state.rule, block._replace(weights=None), without, "log_z", whole=True)[0]
        last = int(np.argmin(alone))
        least = max(least, (-float(alone[last]), job.first + part.some.start + last))
        if rows:
            columns[:2, part.some] = _moments(block, at, power)
            columns[2, part.some] = alone
    _variances_are_known(job)
    return Done({"terms": evidence, "worst": least}, (*columns,) if rows else ())


def _moments(block: Block, at: Cavities, power: float) -> tuple[Array, Array]:
    """Mean and variance of f with its whole site, as the dense engine tells them."""
    kept = 1.0 + power * block.tau * at.v
    return block.centre((at.mean + power * block.nu * at.v) / kept), at.v / kept
