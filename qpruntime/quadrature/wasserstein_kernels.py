"""Projections of a tilted density in the L_p Wasserstein distance. Kernels only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import WP_RULE, Pointer
from qpruntime._special import INV_SQRT_2PI
from qpruntime._typing import Array, Arrays, Floats
from qpruntime.quadrature.adaptive_kernels import (
    back_from,
    log_mass_at,
    look_around,
    marks_from,
    quantile_nodes,
)
from qpruntime.quadrature.panel_kernels import BARYCENTRIC, NODES, WEIGHTS, N, last_coefficients
from qpruntime.quadrature.sigma_star_kernels import EXHAUSTED, OK, Raised

__all__ = [
    "Law",
    "add_panel",
    "enclose",
    "jacobi_rules",
    "location_wp_rule",
    "minimise",
    "objective",
    "parameters",
    "standardise",
    "wp_rule",
]

# --- Integrals of |eps|^p over one panel
#
# Here eps = u - a - b z; a panel is split at its roots.
#
# Near a root |eps|^(p - 1) has a kink or worse, for which Gauss-Jacobi rules are exact. A panel is
# given by values at Gauss-Legendre nodes and interpolated by the polynomial through them, so that
# the likelihood is not evaluated again.

_STACK = 64
#: Largest number of pieces of one panel.
_PIECES = 120
_ROOT_STEPS = 80
_RELATIVE = 1e-12
#: |eps| below this, relative to 1 + |u|, is rounding; interpolation adds less.
_NOISE, _WRONG = 2e-12, 1e-13


class Law(NamedTuple):
    """Exponent p, its `jacobi_rules`, and the tolerance of a piece."""

    p: float
    rules: Array
    tiny: float


def jacobi_rules(p: float) -> Array:
    """Rules for a root at -1, shape (6, N) with p >= 1.

    They are rows of nodes and of weights (1 + x)^(p - 1), then of weights (1 + x)^(p - 2) at the
    same nodes for second derivatives, which need only a few digits, then three rows that give the
    last coefficients of the remaining factor.
    """
    from scipy.special import eval_jacobi, roots_jacobi

    x, w = roots_jacobi(N, 0.0, p - 1.0)
    rows = [x, w]
    # These weights integrate polynomials of degree N - 1 times (1 + x)^(p - 2). At p = 1 that is
    # not integrable, and second derivatives are sums over the roots.
    values = np.array([eval_jacobi(k, 0.0, p - 1.0, x) for k in range(N)])
    norms = (values * values) @ w
    if p > 1.0:
        fine, weights = roots_jacobi(2 * N, 0.0, p - 2.0)
        moments = np.array([eval_jacobi(k, 0.0, p - 1.0, fine) @ weights for k in range(N)])
        rows.append(w * ((moments / norms) @ values))
    else:
        rows.append(np.zeros(N))
    for k in range(N - 3, N):
        scale = np.abs(values[k]).max()
        rows.append(w * values[k] / norms[k] * scale)
    return np.ascontiguousarray(rows)


@kernel
def between(panel: Array, x: float) -> tuple[float, float]:
    """Return (z, rho) at x in [-1, 1] by interpolation; `panel` has rows z and rho."""
    above_z, above_rho, below = 0.0, 0.0, 0.0
    for j in range(N):
        gap = x - NODES[j]
        if gap == 0.0:
            return panel[0, j], panel[1, j]
        share = BARYCENTRIC[j] / gap
        above_z += share * panel[0, j]
        above_rho += share * panel[1, j]
        below += share
    return above_z / below, above_rho / below


@kernel
def epsilon(panel: Array, line: tuple[float, float, float], x: float) -> tuple[float, float, float]:
    """Return (eps, z, rho) at x; `line` = (eps-intercept, its slope in x, b)."""
    z, rho = between(panel, x)
    return line[0] + line[1] * x - line[2] * z, z, rho


@kernel
def find_root(
    panel: Array,
    line: tuple[float, float, float],
    low: float,
    high: float,
    e_low: float,
    e_high: float,
) -> float:
    """Return the root of eps between two points of different signs (Illinois, then halves)."""
    for k in range(_ROOT_STEPS):
        if high - low <= 4e-16:
            break
        x = 0.5 * (low + high)
        if k < 40:
            x = min(max((low * e_high - high * e_low) / (e_high - e_low), low), high)
        e, _, _ = epsilon(panel, line, x)
        if e == 0.0:
            return x
        if (e > 0.0) == (e_high > 0.0):
            high, e_high = x, e
            e_low *= 0.5
        else:
            low, e_low = x, e
            e_high *= 0.5
    return 0.5 * (low + high)


@kernel
def add_terms(sums: Array, p: float, e: float, z: float, mass: float, bent: float) -> None:
    """Add a node to (W, dW/da, dW/db, and the second derivatives of W), W = E |eps|^p / p.

    `mass` is its weight in integrals of |eps|^(p - 1), less that factor; `bent` is that of
    |eps|^(p - 2).
    """
    size = abs(e)
    sums[0] += mass * size / p
    slope = -mass if e > 0.0 else mass
    sums[1] += slope
    sums[2] += slope * z
    sums[3] += bent
    sums[4] += bent * z
    sums[5] += bent * z * z


@kernel
def add_root(sums: Array, panel: Array, line: tuple[float, float, float], x: float) -> None:
    """Add the contribution of a root to second derivatives at p = 1: delta functions."""
    _, z, rho = epsilon(panel, line, x)
    slope = abs(line[1] - line[2] * rho / (INV_SQRT_2PI * math.exp(-0.5 * z * z) + 1e-300))
    share = 2.0 * rho / max(slope, 1e-6 * abs(line[1]))
    sums[3] += share
    sums[4] += share * z
    sums[5] += share * z * z


@kernel
def add_smooth(
    sums: Array,
    line: tuple[float, float, float],
    law: Law,
    half: float,
    check: bool,
    values: Arrays,
    scratch: Array,
) -> bool:
    """Add a piece without a root by Gauss-Legendre; return whether that resolves it.

    With `check`, nothing is added unless it does. `values` are eps, z and rho at the nodes of the
    piece, whose half length is `half`.
    """
    p, tiny = law.p, law.tiny
    e, z, rho = values
    if check:
        largest, size = 0.0, 0.0
        for j in range(N):
            scratch[j] = rho[j] * abs(e[j]) ** (p - 1.0)
            largest = max(largest, scratch[j])
            size = max(size, abs(e[j]))
        last = last_coefficients(scratch)
        wrong = _WRONG * (1.0 + abs(line[0])) / size
        if last > (_RELATIVE + wrong) * largest and last * half > tiny:
            return False
    for j in range(N):
        size = abs(e[j])
        if size > 0.0:
            mass = half * WEIGHTS[j] * rho[j] * size ** (p - 1.0)
            add_terms(sums, p, e[j], z[j], mass, (p - 1.0) * mass / size)
    return True


@kernel
def add_beside_root(
    sums: Array,
    panel: Array,
    line: tuple[float, float, float],
    law: Law,
    ends: tuple[float, float],
    side: int,
    check: bool,
    scratch: Array,
) -> bool:
    """Add a piece with a root at its left (side -1) or right end by Gauss-Jacobi.

    Returns whether that resolves it; nothing is added with `check` unless it does.
    """
    p, rules, tiny = law
    low, high = ends
    half = 0.5 * (high - low)
    largest, last, bound = 0.0, 0.0, 0.0
    for j in range(N):
        t = 1.0 + rules[0, j]
        x = low + half * t if side < 0 else high - half * t
        e, z, rho = epsilon(panel, line, x)
        scratch[0, j], scratch[1, j], scratch[2, j] = e, z, rho
        scratch[3, j] = rho * (abs(e) / t) ** (p - 1.0)
        largest = max(largest, abs(scratch[3, j]))
        bound = max(bound, abs(e))
    if check:
        for k in range(3):
            c = 0.0
            for j in range(N):
                c += rules[3 + k, j] * scratch[3, j]
            last = max(last, abs(c))
        # Next to the root eps is small, but its error divided by the distance is not.
        wrong = 100.0 * _WRONG * (1.0 + abs(line[0])) / bound
        if last > (_RELATIVE + wrong) * largest and last * half > tiny:
            return False
    sign = scratch[0, N // 2]
    for j in range(N):
        size = abs(scratch[0, j]) / (1.0 + rules[0, j])
        if size > 0.0:
            factor = half * scratch[2, j] * size ** (p - 1.0)
            bent = (p - 1.0) * rules[2, j] * factor / size
            e = math.copysign(abs(scratch[0, j]), sign)
            add_terms(sums, p, e, scratch[1, j], rules[1, j] * factor, bent)
    return True


@kernel
def add_pieces(sums: Array, panel: Array, line: tuple[float, float, float], law: Law) -> None:
    """Split a panel at the roots of eps, and where a root is near, and add all pieces."""
    stack, values = np.empty((_STACK, 4)), np.empty((4, N))
    xs, es = np.empty(N + 2), np.empty(N + 2)
    e, z, rho, products = np.empty(N), np.empty(N), np.empty(N), np.empty(N)
    # Rows are: low, high, whether there is a root at low, at high.
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = -1.0, 1.0, 0.0, 0.0
    pending, pieces = 1, 0
    while pending:
        pending -= 1
        pieces += 1
        low, high = stack[pending, 0], stack[pending, 1]
        root_at_low, root_at_high = stack[pending, 2], stack[pending, 3]
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        room = pieces < _PIECES and pending + 2 <= _STACK and half > 1e-15
        if half < 1e-15:
            continue
        for j in range(N):
            xs[j + 1] = middle + half * NODES[j]
            e[j], z[j], rho[j] = epsilon(panel, line, xs[j + 1])
            es[j + 1] = e[j]
        xs[0], xs[N + 1] = low, high
        es[0] = es[1] if root_at_low else epsilon(panel, line, low)[0]
        es[N + 1] = es[N] if root_at_high else epsilon(panel, line, high)[0]
        split, root = middle, 0.0
        done = False
        for j in range(N + 1):
            if room and (es[j] > 0.0) != (es[j + 1] > 0.0):
                split = find_root(panel, line, xs[j], xs[j + 1], es[j], es[j + 1])
                root = 1.0
                if law.p == 1.0:
                    add_root(sums, panel, line, split)
                break
        if root == 0.0 and not (root_at_low and root_at_high):
            if root_at_low or root_at_high:
                side = -1 if root_at_low else 1
                done = add_beside_root(sums, panel, line, law, (low, high), side, room, values)
            else:
                done = add_smooth(sums, line, law, half, room, (e, z, rho), products)
        if not done and room:
            stack[pending, 0], stack[pending, 1] = split, high
            stack[pending, 2], stack[pending, 3] = root, root_at_high
            pending += 1
            stack[pending, 0], stack[pending, 1] = low, split
            stack[pending, 2], stack[pending, 3] = root_at_low, root
            pending += 1


@kernel
def add_panel(
    sums: Array,
    panel: Array,
    place: tuple[float, float],
    a: float,
    b: float,
    law: Law,
    e: Array,
    products: Array,
) -> None:
    """Add one panel to (W, its gradient, its second derivatives) in (a, b), W = E |eps|^p / p.

    `panel` has rows z and rho, the density in x from -1 to 1; `place` is the midpoint of u over it,
    and half its length.
    """
    u, u_half = place
    p = law.p
    line = (u - a, u_half, b)
    largest, signs = 0.0, 0
    for j in range(N):
        e[j] = line[0] + u_half * NODES[j] - b * panel[0, j]
        largest = max(largest, abs(e[j]))
        signs += 1 if e[j] > 0.0 else -1
    if largest < _NOISE * (1.0 + abs(u)):
        return
    even = p % 2.0 == 0.0
    if abs(signs) == N and not even:
        start, _, _ = epsilon(panel, line, -1.0)
        stop, _, _ = epsilon(panel, line, 1.0)
        signs = N if (start > 0.0) == (e[0] > 0.0) == (stop > 0.0) else 0
    if even or abs(signs) == N:
        check = not even and p != 1.0
        if add_smooth(sums, line, law, 1.0, check, (e, panel[0], panel[1]), products):
            return
    add_pieces(sums, panel, line, law)


# --- L_p projections
#
# The Gaussian minimises W_p to a tilted density (paper, Appendix B).
#
# W_p^p(q, N(m, s^2)) = E |f - m - s Phi^-1(F(f))|^p under q is strictly convex in (m, s) (Theorem
# 1). Newton's method starts from the answer for p = 2, with damping if the objective does not fall.
# For p near 1 the second derivatives jump wherever eps touches zero, and Newton's method may
# oscillate. Nested bracketing then finds the roots of both first derivatives, which are monotone.

_ITERATIONS = 200
#: Largest first derivatives at a minimum, in units of E |eps|^(p - 1).
_FLAT = 1e-5
#: Mean size of eps that is negligible.
_SMALL = 1e-10
#: Points that `enclose` tries in each variable: every third one bisects.
_HALVINGS = 150
#: Sizes of brackets in standard deviations, and of derivatives in units of E |eps|^(p - 1), that
#: are small enough.
_CLOSE, _LEVEL = 1e-15, 1e-13
#: Root mean square of eps, in standard deviations, below which a density counts as Gaussian.
_GAUSSIAN = 3e-12


def parameters(p: float) -> Array:
    """Return p, then the rules of `jacobi_rules`, as the flat array that `wp_rule` takes."""
    rules = np.concatenate([[p], jacobi_rules(p).reshape(-1)])
    rules.flags.writeable = False
    return rules


@kernel
def standardise(d: Array, p: Array, z: Array) -> tuple[float, float, float, Array, Array]:
    """Return (mean of d, its standard deviation, E z d/deviation, panels, places).

    `panels` has for every panel the rows z and the density in x in [-1, 1], and `places` the
    midpoint and the half length in standard deviations from the mean.
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
def objective(
    panels: Array,
    places: Array,
    a: float,
    b: float,
    law: Law,
    sums: Array,
    e: Array,
    products: Array,
) -> None:
    """Fill sums = (W, W_a, W_b, W_aa, W_ab, W_bb), W = E |u - a - b z|^p / p."""
    for k in range(6):
        sums[k] = 0.0
    for i in range(panels.shape[0]):
        place = places[i, 0], places[i, 1]
        add_panel(sums, panels[i], place, a, b, law, e, products)


