"""L_p projections: the Gaussian that minimises W_p to a tilted density (paper, Appendix B).

W_p^p(q, N(m, s^2)) = E |f - m - s Phi^-1(F(f))|^p under q is strictly convex in (m, s) (Theorem 1):
Newton's method, damped where the objective does not fall, from the answer for p = 2.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.adaptive import NODES, WEIGHTS, N, log_mass_at, look_around, quantile_nodes
from qpruntime.jit import WP_RULE, Pointer, kernel
from qpruntime.landscape import EXHAUSTED, OK
from qpruntime.piecewise import add_panel, jacobi_rules

__all__ = ["LARGEST", "SMALLEST", "minimise", "objective", "parameters", "standardise", "wp_rule"]

#: Orders p that are supported: beyond 10, q^(1/p) varies too little for double precision.
SMALLEST, LARGEST = 1.0, 10.0
_ITERATIONS = 200
#: Root mean square of eps, in standard deviations, below which a density counts as Gaussian.
_GAUSSIAN = 3e-12


def parameters(p):
    """What `wp_rule` takes: p, then the rules of `qpruntime.piecewise`, as a flat array."""
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
def objective(panels, places, a, b, p, rules, tiny, sums, e, products):
    """Fill sums = (W, W_a, W_b, W_aa, W_ab, W_bb), W = E |u - a - b z|^p / p."""
    for k in range(6):
        sums[k] = 0.0
    for i in range(panels.shape[0]):
        add_panel(sums, panels[i], places[i, 0], places[i, 1], a, b, p, rules, tiny, e, products)


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
    objective(panels, places, a, b, 2.0, rules, 0.0, sums, e, products)
    if sums[0] < _GAUSSIAN**2:
        return OK, a, b, 0.0, 0
    tiny = 1e-13 * sums[0] ** (0.5 * (p - 1.0))
    objective(panels, places, a, b, p, rules, tiny, sums, e, products)
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
        objective(panels, places, a + da, b + db, p, rules, tiny, trial, e, products)
        if gain < 1e-8 * sums[0]:
            # Too close for W to tell: steps have to become smaller.
            ahead_a, ahead_b, _ = newton(trial, damping)
            status = OK
            if not max(abs(ahead_a), abs(ahead_b)) < 0.5 * size:
                break
            better = True
        else:
            better = trial[0] < sums[0]
        if better:
            a, b = a + da, b + db
            for k in range(6):
                sums[k] = trial[k]
            damping = 0.0 if damping < 1e-9 else 0.1 * damping
        else:
            damping = max(10.0 * damping, 1e-4)
            if damping > 1e12:
                break
    return status, a, b, sums[0], turns


def _wp_rule(split, landmark, power, mu, sigma, y, theta, parameters):
    """Return (status, log Z, mean, standard deviation, W_p) of one cavity."""
    p = parameters[0]
    rules = parameters[1:].reshape((6, N))
    marks = look_around(landmark, y, theta)
    order = max(p, 2.0)
    status, place, log_mass, d, _, q, z, _ = quantile_nodes(
        split, power, mu, sigma, y, theta, marks, order, 2 * math.ceil(0.5 * order)
    )
    if status != OK:
        return float(status), 0.0, 0.0, 0.0, 0.0
    shift, unit, start, panels, places = standardise(d, q, z)
    status, a, b, value, _ = minimise(panels, places, start, p, rules)
    log_z = log_mass_at(place, mu, sigma) + log_mass
    distance = unit * (p * value) ** (1.0 / p)
    return float(status), log_z, place[0] + (shift + a * unit), b * unit, distance


#: `WP_RULE` of `qpruntime.jit`; compiles where it is first used.
wp_rule = Pointer(_wp_rule, WP_RULE)
