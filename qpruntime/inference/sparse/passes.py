"""Passes over one chunk of rows, which return its part of the sums given a state and its sites.

A pass is a pure function, so that a repetition or another machine gives the same result. It walks
through a chunk in fixed blocks that stay in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import solve_triangular

from qpruntime._typing import Array, IntArray
from qpruntime.inference.fixed_point.convergence import HELD
from qpruntime.inference.sparse.rows import Chunk, ChunkTask, Rows, add_outer, add_square, divide
from qpruntime.inference.sparse.state import (
    PowerProjector,
    State,
    Sums,
    Wanted,
    evidence,
    packed,
    unpacked,
)
from qpruntime.kernels.cross_covariance import contract
from qpruntime.projection.projector import PLACES, derivative
from qpruntime.projection.site_kernel import INSIDE, OUTSIDE_GRID

__all__ = [
    "Block",
    "Cavities",
    "Done",
    "Evaluation",
    "Features",
    "Job",
    "Proposal",
    "Variances",
    "cavities",
    "changes",
    "evaluation",
    "gather",
    "means",
    "outcome",
    "propose",
    "pulls",
    "settled",
    "slopes",
    "sweep",
    "terms",
]

# --- Gradient of EP's log evidence
#
# Each row has beta = N - T m_g and rho = power beta^2 - T (1 - power T w). The derivatives are
#
#     by k(x_n, x_n):  rho_n/2;   by the prior mean:  beta_n;
#     by k(x_n, Z):    L^-T (beta_n mu - T_n B^-1 phi_n - rho_n phi_n);
#     by k(Z, Z):      -L^-T (mu mu^T + B^-1 - I - sum rho_n phi_n phi_n^T) L^-1/2;
#     by parameters of the likelihood:  sum of d log Z_n at fixed cavities, divided by the power.


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Log evidence of sites, and its derivatives at a fixed point of EP.

    Attributes
    ----------
    value : float
    by_theta : ndarray
        Derivative by the kernel's free log parameters.
    by_Z : ndarray, shape (M, d)
        Derivative by Z; zeros for kernels without known slopes in their inputs.
    by_mean : float
        Derivative by a prior mean that all rows share.
    by_parameters : ndarray
        Derivative by the logarithms of parameters of the likelihood.
    """

    value: float
    by_theta: Array
    by_Z: Array
    by_mean: float
    by_parameters: Array


def slopes(state: State, job: Job, moved: Sequence[dict[int, PowerProjector]] = ()) -> Done:
    """Return sums over a chunk for the gradient; `moved` are rules with moved parameters."""
    chunk, inducing, power = job.piece.load(), state.inducing, state.rule.power
    total, factor = Accumulated(state), inducing.rounded
    pull = solve_triangular(inducing.L, state.mean, lower=True, trans=1)
    evidence, by_mean, by_parameters = 0.0, 0.0, np.zeros(len(moved))
    by_theta, by_Z = np.zeros(inducing.kernel.theta.size), np.zeros(inducing.Z.shape)
    rows = min(block_rows(inducing.size), len(chunk.y))
    spare = room_for("spare", rows, inducing.size, inducing.dtype)
    for part in parts(state, job, chunk):
        block, phi = part.block, part.phi
        mean, w = marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        log_z = project(state.rule, block, at, "log_z")[0]
        evidence += float(np.sum(terms(at, log_z, power)))
        for k, rules in enumerate(moved):
            log_z_sums = {j: project(rules[j], block, at, "log_z")[0].sum() for j in PLACES}
            by_parameters[k] += float(derivative(log_z_sums)) / power
        beta = pulls(at, power)
        rho = power * beta * beta - at.T * (1.0 - power * at.T * w)
        by_mean += float(beta.sum())
        # H = -(T B^-1 phi + rho phi) L^-1 + beta (L^-T mu)^T, which overwrites phi.
        H, scaled = divide(part.room, state.rounded, transposed=True), spare[: len(phi)]
        H *= (-at.T).astype(phi.dtype)[:, None]
        H -= np.multiply(phi, rho.astype(phi.dtype)[:, None], out=scaled)
        total.square(phi, rho, scaled)
        divide(H, factor, transposed=True)
        add_outer(H, beta.astype(phi.dtype), pull.astype(phi.dtype))
        part_theta, part_Z = contract(inducing.kernel, part.X, inducing.Z, H, 0.5 * rho)
        by_theta += part_theta
        by_Z += part_Z
    return Done(
        {
            "terms": evidence,
            "squares": total.sums()["B"],
            "mean": by_mean,
            "parameters": by_parameters,
            "theta": by_theta,
            "Z": by_Z,
        }
    )


