"""A constant, which is a state that never moves."""

from __future__ import annotations

from typing import Any

from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.kinds import CONSTANT
from qpruntime.kernels.markov import States, Term

__all__ = ["PARTS", "STATES"]

STATES = States([[0.0]], [[1.0]], CONSTANT)


def state_space(kernel: Any) -> tuple[Term, ...]:
    """State of a constant: a variance without factors."""
    return (Term(float(kernel.constant_value), by=(("constant_value", 1.0),)),)


PARTS = KernelParts(constant="constant_value", state_space=state_space)
