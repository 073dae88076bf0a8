"""State of sparse inference: projection rule, posterior of w, and sums over chunks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from qpruntime._numba import plain
from qpruntime._restorable import restorable_call
from qpruntime._typing import Array, IntArray
from qpruntime.inference.sites import ImproperPosterior
from qpruntime.inference.sparse.rows import InducingInputs, Rows
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_rows
from qpruntime.quadrature.sigma_star_kernels import PlainFunctions

__all__ = [
    "Base",
    "PowerProjector",
    "State",
    "SumTree",
    "Sums",
    "Wanted",
    "add",
    "evidence",
    "packed",
    "posterior_of",
    "prior_of",
    "unpacked",
    "with_base",
]

# --- State handed to chunks


@dataclass(frozen=True, eq=False)
class State:
    """Posterior N(mean, (root root^T)^-1) of w, h = B mean, of `InducingInputs`."""

    inducing: InducingInputs
    rule: PowerProjector
    root: Array
    h: Array
    mean: Array

    def __reduce__(self) -> tuple[object, ...]:
        return State, (self.inducing, self.rule, self.root, self.h, self.mean)

    @cached_property
    def rounded(self) -> Rows:
        """Root in the dtype of the features."""
        return self.root.astype(self.inducing.dtype, copy=False)

    @cached_property
    def B(self) -> Array:
        """Sum of the sites' precisions of w, B - I, packed."""
        return packed(self.root @ self.root.T - np.eye(len(self.root)))

    def means(self, phi: Rows) -> Array:
        """Return the means of phi^T w, shape (n,), for features phi (n, M)."""
        return np.asarray((phi @ self.mean.astype(phi.dtype)).astype(float))

    def relocated(self, h: Array) -> State:
        """Return the state with another h and the same B."""
        return State(self.inducing, self.rule, self.root, h, _solved(self.root, h))


@dataclass(frozen=True, eq=False)
class Base:
    """Posterior of w given `n` earlier rows, and their log evidence.

    The sites of the earlier rows are fixed, and sum to `B` and `h` of this posterior.
    """

    state: State
    log_evidence: float
    n: int


def with_base(sums: Sums, base: Base | None) -> Sums:
    """Return sums "B" (packed) and "h" with those of earlier rows."""
    if base is None:
        return sums
    return {"B": sums["B"] + base.state.B, "h": sums["h"] + base.state.h}


