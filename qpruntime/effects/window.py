"""Where the search of a large field's hyper-parameters starts: the mode in a window of its rows.

Rows next to each other, on a mesh as fine as the whole one, tell the range and the deviation of a
field nearly as well as all of them, where a sample spread over the plane would not see what is
nearer than its points. A start is all that is taken of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.effects.block import Block, Term
from qpruntime.effects.frame import Frame
from qpruntime.effects.plane import Plane, PlaneBlock

__all__ = ["Window", "window"]

#: Nodes above which a field has a window, and about how many are in it; rows of it.
_MANY, _NODES, _ROWS = 20_000, 10_000, (2000, 20_000)


class Window(NamedTuple):
    """Rows (M,) and the terms for these."""

    rows: NDArray[np.intp]
    terms: list[Term]


def window(terms: Sequence[Term], blocks: Sequence[Block], data: Frame) -> Window | None:
    """Return a window around the middle of the largest field, if that is large.

    Coasts and holes are left out of it. Fields within products have none.
    """
    fields = [one for one in blocks if isinstance(one, PlaneBlock)]
    most = max((one.mesh.size for one in fields), default=0)
    known = {one.name: one for one in fields}
    # Of products blocks have meshes of their own.
    whole = all(isinstance(one, Plane) or not hasattr(one, "place") for one in terms)
    count = int(np.clip(data.rows * _NODES / max(most, 1), *_ROWS))
    if most <= _MANY or not whole or 2 * count > data.rows:
        return None
    largest = max(fields, key=lambda one: one.mesh.size)
    points = np.column_stack([data.numbers(one) for one in largest.over])
    far = np.square(points - np.median(points, axis=0)).sum(axis=1)
    rows = np.sort(np.argpartition(far, count)[:count])
    return Window(rows, [_within(one, known) for one in terms])


def _within(term: Term, known: dict[str, Any]) -> Term:
    """A field on a mesh of its own as fine as the whole one, with the same priors."""
    if not isinstance(term, Plane):
        return term
    block: PlaneBlock = known[term.name]
    # The side of equal triangles of this area.
    spacing = float(np.sqrt(4.0 / np.sqrt(3.0) * np.median(block.mesh.areas)))
    return Plane(
        term.x, term.y, spacing=spacing, prior=term.prior, prior_range=block.range_tail
    )  # fmt: skip
