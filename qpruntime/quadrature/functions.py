"""What kernels take of a likelihood: addresses of its functions, and which of them it has."""

from __future__ import annotations

from typing import Any, NamedTuple

from qpruntime.arrays import Array

__all__ = ["Frame", "Functions"]


class Frame(NamedTuple):
    """Addresses for quadrature, 0 for what there is none of.

    `frame` says where nodes are laid, `rule` integrates where it does not, with what `landmark`
    points at; `raised_moments` and `raised_frame` are for the likelihood to a power.
    """

    frame: Any
    rule: Any
    landmark: Any
    raised_moments: Any
    raised_frame: Any


class Functions(NamedTuple):
    """Parameters of a likelihood and addresses of its functions."""

    theta: Array
    has_moments: bool
    has_frame: bool
    split: Any
    moments: Any
    frame: Frame
