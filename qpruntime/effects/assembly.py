"""Blocks side by side: one design, one precision on one pattern, one theta."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.effects.block import Block
from qpruntime.effects.frame import Frame
from qpruntime.effects.pattern import block_pattern

__all__ = ["Assembly"]


class Assembly:
    """All parts of a predictor.

    Parameters
    ----------
    blocks : list of Block

    Attributes
    ----------
    start, bounds : ndarray, shape (p,) and (p, 2)
        Of all blocks' theta, one after the other.
    constraint : ndarray, shape (c, K), or None
    places : tuple of slice
        Effects of every block.
    parts : tuple of slice
        Entries of theta of every block.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = list(blocks)
        self.pattern = block_pattern([one.pattern for one in blocks])
        self.places = _slices([one.size for one in blocks])
        self.parts = _slices([len(one.start) for one in blocks])
        # Which of the blocks' entries, one after the other, each entry is.
        self._order = np.argsort(self.pattern.place)
        self._entries = _slices([one.pattern.count for one in blocks])
        self.start = np.concatenate([one.start for one in blocks])
        self.bounds = np.vstack([one.bounds for one in blocks])
        rows = []
        for one, place in zip(blocks, self.places, strict=True):
            if one.constraint is not None:
                own = np.zeros((len(one.constraint), self.size))
                own[:, place] = one.constraint
                rows.append(own)
        self.constraint = np.vstack(rows) if rows else None
        self._determined: tuple[Array, float, Array] | None = None

    @property
    def size(self) -> int:
        """Number of effects."""
        return self.pattern.size

    @property
    def names(self) -> list[str]:
        """Names of theta's entries, with their blocks."""
        return [f"{one.name}: {name}" for one in self.blocks for name in one.parameters]

    def columns(self, data: Frame) -> sparse.csr_array:
        """Design of the rows that the blocks were bound to."""
        return _joined([one.columns(data) for one in self.blocks])

    def ahead(
        self, data: Frame, thetas: Sequence[Array]
    ) -> Iterator[tuple[sparse.csr_array, Array]]:
        """Design of new rows, and the prior variance of what no known effect says, by theta.

        Blocks are asked again only for what follows theta.
        """
        pairs = list(zip(self.blocks, self.parts, strict=True))
        first = [one.ahead(data, thetas[0][part]) for one, part in pairs]
        again = [one.moves or v.any() for (one, _), (_, v) in zip(pairs, first, strict=True)]
        joined = _joined([design for design, _ in first])
        for theta in thetas:
            found = [
                one.ahead(data, theta[part]) if asked else known
                for (one, part), asked, known in zip(pairs, again, first, strict=True)
            ]
            moves = any(one.moves for one in self.blocks)
            design = _joined([own for own, _ in found]) if moves else joined
            yield design, np.sum([v for _, v in found], axis=0)

    def precision(self, theta: Array) -> tuple[sparse.csr_array, list[Array]]:
        """The precision (K, K), and slopes of its entries by theta, block by block."""
        found = [
            one.entries(theta[part]) for one, part in zip(self.blocks, self.parts, strict=True)
        ]
        own = np.concatenate([entries for entries, _ in found])[self._order]
        # A symmetric matrix by columns is one by rows.
        arrays = (own, self.pattern.indices, self.pattern.indptr)
        return sparse.csr_array(arrays, shape=(self.size, self.size)), [s for _, s in found]

    def slopes(self, slopes: list[Array], products: Array) -> Array:
        """Sums over the entries of dQ/dtheta times `products` on the pattern, shape (p,)."""
        own = products[self.pattern.place]
        pairs = zip(slopes, self._entries, strict=True)
        return np.concatenate([by_theta @ own[at] for by_theta, at in pairs])

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant off the constraints, and its slopes; the last one is kept."""
        if self._determined is None or not np.array_equal(self._determined[0], theta):
            pairs = zip(self.blocks, self.parts, strict=True)
            found = [one.log_det(theta[part]) for one, part in pairs]
            slope = np.concatenate([s for _, s in found])
            self._determined = np.array(theta), float(sum(v for v, _ in found)), slope
        return self._determined[1:]

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log prior density of theta and its slopes."""
        pairs = zip(self.blocks, self.parts, strict=True)
        found = [one.log_prior(theta[part]) for one, part in pairs]
        return sum(v for v, _ in found), np.concatenate([s for _, s in found])


def _slices(sizes: list[int]) -> tuple[slice, ...]:
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(slice(a, b) for a, b in itertools.pairwise(ends))


def _joined(designs: list[Any]) -> sparse.csr_array:
    found = sparse.csr_array(sparse.hstack(designs, format="csr"))
    found.sort_indices()
    return found
