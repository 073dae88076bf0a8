"""Tilted densities that are sums of cut-off Gaussians: closed moments and CDF, in mpmath.

A second implementation for the tests of adaptive quadrature; it shares nothing with the package.
"""

import math
from itertools import pairwise

import numpy as np
from mpmath import mp, mpf
from scipy.special import ndtri

DIGITS = 60
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def gaussian(mu, sigma, centre, width, log_weight=0.0):
    """Piece exp(log_weight - ((f - centre)/width)^2/2) N(f | mu, sigma^2) of a tilted density."""
    mu, sigma, centre, width = map(mpf, (mu, sigma, centre, width))
    precision = sigma**-2 + width**-2
    mean = (mu / sigma**2 + centre / width**2) / precision
    log_mass = mpf(log_weight) - mp.log(sigma**2 * precision) / 2
    log_mass -= (mu - centre) ** 2 / (sigma**2 + width**2) / 2
    return log_mass, mean, precision**-0.5, -mp.inf, mp.inf


def sloping(mu, sigma, slope, start, stop, log_weight=0.0):
    """Piece exp(log_weight + slope f) N(f | mu, sigma^2) on start < f < stop."""
    mu, sigma, slope = map(mpf, (mu, sigma, slope))
    log_mass = mpf(log_weight) + slope * mu + (slope * sigma) ** 2 / 2
    return log_mass, mu + slope * sigma**2, sigma, mpf(start), mpf(stop)


def between(a, b):
    """Phi(b) - Phi(a)."""
    return mp.ncdf(-a) - mp.ncdf(-b) if a > 0 else mp.ncdf(b) - mp.ncdf(a)


def solve(pieces):
    """Return (log Z, mean, variance, sigma*) as floats; call it as ``with mp.workdps(DIGITS)``."""
    top = max(piece[0] for piece in pieces)
    mass, first, second = [], [], []
    for log_mass, mean, std, start, stop in pieces:
        a, b = (start - mean) / std, (stop - mean) / std
        share = between(a, b)
        edge = mp.npdf(a) - mp.npdf(b)
        bend = (a * mp.npdf(a) if abs(a) < mp.inf else 0) - (
            b * mp.npdf(b) if abs(b) < mp.inf else 0
        )
        weight = mp.exp(log_mass - top)
        mass.append(weight * share)
        first.append(weight * (mean * share + std * edge))
        second.append(weight * ((mean**2 + std**2) * share + 2 * mean * std * edge + std**2 * bend))
    total = mp.fsum(mass)
    mean = mp.fsum(first) / total
    variance = mp.fsum(second) / total - mean**2

    def tails(f):
        lower, upper = mpf(0), mpf(0)
        for log_mass, centre, std, start, stop in pieces:
            cut = min(max(f, start), stop)
            a, x, b = ((v - centre) / std for v in (start, cut, stop))
            weight = mp.exp(log_mass - top) / total
            lower += weight * between(a, x)
            upper += weight * between(x, b)
        return lower, upper

    star = 0.0
    for a, b in panels(pieces, total, top):
        for x, w in zip(NODES, WEIGHTS, strict=True):
            f = (a + b) / 2 + (b - a) / 2 * mpf(float(x))
            tail = float(min(tails(f)))
            if tail > 0.0:
                star += float(b - a) / 2 * w * np.exp(-0.5 * ndtri(tail) ** 2)
    return (float(top + mp.log(total)), float(mean), float(variance), star / np.sqrt(2.0 * np.pi))


def laplace_pieces(mu, sigma, y, b):
    return [
        sloping(mu, sigma, 1 / mpf(b), -mp.inf, y, -y / mpf(b)),
        sloping(mu, sigma, -1 / mpf(b), y, mp.inf, y / mpf(b)),
    ]


def peaks_pieces(mu, sigma, y, w):
    centres = ((-3.3, 0.0), (0.7, 0.5), (4.1, 0.25))
    return [gaussian(mu, sigma, c, w, weight) for c, weight in centres]


def step_pieces(mu, sigma, y, drop):
    low = [] if drop == math.inf else [sloping(mu, sigma, 0, -mp.inf, y, -drop)]
    return [*low, sloping(mu, sigma, 0, y, mp.inf)]


def slab_pieces(mu, sigma, y, w):
    # The ends are where the doubles f have abs(f - y) < w.
    return [sloping(mu, sigma, 0, mpf(y) - w, mpf(y) + w)]


def bump_pieces(mu, sigma, y, w):
    return [sloping(mu, sigma, 0, -mp.inf, mp.inf), gaussian(mu, sigma, y, w)]


FORMS = {
    "laplace": laplace_pieces,
    "peaks": peaks_pieces,
    "step": step_pieces,
    "slab": slab_pieces,
    "bump": bump_pieces,
}
#: Likelihood, its parameter, cavity mean and deviation, y: the rows of reference/pieces.csv.
CASES = [
    ("laplace", 1.0, 0.0, 1.0, 0.3),
    ("laplace", 1.0, 0.0, 1e6, 5.0),
    ("laplace", 0.01, -1e3, 10.0, 3.0),
    ("laplace", 1e-6, 3.0, 1.0, -2.0),
    ("peaks", 0.1, 0.0, 3.0, 0.0),
    ("peaks", 1e-3, 0.0, 1e5, 0.0),
    ("step", math.inf, -10.0, 1.0, 0.3),
    ("step", math.inf, 0.0, 1e6, 0.3),
    ("step", 2.0, 0.5, 2.0, 0.3),
    ("step", 50.0, -8.0, 1.0, 0.3),
    ("slab", 1e-6, 10.0, 1.0, 0.25),
    ("slab", 1.0, 0.0, 1e6, 5.0),
    ("bump", 0.01, 3e3, 1e3, 4.0),
    ("bump", 1e-6, 0.0, 1.0, 0.4),
]


def reference(name, theta, mu, sigma, y):
    """(log Z, mean, variance, sigma*) of one of these."""
    with mp.workdps(DIGITS):
        return solve(FORMS[name](mu, sigma, y, theta))


def panels(pieces, total, top):
    """Panels over 11 deviations of every piece that counts, ever smaller towards its ends."""
    edges, ends = set(), []
    for log_mass, mean, std, start, stop in pieces:
        a, b = (start - mean) / std, (stop - mean) / std
        weight = mp.exp(log_mass - top) * between(a, b) / total
        if weight < 1e-25:
            continue
        # Of a piece cut off in its tail, the length over which it falls.
        length = std / max(abs(min(max(mpf(0), a), b)), 1)
        low = max(start, min(mean - 11 * std, stop - 60 * length) if b < 3 else mean - 11 * std)
        high = min(stop, max(mean + 11 * std, start + 60 * length) if a > -3 else mean + 11 * std)
        ends += [low, high]
        length = min(length, high - low)
        for c in (low, high, min(max(mean, low), high)):
            edges.add(c)
            step = length / 2**24 if c in (start, stop) else length / 4
            while step < high - low:
                edges.update((c - step, c + step))
                step *= 2
                if step > length:
                    step = 3 * step / 4
        edges.update(e for e in (low + (high - low) * k / 12 for k in range(13)))
    return list(pairwise(sorted(e for e in edges if min(ends) <= e <= max(ends))))
