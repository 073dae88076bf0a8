"""Fill chunks of a grid: by quadrature at every node, or by expanding a series.

The series is that of the ratio psi = sigma*/sigma, which stays of order one, so that its error is
relative everywhere. Nothing here knows of files or of dask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import contracted, kernel
from qpruntime._pointers import call_coordinates
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.interpolation import quintic
from qpruntime.projection.projector import project_arrays
from qpruntime.quadrature.sigma_star_kernels import OK, exact_run
from qpruntime.table_format.metadata import Axis
from tablegen import splines
from tablegen.files.looking import Runner
from tablegen.grid.plan import GridChunk, Plan

__all__ = ["CELLS", "blocks", "estimate", "expand", "fill", "integrate", "resolve"]

# --- Expand from one axis, where the likelihood declares an exact scale
#
# sigma*/length is a function of one variable v for each outcome (`Reduction.scale`). A fine spline
# along v, and one evaluation a node, replace a quadrature a node.

#: Cells along v: the spline is as good as the quadrature (certified at 1e-12).
CELLS = 4096


@dataclass(frozen=True, eq=False)
class Expansion:
    """Chebyshev coefficients of psi, or splines of sigma*/length over v.

    Attributes
    ----------
    coefficients : ndarray
        Shape (outcomes, nodes in mu, nodes in log10 sigma), of splines (outcomes, 1, points).
    axes : ndarray, shape (7,), or None
        What `quintic` takes of splines.
    first : int
        Number of the first of these outcomes in the plan.
    """

    coefficients: Array
    axes: Array | None = None
    first: int = 0

    def only(self, outcome: int) -> Expansion:
        """Return what chunks of one outcome need."""
        part = self.coefficients[outcome - self.first, None]
        return replace(self, coefficients=part, first=outcome)


@contracted
def _scales(scale: int, mu: Array, sigma: Array, y: float, theta: Array) -> tuple[Array, Array]:
    """Return length and v of every pair (mu[i], sigma[i])."""
    length, v = np.empty(mu.size), np.empty(mu.size)
    for i in range(mu.size):
        length[i], v[i], _ = call_coordinates(scale, mu[i], sigma[i], y, theta)
    return length, v


@contracted
def _expand(
    scale: int,
    curve: tuple[Array, Any, int],
    mu: Array,
    sigma: Array,
    y: float,
    theta: Array,
    out: Array,
) -> None:
    coefficients, axes, row = curve
    for i in range(mu.size):
        for j in range(sigma.size):
            length, v, _ = call_coordinates(scale, mu[i], sigma[j], y, theta)
            out[i, j] = length * quintic(coefficients, axes, row, 0.0, v)


def _handle(plan: Plan) -> tuple[Any, Array]:
    reduction = plan.model.reduction
    assert reduction is not None
    assert reduction.scale is not None
    return reduction.scale.handle, plan.model.theta


def _range(plan: Plan, y: float) -> tuple[float, float]:
    """Return the least and the largest v on the grid: v is monotone in sigma for every mu."""
    scale, theta = _handle(plan)
    mu, sigma = plan.mu.nodes(), 10.0 ** plan.log10_sigma.nodes()[[0, -1]]
    _, v = _scales(scale, np.repeat(mu, 2), np.tile(sigma, mu.size), y, theta)
    return float(v.min()), float(v.max())


def expand_curves(plan: Plan, run: Runner) -> Expansion:
    """Integrate along v for every outcome."""
    ends = [_range(plan, y) for y in plan.outcomes]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    axis = Axis("v", low, high, CELLS + 1)
    places = splines.points(axis)
    blocks = [(y, places[a : a + 512]) for y in plan.outcomes for a in range(0, places.size, 512)]
    values = np.concatenate(run(partial(_along, plan), blocks))
    values = values.reshape(len(plan.outcomes), 1, places.size)
    axes = np.array([0.0, 0.0, 0.0, low, high, CELLS / (high - low), plan.outcomes[0]])
    return Expansion(splines.along(values, 2, axis), axes)


def _along(plan: Plan, block: tuple[float, Array]) -> Array:
    """Return sigma*/length for one outcome y at some places v."""
    y, places = block
    scale, theta = _handle(plan)
    reduction = plan.model.reduction
    assert reduction is not None
    row = int(y) - reduction.outcomes[0]
    mu, sigma, ys = np.array([reduction.cavity(row, 0.0, v) for v in places.tolist()]).T
    star = project_arrays(plan.model, mu, sigma, ys, table="exact").std
    return np.asarray(star / _scales(scale, mu, sigma, y, theta)[0])


def fill_curves(plan: Plan, chunk: GridChunk, curves: Expansion) -> Array:
    """Return sigma* on one chunk, shape (chunk rows, log10_sigma.size)."""
    scale, theta = _handle(plan)
    mu = plan.mu.nodes()[chunk.start : chunk.stop]
    sigma = 10.0 ** plan.log10_sigma.nodes()
    out = np.empty((mu.size, sigma.size))
    y = plan.outcomes[chunk.outcome]
    row = chunk.outcome - curves.first
    _expand(scale, (curves.coefficients, curves.axes, row), mu, sigma, y, theta, out)
    return out


# --- Integrate sigma* at every node of a grid, in runs of neighbouring cavities that share nodes.

#: Cavities this many standard deviations apart still share their quadrature nodes.
_SPAN = 0.3


@kernel
def _fill_direct(
    theta: Array,
    has_frame: bool,
    split: int,
    frame: object,
    mu: Array,
    sigma: Array,
    y: float,
    out: Array,
) -> tuple[int, int, int]:
    """out[i, j] = sigma*(mu[i], sigma[j]); mu ascends. Return (status, i, j) of a failure."""
    row = np.empty((mu.size, 4))
    for j in range(sigma.size):
        i = 0
        while i < mu.size:
            stop = i + 1
            while stop < mu.size and mu[stop] - mu[i] <= _SPAN * sigma[j]:
                stop += 1
            status = exact_run(split, frame, has_frame, mu[i:stop], sigma[j], y, theta, row[i:stop])
            if status != OK:
                return status, i, j
            for k in range(i, stop):
                out[k, j] = row[k, 3]
            i = stop
    return OK, 0, 0


def integrate(likelihood: Likelihood, mu: Array, sigma: Array, y: float) -> Array:
    """Integrate sigma* (a standard deviation) at every pair of `mu` and `sigma`: shape (M, S).

    `mu`, of shape (M,), are ascending cavity means, `sigma`, of shape (S,), standard deviations.

    Raises
    ------
    NumericalError
        If the quadrature does not converge somewhere; the message says where.
    """
    theta, _, has_frame, split, _, frame = likelihood.functions()[:6]
    out = np.empty((mu.size, sigma.size))
    status, i, j = _fill_direct(theta, has_frame, split, frame, mu, sigma, y, out)
    if status != OK:
        likelihood.raise_failure()
        raise NumericalError(
            f"{likelihood.spelt}: no quadrature at mu = {mu[i]:g}, sigma = {sigma[j]:g} "
            f"(status {status}); narrow the ranges"
        )
    return out


# --- Fill chunks of a grid

#: Coefficients below this fraction of the largest |psi| are quadrature noise (measured: 4e-16).
_CUT = 1e-15
#: Outcomes that a dry run looks at: less than a second each.
FEW = 5
#: Most Chebyshev nodes tried along an axis, and the smallest psi/max psi a series may have to hold.
_MOST_NODES = 2048
_SMALLEST = 1e-2
#: A Chebyshev node costs as much as this many grid nodes integrated in runs.
_NODE_COST = 7
#: Nodes between two looks at whether the build was interrupted: tenths of a second.
_BLOCK = 32_000
#: Lines of Chebyshev nodes integrated by one call: a few hundredths of a second.
_LINES = 8


def chebyshev_nodes(axis: Axis, n: int) -> Array:
    """Return the n Chebyshev nodes of the axis, ascending, shape (n,)."""
    unit = -np.cos((2 * np.arange(n) + 1) * (math.pi / (2 * n)))
    return np.asarray(0.5 * (axis.start + axis.stop) + 0.5 * (axis.stop - axis.start) * unit)


def _transform(n: int) -> Array:
    """Return the (n, n) matrix from values at ascending Chebyshev nodes to coefficients."""
    # Reducing the angle in integers first keeps the noise of high coefficients at 1e-16.
    turns = np.outer(np.arange(n), 2 * (n - np.arange(n)) - 1) % (4 * n)
    matrix: Array = np.cos(turns * (math.pi / (2 * n))) * (2.0 / n)
    matrix[0] *= 0.5
    return matrix


def _basis(axis: Axis, points: Array, n: int) -> Array:
    """Return T_0 ... T_{n-1} at points of the axis, shape (points, n)."""
    half = 0.5 * (axis.stop - axis.start)
    unit = ((points - axis.start) - (axis.stop - points)) / (2.0 * half)
    return np.asarray(np.cos(np.outer(np.arccos(np.clip(unit, -1.0, 1.0)), np.arange(n))))


@lru_cache(maxsize=4)
def _columns(axis: Axis, n: int) -> Array:
    """Return the basis at the columns of the grid, times the standard deviation there.

    Shape (n, axis.size). Every chunk needs it, and it is quicker made than sent.
    """
    nodes = axis.nodes()
    columns = np.ascontiguousarray(_basis(axis, nodes, n).T * 10.0**nodes)
    columns.flags.writeable = False
    return columns


def resolve(plan: Plan) -> Plan:
    """Choose the numbers of Chebyshev nodes, or the direct method where a series does not pay.

    A likelihood with an exact scale needs one axis only: the method is then "one-axis". Otherwise
    psi is sampled along a few lines through the rectangle, including its edges, until the
    coefficients have decayed to noise. The certificate shows that no line missed anything.
    """
    if plan.method == "direct":
        return plan
    reduction = plan.model.reduction
    if reduction is not None and reduction.scale is not None:
        pays = math.prod(plan.shape[1:]) > _NODE_COST * CELLS
        return replace(plan, method="one-axis" if pays else "direct")
    counts = []
    for axis, other_axis in ((plan.mu, plan.log10_sigma), (plan.log10_sigma, plan.mu)):
        # Not symmetric about the middle, so that an odd or even psi cannot hide.
        lines = other_axis.start + (other_axis.stop - other_axis.start) * np.array(
            [0.0, 0.2, 0.45, 0.7, 1.0]
        )
        needed = 0
        for y in plan.outcomes:
            needed = max(needed, _count(plan, axis, lines, y))
            if needed > _MOST_NODES:
                return replace(plan, method="direct")
        counts.append(needed)
    if _NODE_COST * math.prod(counts) >= math.prod(plan.shape[1:]):
        return replace(plan, method="direct")
    return replace(plan, nodes=(counts[0], counts[1]))


def estimate(plan: Plan) -> Plan:
    """Return what `resolve` does, from `FEW` outcomes where there are more: at once.

    Nodes are then the least that it may take. "direct" is no guess: no outcome undoes it.
    """
    places = np.linspace(0, len(plan.outcomes) - 1, min(FEW, len(plan.outcomes)))
    few = [plan.outcomes[round(k)] for k in places.tolist()]
    resolved = resolve(replace(plan, outcomes=few))
    return replace(plan, method=resolved.method, nodes=resolved.nodes)


def _count(plan: Plan, axis: Axis, lines: Array, y: float) -> int:
    """Return how many nodes along `axis` hold psi on these lines; above the limit if none do."""
    n = 32
    while n <= _MOST_NODES:
        nodes = chebyshev_nodes(axis, n)
        if axis is plan.mu:
            sigma = 10.0**lines
            psi = integrate(plan.model, nodes, sigma, y) / sigma
        else:
            sigma = 10.0**nodes
            psi = (integrate(plan.model, lines, sigma, y) / sigma).T
        if psi.min() < _SMALLEST * psi.max():
            break
        size = np.abs(_transform(n) @ psi).max(axis=1)
        last = int(np.nonzero(size > _CUT * psi.max())[0][-1])
        # A tail of noise is needed to know that the decay is over.
        if last < 0.8 * n - 4:
            return math.ceil(1.08 * last) + 9
        n *= 2
    return _MOST_NODES + 1


def expand(plan: Plan, run: Runner) -> Expansion | None:
    """Integrate psi at the Chebyshev nodes, or along one axis; None for the direct method."""
    if plan.method == "one-axis":
        return expand_curves(plan, run)
    if plan.nodes is None:
        return None
    n_sigma = plan.nodes[1]
    blocks = [
        (outcome, start, min(start + _LINES, n_sigma))
        for outcome in range(len(plan.outcomes))
        for start in range(0, n_sigma, _LINES)
    ]
    psi = np.concatenate(run(partial(_lines, plan), blocks))
    psi = psi.reshape(len(plan.outcomes), n_sigma, -1)
    left_transform, right = _transform(psi.shape[2]), _transform(n_sigma).T
    return Expansion(np.array([left_transform @ p.T @ right for p in psi]))


def _lines(plan: Plan, block: tuple[int, int, int]) -> Array:
    """Return psi at Chebyshev nodes, for one outcome and some sigma: shape (sigma, nodes in mu)."""
    assert plan.nodes is not None
    outcome, start, stop = block
    mu = chebyshev_nodes(plan.mu, plan.nodes[0])
    sigma = 10.0 ** chebyshev_nodes(plan.log10_sigma, plan.nodes[1])[start:stop]
    values = integrate(plan.model, mu, sigma, plan.outcomes[outcome])
    return np.ascontiguousarray(values.T / sigma[:, None])


def _block(plan: Plan) -> int:
    """Return how many columns of a chunk are integrated between two looks."""
    return max(1, _BLOCK // plan.rows)


def blocks(plan: Plan) -> int:
    """Return how many blocks of columns `fill` integrates; a series takes one step a chunk."""
    return -(-plan.log10_sigma.size // _block(plan)) if plan.method == "direct" else 1


def fill(
    plan: Plan,
    expansion: Expansion | None,
    interrupted: Callable[[], bool],
    chunk: GridChunk,
) -> NDArray[np.floating]:
    """Return sigma* on one chunk, shape (chunk rows, log10_sigma.size), as the file has it.

    `interrupted` is called before each of the `blocks` that are integrated; true ends the work.
    """
    mu = plan.mu.nodes()[chunk.start : chunk.stop]
    if expansion is not None and expansion.axes is not None:
        values = fill_curves(plan, chunk, expansion)
    elif expansion is not None:
        coefficients = expansion.coefficients[chunk.outcome - expansion.first]
        rows = _basis(plan.mu, mu, coefficients.shape[0]) @ coefficients
        values = rows @ _columns(plan.log10_sigma, coefficients.shape[1])
    else:
        sigma = 10.0 ** plan.log10_sigma.nodes()
        values = np.empty((mu.size, sigma.size))
        step = _block(plan)
        for j in range(0, sigma.size, step):
            if interrupted():
                raise KeyboardInterrupt
            values[:, j : j + step] = integrate(
                plan.model, mu, sigma[j : j + step], plan.outcomes[chunk.outcome]
            )
    return values.astype(np.dtype(plan.dtype).newbyteorder("<"), copy=False)
