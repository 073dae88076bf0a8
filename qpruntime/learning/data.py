"""What one process is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpruntime.arrays import Array
from qpruntime.projection.projector import Projector

__all__ = ["Data"]


@dataclass(frozen=True)
class Data:
    """What one process is fitted to; the fields are those of `maximise`.

    The projector is of the method that the posterior is to have; weights are positive, and None
    if all are 1. `discrete` says that p(y|f) is a probability, not a density.
    """

    X: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    discrete: bool = True
