"""A line, sigma_0^2 + x z, scikit-learn's DotProduct, and its states: the value and its slope."""

from __future__ import annotations

from typing import Any

from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.kinds import LINE
from qpruntime.kernels.markov import Factor, States

__all__ = ["PARTS", "STATES"]

# It is not stationary: where it begins is for whoever knows the first time.
STATES = States([[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], LINE)


def state_space(kernel: Any) -> Factor:
    """State of a line, whose rate is sigma_0."""
    return Factor(STATES, float(kernel.sigma_0), "sigma_0")


PARTS = KernelParts(state_space=state_space)
