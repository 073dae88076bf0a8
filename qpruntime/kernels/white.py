"""White noise: on the diagonal of rows alone, and no state."""

from __future__ import annotations

from typing import Any

from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.markov import Term

__all__ = ["PARTS"]


def state_space(kernel: Any) -> tuple[Term, ...]:
    """Noise of what is observed."""
    return (Term(float(kernel.noise_level), by=(("noise_level", 1.0),), white=True),)


PARTS = KernelParts(noise="noise_level", state_space=state_space)
