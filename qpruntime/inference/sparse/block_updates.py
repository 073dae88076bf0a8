"""Some rows at once: cavities, the sites they ask for, and their terms of the evidence.

Symbols are those of `qpruntime.inference.sparse`; m is the prior mean, means of f and of g = phi^T
w are about it. Cavities of g are N(m_c, c), those of f N(m + m_c, v), v = c + r; nothing is divided
by the variance of g, so that rows far from every inducing input are rows like others. Where a row
observes s f, projections alone know of s: sites, cavities and evidence are those of f.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.fixed_point.ended import HELD
from qpruntime.inference.sparse.rule import Rule, Wanted
from qpruntime.projection.kernel import INSIDE, OUTSIDE_GRID

__all__ = [
    "Block",
    "Cavities",
    "Proposal",
    "cavities",
    "changes",
    "propose",
    "pulls",
    "settled",
    "terms",
]


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
    rule: Rule, block: Block, at: Cavities, wanted: Wanted, whole: bool = False
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


def propose(rule: Rule, block: Block, at: Cavities) -> Proposal:
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


def settled(rule: Rule, block: Block, at: Cavities, mean: Array, r: Array) -> Array:
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
