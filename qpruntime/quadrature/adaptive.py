"""Quadrature of any tilted density, from its log density alone.

Between the edges that `qpruntime.quadrature.tilted` lays, panels are bisected until the polynomial
through 16 Gauss-Legendre nodes represents the density, and then until it represents
I(F) = phi(Phi^-1(F)), F the CDF. Kinks and jumps are closed in on by halves. The mass at the nodes
is accumulated from the left and from the right; 1 - F is never formed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import legendre

from qpruntime.jit import RULE, Pointer, call_landmark, kernel
from qpruntime.quadrature.tilted import (
    EXHAUSTED,
    NO_MASS,
    NOT_A_NUMBER,
    OK,
    explore,
    level,
    rounding,
)
from qpruntime.special import ndtri_density

__all__ = [
    "BARYCENTRIC",
    "NODES",
    "WEIGHTS",
    "N",
    "adaptive_rule",
    "back_from",
    "last_coefficients",
    "location_rule",
    "log_mass_at",
    "look_around",
    "marks_from",
    "quantile_nodes",
]

#: Nodes of a panel.
N = 16
NODES, WEIGHTS = legendre.leggauss(N)
_VANDER = legendre.legvander(NODES, N - 1)
#: Row k gives the Legendre coefficient k of the interpolant: (2k + 1)/2 sum of w P_k(x) q.
_COEFFICIENT = (_VANDER * WEIGHTS[:, None]).T * (np.arange(N)[:, None] + 0.5)
#: Rows of the last three, which say how well a panel is resolved.
_LAST = np.ascontiguousarray(_COEFFICIENT[-3:])
_integrals = [legendre.legval(NODES, legendre.legint(row, lbnd=-1.0)) for row in _COEFFICIENT.T]
#: Row j integrates the interpolant from -1 to node j; turned round, from node j to 1.
_BELOW = np.ascontiguousarray(np.array(_integrals).T)
BARYCENTRIC = (-1.0) ** np.arange(N) * np.sqrt((1.0 - NODES**2) * WEIGHTS)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_EPS = 2.0**-52

#: A panel is resolved if its last coefficients are below this part of its largest value.
RELATIVE = 1e-13
#: ... or what they stand for below this part of the whole.
ABSOLUTE = 1e-15
#: Scores Phi^-1(F): what powers of them may be wrong by, digits of F, and where they are left out:
#: F = FLOOR at -FARTHEST.
_SCORES, _DIGITS = 1e-13, 1e-12
FLOOR, FARTHEST = 1e-24, 10.15
#: Panels evaluated at most, and what error that may leave.
PANELS, GIVEN_UP = 4000, 1e-6
_MARKS = 16
#: Relative errors below this that both halves keep, so many times over, are noise of log p.
_NOISE, _NOISY = 1e-4, 3.0
_STACK = 128


@kernel
def last_coefficients(values):
    """Largest of the last three Legendre coefficients."""
    largest = 0.0
    for k in range(3):
        c = 0.0
        for j in range(N):
            c += _LAST[k, j] * values[j]
        largest = max(largest, abs(c))
    return largest


@kernel
def highest(values):
    """Largest of the values at the nodes."""
    largest = values[0]
    for j in range(1, N):
        largest = max(largest, values[j])
    return largest


@kernel
def sample(split, power, place, a, b, y, theta, q):
    """Fill the density at the nodes of [a, b], relative to that at the anchor.

    Returns (its integral, largest value, last coefficients less what rounding makes of them).
    """
    half, centre = 0.5 * (b - a), 0.5 * (a + b)
    mass, largest, highest, lowest = 0.0, 0.0, -math.inf, math.inf
    for j in range(N):
        e = level(split, power, place, centre + half * NODES[j], y, theta)
        if math.isnan(e):
            return math.nan, 0.0, 0.0
        highest = max(highest, e)
        if e > -600.0:
            lowest = min(lowest, e)
        q[j] = math.exp(min(e, 700.0))
        largest = max(largest, q[j])
        mass += WEIGHTS[j] * q[j]
    if largest == 0.0:
        return 0.0, 0.0, 0.0
    # The likelihood sees a rounded f: what that does depends on how steep it is.
    noise = rounding(place, highest, centre)
    noise += _EPS * abs(place[0] + centre) * max(highest - lowest, 0.0) / (b - a)
    return mass * half, largest, max(last_coefficients(q) - 4.0 * noise * largest, 0.0)


@kernel
def grown(array, used):
    """Return a copy with twice as many rows."""
    bigger = np.empty((2 * array.shape[0], array.shape[1]))
    for i in range(used):
        for j in range(array.shape[1]):
            bigger[i, j] = array[i, j]
    return bigger


@kernel
def overlooked(place, a, b, q, largest, points, levels, start):
    """Largest disagreement of a panel's polynomial with the density at the points scanned in it.

    Times the distance to the next point, since that is how wide what was overlooked may be.
    """
    half, centre, worst = 0.5 * (b - a), 0.5 * (a + b), 0.0
    for i in range(start, points.size - 1):
        if points[i] >= b:
            break
        x = (points[i] - centre) / half
        above, below = 0.0, 0.0
        for j in range(N):
            gap = x - NODES[j]
            if gap == 0.0:
                above, below = q[j], 1.0
                break
            share = BARYCENTRIC[j] / gap
            above += share * q[j]
            below += share
        wrong = abs(above / below - math.exp(min(levels[i], 600.0)))
        if wrong > (1e-12 + 4.0 * rounding(place, levels[i], points[i])) * largest:
            worst = max(worst, wrong * min(points[i + 1] - points[i - 1], b - a))
    return worst


@kernel
def rough_moments(edges, mass, order):
    """Return (mass, mean, mean distance, mean distance^order) of masses between edges."""
    total, mean, near, far = 0.0, 0.0, 0.0, 0.0
    for i in range(mass.size):
        total += mass[i]
        mean += mass[i] * 0.5 * (edges[i] + edges[i + 1])
    mean /= total
    for i in range(mass.size):
        r = abs(0.5 * (edges[i] + edges[i + 1]) - mean) + 0.25 * (edges[i + 1] - edges[i])
        near += mass[i] * r
        far += mass[i] * r**order
    return total, mean, near, far


@kernel
def resolve_density(split, power, place, edges, points, levels, order, y, theta):
    """Bisect the intervals between the edges until the density is resolved in each.

    Returns (status, panels, density, number, error): rows (start, stop, mass) of `panels`,
    ascending, rows of the density at their nodes, and the sum of errors left.
    """
    count = edges.size - 1
    panels, density = np.empty((2 * count, 3)), np.empty((2 * count, N))
    first, masses, q = np.empty((count, N)), np.empty(count), np.empty((_STACK, N))
    facts, stack = np.empty((count, 2)), np.empty((_STACK, 6))
    for i in range(count):
        masses[i], facts[i, 0], facts[i, 1] = sample(
            split, power, place, edges[i], edges[i + 1], y, theta, first[i]
        )
    total, mean, near, far = rough_moments(edges, masses, order)
    if math.isnan(total):
        return NOT_A_NUMBER, panels, density, 0, 0.0
    if not (total > 0.0 and math.isfinite(total)):
        return NO_MASS, panels, density, 0, 0.0
    used, evaluated, left, start = 0, count, 0.0, 1
    for i in range(count):
        stack[0, 0], stack[0, 1], stack[0, 2] = edges[i], edges[i + 1], masses[i]
        stack[0, 3], stack[0, 4], stack[0, 5] = facts[i, 0], facts[i, 1], 0.0
        for j in range(N):
            q[0, j] = first[i, j]
        pending = 1
        while pending:
            pending -= 1
            a, b, mass = stack[pending, 0], stack[pending, 1], stack[pending, 2]
            largest, last, bad = stack[pending, 3], stack[pending, 4], stack[pending, 5]
            # An error in mass counts by how far out it moves mass.
            r = max(abs(a - mean), abs(b - mean))
            cost = 1.0 / total + r / near + r**order / far
            error = last * (b - a) * cost
            middle = 0.5 * (a + b)
            done = last <= RELATIVE * largest or error <= ABSOLUTE or bad >= _NOISY
            if done:
                while start < points.size and points[start] <= a:
                    start += 1
                missed = overlooked(place, a, b, q[pending], largest, points, levels, start) * cost
                if missed > ABSOLUTE:
                    done = False
                    error += missed
            if not done:
                done = b - a <= 4.0 * _EPS * max(abs(middle), 1e-9 * abs(place[0]))
                done = done or evaluated > PANELS or pending + 2 > _STACK
            if done:
                if last > RELATIVE * largest and error > ABSOLUTE:
                    left += error
                if used == panels.shape[0]:
                    panels, density = grown(panels, used), grown(density, used)
                panels[used, 0], panels[used, 1], panels[used, 2] = a, b, mass
                for j in range(N):
                    density[used, j] = q[pending, j]
                used += 1
                continue
            evaluated += 2
            before, worse = last / largest, 0
            for k in range(2):
                low, high = (middle, b) if k == 0 else (a, middle)
                row = pending + k
                mass, largest, last = sample(split, power, place, low, high, y, theta, q[row])
                if math.isnan(mass):
                    return NOT_A_NUMBER, panels, density, 0, 0.0
                stack[row, 0], stack[row, 1], stack[row, 2] = low, high, mass
                stack[row, 3], stack[row, 4] = largest, last
                worse += last > 0.25 * before * largest
            # Of a kink or a jump at most one half sees anything; noise is seen by both.
            bad = bad + 1.0 if worse == 2 and before < _NOISE else 0.0
            stack[pending, 5], stack[pending + 1, 5] = bad, bad
            pending += 2
    return OK, panels, density, used, left


@kernel
def normal_scores(q, half, lower, upper, mass, total, score, hat):
    """Fill Phi^-1(F) and I = phi(Phi^-1(F)) at the nodes of a panel with density `q`.

    `lower` and `upper` is the mass left and right of the panel.
    """
    for j in range(N):
        below, above = math.inf, math.inf
        if lower <= 0.5 * total:
            below = 0.0
            for k in range(N):
                below += _BELOW[j, k] * q[k]
            below = lower + half * below
        if upper <= 0.5 * total:
            above = 0.0
            for k in range(N):
                above += _BELOW[N - 1 - j, N - 1 - k] * q[k]
            above = upper + half * above
        tail = min(below, above) / total
        if tail > 1e-300:
            hat[j], x = ndtri_density(min(tail, 0.5))
        else:
            hat[j], x = 0.0, -38.0
        score[j] = x if below <= above else -x


@kernel
def scores_resolved(q, score, half, lower, upper, mass, total, degree, products):
    """Whether powers of Phi^-1(F) up to `degree`, which is even, are resolved in a panel.

    At an end of the support they are singular where I(F) is not. And where F runs over many
    powers of ten, the node farthest out must know it to a few digits, or its score is nonsense.
    """
    for j in range(N):
        products[j] = q[j] * score[j] ** degree
    last = last_coefficients(products)
    if last * half > _SCORES * total and last > RELATIVE * highest(products):
        return False
    outer = min(lower, upper)
    if lower < upper:
        for k in range(N):
            outer += half * _BELOW[0, k] * q[k]
    else:
        for k in range(N):
            outer += half * _BELOW[0, N - 1 - k] * q[k]
    error = half * (0.1 * last_coefficients(q) + _EPS * highest(q))
    return error <= _DIGITS * outer or mass <= FLOOR * total


@kernel
def quantile_nodes(split, power, mu, sigma, y, theta, marks, order, degree):
    """Return (status, place, log of the mass, d, w, p, z, error): nodes for integrals over F.

    d: offsets from the anchor `place[0]`, w: weights of integrals over f, p: of integrals over the
    tilted probability, z: Phi^-1(F) at the nodes. Integrals of I(F) = phi(z) and of moments up to
    `order` are resolved, and if `degree`, which is even, is not 0, those of powers of z up to that,
    and p is 0 where F is too small for z to be known; `error` is what was given up, relative.
    """
    edges = np.empty(2048)
    none = np.empty((0, N))
    status, place, count, points, levels = explore(
        split, power, mu, sigma, y, theta, marks, order, edges
    )
    if status != OK:
        return status, place, 0.0, none, none, none, none, 0.0
    status, panels, density, used, error = resolve_density(
        split, power, place, edges[:count], points, levels, order, y, theta
    )
    if status != OK:
        return status, place, 0.0, none, none, none, none, error
    total = 0.0
    upper = np.empty(used + 1)
    upper[used] = 0.0
    for i in range(used - 1, -1, -1):
        upper[i] = upper[i + 1] + panels[i, 2]
    total = upper[0]
    if not (total > 0.0 and math.isfinite(total)):
        return NO_MASS, place, 0.0, none, none, none, none, error
    score, hat, q, products = np.empty(N), np.empty(N), np.empty(N), np.empty(N)
    stack = np.empty((_STACK, 6))
    size = 0.0
    for i in range(used):
        half = 0.5 * (panels[i, 1] - panels[i, 0])
        normal_scores(
            density[i],
            half,
            total - upper[i] if i else 0.0,
            upper[i + 1],
            panels[i, 2],
            total,
            score,
            hat,
        )
        for j in range(N):
            size += half * WEIGHTS[j] * hat[j]
    d, w = np.empty((used + 32, N)), np.empty((used + 32, N))
    p, z = np.empty((used + 32, N)), np.empty((used + 32, N))
    out, evaluated, lower = 0, used, 0.0
    for i in range(used):
        stack[0, 0], stack[0, 1], stack[0, 2] = panels[i, 0], panels[i, 1], panels[i, 2]
        stack[0, 3], stack[0, 4], stack[0, 5] = lower, upper[i + 1], math.inf
        pending, whole = 1, True
        while pending:
            pending -= 1
            a, b, mass = stack[pending, 0], stack[pending, 1], stack[pending, 2]
            below, above, before = stack[pending, 3], stack[pending, 4], stack[pending, 5]
            half, centre = 0.5 * (b - a), 0.5 * (a + b)
            if whole:
                for j in range(N):
                    q[j] = density[i, j]
            else:
                sample(split, power, place, a, b, y, theta, q)
            normal_scores(q, half, below, above, mass, total, score, hat)
            last, largest = last_coefficients(hat), highest(hat)
            done = last * half <= ABSOLUTE * size or last <= RELATIVE * largest
            rough = done and degree > 0
            if rough:
                rough = not scores_resolved(
                    q, score, half, below, above, mass, total, degree, products
                )
                done = not rough
            if not done:
                stop = b - a <= 4.0 * _EPS * max(abs(centre), 1e-9 * abs(place[0]))
                if not rough:
                    stop = stop or (last < 1e-10 * largest and last > 0.25 * largest * before)
                if stop or evaluated > PANELS or pending + 2 > _STACK:
                    done = True
                    if not rough:
                        error += last * half / size
            if done:
                if out == d.shape[0]:
                    d, w, p, z = grown(d, out), grown(w, out), grown(p, out), grown(z, out)
                for j in range(N):
                    d[out, j] = centre + half * NODES[j]
                    w[out, j] = half * WEIGHTS[j]
                    p[out, j] = half * WEIGHTS[j] * q[j] / total
                    z[out, j] = score[j]
                    if degree > 0 and abs(score[j]) > FARTHEST:
                        p[out, j] = 0.0
                out += 1
            else:
                left, _, _ = sample(split, power, place, a, centre, y, theta, q)
                right, _, _ = sample(split, power, place, centre, b, y, theta, q)
                evaluated += 2
                before = math.inf if rough else last / largest
                stack[pending, 0], stack[pending, 1], stack[pending, 2] = centre, b, right
                stack[pending, 3], stack[pending, 4] = below + left, above
                stack[pending, 5] = before
                pending += 1
                stack[pending, 0], stack[pending, 1], stack[pending, 2] = a, centre, left
                stack[pending, 3], stack[pending, 4] = below, right + above
                stack[pending, 5] = before
                pending += 1
            whole = False
        lower += panels[i, 2]
    if error > GIVEN_UP:
        return EXHAUSTED, place, 0.0, none, none, none, none, error
    return OK, place, math.log(total), d[:out], w[:out], p[:out], z[:out], error


@kernel
def look_around(landmark, y, theta):
    """Return the points around which modes are looked for: 0, y and the likelihood's own."""
    marks = np.empty(_MARKS + 2)
    marks[0], marks[1] = 0.0, y
    for k in range(_MARKS):
        marks[k + 2] = call_landmark(landmark, y, theta, k)
        if math.isnan(marks[k + 2]):
            return marks[: k + 2]
    return marks


