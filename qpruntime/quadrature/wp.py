"""L_p projections: the Gaussian that minimises W_p to a tilted density (paper, Appendix B).

W_p^p(q, N(m, s^2)) = E |f - m - s Phi^-1(F(f))|^p under q is strictly convex in (m, s) (Theorem 1):
Newton's method, damped where the objective does not fall, from the answer for p = 2. For p near 1
the second derivatives jump wherever eps touches zero, and Newton's method may go to and fro: the
roots of both first derivatives, which are monotone, are then closed in on, one inside the other.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import WP_RULE, Pointer, kernel
from qpruntime.quadrature.adaptive import back_from, log_mass_at, look_around, marks_from
from qpruntime.quadrature.panel import NODES, WEIGHTS, N
from qpruntime.quadrature.quantiles import quantile_nodes
from qpruntime.quadrature.tilted import EXHAUSTED, OK, Raised
from qpruntime.quadrature.wp_panels import Law, add_panel, jacobi_rules

__all__ = [
    "enclose",
    "location_wp_rule",
    "minimise",
    "objective",
    "parameters",
    "standardise",
    "wp_rule",
]

_ITERATIONS = 200
#: First derivatives at a minimum, at most, in units of E |eps|^(p - 1).
_FLAT = 1e-5
#: Mean size of eps that makes no difference.
_SMALL = 1e-10
#: Places tried by `enclose` in each variable: every third is half way.
_HALVINGS = 150
#: Enclosures in standard deviations, and derivatives in units of E |eps|^(p - 1), that are small
#: enough.
_CLOSE, _LEVEL = 1e-15, 1e-13
#: Root mean square of eps, in standard deviations, below which a density counts as Gaussian.
_GAUSSIAN = 3e-12


def parameters(p):
    """What `wp_rule` takes: p, then the rules of `wp_panels`, as a flat array."""
    found = np.concatenate([[p], jacobi_rules(p).reshape(-1)])
    found.flags.writeable = False
    return found


@kernel
def standardise(d, p, z):
    """Return (mean of d, its standard deviation, E z d/deviation, panels, places).

    `panels` has for every panel the rows z and the density in x in [-1, 1], `places` the middle
    and the half length in standard deviations from the mean.
    """
    count = d.shape[0]
    whole, shift, variance, star = 0.0, 0.0, 0.0, 0.0
    for i in range(count):
        for j in range(N):
            whole += p[i, j]
            shift += p[i, j] * d[i, j]
    shift /= whole
    for i in range(count):
        for j in range(N):
            variance += p[i, j] * (d[i, j] - shift) ** 2
            star += p[i, j] * (d[i, j] - shift) * z[i, j]
    unit = math.sqrt(variance / whole)
    panels, places = np.empty((count, 2, N)), np.empty((count, 2))
    for i in range(count):
        for j in range(N):
            panels[i, 0, j] = z[i, j]
            panels[i, 1, j] = p[i, j] / (WEIGHTS[j] * whole)
        places[i, 0] = (0.5 * (d[i, 0] + d[i, N - 1]) - shift) / unit
        places[i, 1] = (d[i, N - 1] - d[i, 0]) / (NODES[N - 1] - NODES[0]) / unit
    return shift, unit, star / (whole * unit), panels, places


@kernel
def objective(panels, places, a, b, law, sums, e, products):
    """Fill sums = (W, W_a, W_b, W_aa, W_ab, W_bb), W = E |u - a - b z|^p / p."""
    for k in range(6):
        sums[k] = 0.0
    for i in range(panels.shape[0]):
        place = places[i, 0], places[i, 1]
        add_panel(sums, panels[i], place, a, b, law, e, products)


@kernel
def newton(sums, damping):
    """Return the step of Newton's method for (a, b), and by how much W should fall; NaN if flat."""
    bend = damping * (sums[3] + sums[5])
    aa, ab, bb = sums[3] + bend, sums[4], sums[5] + bend
    det = aa * bb - ab * ab
    if not det > 1e-13 * aa * bb:
        return math.nan, math.nan, math.nan
    da = (ab * sums[2] - bb * sums[1]) / det
    db = (ab * sums[1] - aa * sums[2]) / det
    return da, db, -0.5 * (da * sums[1] + db * sums[2])