def evaluation(state: State, sums: Sums) -> Evaluation:
    """Return the evidence and its gradient from the sums of `slopes` over all rows."""
    inducing = state.inducing
    m = inducing.size
    squares = unpacked(sums["squares"], m)
    squares += np.tril(squares, -1).T
    inverse = np.eye(m)
    divide(divide(inverse, state.root), state.root, transposed=True)
    S = np.outer(state.mean, state.mean) + inverse - np.eye(m) - squares
    # This is L^-T S L^-1 for a symmetric S.
    half = divide(S, inducing.L, transposed=True)
    S = divide(np.ascontiguousarray(half.T), inducing.L, transposed=True)
    by_theta, by_Z = inducing.slopes(-0.25 * (S + S.T))
    return Evaluation(
        evidence(state, sums),
        sums["theta"] + by_theta,
        sums["Z"] + by_Z,
        float(sums["mean"]),
        sums["parameters"],
    )


# --- Passes over one chunk

# Numbers in the features of a block, 4 MB of float64, and its smallest number of rows. Each thread
# allocates the arrays of a block once, because fresh pages for every block cost more than the work.
_BLOCK_NUMBERS = 2**19
_MIN_BLOCK_ROWS = 256
_SCRATCH = threading.local()


class Features(NamedTuple):
    """Cached features and r of a chunk; `full` is True once they are computed."""

    phi: Rows
    r: Array
    full: NDArray[np.bool_]


class Variances(NamedTuple):
    """Cached variances of g at the rows of a chunk; `full` is True once they are computed."""

    w: Array
    full: NDArray[np.bool_]


class Job(NamedTuple):
    """A chunk, the number of its first row, its sites about the prior mean, and cached arrays."""

    piece: ChunkTask
    first: int
    tau: Array
    nu: Array
    kept: Features | None = None
    variances: Variances | None = None


class Done(NamedTuple):
    """Sums over the rows of a chunk, and columns of its rows such as sites."""

    sums: Sums
    columns: tuple[Array, ...] = ()


class Part(NamedTuple):
    """A block of a chunk, its features and r, and scratch memory of the shape of the features.

    `w` has the cached variances of g, which are to be filled in unless `known`.
    """

    rows: slice
    X: Array
    block: Block
    phi: Rows
    r: Array
    room: Any
    w: Array | None = None
    known: bool = False


