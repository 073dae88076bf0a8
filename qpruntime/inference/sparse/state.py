"""What a chunk is told: the inducing inputs, the rule of projection, the posterior of w."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from qpruntime.arrays import Array
from qpruntime.inference.sites import ImproperPosterior
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.sums import unpacked

__all__ = ["Base", "State", "posterior_of", "prior_of"]


@dataclass(frozen=True, eq=False)
class State:
    """Posterior N(mean, (root root^T)^-1) of w, h = B mean, under an `Inducing` and a `Rule`."""

    inducing: Inducing
    rule: Rule
    root: Array
    h: Array
    mean: Array

    def __reduce__(self) -> tuple[Any, ...]:
        return State, (self.inducing, self.rule, self.root, self.h, self.mean)

    @cached_property
    def rounded(self) -> Any:
        """The root in the dtype of the features."""
        return self.root.astype(self.inducing.dtype, copy=False)

    @property
    def own_evidence(self) -> float:
        """The part of the log evidence that is no sum over rows."""
        half_log_det = float(np.sum(np.log(self.root.diagonal())))
        return 0.5 * float(self.h @ self.mean) - half_log_det

    def relocated(self, h: Array) -> State:
        """Return the state of other means, B as it is."""
        return State(self.inducing, self.rule, self.root, h, _solved(self.root, h))


class Base(NamedTuple):
    """What rows seen before have left: their sums B (packed) and h, which stay as they are.

    `rest` is their log evidence less `State.own_evidence` of their posterior, and `n` their number.
    """

    B: Array
    h: Array
    rest: float
    n: int


def posterior_of(
    inducing: Inducing, rule: Rule, sums: dict[str, Any], base: Base | None = None
) -> State:
    """Return the posterior of the sums "B" (packed) and "h" over all rows, and of earlier ones.

    Raises
    ------
    ImproperPosterior
        If B is not positive definite.
    """
    packed, h = sums["B"], sums["h"]
    if base is not None:
        packed, h = packed + base.B, h + base.h
    B = unpacked(packed, inducing.size)
    B.flat[:: inducing.size + 1] += 1.0
    try:
        root = np.asarray(np.linalg.cholesky(B), dtype=float)
    except np.linalg.LinAlgError as error:
        raise ImproperPosterior(
            "negative site precisions leave no proper posterior; use a smaller prior variance or "
            "a prior mean away from zero"
        ) from error
    return State(inducing, rule, root, h, _solved(root, h))


def prior_of(inducing: Inducing, rule: Rule, base: Base | None = None) -> State:
    """Return the posterior of no sites."""
    none = np.zeros(inducing.size)
    if base is not None:
        return posterior_of(inducing, rule, {"B": np.zeros(base.B.size), "h": none}, base)
    return State(inducing, rule, np.eye(inducing.size), none, none)


def _solved(root: Array, h: Array) -> Array:
    half = solve_triangular(root, h, lower=True, check_finite=False)
    found: Array = solve_triangular(root, half, lower=True, trans=1, check_finite=False)
    return found
