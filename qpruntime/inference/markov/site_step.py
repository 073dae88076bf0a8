"""One site of a series: its cavity in, its new parameters out; what it is to the state.

A site (tau, nu) is one of g = scale f + noise, about the prior mean of g. Kernels only.
"""

from __future__ import annotations

import math

from qpruntime.jit import call_moments, inlined, kernel
from qpruntime.projection.kernel import INSIDE, OUTSIDE_GRID, project_site
from qpruntime.quadrature.sigma_star import OK

__all__ = ["absorbed", "revise"]


@kernel
def absorbed(tau, nu, noise, scale):
    """Precision, and precision times mean, that a site of g has as one of the state's f."""
    if noise == 0.0 and scale == 1.0:
        return tau, nu
    share = 1.0 + tau * (noise * scale * scale)
    return scale * scale * tau / share, scale * nu / share


@inlined
def revise(rules, row, site, cavity, scratch, found, i):
    """Return (status, (tau, nu)) of site i as it is to be, and what that is to the state's f.

    `rules` = (functions, source, power, damping, hold precisions at zero, whether moments are
    closed), the first two as `project_site` takes them; `row` = (noise, scale, y, prior mean,
    weight), and `cavity` is mean and variance of f without the site, about the prior mean. `found`
    are sums of squared changes and counts; its entries from 8 on are the site that changed most
    and by how much, and the cavity of a failure. Arrays are looked up by the caller: to take them
    out of a tuple for every site costs 3 to 5 % of a sweep.
    """
    functions, source, power, damping, nonnegative, closed = rules
    noise, h, y, prior, weight = row
    tau, nu = site
    mean, variance = h * cavity[0], h * h * (cavity[1] + noise)
    status, new_tau, new_nu = OK, tau, nu
    left, centre, square = 1.0, mean, variance
    if power != 1.0:
        left = 1.0 + (1.0 - power) * tau * variance
        centre = (mean + (1.0 - power) * nu * variance) / left
        square = variance / left
    if weight == 0.0:
        new_tau, new_nu = 0.0, 0.0
    elif variance > 0.0 and 0.0 < square < math.inf and abs(centre) < math.inf:
        sigma, where = math.sqrt(square), 0
        if closed:
            # A fifth of the time of what follows, which has to be ready for everything.
            _, tilted, tilted_square = call_moments(
                functions[4], prior + centre, sigma, y, functions[0]
            )
        else:
            status, _, tilted, std, where = project_site(
                functions, source, power * weight, prior + centre, sigma, y, scratch
            )
            tilted_square = std * std
        if status != OK:
            found[10], found[11] = prior + centre, sigma
        else:
            found[4] += where == INSIDE
            found[5] += where == OUTSIDE_GRID
            inverse = 1.0 / square
            own = 1.0 / tilted_square - inverse
            if nonnegative:
                own = max(own, 0.0)
            pull = (tilted - (prior + centre)) * inverse + (tilted - prior) * own
            if power != 1.0:
                own, pull = own / power, pull / power
            if math.isfinite(own) and math.isfinite(pull):
                new_tau = tau + damping * (own - tau)
                new_nu = nu + damping * (pull - nu)
            else:
                found[6] += 1.0
    else:
        found[6] += 1.0
    # In units of the marginal that the site had before.
    width = variance / (1.0 + tau * variance)
    d_tau, d_nu = new_tau - tau, new_nu - nu
    in_units, moved = d_tau * width, d_nu * math.sqrt(abs(width))
    # tau is the difference of two precisions: smaller changes than their rounding are none.
    if not abs(in_units) < 1e-14:
        found[0] += d_tau * d_tau
    found[1] += d_nu * d_nu
    found[2] += in_units * in_units
    found[3] += moved * moved
    if abs(in_units) + abs(moved) > found[9]:
        found[8], found[9] = i, abs(in_units) + abs(moved)
    return status, (new_tau, new_nu), absorbed(new_tau, new_nu, noise, h)
