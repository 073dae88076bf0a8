"""Passes over one chunk of rows: what it adds to the sums, given a state and the chunk's sites.

A pass is a pure function: carried out twice, or somewhere else, it gives the same. A chunk is
walked through in blocks that stay in the cache, always the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from qpruntime._typing import Array
from qpruntime.inference.fixed_point.convergence import HELD
from qpruntime.inference.sparse.data import Chunk, ChunkTask
from qpruntime.inference.sparse.features import add_outer, add_square, divide, divide_transposed
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
# Per row beta = N - T m_g and rho = power beta^2 - T (1 - power T w). The derivatives are
#
#     by k(x_n, x_n):  rho_n/2;   by the prior mean:  beta_n;
#     by k(x_n, Z):    L^-T (beta_n mu - T_n B^-1 phi_n - rho_n phi_n);
#     by k(Z, Z):      -L^-T (mu mu^T + B^-1 - I - sum rho_n phi_n phi_n^T) L^-1/2;
#     by parameters of the likelihood:  sum of those of log Z_n at fixed cavities, over the power.


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Log evidence of sites, and its derivatives at a fixed point of EP.

    Attributes
    ----------
    value : float
    by_theta : ndarray
        By the kernel's free log parameters.
    by_Z : ndarray, shape (M, d)
        Zeros for kernels whose slopes in their inputs are not known.
    by_mean : float
        By a prior mean that all rows share.
    by_parameters : ndarray
        By the logarithms of parameters of the likelihood.
    """

    value: float
    by_theta: Array
    by_Z: Array
    by_mean: float
    by_parameters: Array


def slopes(state: State, job: Job, moved: Sequence[dict[int, PowerProjector]] = ()) -> Done:
    """Sums over a chunk for the gradient; `moved` are rules with moved parameters, by place."""
    chunk, inducing, power = job.piece.load(), state.inducing, state.rule.power
    total, own = Accumulated(state), inducing.rounded
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
            found = {j: project(rules[j], block, at, "log_z")[0].sum() for j in PLACES}
            by_parameters[k] += float(derivative(found)) / power
        beta = pulls(at, power)
        rho = power * beta * beta - at.T * (1.0 - power * at.T * w)
        by_mean += float(beta.sum())
        # H = -(T B^-1 phi + rho phi) L^-1 + beta (L^-T mu)^T, in the place of phi.
        H, scaled = divide_transposed(part.room, state.rounded), spare[: len(phi)]
        H *= (-at.T).astype(phi.dtype)[:, None]
        H -= np.multiply(phi, rho.astype(phi.dtype)[:, None], out=scaled)
        total.square(phi, rho, scaled)
        divide_transposed(H, own)
        add_outer(H, beta.astype(phi.dtype), pull.astype(phi.dtype))
        one, two = contract(inducing.kernel, part.X, inducing.Z, H, 0.5 * rho)
        by_theta += one
        by_Z += two
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
    divide_transposed(divide(inverse, state.root), state.root)
    S = np.outer(state.mean, state.mean) + inverse - np.eye(m) - squares
    # L^-T S L^-1, S being symmetric.
    S = divide_transposed(np.ascontiguousarray(divide_transposed(S, inducing.L).T), inducing.L)
    by_theta, by_Z = inducing.slopes(-0.25 * (S + S.T))
    return Evaluation(
        evidence(state, sums),
        sums["theta"] + by_theta,
        sums["Z"] + by_Z,
        float(sums["mean"]),
        sums["parameters"],
    )


# --- Passes over one chunk

# Numbers in the features of a block, 4 MB of float64, and rows at least. What a block needs is
# allocated once for a thread: fresh pages for every block cost more than what is written there.
_NUMBERS = 2**19
_FEWEST = 256
_ROOMS = threading.local()


class Features(NamedTuple):
    """Features and r of a chunk, kept from pass to pass; `full` once they are computed."""

    phi: Any
    r: Array
    full: NDArray[np.bool_]


class Variances(NamedTuple):
    """Variances of g at the rows of a chunk under one root of B; `full` once they are known."""

    w: Array
    full: NDArray[np.bool_]


class Job(NamedTuple):
    """A chunk, the number of its first row, its sites about the prior mean, and what is kept."""

    piece: ChunkTask
    first: int
    tau: Array
    nu: Array
    kept: Features | None = None
    variances: Variances | None = None


class Done(NamedTuple):
    """Sums over the rows of a chunk, and what is asked of each: its sites, or other columns."""

    sums: Sums
    columns: tuple[Array, ...] = ()


