"""Kernels: each in one file, one reader of their sums and products, and how to add one's own.

`parts` says what is known of a kernel class, `registry` of which classes, `tree` reads what
scikit-learn builds of them. Everybody else walks what `tree` returns: `cross` and `contraction` for
covariances and slopes, `gradient` for optimisers, `state_space` for series.
"""

from __future__ import annotations

from qpruntime.kernels.base import Factor, KernelParts, States, Term
from qpruntime.kernels.mixed_inputs import Categories, On, Same
from qpruntime.kernels.registry import register

__all__ = ["Categories", "Factor", "KernelParts", "On", "Same", "States", "Term", "register"]
