"""The metric of a kernel: inputs in its length-scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.tree import Leaf, Multiplied, Node, Seen, read

__all__ = ["metric"]


def metric(kernel: Any, d: int) -> Array:
    """Return what inputs (n, d) are multiplied by, shape (d,), for distances in length-scales.

    Inverse squares of length-scales add up in products; in sums they are averages, weighted by
    the variances of the parts. A kernel without length-scales has all inputs count alike. Codes of
    levels that differ are at least as far as their similarity says; this only says which rows are
    near, and not how they are related.
    """
    squares = _inverse_squares(read(kernel), d)
    scale = np.sqrt(squares) if squares is not None else np.ones(d)
    usable = np.isfinite(scale)
    return np.where(usable, scale, 0.0) if usable.any() and scale.any() else np.ones(d)


def _inverse_squares(node: Node, d: int) -> Array | None:
    """None for parts that are the same everywhere, as constants and noise are."""
    if not isinstance(node, Leaf):
        one, two = (_inverse_squares(each, d) for each in (node.one, node.two))
        if one is None or two is None:
            return two if one is None else one
        if isinstance(node, Multiplied):
            return one + two
        left, right = (float(k.kernel.diag(np.zeros((1, d)))[0]) for k in (node.one, node.two))
        return (left * one + right * two) / (left + right)
    if isinstance(node, Seen):
        inner = _inverse_squares(node.inner, len(node.kernel.columns))
        found = np.zeros(d)
        if inner is None:
            return None
        np.add.at(found, np.asarray(node.kernel.columns), inner)
        return found
    if node.parts.levels:
        found = np.zeros(d)
        # k = exp(-w) where levels differ, as exp(-r^2/2) of a distance.
        found[list(node.kernel.columns)] = -2.0 * np.log(np.maximum(node.kernel.similarity, 1e-20))
        return found
    length = getattr(node.kernel, "length_scale", None)
    if length is None:
        return None
    with np.errstate(over="ignore", divide="ignore"):
        return np.broadcast_to(np.asarray(length, dtype=float), (d,)) ** -2.0
