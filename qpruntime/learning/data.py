"""What one process is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpruntime.arrays import Array
from qpruntime.inference.classes.layout import Layout
from qpruntime.learning.slopes import Slopes
from qpruntime.projection.projector import Projector

__all__ = ["Data"]


@dataclass(frozen=True)
class Data:
    """What one process is fitted to; the fields are those of `maximise`.

    The projector is of the method that the posterior is to have; `prior` is the prior mean of f.
    Rows observe `scale` times f. Weights and scales are positive, and None if all are 1. `discrete`
    says that p(y|f) is a probability, not a density. With `slopes` of f these are rows after those
    of X, of all that has a row for each observation; what is observed are their signs, by the
    likelihood of labels, or, where that has none, by the probit: `own_signs` is False then. `joint`
    has the rows of classes fitted jointly; `y` then are those of its sites. Columns `levels` of X
    are codes of levels.
    """

    X: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    discrete: bool = True
    slopes: Slopes | None = None
    own_signs: bool = True
    joint: Layout | None = None
    levels: tuple[int, ...] = ()

    @property
    def observed_prior(self) -> Array:
        """Prior mean of what is observed, `scale` times that of f."""
        return self.prior if self.scale is None else self.prior * self.scale