@kernel
def log_mass_at(place, mu, sigma):
    """log of the tilted density at the anchor, likelihood times N(mu, sigma^2)."""
    anchor, rest0, curvature0, _, _ = place
    log_anchor = rest0 - 0.5 * curvature0 * anchor * anchor - math.log(sigma) - _HALF_LOG_2PI
    return log_anchor - 0.5 * ((anchor - mu) / sigma) ** 2


@kernel
def integrate(split, power, mu, sigma, y, theta, marks):
    """Return (status, log Z, anchor, mean less the anchor, variance, sigma*) of one cavity."""
    status, place, log_mass, d, w, p, z, _ = quantile_nodes(
        split, power, mu, sigma, y, theta, marks, 2.0, 0
    )
    if status != OK:
        return status, 0.0, 0.0, 0.0, 0.0, 0.0
    whole, shift, star = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            whole += p[i, j]
            shift += p[i, j] * d[i, j]
            star += w[i, j] * math.exp(-0.5 * z[i, j] * z[i, j])
    shift /= whole
    variance = 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            variance += p[i, j] * (d[i, j] - shift) ** 2
    log_z = log_mass_at(place, mu, sigma) + log_mass + math.log(whole)
    return OK, log_z, place[0], shift, variance / whole, star / math.sqrt(2.0 * math.pi)