@kernel
def minimise(panels, places, start, p, rules):
    """Return (status, a, b, W, evaluations) that minimise W = E |u - a - b z|^p / p."""
    sums, trial = np.empty(6), np.empty(6)
    e, products = np.empty(N), np.empty(N)
    a, b, damping = 0.0, start, 0.0
    objective(panels, places, a, b, Law(2.0, rules, 0.0), sums, e, products)
    if sums[0] < _GAUSSIAN**2:
        return OK, a, b, 0.0, 0
    tiny = 1e-13 * sums[0] ** (0.5 * (p - 1.0))
    objective(panels, places, a, b, Law(p, rules, tiny), sums, e, products)
    status = EXHAUSTED
    turns = 0
    for _ in range(_ITERATIONS):
        turns += 1
        if not sums[3] + sums[5] > 0.0:
            status = OK  # eps is rounding alone
            break
        tiny = 1e-13 * (p * sums[0]) ** (1.0 - 1.0 / p)
        da, db, gain = newton(sums, damping)
        if math.isnan(da):
            damping = max(10.0 * damping, 1e-8)
            continue
        size = max(abs(da), abs(db))
        if size <= 1e-15 * b:
            status = OK
            break
        objective(panels, places, a + da, b + db, Law(p, rules, tiny), trial, e, products)
        if gain < 1e-8 * sums[0]:
            # Too close for W to tell: steps have to become smaller.
            ahead_a, ahead_b, _ = newton(trial, damping)
            status = OK
            if not max(abs(ahead_a), abs(ahead_b)) < 0.5 * size:
                break
            better = True
        else:
            # Where eps has one sign there is no second derivative to go on with.
            bent = p >= 2.0 or trial[3] + trial[5] > 1e-3 * (sums[3] + sums[5])
            better = trial[0] < sums[0] and bent
        if better:
            a, b = a + da, b + db
            for k in range(6):
                sums[k] = trial[k]
            damping = 0.0 if damping < 1e-9 else 0.1 * damping
        else:
            damping = max(10.0 * damping, 1e-4)
            if damping > 1e12:
                break
    # Of one sign, eps has no second derivatives for p = 1, which is not the minimum.
    # Where eps is rounding alone, no answer is further from it than twice its size.
    if (p * sums[0]) ** (1.0 / p) < _SMALL:
        return OK, a, b, sums[0], turns
    steep = max(abs(sums[1]), abs(sums[2])) > _FLAT * (p * sums[0]) ** (1.0 - 1.0 / p)
    return EXHAUSTED if steep else status, a, b, sums[0], turns


@kernel
def next_place(low, high, f_low, f_high, turn):
    """A place between two at which a monotone function has different signs: secant, or half way."""
    middle = 0.5 * (low + high)
    if turn % 3 == 2 or not f_high > f_low:
        return middle
    place = low - f_low * (high - low) / (f_high - f_low)
    return place if low < place < high else middle


