"""EP's fixed point in the form for kernels, and every site's tilted density: nodes and moments.

The posterior at a fixed point of EP is q(f) = N(m, V) times the product of e_j(f_j). The factor e_j
= p(y_j|f_j)^w_j / site_j is scaled so that its mean under q is 1. All corrections use these e_j:
their Hermite moments, or log E e_j under other normals.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss

from qpruntime._numba import inlined_by_numba, kernel
from qpruntime._pointers import call_landmark, call_moments, call_raised_moments, call_split
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, IntArray
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import ABSENT_LANDMARK, NO_RULE

__all__ = [
    "ORDERS",
    "Rule",
    "Tilted",
    "TiltedMoments",
    "log_factor",
    "log_mean",
    "rule_of",
    "tilted_moments",
]

#: Number of Hermite moments, from 0 to 8.
ORDERS = 9
#: Panels cover this many standard deviations on either side of the mean.
REACH = 9.0
_PANELS, _NODES = 12, 16
_X, _W = leggauss(_NODES)
#: Largest number of nodes of a site, which leaves room for halving panels towards jumps.
_ROOM = 5120
_DEPTH = 40
#: A panel is resolved if its halves agree with its mass, and its sixth moment, to this.
_EXACT = 1e-12
#: Even steps suffice if half of them give the same result to this; the error of all of them is then
#: about its square.
_EVEN, _HALVES = 121, 1e-7
#: Gauss-Hermite nodes of a normal, for means without closed form.
_G, _GW = hermegauss(32)
_LOG_GW = np.log(_GW / math.sqrt(2.0 * math.pi))
#: Normals narrower than this share of a site's variance would fall between the nodes of its panels.
_NARROW = 0.02
_MARKS, _GRADES = 6, 8
#: Additional edges outside.
_FAR = (12.0, 16.0, 24.0, 40.0)


class Rule(NamedTuple):
    """Likelihood in the form that `log_mean` takes; `rule_of` makes it."""

    theta: Array
    closed: bool
    raised: bool
    location: bool
    split: int
    moments: int
    raised_moments: int
    landmarks: int


class TiltedMoments(NamedTuple):
    """Fixed point of EP: sites, marginal means and standard deviations, each of shape (N,)."""

    tau: Array
    nu: Array
    mean: Array
    std: Array
    y: Array
    weights: Array


class Tilted(NamedTuple):
    """Tilted densities: Hermite moments (N, 9), and e_j at nodes if means have no closed form.

    `nodes` and `masses` (quadrature weights times e_j) have a row of `counts` numbers per site.
    `base` is log E e_j before scaling, shape (N,).
    """

    hermite: Array
    base: Array
    nodes: Array
    masses: Array
    counts: Array


def rule_of(likelihood: Likelihood, weights: Array) -> Rule:
    """Return a likelihood in the form for kernels; `weights` are powers of it."""
    raised = likelihood.powers.moments if likelihood.powers else None
    likelihood.split.reset()
    return Rule(
        likelihood.theta,
        likelihood.moments is not None and (bool((weights == 1.0).all()) or raised is not None),
        raised is not None,
        likelihood.moves,
        likelihood.split.handle,
        likelihood.moments.handle if likelihood.moments else NO_RULE,
        raised.handle if raised else NO_RULE,
        (likelihood.landmarks or ABSENT_LANDMARK).handle,
    )


@inlined_by_numba
def log_factor(rule: Rule, fixed: TiltedMoments, j: int, f: float) -> float:
    """Return log e_j at f up to a constant, measured from the site at its mean.

    It is inlined, like the next two functions, because passing the arrays costs five times the
    work.
    """
    log_rest, curvature = call_split(rule.split, f, fixed.y[j], rule.theta)
    d = f - fixed.mean[j]
    tilt = fixed.nu[j] - fixed.tau[j] * fixed.mean[j]
    w = fixed.weights[j]
    level = log_rest - 0.5 * curvature * f * f if w != 0.0 else 0.0
    return float(w * level + d * (0.5 * fixed.tau[j] * d - tilt))


@inlined_by_numba
def closed_mean(rule: Rule, fixed: TiltedMoments, j: int, mean: float, variance: float) -> float:
    """Return log E e_j under N(mean, variance) by moments at an equivalent cavity; NaN if none."""
    tau, w = fixed.tau[j], fixed.weights[j]
    d = mean - fixed.mean[j]
    g = tau * mean - fixed.nu[j]
    kept = 1.0 - tau * variance
    v = variance / kept if kept > 0.0 else math.nan
    log_z = 0.0
    if w == 1.0:
        log_z = call_moments(rule.moments, mean + v * g, math.sqrt(v), fixed.y[j], rule.theta)[0]
    elif w != 0.0:
        log_z = call_raised_moments(
            rule.raised_moments, mean + v * g, math.sqrt(v), fixed.y[j], rule.theta, w
        )[0]
    tilt = fixed.nu[j] - tau * fixed.mean[j]
    return float(log_z - 0.5 * math.log(kept) + d * (0.5 * tau * d - tilt) + 0.5 * v * g * g)


@inlined_by_numba
def log_mean(
    rule: Rule, fixed: TiltedMoments, tilted: Tilted, j: int, mean: float, variance: float
) -> float:
    """Return log E e_j under N(mean, variance), relative to that under q (`Tilted.base`)."""
    v = max(variance, 1e-14 * fixed.std[j] ** 2)
    if rule.closed:
        value: float = closed_mean(rule, fixed, j, mean, v) - tilted.base[j]
    else:
        value = integrated_mean(rule, fixed, tilted, j, mean, v)
    return value


@kernel
def integrated_mean(
    rule: Rule, fixed: TiltedMoments, tilted: Tilted, j: int, mean: float, variance: float
) -> float:
    """Return `log_mean` without closed moments."""
    std = math.sqrt(variance)
    top, total = -math.inf, 0.0
    if variance > _NARROW * fixed.std[j] ** 2:
        # The nodes at which e_j is known resolve it, including jumps, and they resolve this normal
        # too.
        for k in range(tilted.counts[j]):
            u = (tilted.nodes[j, k] - mean) / std
            total += tilted.masses[j, k] * math.exp(-0.5 * u * u)
        return math.log(total / std) - HALF_LOG_2PI
    for k in range(_G.size):
        e = log_factor(rule, fixed, j, mean + std * _G[k]) + _LOG_GW[k]
        if e > top:
            total = total * math.exp(top - e) + 1.0
            top = e
        elif e > -math.inf:
            total += math.exp(e - top)
    return float(top + math.log(total) - tilted.base[j])


@kernel
def fill_panel(
    rule: Rule, fixed: TiltedMoments, j: int, a: float, b: float, top: float, out: Array
) -> tuple[float, float]:
    """Evaluate the tilted density, over e^top, on [a, b] in standard units; return two sums.

    Columns of `out` are nodes and weights times density; the sums are of mass and x^6 mass.
    """
    half, centre = 0.5 * (b - a), 0.5 * (a + b)
    mass, far = 0.0, 0.0
    for k in range(_NODES):
        x = centre + half * _X[k]
        e = log_factor(rule, fixed, j, fixed.mean[j] + fixed.std[j] * x) - 0.5 * x * x - top
        value = half * _W[k] * math.exp(min(e, 700.0))
        out[k, 0], out[k, 1] = x, value
        mass += value
        far += value * x**6
    return mass, far


@kernel
def insert_edge(edges: Array, count: int, x: float) -> int:
    """Insert an edge in order if it is within reach; return the new count."""
    if not abs(x) <= _FAR[-1]:
        return count
    i = count
    while i > 0 and edges[i - 1] > x:
        edges[i] = edges[i - 1]
        i -= 1
    edges[i] = x
    return count + 1


@kernel
def lay_edges(rule: Rule, fixed: TiltedMoments, j: int, edges: Array) -> int:
    """Fill ascending edges in standard units: even ones, and more where log p may bend.

    There are more around 0, around y of a location family and around landmarks: an edge of width 1
    is 1/1000 of a wide cavity, and would fall between all nodes of an even panel.
    """
    count = 0
    for k in range(_PANELS + 1):
        edges[count] = -REACH + 2.0 * REACH * k / _PANELS
        count += 1
    for x in _FAR:
        # If a cavity is cut off far out, one side falls like an exponential.
        count = insert_edge(edges, count, -x)
        count = insert_edge(edges, count, x)
    for k in range(_MARKS):
        f = 0.0
        if k == 1:
            f = fixed.y[j] if rule.location else math.nan
        elif k > 1:
            f = call_landmark(rule.landmarks, fixed.y[j], rule.theta, k - 2)
        x = (f - fixed.mean[j]) / fixed.std[j]
        count = insert_edge(edges, count, x)
        step = 0.25
        for _ in range(_GRADES):
            count = insert_edge(edges, count, x - step)
            count = insert_edge(edges, count, x + step)
            step *= 0.25
    return count


@kernel
def resolve(
    rule: Rule, fixed: TiltedMoments, j: int, nodes: Array, stack: Array, halves: Array
) -> tuple[int, float]:
    """Fill nodes of the tilted density of a site; return (their number, log of the scale).

    Even panels are bisected until halves agree with the whole, so that they close in on jumps and
    kinks. A count of -1 means that there is no mass, or a value that is not a number.
    """
    edges = np.empty(_PANELS + 9 + _MARKS * (2 * _GRADES + 1))
    n_edges = lay_edges(rule, fixed, j, edges)
    top = -math.inf
    for i in range(n_edges - 1):
        for k in range(_NODES):
            x = 0.5 * (edges[i] + edges[i + 1]) + 0.5 * (edges[i + 1] - edges[i]) * _X[k]
            e = log_factor(rule, fixed, j, fixed.mean[j] + fixed.std[j] * x) - 0.5 * x * x
            if e > top:
                top = e
            if math.isnan(e):
                return -1, top
    if not abs(top) < math.inf:
        return -1, top
    total, far = 0.0, 0.0
    for i in range(n_edges - 1):
        mass, sixth = fill_panel(rule, fixed, j, edges[i], edges[i + 1], top, halves)
        total += mass
        far += sixth
    far = max(far, 15.0 * total)
    count = 0
    for i in range(n_edges - 1):
        if edges[i + 1] <= edges[i]:
            continue
        stack[0, 0], stack[0, 1] = edges[i], edges[i + 1]
        stack[0, 2], stack[0, 3] = fill_panel(rule, fixed, j, edges[i], edges[i + 1], top, halves)
        pending = 1
        while pending:
            pending -= 1
            a, b = stack[pending, 0], stack[pending, 1]
            mass, sixth = stack[pending, 2], stack[pending, 3]
            middle = 0.5 * (a + b)
            lower_mass, lower_far = fill_panel(rule, fixed, j, a, middle, top, halves)
            upper_mass, upper_far = fill_panel(rule, fixed, j, middle, b, top, halves[_NODES:])
            wrong = abs(lower_mass + upper_mass - mass) > _EXACT * total
            wrong = wrong or abs(lower_far + upper_far - sixth) > _EXACT * far
            full = count + 2 * _NODES * (pending + 3) + 2 * _NODES * (n_edges - i) > nodes.shape[0]
            if not wrong or full or b - a < 1e-13 or pending + 2 > _DEPTH:
                for k in range(2 * _NODES):
                    nodes[count, 0], nodes[count, 1] = halves[k, 0], halves[k, 1]
                    count += 1
                continue
            stack[pending, 0], stack[pending, 1] = middle, b
            stack[pending, 2], stack[pending, 3] = upper_mass, upper_far
            stack[pending + 1, 0], stack[pending + 1, 1] = a, middle
            stack[pending + 1, 2], stack[pending + 1, 3] = lower_mass, lower_far
            pending += 2
    return count, top


@kernel
def own_mean(rule: Rule, fixed: TiltedMoments, j: int) -> float:
    """Return log E e_j under q, before scaling."""
    return closed_mean(rule, fixed, j, fixed.mean[j], fixed.std[j] ** 2)


@kernel
def even_moments(rule: Rule, fixed: TiltedMoments, j: int, logs: Array, hermite: Array) -> float:
    """Fill moments by even steps; return log E e_j, or NaN if e_j is not smooth.

    It counts as smooth if half of the points and the closed mean agree.
    """
    n = logs.size
    step = 2.0 * REACH / (n - 1)
    top = -math.inf
    for k in range(n):
        x = -REACH + step * k
        logs[k] = log_factor(rule, fixed, j, fixed.mean[j] + fixed.std[j] * x) - 0.5 * x * x
        top = max(top, logs[k])
    if not abs(top) < math.inf:
        return math.nan
    hermite[:] = 0.0
    coarse, far, far_coarse = 0.0, 0.0, 0.0
    for k in range(n):
        x = -REACH + step * k
        p = math.exp(logs[k] - top)
        sixth = p * x**6
        far += sixth
        if k % 2 == 0:
            coarse += p
            far_coarse += sixth
        before, now = 0.0, 1.0
        for order in range(ORDERS):
            hermite[order] += p * now
            before, now = now, x * now - order * before
    total = hermite[0]
    if not (
        abs(2.0 * coarse - total) <= _HALVES * total
        and abs(2.0 * far_coarse - far) <= _HALVES * max(far, 15.0 * total)
    ):
        return math.nan
    base = own_mean(rule, fixed, j)
    summed = top + math.log(total * step) - HALF_LOG_2PI
    if not abs(summed - base) <= _HALVES * max(1.0, abs(base)):
        return math.nan
    for order in range(ORDERS):
        hermite[order] /= total
    return base


@kernel
def fill_moments(
    rule: Rule,
    fixed: TiltedMoments,
    hermite: Array,
    base: Array,
    nodes: Array,
    masses: Array,
    counts: IntArray,
) -> int:
    """Fill `Tilted`, with nodes only if there is room; return a site without mass, or -1."""
    resolved, stack = np.empty((_ROOM, 2)), np.empty((_DEPTH, 4))
    halves, logs = np.empty((2 * _NODES, 2)), np.empty(_EVEN)
    for j in range(fixed.mean.size):
        if rule.closed:
            counts[j] = 0
            base[j] = even_moments(rule, fixed, j, logs, hermite[j])
            if not math.isnan(base[j]):
                continue
        count, top = resolve(rule, fixed, j, resolved, stack, halves)
        if count < 0:
            return j
        total = 0.0
        for k in range(count):
            total += resolved[k, 1]
        if not total > 0.0:
            return j
        hermite[j, :] = 0.0
        for k in range(count):
            x, p = resolved[k, 0], resolved[k, 1] / total
            before, now = 0.0, 1.0
            for order in range(ORDERS):
                hermite[j, order] += p * now
                before, now = now, x * now - order * before
            if nodes.shape[1]:
                nodes[j, k] = fixed.mean[j] + fixed.std[j] * x
                lift = math.exp(0.5 * x * x + HALF_LOG_2PI) if abs(x) < 36.0 else 0.0
                masses[j, k] = fixed.std[j] * p * lift
        counts[j] = count
        base[j] = top + math.log(total) - HALF_LOG_2PI
        if rule.closed:
            base[j] = own_mean(rule, fixed, j)
    return -1


def tilted_moments(rule: Rule, fixed: TiltedMoments, likelihood: Likelihood) -> tuple[Rule, Tilted]:
    """Integrate every tilted density; return the rule that has all means, and the moments.

    Raises
    ------
    NumericalError
        If a tilted density has no finite mass.
    """
    n = fixed.mean.size
    room = 0 if rule.closed else _ROOM
    tilted = Tilted(
        np.empty((n, ORDERS)),
        np.empty(n),
        np.empty((n, room)),
        np.empty((n, room)),
        np.zeros(n, np.int64),
    )
    site = fill_moments(rule, fixed, *tilted)
    likelihood.raise_failure()
    if site >= 0:
        raise NumericalError(
            f"the tilted density of site {site} has no finite mass within {_FAR[-1]:g} standard "
            "deviations: the marginals cannot be corrected; check that observation"
        )
    if rule.closed and np.isnan(tilted.base).any():  # there are powers without closed moments
        return tilted_moments(rule._replace(closed=False), fixed, likelihood)
    return rule, tilted