def _adaptive_rule(split, landmark, power, mu, sigma, y, theta):
    """Return (status, log Z, mean, variance, sigma*) of one cavity."""
    marks = look_around(landmark, y, theta)
    status, log_z, anchor, shift, variance, star = integrate(
        split, power, mu, sigma, y, theta, marks
    )
    return float(status), log_z, anchor + shift, variance, star


@kernel
def marks_from(landmark, y, theta):
    """`look_around`, as distances from y."""
    marks = look_around(landmark, y, theta)
    for k in range(marks.size):
        marks[k] -= y
    return marks


@kernel
def back_from(mu, y, anchor, shift):
    """Mean of a density integrated in f - y, measured from whichever of mu and y is nearer."""
    gap = (anchor - (mu - y)) + shift
    return mu + gap if abs(gap) < abs(anchor + shift) else y + (anchor + shift)


def _location_rule(split, landmark, power, mu, sigma, y, theta):
    """`_adaptive_rule` where log p depends on f - y alone, which is integrated over.

    A peak at y may be narrower than the distance between the doubles next to y.
    """
    status, log_z, anchor, shift, variance, star = integrate(
        split, power, mu - y, sigma, 0.0, theta, marks_from(landmark, y, theta)
    )
    return float(status), log_z, back_from(mu, y, anchor, shift), variance, star


#: `RULE` of `qpruntime.jit`: moments and sigma* of any tilted density. Kernels get its address,
#: so that it compiles only where it is needed.
adaptive_rule = Pointer(_adaptive_rule, RULE)
location_rule = Pointer(_location_rule, RULE)