class Part(NamedTuple):
    """A block of a chunk, its features and r, and room of the shape of the features.

    `w` are variances of g, if they are kept: to be filled in, or `known`.
    """

    some: slice
    X: Array
    block: Block
    phi: Any
    r: Array
    room: Any
    w: Array | None = None
    known: bool = False


def parts(state: State, job: Job, chunk: Chunk) -> Iterator[Part]:
    """Walk through the blocks of a chunk; the room of a block is the next one's."""
    inducing, kept = state.inducing, job.kept
    n = len(chunk.y)
    count = -(-n // block_rows(inducing.size))
    step = -(-n // max(count, 1))  # a small block at the end would cost as much as others
    width = inducing.size, inducing.dtype
    room = room_for("room", min(step, n), *width)
    phi = room_for("phi", min(step, n), *width) if kept is None else kept.phi
    for start in range(0, n, step):
        some = slice(start, min(start + step, n))
        X = chunk.X[some]
        columns = chunk.weights, chunk.prior, chunk.scale
        weights, prior, scale = (None if a is None else a[some] for a in columns)
        block = Block(chunk.y[some], weights, prior, job.tau[some], job.nu[some], scale)
        length = some.stop - start
        if kept is None:
            found = inducing.features(X, phi[:length])
        elif kept.full[0]:
            found = phi[some], kept.r[some]
        else:
            found = inducing.features(X, phi[some])
            kept.r[some] = found[1]
        w, known = None, False
        if job.variances is not None:
            w, known = job.variances.w[some], bool(job.variances.full[0])
        yield Part(some, X, block, *found, room[:length], w, known)
    if kept is not None:
        kept.full[0] = True


def block_rows(size: int) -> int:
    """Rows in a block for so many inducing inputs."""
    return max(_FEWEST, _NUMBERS // size)


def room_for(name: str, rows: int, size: int, dtype: Any) -> Any:
    """Return what this thread wrote to last under a name, (rows, size), or fresh memory."""
    kept = vars(_ROOMS).get(name)
    if kept is None or kept.dtype != dtype or kept.size < rows * size:
        kept = np.empty(max(rows, block_rows(size)) * size, dtype)
        setattr(_ROOMS, name, kept)
    return kept[: rows * size].reshape(rows, size)


class Accumulated:
    """The sums B and h of a chunk, in float64 whatever the dtype of the features."""

    def __init__(self, state: State) -> None:
        m, self._dtype = state.inducing.size, state.inducing.dtype
        self.B, self.h = np.zeros((m, m)), np.zeros(m)

    def square(self, phi: Any, T: Array, room: Any) -> None:
        """Add sum T phi phi^T; `room` is overwritten."""
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(sign * T > 0.0)
            if not chosen.size:
                continue
            root = np.sqrt(np.abs(T[chosen])).astype(self._dtype)[:, None]
            rows = room[: chosen.size]
            if chosen.size == T.size:
                np.multiply(phi, root, out=rows)
            else:
                np.take(phi, chosen, axis=0, out=rows, mode="clip")
                rows *= root
            if self._dtype == self.B.dtype:
                add_square(rows, sign, self.B)
            else:
                total = np.zeros(self.B.shape, self._dtype)
                add_square(rows, sign, total)
                self.B += total

    def project(self, phi: Any, N: Array) -> None:
        """Add sum N phi."""
        self.h += phi.T @ N.astype(self._dtype)

    def sums(self) -> Sums:
        """Return the arrays to add up over chunks."""
        return {"B": packed(self.B), "h": self.h}


def marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Means and variances of g; the features divided by the root of B are left in the room."""
    solved = part.room
    np.copyto(solved, part.phi)
    divide(solved, state.rounded)
    return _means(state, part), np.einsum("nm,nm->n", solved, solved).astype(float)


def _marginals(state: State, part: Part) -> tuple[Array, Array]:
    """Means and variances of g, which is all of the work where variances are not known."""
    if part.known:
        assert part.w is not None
        return _means(state, part), part.w.copy()
    mean, w = marginals(state, part)
    if part.w is not None:
        part.w[:] = w
    return mean, w


def _means(state: State, part: Part) -> Array:
    found: Array = (part.phi @ state.mean.astype(part.phi.dtype)).astype(float)
    return found


def _variances_are_known(job: Job) -> None:
    """Mark the variances of the chunk as complete."""
    if job.variances is not None:
        job.variances.full[0] = True


def _sites(block: Block, r: Array, power: float) -> tuple[Array, Array]:
    """Return the sites of g that follow from those of f."""
    share = 1.0 + power * r * block.tau
    return block.tau / share, block.nu / share


def gather(state: State, job: Job) -> Done:
    """B and h of the sites as they are; sites that r leaves no room for are forgotten."""
    total, power = Accumulated(state), state.rule.power
    tau, nu = job.tau.copy(), job.nu.copy()
    for part in parts(state, job._replace(tau=tau, nu=nu), job.piece.load()):
        # Negative precisions that were found where r was smaller.
        wrong = ~(1.0 + power * part.r * part.block.tau > 0.0)
        part.block.tau[wrong] = part.block.nu[wrong] = 0.0
        T, N = _sites(part.block, part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    return Done(total.sums(), (tau, nu))


def sweep(state: State, job: Job, share: float = 1.0) -> Done:
    """Update all sites by the share of what the posterior asks for.

    Sums are B and h of the new sites; "change", "counts" and "worst", of whole updates.
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
            worst = (float(sizes[largest]), job.first + part.some.start + largest)
        tau[part.some] = block.tau + share * (new.tau - block.tau)
        nu[part.some] = block.nu + share * (new.nu - block.nu)
        T, N = _sites(block._replace(tau=tau[part.some], nu=nu[part.some]), part.r, power)
        total.project(part.phi, N)
        total.square(part.phi, T, part.room)
    _variances_are_known(job)
    own = {"change": change, "counts": counts, "worst": worst}
    return Done({**total.sums(), **own}, (tau, nu))


def means(state: State, job: Job) -> Done:
    """Settle the means with B, and what rows have of it, as they are: sums "h"."""
    total, power = Accumulated(state), state.rule.power
    nu = np.empty(job.tau.size)
    for part in parts(state, job, job.piece.load()):
        mean, w = _marginals(state, part)
        at = cavities(part.block, mean, w, part.r, power, power)
        nu[part.some] = settled(state.rule, part.block, at, mean, part.r)
        _, N = _sites(part.block._replace(nu=nu[part.some]), part.r, power)
        total.project(part.phi, N)
    _variances_are_known(job)
    return Done({"h": total.h}, (job.tau, nu))


def outcome(state: State, job: Job, rows: bool = False) -> Done:
    """Terms of the evidence; "worst" is the least expected row and its negative log density.

    With `rows` also mean and variance of f, and leave-one-out log densities, of every row.
    """
    power, evidence, least = state.rule.power, 0.0, (-np.inf, 0)
    columns = np.empty((3, job.tau.size if rows else 0))
    for part in parts(state, job, job.piece.load()):
        block = part.block
        mean, w = _marginals(state, part)
        at = cavities(block, mean, w, part.r, power, power)
        log_z = project(state.rule, block, at, "log_z")[0]
        evidence += float(np.sum(terms(at, log_z, power)))
        without = cavities(block, mean, w, part.r, power, 1.0)
        alone = project(state.rule, block._replace(weights=None), without, "log_z", whole=True)[0]
        last = int(np.argmin(alone))
        least = max(least, (-float(alone[last]), job.first + part.some.start + last))
        if rows:
            columns[:2, part.some] = _moments(block, at, power)
            columns[2, part.some] = alone
    _variances_are_known(job)
    return Done({"terms": evidence, "worst": least}, (*columns,) if rows else ())


def _moments(block: Block, at: Cavities, power: float) -> tuple[Array, Array]:
    """Mean and variance of f with its whole site, as the dense engine tells them."""
    kept = 1.0 + power * block.tau * at.v
    return block.centre((at.mean + power * block.nu * at.v) / kept), at.v / kept


# --- Selected rows: cavities, sites and evidence terms
#
# Symbols are those of `qpruntime.inference.sparse`; m is the prior mean, means of f and of g =
# phi^T w are about it. Cavities of g are N(m_c, c), those of f N(m + m_c, v), v = c + r; nothing is
# divided by the variance of g, so that rows far from every inducing input are rows like others.
# Where a row observes s f, projections alone know of s: sites, cavities and evidence are those of
# f.


class Block(NamedTuple):
    """Rows that are handled together: observations, and what their sites are.

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
        """Means of f for means about the prior's."""
        return mean if self.prior is None else mean + self.prior


class Cavities(NamedTuple):
    """Without the fraction `power` of a site; each of shape (n,).

    `T` and `N` are the sites of g; `kept` = 1 - power T w, `c` and `mean` are those of g, `v` is
    the variance of f. Rows that are not `proper` have none: there c = 0, mean = 0, v = 1.
    """

    T: Array
    N: Array
    kept: Array
    c: Array
    mean: Array
    v: Array
    proper: NDArray[np.bool_]


class Proposal(NamedTuple):
    """Sites that are asked for, and (inside, outside, skipped, held)."""

    tau: Array
    nu: Array
    counts: Array


def cavities(block: Block, mean: Array, w: Array, r: Array, power: float, part: float) -> Cavities:
    """Return the cavities of g ~ N(mean, w) without the fraction `part` of the sites.

    `power` is that of power EP, which says what a site of f is to g.
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
) -> tuple[Any, ...]:
    """Project the cavities; rows without one have weight 0."""
    weights = block.weights
    if not at.proper.all():
        weights = np.where(at.proper, 1.0 if weights is None else weights, 0.0)
    mean, std = block.centre(at.mean), np.sqrt(at.v)
    if (scale := block.scale) is None:
        return rule.project(mean, std, block.y, weights, wanted, whole)
    found = rule.project(scale * mean, scale * std, block.y, weights, wanted, whole)
    log_z, mean, std, where = found
    return log_z, mean / scale, std / scale, where


def propose(rule: PowerProjector, block: Block, at: Cavities) -> Proposal:
    """Return the sites of f that the cavities ask for; sites without one stay as they are."""
    _, mean, std, where = project(rule, block, at, "sites")
    with np.errstate(all="ignore"):
        precision = 1.0 / at.v
        own = 1.0 / (std * std) - precision
        held = rule.bounded * np.sum(own * at.v < -HELD)
        if rule.nonnegative:
            own = np.maximum(own, 0.0)
        about = mean if block.prior is None else mean - block.prior
        nu = ((about - at.mean) * precision + about * own) / rule.power
        tau = own / rule.power
    taken = np.isfinite(tau) & np.isfinite(nu) & at.proper
    tau, nu = np.where(taken, tau, block.tau), np.where(taken, nu, block.nu)
    if block.weights is not None:
        tau[block.weights == 0.0] = 0.0
        nu[block.weights == 0.0] = 0.0
    skipped = np.sum(~taken)
    counts = np.array([np.sum(where == INSIDE), np.sum(where == OUTSIDE_GRID), skipped, held])
    return Proposal(tau, nu, counts)


def settled(rule: PowerProjector, block: Block, at: Cavities, mean: Array, r: Array) -> Array:
    """Return nu for which the mean of g stays what the projected ones ask for, tau being fixed."""
    projected = project(rule, block, at, "means")[1]
    with np.errstate(all="ignore"):
        pull = (projected - block.centre(at.mean)) / at.v
        nu = (at.T * mean + pull / rule.power) * (1.0 + rule.power * r * block.tau)
    return np.where(at.proper & np.isfinite(nu), nu, block.nu)


def pulls(at: Cavities, power: float) -> Array:
    """beta = N - T m_g of each row, whose sum of beta phi is the posterior mean of w, shape (n,).

    From the cavity: where a site dominates its marginal the difference itself cancels.
    """
    found: Array = (at.N - at.T * at.mean) / (1.0 + power * at.T * at.c)
    return found


def terms(at: Cavities, log_z: Array, power: float) -> Array:
    """Terms of the rows in the log evidence, shape (n,), besides `State.evidence`.

    The quadratic forms of means and sites, of order T m^2 and cancelling, come to power c beta^2/2
    here and -|mean of w|^2/2 there, since the sum of beta phi is that mean. So the evidence is
    stationary in the means as they were computed too.
    """
    t = power * at.T * at.c
    found: Array = (log_z + 0.5 * np.log1p(t)) / power + 0.5 * power * at.c * pulls(at, power) ** 2
    return found


def changes(block: Block, new: Proposal, at: Cavities, power: float) -> tuple[Array, Array]:
    """Sums of squares of the changes of tau and nu, plain and in posterior units; sizes of rows.

    Plain ones are in units of what is observed, as the dense engine has them.
    """
    width = at.v / (1.0 + power * block.tau * at.v)
    d_tau, d_nu = new.tau - block.tau, new.nu - block.nu
    # Smaller changes than rounding are none: of sites, and plain ones also that of cavities.
    still = 1e-14 * np.abs(block.nu)
    d_nu = np.where(np.abs(d_nu) < still, 0.0, d_nu)
    in_units, moved = d_tau * width, d_nu * np.sqrt(np.abs(width))
    d_tau = np.where(np.abs(in_units) * at.kept < 1e-14, 0.0, d_tau)
    d_nu = np.where(np.abs(d_nu) * at.kept < still, 0.0, d_nu)
    if block.scale is not None:
        d_tau, d_nu = d_tau / block.scale**2, d_nu / block.scale
    sums = np.array([np.vdot(a, a) for a in (d_tau, d_nu, in_units, moved)])
    return sums, np.abs(in_units) + np.abs(moved)