@kernel
def newton(sums: Array, damping: float) -> tuple[float, float, float]:
    """Return Newton's step for (a, b) and the expected decrease of W; NaN if it is flat."""
    bend = damping * (sums[3] + sums[5])
    aa, ab, bb = sums[3] + bend, sums[4], sums[5] + bend
    det = aa * bb - ab * ab
    if not det > 1e-13 * aa * bb:
        return math.nan, math.nan, math.nan
    da = (ab * sums[2] - bb * sums[1]) / det
    db = (ab * sums[1] - aa * sums[2]) / det
    return da, db, -0.5 * (da * sums[1] + db * sums[2])


@kernel
def minimise(
    panels: Array, places: Array, start: float, p: float, rules: Array
) -> tuple[int, float, float, float, int]:
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
            # The decrease of W is below its rounding, so that progress is judged by the size of
            # steps.
            ahead_a, ahead_b, _ = newton(trial, damping)
            status = OK
            if not max(abs(ahead_a), abs(ahead_b)) < 0.5 * size:
                break
            better = True
        else:
            # If eps has one sign there is no second derivative to continue with.
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
    # If eps has one sign and p = 1, second derivatives vanish although the point is no minimum. If
    # eps is rounding alone, no answer is further from it than twice its size.
    if (p * sums[0]) ** (1.0 / p) < _SMALL:
        return OK, a, b, sums[0], turns
    steep = max(abs(sums[1]), abs(sums[2])) > _FLAT * (p * sums[0]) ** (1.0 - 1.0 / p)
    return EXHAUSTED if steep else status, a, b, sums[0], turns