def posterior_of(
    inducing: InducingInputs, rule: PowerProjector, sums: Sums, base: Base | None = None
) -> State:
    """Return the posterior of the sums "B" (packed) and "h" over rows and earlier rows.

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


def prior_of(inducing: InducingInputs, rule: PowerProjector, base: Base | None = None) -> State:
    """Return the state without sites: the prior, or the posterior of earlier rows."""
    if base is not None:
        return posterior_of(inducing, rule, {"B": base.state.B, "h": base.state.h})
    zeros = np.zeros(inducing.size)
    return State(inducing, rule, np.eye(inducing.size), zeros, zeros)


def evidence(state: State, sums: Sums, base: Base | None = None) -> float:
    """Return the log evidence of the sites of `state`, given the sum of their terms.

    It includes the evidence of earlier rows, whose posterior is the prior of the others.
    """
    rows_evidence = float(sums["terms"]) - float(np.sum(np.log(state.root.diagonal())))
    if base is None:
        return rows_evidence - 0.5 * float(state.mean @ state.mean)
    root = base.state.root
    moved = root.T @ (state.mean - base.state.mean)
    base_evidence = base.log_evidence + float(np.sum(np.log(root.diagonal())))
    return base_evidence + rows_evidence - 0.5 * float(moved @ moved)


def _solved(root: Array, h: Array) -> Array:
    """Return B^-1 h by the lower factor of B."""
    half = solve_triangular(root, h, lower=True, check_finite=False)
    return np.asarray(solve_triangular(root, half, lower=True, trans=1, check_finite=False))


# --- Reproducible sums over chunks
#
# Sums follow a binary tree over chunk numbers, so that their bits do not depend on the order of
# computation: chunk 2k is added to chunk 2k + 1, pairs to pairs, and so on. The tree holds at most
# as many partial sums as chunks are out of order.

#: Named sums. "worst" is a maximum: (size, row) of the row that changed most.
Sums = dict[str, Any]


def add(left: Sums, right: Sums) -> Sums:
    """Add two sums of the same names."""
    total = {name: left[name] + right[name] for name in left if name != "worst"}
    if "worst" in left:
        total["worst"] = right["worst"] if right["worst"][0] > left["worst"][0] else left["worst"]
    return total


class SumTree:
    """Reproducible sum over `count` chunks, added by any thread in any order."""

    def __init__(self, count: int) -> None:
        self._waiting: dict[tuple[int, int], Sums] = {}
        self._counts = [count]
        while self._counts[-1] > 1:
            self._counts.append((self._counts[-1] + 1) // 2)
        self._lock = threading.Lock()

    def put(self, number: int, sums: Sums) -> None:
        """Add the sums of one chunk."""
        level = 0
        with self._lock:
            while level < len(self._counts) - 1:
                sibling = number ^ 1
                if sibling < self._counts[level]:
                    waiting = self._waiting.pop((level, sibling), None)
                    if waiting is None:
                        break
                    sums = add(waiting, sums) if sibling < number else add(sums, waiting)
                level, number = level + 1, number // 2
            self._waiting[level, number] = sums

    def total(self) -> Sums:
        """Return the sum of all chunks."""
        (((level, _), total),) = self._waiting.items()
        assert level == len(self._counts) - 1, "chunks are missing"
        return total


@lru_cache(maxsize=4)
def _lower_indices(size: int) -> NDArray[np.intp]:
    """Return the flat indices of the lower triangle of (M, M)."""
    return np.flatnonzero(np.tri(size, dtype=bool))


def packed(square: Array) -> Array:
    """Return the lower triangle of (M, M) as a vector."""
    return np.take(square, _lower_indices(len(square)))


def unpacked(vector: Array, size: int) -> Array:
    """Return the lower triangle (M, M) of a packed vector, with zeros above."""
    square = np.zeros((size, size))
    square.flat[_lower_indices(size)] = vector
    return square


# --- Projection rule

#: Results of a projection: moments of the method; its mean only; log Z only.
Wanted = Literal["sites", "means", "log_z"]


@restorable_call("sparse-rule/1")
class PowerProjector:
    """A `Projector` with the power of power EP.

    Attributes
    ----------
    projector : Projector
        Uses a table of the power if one is shipped.
    power : float
    nonnegative : bool
        True if precisions are held at zero or above; for log-concave likelihoods this only removes
        rounding.
    """

    def __init__(self, projector: Projector, power: float = 1.0, bounded: bool = False) -> None:
        self.projector, self.power = projector.to_power(power), power
        self.bounded = bounded
        self.nonnegative = bounded or projector.nonnegative

    def __reduce__(self) -> tuple[object, ...]:
        return PowerProjector, (self.projector, self.power, self.bounded)

    @cached_property
    def _powered(self) -> PlainFunctions:
        return plain(self.projector.likelihood.functions(powers=True))

    @cached_property
    def _plain(self) -> PlainFunctions:
        return plain(self.projector.functions)

    def project(
        self,
        mean: Array,
        std: Array,
        y: Array,
        weights: Array | None,
        wanted: Wanted = "sites",
        whole: bool = False,
    ) -> tuple[Array, Array, Array, IntArray]:
        """Project cavities N(mean, std^2), all of shape (n,).

        If `whole`, likelihoods are not raised to the power of power EP.

        Returns
        -------
        log_z, mean, std, where : ndarray, shape (n,)
            Normalisers, moments, and the place of a lookup: `INSIDE` or `OUTSIDE_GRID` of
            `qpruntime.projection.site_kernel`, or 0.

        Raises
        ------
        NumericalError, TableError
            If a cavity cannot be projected.
        """
        projector = self.projector
        power = 1.0 if whole else self.power
        raised = power != 1.0 or weights is not None
        powers = np.full(y.size, power) if weights is None else power * weights
        source = projector.source
        if wanted != "sites":
            source = projector.means if wanted == "means" else projector.without_table
        functions = self._powered if raised else self._plain
        return project_rows(
            projector.likelihood, (functions, source), powers, (mean, std), y, projector.table
        )