def parts(state: State, job: Job, chunk: Chunk) -> Iterator[Part]:
    """Yield the blocks of a chunk, which share their scratch memory."""
    inducing, cached = state.inducing, job.kept
    n = len(chunk.y)
    count = -(-n // block_rows(inducing.size))
    step = -(-n // max(count, 1))  # a small block at the end would cost as much as others
    width = inducing.size, inducing.dtype
    room = room_for("room", min(step, n), *width)
    phi = room_for("phi", min(step, n), *width) if cached is None else cached.phi
    for start in range(0, n, step):
        block_slice = slice(start, min(start + step, n))
        X = chunk.X[block_slice]
        columns = chunk.weights, chunk.prior, chunk.scale
        weights, prior, scale = (None if a is None else a[block_slice] for a in columns)
        block = Block(
            chunk.y[block_slice], weights, prior, job.tau[block_slice], job.nu[block_slice], scale
        )
        length = block_slice.stop - start
        if cached is None:
            features = inducing.features(X, phi[:length])
        elif cached.full[0]:
            features = phi[block_slice], cached.r[block_slice]
        else:
            features = inducing.features(X, phi[block_slice])
            cached.r[block_slice] = features[1]
        w, known = None, False
        if job.variances is not None:
            w, known = job.variances.w[block_slice], bool(job.variances.full[0])
        yield Part(block_slice, X, block, *features, room[:length], w, known)
    if cached is not None:
        cached.full[0] = True


def block_rows(size: int) -> int:
    """Return the number of rows in a block for `size` inducing inputs."""
    return max(_MIN_BLOCK_ROWS, _BLOCK_NUMBERS // size)


def room_for(name: str, rows: int, size: int, dtype: DTypeLike) -> Rows:
    """Return the thread's memory of a name as an array (rows, size)."""
    memory = vars(_SCRATCH).get(name)
    if memory is None or memory.dtype != dtype or memory.size < rows * size:
        memory = np.empty(max(rows, block_rows(size)) * size, dtype)
        setattr(_SCRATCH, name, memory)
    return memory[: rows * size].reshape(rows, size)


class Accumulated:
    """Sums B and h of a chunk, in float64 whatever the dtype of the features."""

    def __init__(self, state: State) -> None:
        m, self._dtype = state.inducing.size, state.inducing.dtype
        self.B, self.h = np.zeros((m, m)), np.zeros(m)

    def square(self, phi: Rows, T: Array, room: Rows) -> None:
        """Add sum T phi phi^T; `room` is overwritten."""
        for sign in (1.0, -1.0):
            selected = np.flatnonzero(sign * T > 0.0)
            if not selected.size:
                continue
            root = np.sqrt(np.abs(T[selected])).astype(self._dtype)[:, None]
            rows = room[: selected.size]
            if selected.size == T.size:
                np.multiply(phi, root, out=rows)
            else:
                np.take(phi, selected, axis=0, out=rows, mode="clip")
                rows *= root
            if self._dtype == self.B.dtype:
                add_square(rows, sign, self.B)
            else:
                total = np.zeros(self.B.shape, self._dtype)
                add_square(rows, sign, total)
                self.B += total

    def project(self, phi: Rows, N: Array) -> None:
        """Add sum N phi."""
        self.h += phi.T @ N.astype(self._dtype)

    def sums(self) -> Sums:
        """Return the arrays to add up over chunks."""
        return {"B": packed(self.B), "h": self.h}


def marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Return means and variances of g, and leave features over the root of B in the scratch."""
    solved = part.room
    np.copyto(solved, part.phi)
    divide(solved, state.rounded)
    return state.means(part.phi), np.einsum("nm,nm->n", solved, solved).astype(float)


def _marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Return means and variances of g, with cached variances if they are known."""
    if part.known:
        assert part.w is not None
        return state.means(part.phi), part.w.copy()
    mean, w = marginals(state, part)
    if part.w is not None:
        part.w[:] = w
    return mean, w


def _variances_are_known(job: Job) -> None:
    """Mark the variances of the chunk as complete."""
    if job.variances is not None:
        job.variances.full[0] = True


def _sites(block: Block, r: Array, power: float) -> tuple[Array, Array]:
    """Return the sites of g, given those of f."""
    share = 1.0 + power * r * block.tau
    return block.tau / share, block.nu / share


def gather(state: State, job: Job) -> Done:
    """Return B and h of the current sites, after resetting those that are improper under r."""
    total, power = Accumulated(state), state.rule.power
    tau, nu = job.tau.copy(), job.nu.copy()
    for part in parts(state, job._replace(tau=tau, nu=nu), job.piece.load()):
        # Negative precisions may come from a smaller r.
        improper = ~(1.0 + power * part.r * part.block.tau > 0.0)
        part.block.tau[improper] = part.block.nu[improper] = 0.0
        T, N = _sites(part.block, part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    return Done(total.sums(), (tau, nu))


def sweep(state: State, job: Job, share: float = 1.0) -> Done:
    """Update all sites by a share of the changes that the posterior proposes.

    The sums are B and h of the new sites, and "change", "counts" and "worst" of whole updates.
    """
    total, power = Accumulated(state), state.rule.power
    tau, nu = np.empty(job.tau.size), np.empty(job.tau.size)
    change, counts, worst = np.zeros(4), np.zeros(4), (-1.0, 0)
    for part in parts(state, job, job.piece.load()):
        block = part.block
        mean, w = _marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        new = propose(state.rule, block, at)
        squares, sizes = changes(block, new, at, power)
        change, counts = change + squares, counts + new.counts
        largest = int(np.argmax(sizes))
        if sizes[largest] > worst[0]:
            worst = (float(sizes[largest]), job.first + part.rows.start + largest)
        tau[part.rows] = block.tau + share * (new.tau - block.tau)
        nu[part.rows] = block.nu + share * (new.nu - block.nu)
        T, N = _sites(block._replace(tau=tau[part.rows], nu=nu[part.rows]), part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    _variances_are_known(job)
    extra_sums = {"change": change, "counts": counts, "worst": worst}
    return Done({**total.sums(), **extra_sums}, (tau, nu))


def means(state: State, job: Job) -> Done:
    """Match the means with the precisions fixed, and return the sum "h"."""
    total, power = Accumulated(state), state.rule.power
    nu = np.empty(job.tau.size)
    for part in parts(state, job, job.piece.load()):
        mean, w = _marginals(state, part)
        at = cavities(part.block, mean, w, part.r, power, power)
        nu[part.rows] = settled(state.rule, part.block, at, mean, part.r)
        _, N = _sites(part.block._replace(nu=nu[part.rows]), part.r, power)
        total.project(part.phi, N)
    _variances_are_known(job)
    return Done({"h": total.h}, (job.tau, nu))


def outcome(state: State, job: Job, rows: bool = False) -> Done:
    """Return terms of the evidence; "worst" is the least expected row and its -log density.

    If `rows`, the columns are mean and variance of f and leave-one-out log densities of rows.
    """
    power, evidence, least_expected = state.rule.power, 0.0, (-np.inf, 0)
    columns = np.empty((3, job.tau.size if rows else 0))
    for part in parts(state, job, job.piece.load()):
        block = part.block
        mean, w = _marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        log_z = project(state.rule, block, at, "log_z")[0]
        evidence += float(np.sum(terms(at, log_z, power)))
        without = cavities(block, mean, w, part.r, power, 1.0)
        left_out = project(state.rule, block._replace(weights=None), without, "log_z", whole=True)[
            0
        ]
        lowest = int(np.argmin(left_out))
        least_expected = max(
            least_expected, (-float(left_out[lowest]), job.first + part.rows.start + lowest)
        )
        if rows:
            columns[:2, part.rows] = _moments(block, at, power)
            columns[2, part.rows] = left_out
    _variances_are_known(job)
    return Done({"terms": evidence, "worst": least_expected}, (*columns,) if rows else ())


def _moments(block: Block, at: Cavities, power: float) -> tuple[Array, Array]:
    """Return mean and variance of f with its whole site, as the dense engine does."""
    kept = 1.0 + power * block.tau * at.v
    return block.centre((at.mean + power * block.nu * at.v) / kept), at.v / kept


# --- Selected rows: cavities, sites and evidence terms
#
# Symbols are those of `qpruntime.inference.sparse`. The prior mean is m; means of f and of g =
# phi^T w are measured from it. Cavities of g are N(m_c, c), those of f N(m + m_c, v), v = c + r.
# No division by the variance of g occurs, so that rows far from every inducing input need no
# special case. If a row observes s f, only projections involve s; sites, cavities and evidence are
# those of f.


class Block(NamedTuple):
    """Block of rows: observations and sites.

    `y`, `weights`, `prior` and `scale` are those of a `Chunk`; `tau` and `nu` are the sites of f
    about its prior mean, each of shape (n,).
    """

    y: Array
    weights: Array | None
    prior: Array | None
    tau: Array
    nu: Array
    scale: Array | None = None

    def centre(self, mean: Array) -> Array:
        """Return means of f, given means about the prior mean."""
        return mean if self.prior is None else mean + self.prior


class Cavities(NamedTuple):
    """Cavities of rows without a fraction of their sites; each field has shape (n,).

    `T` and `N` are the sites of g, `kept` = 1 - power T w, `c` and `mean` are variance and mean of
    g, and `v` is the variance of f. Rows that are not `proper` have c = 0, mean = 0 and v = 1.
    """

    T: Array
    N: Array
    kept: Array
    c: Array
    mean: Array
    v: Array
    proper: NDArray[np.bool_]


class Proposal(NamedTuple):
    """Proposed sites, and counts (inside, outside, skipped, held)."""

    tau: Array
    nu: Array
    counts: Array


def cavities(block: Block, mean: Array, w: Array, r: Array, power: float, part: float) -> Cavities:
    """Return the cavities of g ~ N(mean, w) without the fraction `part` of the sites.

    `power` is that of power EP, by which a site of f becomes one of g.
    """
    share = 1.0 + power * r * block.tau
    with np.errstate(all="ignore"):
        T, N = block.tau / share, block.nu / share
        kept = 1.0 - part * T * w
        c = w / kept
        centre = (mean - part * N * w) / kept
        v = c + r
        proper = (share > 0.0) & (kept > 0.0) & (v > 0.0) & np.isfinite(v) & np.isfinite(centre)
    if not proper.all():
        T, N, c, centre = (np.where(proper, a, 0.0) for a in (T, N, c, centre))
        kept, v = np.where(proper, kept, 1.0), np.where(proper, v, 1.0)
    return Cavities(T, N, kept, c, centre, v, proper)


def project(
    rule: PowerProjector, block: Block, at: Cavities, wanted: Wanted, whole: bool = False
) -> tuple[Array, Array, Array, IntArray]:
    """Project the cavities; rows without one have weight 0."""
    weights = block.weights
    if not at.proper.all():
        weights = np.where(at.proper, 1.0 if weights is None else weights, 0.0)
    mean, std = block.centre(at.mean), np.sqrt(at.v)
    if (scale := block.scale) is None:
        return rule.project(mean, std, block.y, weights, wanted, whole)
    projected = rule.project(scale * mean, scale * std, block.y, weights, wanted, whole)
    log_z, mean, std, where = projected
    return log_z, mean / scale, std / scale, where


def propose(rule: PowerProjector, block: Block, at: Cavities) -> Proposal:
    """Return the sites of f that the cavities propose; sites without a cavity stay."""
    _, mean, std, where = project(rule, block, at, "sites")
    with np.errstate(all="ignore"):
        precision = 1.0 / at.v
        precision_gain = 1.0 / (std * std) - precision
        bounded = rule.bounded * np.sum(precision_gain * at.v < -HELD)
        if rule.nonnegative:
            precision_gain = np.maximum(precision_gain, 0.0)
        centred = mean if block.prior is None else mean - block.prior
        nu = ((centred - at.mean) * precision + centred * precision_gain) / rule.power
        tau = precision_gain / rule.power
    accepted = np.isfinite(tau) & np.isfinite(nu) & at.proper
    tau, nu = np.where(accepted, tau, block.tau), np.where(accepted, nu, block.nu)
    if block.weights is not None:
        tau[block.weights == 0.0] = 0.0
        nu[block.weights == 0.0] = 0.0
    skipped = np.sum(~accepted)
    counts = np.array([np.sum(where == INSIDE), np.sum(where == OUTSIDE_GRID), skipped, bounded])
    return Proposal(tau, nu, counts)


def settled(rule: PowerProjector, block: Block, at: Cavities, mean: Array, r: Array) -> Array:
    """Return nu that matches the mean of g to the projected means, with tau fixed."""
    projected = project(rule, block, at, "means")[1]
    with np.errstate(all="ignore"):
        pull = (projected - block.centre(at.mean)) / at.v
        nu = (at.T * mean + pull / rule.power) * (1.0 + rule.power * r * block.tau)
    return np.where(at.proper & np.isfinite(nu), nu, block.nu)


def pulls(at: Cavities, power: float) -> Array:
    """Return beta = N - T m_g of each row, (n,); the sum of beta phi is the posterior mean of w.

    It is computed from the cavity, because the difference cancels if a site dominates its marginal.
    """
    return np.asarray((at.N - at.T * at.mean) / (1.0 + power * at.T * at.c))


def terms(at: Cavities, log_z: Array, power: float) -> Array:
    """Return the terms of the rows in the log evidence, shape (n,), apart from `evidence`.

    The quadratic forms of means and sites, which are of order T m^2 and cancel, reduce to
    power c beta^2/2 here and -|mean of w|^2/2 in `evidence`, because the sum of beta phi is that
    mean. So the evidence is also stationary in the computed means.
    """
    t = power * at.T * at.c
    quadratic = 0.5 * power * at.c * pulls(at, power) ** 2
    return np.asarray((log_z + 0.5 * np.log1p(t)) / power + quadratic)


def changes(block: Block, new: Proposal, at: Cavities, power: float) -> tuple[Array, Array]:
    """Return sums of squares of the changes of tau and nu, and the size of the change of each row.

    The sums are plain, in units of the observed latent as in the dense engine, and in posterior
    units.
    """
    width = at.v / (1.0 + power * block.tau * at.v)
    d_tau, d_nu = new.tau - block.tau, new.nu - block.nu
    # Changes below the rounding of sites count as zero, plain ones also below that of cavities.
    rounding = 1e-14 * np.abs(block.nu)
    d_nu = np.where(np.abs(d_nu) < rounding, 0.0, d_nu)
    scaled_tau, scaled_nu = d_tau * width, d_nu * np.sqrt(np.abs(width))
    d_tau = np.where(np.abs(scaled_tau) * at.kept < 1e-14, 0.0, d_tau)
    d_nu = np.where(np.abs(d_nu) * at.kept < rounding, 0.0, d_nu)
    if block.scale is not None:
        d_tau, d_nu = d_tau / block.scale**2, d_nu / block.scale
    sums = np.array([np.vdot(a, a) for a in (d_tau, d_nu, scaled_tau, scaled_nu)])
    return sums, np.abs(scaled_tau) + np.abs(scaled_nu)
