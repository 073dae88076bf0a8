"""Covariance functions, one reader of their sums and products, and how to add one's own.

`base` says what is known of a kernel class, and `registry` of which classes; `registry.read` reads
what scikit-learn builds of them. All else walks what it returns: `cross_covariance` for
covariances, `gradients` for optimisers, `state_space` for series.
"""

from __future__ import annotations

from qpruntime.kernels.base import Factor, KernelParts, States, StateSpaceTerm
from qpruntime.kernels.mixed_inputs import Categories, On, Same
from qpruntime.kernels.registry import register

__all__ = [
    "Categories",
    "Factor",
    "KernelParts",
    "On",
    "Same",
    "StateSpaceTerm",
    "States",
    "register",
]
