"""What a chunk is given: the inducing inputs, the rule of projection, the posterior of w."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from qpruntime.arrays import Array
from qpruntime.inference.sites import ImproperPosterior
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.sums import packed, unpacked

__all__ = ["Base", "State", "evidence", "posterior_of", "prior_of", "with_base"]


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

    @cached_property
    def B(self) -> Array:
        """What sites have added to the identity, packed."""
        return packed(self.root @ self.root.T - np.eye(len(self.root)))

    def relocated(self, h: Array) -> State:
        """Return the state of other means, B as it is."""
        return State(self.inducing, self.rule, self.root, h, _solved(self.root, h))


@dataclass(frozen=True, eq=False)
class Base:
    """What `n` rows seen before have left: the posterior of w, and their log evidence.

    Their sites stay as they are; these add up to `B` and `h` of this posterior.
    """

    state: State
    log_evidence: float
    n: int


def with_base(sums: dict[str, Any], base: Base | None) -> dict[str, Any]:
    """Return sums "B" (packed) and "h" with those of earlier rows."""
    if base is None:
        return sums
    return {"B": sums["B"] + base.state.B, "h": sums["h"] + base.state.h}


def posterior_of(
    inducing: Inducing, rule: Rule, sums: dict[str, Any], base: Base | None = None
) -> State:
    """Return the posterior of the sums "B" (packed) and "h" over all rows, and of earlier ones.

    Raises
    ------
    ImproperPosterior
        If B is not positive definite.
    """
    total = with_base(sums, base)
    B, h = unpacked(total["B"], inducing.size), total["h"]
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
    if base is not None:
        return posterior_of(inducing, rule, {"B": base.state.B, "h": base.state.h})
    none = np.zeros(inducing.size)
    return State(inducing, rule, np.eye(inducing.size), none, none)


def evidence(state: State, sums: dict[str, Any], base: Base | None = None) -> float:
    """Return the log evidence of the sites that `state` belongs to; "terms" are their sum.

    Of the rows seen before as well, whose posterior is then what the others begin from.
    """
    found = float(sums["terms"]) - float(np.sum(np.log(state.root.diagonal())))
    if base is None:
        return found - 0.5 * float(state.mean @ state.mean)
    root = base.state.root
    moved = root.T @ (state.mean - base.state.mean)
    before = base.log_evidence + float(np.sum(np.log(root.diagonal())))
    return before + found - 0.5 * float(moved @ moved)


def _solved(root: Array, h: Array) -> Array:
    half = solve_triangular(root, h, lower=True, check_finite=False)
    found: Array = solve_triangular(root, half, lower=True, trans=1, check_finite=False)
    return found
