"""Tilted densities of one peak with 60 digits: an oracle where doubles cannot tell values apart.

Log densities are written again with mpmath, to any power. Only their differences from the peak,
at distances that are doubles, become doubles; what follows is an adaptive rule on these.
Nothing here imports a kernel of the package.
"""

import datetime
import itertools
import math
import os

import numpy as np
from mpmath import mp, mpf
from scipy.special import ndtri

from tests.tools.oracle import NODES, WEIGHTS, tail_masses

#: Of random cases: today's date, unless QP_SEED says another.
SEED = int(os.environ.get("QP_SEED") or datetime.date.today().strftime("%Y%m%d"))

DIGITS = 60
_LAST = (np.polynomial.legendre.legvander(NODES, 15) * WEIGHTS[:, None])[:, -3:] * 15.5
_MOST = 3000


def log_density(name, y, parameters):
    """Return log p(y|f) as a function of an mpf f; binomial observations are pairs."""
    log1pexp = lambda x: x + mp.log1p(mp.exp(-x)) if x > 0 else mp.log1p(mp.exp(x))  # noqa: E731
    if name == "binomial":
        k, n = (mpf(v) for v in y)
        top = mp.loggamma(n + 1) - mp.loggamma(k + 1) - mp.loggamma(n - k + 1)
        return lambda f: top + k * f - n * log1pexp(f)
    y = mpf(y)
    if name == "logistic":
        return lambda f: -log1pexp(-y * f)
    if name == "probit":
        return lambda f: mp.log(mp.erfc(-y * f / mp.sqrt(2)) / 2)
    if name == "poisson-exp":
        top = mp.loggamma(y + 1)
        return lambda f: y * f - mp.exp(f) - top
    if name == "negative-binomial":
        r = mpf(parameters["dispersion"])
        top = mp.loggamma(y + r) - mp.loggamma(r) - mp.loggamma(y + 1)
        return lambda f: top + y * (f - mp.log(r)) - (y + r) * log1pexp(f - mp.log(r))
    scale = mpf(parameters["scale"])
    if name == "laplace":
        return lambda f: -abs(f - y) / scale - mp.log(2 * scale)
    nu = mpf(parameters["nu"])
    top = mp.loggamma((nu + 1) / 2) - mp.loggamma(nu / 2) - mp.log(mp.pi * nu) / 2 - mp.log(scale)
    return lambda f: top - (nu + 1) / 2 * mp.log1p(((f - y) / scale) ** 2 / nu)


def _peak(log_tilted, start, reach):
    """Highest place by golden sections, in a bracket that grows from `start`."""
    ratio = (mp.sqrt(5) - 1) / 2
    best = max(start, key=log_tilted)
    low, high = best - reach, best + reach
    while log_tilted(low - reach) > log_tilted(low):
        reach, low = 2 * reach, low - 2 * reach
    while log_tilted(high + reach) > log_tilted(high):
        reach, high = 2 * reach, high + 2 * reach
    low, high = low - reach, high + reach
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    e_a, e_b = log_tilted(a), log_tilted(b)
    for _ in range(200):
        if e_a > e_b:
            high, b, e_b = b, a, e_a
            a = high - ratio * (high - low)
            e_a = log_tilted(a)
        else:
            low, a, e_a = a, b, e_b
            b = low + ratio * (high - low)
            e_b = log_tilted(b)
        if high - low < mpf(10) ** -28 * (1 + abs(low)):
            break
    return (low + high) / 2


def tilted(log_p, mu, sigma, power=1.0, marks=()):
    """Return (log Z, mean, mean less mu, standard deviation, sigma*) of p^power N(mu, sigma^2).

    The tilted density has one peak; `marks` are its kinks, jumps and bends. Good to 1e-12.
    """
    with mp.workdps(DIGITS):
        m, s, w = mpf(mu), mpf(sigma), mpf(power)
        marks = [mpf(c) for c in marks]

        def log_tilted(f):
            return w * log_p(f) - ((f - m) / s) ** 2 / 2

        top = _peak(log_tilted, [m, *marks], s)
        highest = max([top, *marks], key=log_tilted)
        if log_tilted(highest) >= log_tilted(top):
            top = highest
        e_top = log_tilted(top)

        def level(d):
            return float(log_tilted(top + mpf(float(d))) - e_top)

        def fallen(sign):
            """The distance at which the density has fallen by a factor of about e."""
            d = float(s)
            while level(sign * d) < -1.5 and d > 1e-300:
                d *= 0.5
            return d

        sides = fallen(1.0), fallen(-1.0)
        unit, whole = min(sides), max(sides)
        edges = {0.0}
        for sign in (1.0, -1.0):
            d = unit
            while True:
                edges.add(sign * d)
                if level(sign * d) < -90.0:
                    break
                d *= 1.6
        low, high = min(edges), max(edges)
        inside = [float(c - top) for c in marks]
        # A bend of width one is not seen by a panel a million wide that ends there.
        near = 0.25 * 4.0 ** np.arange(25.0)
        for c in inside:
            edges |= {x for x in (c, *(c - near), *(c + near)) if low < x < high}
        stack = list(itertools.pairwise(sorted(edges)))[::-1]
        panels, evaluated = [], 0
        while stack:
            a, b = stack.pop()
            d = 0.5 * (a + b) + 0.5 * (b - a) * NODES
            q = np.exp([level(x) for x in d])
            evaluated += 1
            assert evaluated < _MOST, "too many panels"
            rough = np.abs(q @ _LAST).max() * (b - a) > 1e-15 * whole
            narrow = b - a < 1e-13 * max(abs(a), abs(b))
            if rough and not narrow:
                middle = 0.5 * (a + b)
                stack += [(middle, b), (a, middle)]
            else:
                panels.append((d, 0.5 * (b - a), q))
        d, half, q = (np.array(v) for v in zip(*panels, strict=True))
        half = half[:, None]
        mass, tail, is_below = tail_masses(half, q)
        total = math.fsum(mass)
        weight = half * WEIGHTS * q / total
        shift = math.fsum((weight * d).ravel())
        variance = math.fsum((weight * (d - shift) ** 2).ravel())
        tail = np.clip(tail / total, 1e-300, 0.5)
        # E (f - mean) Phi^-1(F): nothing between the nodes but the density is interpolated.
        score = np.where(is_below, ndtri(tail), -ndtri(tail))
        star = math.fsum((weight * (d - shift) * score).ravel())
        log_z = e_top + mp.log(mpf(total) / s) - mp.log(2 * mp.pi) / 2
        mean = top + mpf(shift)
        return float(log_z), float(mean), float(mean - m), math.sqrt(variance), star