@kernel
def enclose(panels, places, start, p, rules):
    """Return (a, b, W) as `minimise`, by enclosures: 20 to 50 times slower, and never at a loss.

    E |a + c z|^p <= (2 d)^p at the minimum, d^p = E |u - start z|^p, bounds a and c = b - start.
    """
    sums, e, products = np.empty(6), np.empty(N), np.empty(N)
    law = Law(p, rules, 0.0)
    objective(panels, places, 0.0, start, law, sums, e, products)
    d = (p * sums[0]) ** (1.0 / p)
    b_low, b_high, g_low, g_high = start - 2.6 * d, start + 2.6 * d, -math.inf, math.inf
    level = _LEVEL * d ** (p - 1.0)
    a, b, spread, outer_side = 0.0, start, 8.0 * d, 0
    for outer in range(_HALVINGS):
        if outer == 0:
            b = start
        elif math.isinf(g_low) or math.isinf(g_high):
            b = 0.5 * (b_low + b_high)
        else:
            b = next_place(b_low, b_high, g_low, g_high, outer)
        # The minimising a moves less than the enclosure of b is wide, as a rule.
        low, high = max(a - spread, -8.0 * d), min(a + spread, 8.0 * d)
        objective(panels, places, low, b, law, sums, e, products)
        f_low = sums[1]
        objective(panels, places, high, b, law, sums, e, products)
        f_high = sums[1]
        if f_low > 0.0 or f_high < 0.0:
            low, high, f_low, f_high = -8.0 * d, 8.0 * d, -1.0, 1.0
        side = 0
        for inner in range(_HALVINGS):
            a = next_place(low, high, f_low, f_high, inner)
            objective(panels, places, a, b, law, sums, e, products)
            # An end that stays twice counts half (Illinois).
            if sums[1] > 0.0:
                high, f_high = a, sums[1]
                f_low *= 0.5 if side == 1 else 1.0
                side = 1
            else:
                low, f_low = a, sums[1]
                f_high *= 0.5 if side == -1 else 1.0
                side = -1
            if high - low <= _CLOSE or abs(sums[1]) <= level:
                break
        if sums[2] > 0.0:
            b_high, g_high = b, sums[2]
            g_low *= 0.5 if outer_side == 1 else 1.0
            outer_side = 1
        else:
            b_low, g_low = b, sums[2]
            g_high *= 0.5 if outer_side == -1 else 1.0
            outer_side = -1
        if b_high - b_low <= _CLOSE or abs(sums[2]) <= 10.0 * level:
            break
        spread = min(8.0 * d, 2.0 * (b_high - b_low))
    return a, b, sums[0]


@kernel
def nearest(raised, mu, sigma, marks, parameters):
    """Return (status, log Z, anchor, mean less the anchor, standard deviation, W_p)."""
    p = parameters[0]
    rules = parameters[1:].reshape((6, N))
    order = max(p, 2.0)
    status, anchor, log_mass, found, _ = quantile_nodes(
        raised, mu, sigma, marks, order, 2 * math.ceil(0.5 * order)
    )
    if status != OK:
        return status, 0.0, 0.0, 0.0, 0.0, 0.0
    shift, unit, start, panels, places = standardise(found.d, found.p, found.z)
    status, a, b, value, _ = minimise(panels, places, start, p, rules)
    log_z = log_mass_at(anchor, mu, sigma) + log_mass
    if status != OK:
        a, b, value = enclose(panels, places, start, p, rules)
    distance = unit * (p * value) ** (1.0 / p)
    return OK, log_z, anchor.f, shift + a * unit, b * unit, distance


def _wp_rule(split, landmark, power, mu, sigma, y, theta, parameters):
    """Return (status, log Z, mean, standard deviation, W_p) of one cavity."""
    marks = look_around(landmark, y, theta)
    status, log_z, anchor, shift, std, distance = nearest(
        Raised(split, power, y, theta), mu, sigma, marks, parameters
    )
    return float(status), log_z, anchor + shift, std, distance


def _location_wp_rule(split, landmark, power, mu, sigma, y, theta, parameters):
    """`_wp_rule` where log p depends on f - y alone, which is integrated over."""
    marks = marks_from(landmark, y, theta)
    status, log_z, anchor, shift, std, distance = nearest(
        Raised(split, power, 0.0, theta), mu - y, sigma, marks, parameters
    )
    return float(status), log_z, back_from(mu, y, anchor, shift), std, distance


#: `WP_RULE` of `qpruntime.jit`; compile where they are first used.
wp_rule = Pointer(_wp_rule, WP_RULE)
location_wp_rule = Pointer(_location_wp_rule, WP_RULE)
