"""Log Z, tilted moments and the QP deviation of one site, to 20 digits: the oracle of the tables.

Nothing here is shared with the package, and no closed form of a moment is used. The tilted density
p(y|f) N(f|mu, sigma^2) is integrated in mpmath on Gauss-Legendre panels; its running mass comes
from the interpolant through the nodes of a panel, which may thus be as narrow as the density asks.
Every site is computed twice, with other orders, panels, truncations and working digits, and the
two answers must agree to `AGREEMENT`. What the tables contain is decided in `make_projection`.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from mpmath import mp, mpf
from scipy.special import ndtri

AGREEMENT = mpf(10) ** -20  # relative, for each of the four outputs


@dataclass(frozen=True)
class Resolution:
    """Nodes and width of the panels, fall of the log density at the cut, working digits."""

    nodes: int
    width: float
    drop: int
    digits: int


COARSE, FINE = Resolution(24, 0.6, 80, 50), Resolution(28, 0.5, 90, 66)


class Site:
    """Base of smooth log-concave likelihoods, which give log p and its slope."""

    even = False
    tapers = True  # whether the width of the peak limits the panels in its tails as well
    further = 0  # how much more the log density has to fall at the cut, if tails are heavy
    slack = 0  # how much further than a normal's the density may reach
    sign = 1
    centre = mpf(0)

    def __init__(self, mu, sigma, y):
        self.mu, self.sigma, self.y = mpf(mu), mpf(sigma), y
        self.log_scale = -mp.log(self.sigma * mp.sqrt(2 * mp.pi))

    def complement(self):
        """Return the other label where its Z' is small: log Z is then log(1 - Z')."""

    def log_prior(self, f):
        return self.log_scale - ((f - self.mu) / self.sigma) ** 2 / 2

    def log_density(self, f):
        return self.log_likelihood(f) + self.log_prior(f)

    def pull(self, f):
        """Slope of the log density."""
        return self.slope(f) - (f - self.mu) / self.sigma**2

    def peaks(self):
        """Return triples (lower, peak, upper): the density is log-concave between the bounds."""
        f, step = self.mu, self.sigma
        up = self.pull(f) > 0
        while (self.pull(f) > 0) == up:  # until the peak lies between f and the last f
            last, f, step = f, f + (step if up else -step), 2 * step
        low, high = min(f, last), max(f, last)
        for _ in range(mp.prec):
            middle = (low + high) / 2
            low, high = (middle, high) if self.pull(middle) > 0 else (low, middle)
        return [(mp.ninf, low, mp.inf)]

    def smooth(self, f):
        """Distance over which the likelihood is smooth around f."""
        return mp.hypot(1, f - self.centre)

    def scale(self, f):
        """Distance over which the density is smooth around f."""
        slope = abs(self.pull(f))
        return min(self.smooth(f), 8 / slope) if slope else self.smooth(f)


class Labelled(Site):
    """Labels y: in the coordinate y f every label is +1."""

    def __init__(self, mu, sigma, y):
        super().__init__(y * mpf(mu), sigma, y)
        self.sign = y

    def complement(self):
        return type(self)(self.mu, self.sigma, -1) if self.mu > 0 else None


class Probit(Labelled):
    """Density Phi(f) N(f|y mu, sigma^2)."""

    def log_likelihood(self, f):
        return mp.log(mp.erfc(-f / mp.sqrt(2)) / 2)

    def slope(self, f):
        return 2 * mp.npdf(f) / mp.erfc(-f / mp.sqrt(2))

    def scale(self, f):
        return mp.hypot(1, f) if f > 0 else mpf(1)


class Heaviside(Labelled):
    """The same with 1[f > 0], so the density may jump at its edge."""

    def log_likelihood(self, f):
        return 0

    def peaks(self):
        return [(mpf(0), max(self.mu, mpf(0)), mp.inf)]

    def scale(self, f):
        return f  # the quantile density behaves as f sqrt(log 1/f) at the edge


class PoissonSquare(Site):
    """Counts of rate f^2: one peak on each side of f = 0."""

    def __init__(self, mu, sigma, y):
        super().__init__(mu, sigma, y)
        self.even, self.constant = mu == 0, mp.loggamma(y + 1)

    def log_likelihood(self, f):
        if self.y and not f:
            return mp.ninf
        return (2 * self.y * mp.log(abs(f)) if self.y else 0) - f * f - self.constant

    def peaks(self):
        a = 1 + 2 * self.sigma**2
        if self.y == 0:
            return [(mp.ninf, self.mu / a, mp.inf)]
        root = mp.sqrt(self.mu**2 + 8 * self.y * self.sigma**2 * a)
        left, right = (self.mu - root) / (2 * a), (self.mu + root) / (2 * a)
        return [(mp.ninf, left, mpf(0)), (mpf(0), right, mp.inf)]

    def scale(self, f):
        return mp.inf  # a polynomial times a Gaussian: the width of the peak says all


class Softplus(Site):
    """Density of a g - n log(1 + e^g), g = f - centre."""

    a, n, constant = 1, 1, 0

    def log_likelihood(self, f):
        g = f - self.centre
        return self.constant + self.a * g - self.n * (mp.log1p(mp.exp(-abs(g))) + max(g, 0))

    def slope(self, f):
        return self.a - self.n / (1 + mp.exp(self.centre - f))

    def smooth(self, f):
        # n e^g bends at g = -log n already.
        return mp.hypot(1, max(0, abs(f - self.centre) - mp.log(max(self.n, 1))))


class Logistic(Labelled, Softplus):
    """Labels, of which 1 has the odds e^f."""


class Binomial(Softplus):
    """y = (k, n): k successes of n."""

    def __init__(self, mu, sigma, y):
        super().__init__(mu, sigma, y)
        self.a, self.n = map(int, y)
        self.constant = mp.log(mp.binomial(self.n, self.a))


def negative_binomial(dispersion):
    """Counts of mean e^f and variance e^f + e^2f / dispersion."""

    class NegativeBinomial(Softplus):
        def __init__(self, mu, sigma, y):
            super().__init__(mu, sigma, y)
            r = mpf(dispersion)
            self.a, self.n, self.centre = y, y + r, mp.log(r)
            self.constant = mp.loggamma(y + r) - mp.loggamma(y + 1) - mp.loggamma(r)

    return NegativeBinomial


class PoissonExp(Site):
    """Counts of rate e^f."""

    def log_likelihood(self, f):
        return self.y * f - mp.exp(f) - mp.loggamma(self.y + 1)

    def slope(self, f):
        return self.y - mp.exp(f)

    def smooth(self, f):
        return mp.hypot(1, f) if f < 0 else mpf(1)


def laplace(width):
    """Density exp(-|y - f|/width)/(2 width): a normal on each side of the kink at y."""

    class Laplace(Site):
        def log_likelihood(self, f):
            return -abs(self.y - f) / width - mp.log(2 * mpf(width))

        def peaks(self):
            y, pull = mpf(self.y), self.sigma**2 / mpf(width)
            return [(mp.ninf, min(y, self.mu + pull), y), (y, max(y, self.mu - pull), mp.inf)]

        def scale(self, f):
            return mp.inf

    return Laplace


def student_t(nu, width):
    """t noise around f: one peak, or two with a valley between them."""

    class StudentT(Site):
        tapers = False

        def __init__(self, mu, sigma, y):
            super().__init__(mu, sigma, y)
            self.core = mpf(width) * mp.sqrt(mpf(nu))
            self.slack = abs(self.mu - self.y)
            # The variance of a tail f^-(nu + 1) comes from further out than its mass.
            self.further = 4 * mp.log1p((self.slack + self.sigma) / self.core)
            self.constant = mp.loggamma((mpf(nu) + 1) / 2) - mp.loggamma(mpf(nu) / 2)
            self.constant -= mp.log(self.core * mp.sqrt(mp.pi))

        def log_likelihood(self, f):
            return self.constant - (mpf(nu) + 1) / 2 * mp.log1p(((f - self.y) / self.core) ** 2)

        def peaks(self):
            # (nu + 1) sigma^2 x = (d - x)(core^2 + x^2), x = f - y, d = mu - y: one root or three.
            d = self.mu - self.y
            pull = (mpf(nu) + 1) * self.sigma**2 + self.core**2
            with mp.workdps(2 * mp.dps):
                roots = mp.polyroots([1, -d, pull, -d * self.core**2], maxsteps=500, extraprec=500)
            real = sorted(r.real for r in roots if abs(mp.im(r)) < mpf(10) ** -mp.dps * abs(r))
            f = [self.y + r for r in real]
            if len(f) == 1:
                return [(mp.ninf, f[0], mp.inf)]
            return [(mp.ninf, f[0], f[1]), (f[1], f[2], mp.inf)]

        def slope(self, f):
            x = f - self.y
            return -(mpf(nu) + 1) * x / (self.core**2 + x**2)

        def smooth(self, f):
            return min(mp.hypot(self.core, f - self.y), self.sigma) / 2

    return StudentT


def legendre(z, order):
    p = [mpf(1), z]
    for n in range(1, order):
        p.append(((2 * n + 1) * z * p[n] - n * p[n - 1]) / (n + 1))
    return p


@cache
def rule(nodes, digits):
    """Gauss-Legendre on [0, 1]: x, w and the matrices that give the integral below and above x_i.

    ``digits`` are the working digits in force; they only key the cache.
    """
    x, w, values = [], [], []
    for z in map(mpf, np.polynomial.legendre.leggauss(nodes)[0].tolist()):
        for _ in range(2 + int(math.log2(digits / 15))):
            p = legendre(z, nodes)
            slope = nodes * (z * p[nodes] - p[nodes - 1]) / (z * z - 1)
            z -= p[nodes] / slope
        x.append((1 + z) / 2)
        w.append(1 / ((1 - z * z) * slope**2))
        values.append(legendre(z, nodes))
    primitives = [[1 + p[1]] + [p[n + 1] - p[n - 1] for n in range(1, nodes)] for p in values]
    below = [
        [wj / 2 * mp.fdot(q, p[:-1]) for wj, p in zip(w, values, strict=True)] for q in primitives
    ]
    above = [[wj - b for wj, b in zip(w, row, strict=True)] for row in below]
    return x, w, below, above


def reach(site, peak, bound, side, drop):
    """Distance from the peak at which the log density has fallen by `drop`, slightly rounded up."""
    # The prior alone, or less.
    far = min(site.slack + site.sigma * mp.sqrt(2 * drop), abs(bound - peak))
    floor = site.log_density(peak) - drop
    if far == 0 or site.log_density(peak + side * far) > floor:
        return far
    near = far * mpf(10) ** -40
    while far > 1.01 * near or far - near > site.scale(peak + side * far):
        middle = mp.sqrt(near * far)
        above = site.log_density(peak + side * middle) > floor
        near, far = (middle, far) if above else (near, middle)
    return far


def cover(site, resolution):
    """Highest log density, its place, and panels (start, width) over all but exp(-drop) of it."""
    tops = [(site.log_density(branch[1]), branch) for branch in site.peaks()]
    highest, (_, centre, _) = max(tops)
    panels = []
    for top, (lower, peak, upper) in tops:
        drop = resolution.drop + site.further - (highest - top)
        if drop <= 1:
            continue
        smallest = mpf(10) ** -15 * reach(site, peak, upper, 1, 1)
        for bound, side in ((lower, -1), (upper, 1)):
            width = reach(site, peak, bound, side, 1) if site.tapers else mp.inf
            far = peak + side * reach(site, peak, bound, side, drop)
            f, end = min(peak, far), max(peak, far)
            while f < end:
                step = resolution.width * min(width, max(site.scale(f), smallest))
                panels.append((f, min(step, end - f)))
                f += step
    return highest, centre, sorted(panels)


def quantile_density(p):
    """phi(Phi^-1(p)): a Taylor series about the float quantile, to the cube of its error."""
    x = mpf(float(ndtri(float(p))))
    phi = mp.npdf(x)
    d = (p - mp.erfc(-x / mp.sqrt(2)) / 2) / phi
    return phi * (1 - d * (x + d * (mpf(1) / 2 + d * x / 6)))


def deviation(panels, density, masses, resolution):
    """QP standard deviation, with both tail masses summed from their own end."""
    _, w, below, above = rule(resolution.nodes, mp.dps)
    total = mp.fsum(masses)
    left, right = [mpf(0)], [mpf(0)]
    for up, down in zip(masses, reversed(masses), strict=True):
        left.append(left[-1] + up)
        right.append(right[-1] + down)
    right.reverse()
    result, end = mpf(0), panels[0][0]
    for j, (start, h) in enumerate(panels):
        if start > end:  # between two peaks the running mass stands still
            result += (start - end) * quantile_density(min(left[j], right[j]) / total)
        end = start + h
        base, matrix = (left[j], below) if left[j] < right[j + 1] else (right[j + 1], above)
        tails = ((base + h * mp.fdot(row, density[j])) / total for row in matrix)
        result += h * mp.fsum(wi * quantile_density(p) for wi, p in zip(w, tails, strict=True))
    return result


def moments(log_density, highest, centre, panels, resolution, powers=(1, 2)):
    """Return densities at nodes, masses of panels, and moments about `centre`; of exp(-highest)."""
    x, w, _, _ = rule(resolution.nodes, mp.dps)
    points = [[start + h * xi for xi in x] for start, h in panels]
    density = [[mp.exp(log_density(f) - highest) for f in row] for row in points]
    masses = [h * mp.fdot(w, row) for (_, h), row in zip(panels, density, strict=True)]
    total = mp.fsum(masses)
    sums = (
        mp.fsum(
            h * wi * q * (f - centre) ** power
            for (_, h), qs, fs in zip(panels, density, points, strict=True)
            for wi, q, f in zip(w, qs, fs, strict=True)
        )
        for power in powers
    )
    return density, masses, total, *(s / total for s in sums)


def integrate(site, resolution, mass_only=False):
    """Return log Z, mean, variance and QP standard deviation, or log Z alone."""
    highest, centre, panels = cover(site, resolution)
    given = site.log_density, highest, centre, panels, resolution
    if mass_only:
        return mp.log(moments(*given, ())[2]) + highest
    density, masses, total, first, second = moments(*given)
    other, log_z = site.complement(), mp.log(total) + highest
    if other:
        log_z = mp.log1p(-mp.exp(integrate(other, resolution, mass_only=True)))
    mean = mpf(0) if site.even else site.sign * (centre + first)
    variance = second - first**2
    if site.even and abs(centre + first) > AGREEMENT * mp.sqrt(variance):
        raise ArithmeticError(f"an even density has the mean {centre + first}")
    return log_z, mean, variance, deviation(panels, density, masses, resolution)


def write(name, header, rows):
    """Write ``NAME.csv`` beside this file."""
    with Path(__file__).with_name(f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def evaluate(likelihood, mu, sigma, y):
    """Return the four outputs at the fine resolution and their disagreement with the coarse one."""
    lost = 2 * math.log10(1 + abs(mu) / min(sigma, 1.0)) + math.log10(
        1 + max(v * v for v in np.ravel(y))
    )
    answers = []
    for resolution in (COARSE, FINE):
        with mp.workdps(resolution.digits + 20 * math.ceil(lost / 20)):
            answers.append(integrate(likelihood(mu, sigma, y), resolution))
    error = max(abs(a - b) / abs(b) if a != b else mpf(0) for a, b in zip(*answers, strict=True))
    if not error <= AGREEMENT or any(map(mp.isnan, answers[1])):
        raise ArithmeticError(f"{likelihood.__name__}{mu, sigma, y}: resolutions differ by {error}")
    return answers[1], error