@kernel
def next_place(low: float, high: float, f_low: float, f_high: float, turn: int) -> float:
    """Return a point between two of different signs of a monotone function: secant or midpoint."""
    middle = 0.5 * (low + high)
    if turn % 3 == 2 or not f_high > f_low:
        return middle
    place = low - f_low * (high - low) / (f_high - f_low)
    return place if low < place < high else middle


@kernel
def enclose(
    panels: Array, places: Array, start: float, p: float, rules: Array
) -> tuple[float, float, float]:
    """Return (a, b, W) as `minimise` does, by bracketing: 20 to 50 times slower, but always.

    The bound E |a + c z|^p <= (2 d)^p at the minimum, d^p = E |u - start z|^p, limits a and c = b -
    start.
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
        # The minimising a usually moves less than the width of the bracket of b.
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
            # The value at an end that stays twice is halved (Illinois).
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
def nearest(
    raised: Raised, mu: float, sigma: float, marks: Array, parameters: Array
) -> tuple[int, float, float, float, float, float]:
    """Return (status, log Z, anchor, mean less the anchor, standard deviation, W_p)."""
    p = parameters[0]
    rules = parameters[1:].reshape((6, N))
    order = max(p, 2.0)
    status, anchor, log_mass, quantiles, _ = quantile_nodes(
        raised, mu, sigma, marks, order, 2 * math.ceil(0.5 * order)
    )
    if status != OK:
        return status, 0.0, 0.0, 0.0, 0.0, 0.0
    shift, unit, start, panels, places = standardise(quantiles.d, quantiles.p, quantiles.z)
    status, a, b, value, _ = minimise(panels, places, start, p, rules)
    log_z = log_mass_at(anchor, mu, sigma) + log_mass
    if status != OK:
        a, b, value = enclose(panels, places, start, p, rules)
    distance = unit * (p * value) ** (1.0 / p)
    return OK, log_z, anchor.f, shift + a * unit, b * unit, distance


def _wp_rule(
    split: int,
    landmark: int,
    power: float,
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    parameters: Array,
) -> Floats:
    """Return (status, log Z, mean, standard deviation, W_p) of one cavity."""
    marks = look_around(landmark, y, theta)
    status, log_z, anchor, shift, std, distance = nearest(
        Raised(split, power, y, theta), mu, sigma, marks, parameters
    )
    return float(status), log_z, anchor + shift, std, distance


def _location_wp_rule(
    split: int,
    landmark: int,
    power: float,
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    parameters: Array,
) -> Floats:
    """Run `_wp_rule` over f - y, for a log p that depends on f - y alone."""
    marks = marks_from(landmark, y, theta)
    status, log_z, anchor, shift, std, distance = nearest(
        Raised(split, power, 0.0, theta), mu - y, sigma, marks, parameters
    )
    return float(status), log_z, back_from(mu, y, anchor, shift), std, distance


#: `WP_RULE` of `qpruntime._pointers`; they compile when they are first used.
wp_rule = Pointer(_wp_rule, WP_RULE)
location_wp_rule = Pointer(_location_wp_rule, WP_RULE)
