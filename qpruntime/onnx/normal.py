"""log Phi(s) in double precision of operations that runtimes have; they have no error function."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.onnx.graph import Graph

__all__ = ["log_cdf"]

#: Where the series ends and the continued fraction begins; right to 2e-11 on either side.
_MIDDLE, _TERMS, _DEPTH = 4.0, 60, 30


def log_cdf(graph: Graph, s: str) -> str:
    """Return log Phi(s): by its power series up to |s| = 4, by the Mills ratio beyond."""
    size = graph.add("Abs", s)
    near, far = graph.add("Min", size, _MIDDLE), graph.add("Max", size, _MIDDLE)
    # Phi(x) = 1/2 + phi(x) x (1 + x^2/3 + x^4/15 + ...), all terms positive.
    # In x^2/16, for runtimes drop terms whose coefficients would be 0 in single precision.
    odd = 2.0 * np.arange(1, _TERMS) + 1.0
    coefficients = np.cumprod(np.r_[1.0, _MIDDLE**2 / odd])
    square = graph.add("Mul", near, near)
    share = graph.add("Mul", square, 1.0 / _MIDDLE**2)
    series = graph.polynomial(share, list(coefficients[::-1]))
    density = graph.add("Exp", graph.add("Mul", square, -0.5))
    part = graph.add("Mul", graph.add("Mul", density, near), series)
    below = graph.add("Sub", 0.5, graph.add("Mul", part, 1.0 / math.sqrt(2.0 * math.pi)))
    # The upper tail is phi(x) / (x + 1/(x + 2/(x + 3/(x + ...)))).
    ratio = far
    for k in range(_DEPTH, 0, -1):
        ratio = graph.add("Add", graph.add("Div", float(k), ratio), far)
    half = graph.add("Mul", graph.add("Mul", far, far), -0.5)
    tail = graph.add("Sub", half, graph.add("Log", ratio))
    tail = graph.add("Sub", tail, 0.5 * math.log(2.0 * math.pi))
    is_near = graph.add("Less", size, _MIDDLE)
    log_below = graph.add("Where", is_near, graph.add("Log", below), tail)
    above = graph.add("Sub", 1.0, graph.add("Exp", log_below))
    return graph.add("Where", graph.add("Less", s, 0.0), log_below, graph.add("Log", above))
