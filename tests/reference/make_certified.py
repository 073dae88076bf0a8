"""Write the reference values of certified functions: values and both derivatives, to 17 digits.

Run ``python -m tests.reference.make_certified``; ``certified.csv`` lands beside this script. Log Z,
moments and sigma* are those of `tilted`, and their derivatives are difference quotients of sixth
order between them, at 60 digits: no identity of a derivative is used. E log p and its derivatives
are integrated by mpmath, in pieces.
"""

import argparse
import itertools
from multiprocessing import Pool

from mpmath import mp, mpf

from tests.reference.tilted import (
    FINE,
    Binomial,
    Heaviside,
    Logistic,
    PoissonExp,
    PoissonSquare,
    Probit,
    Site,
    integrate,
    laplace,
    negative_binomial,
    student_t,
    write,
)

NAMES = ("log_partition", "mean", "std", "sigma_star", "expected")
COLUMNS = [f"{name}{end}" for name in NAMES for end in ("", "_d_mu", "_d_sigma")]
#: Steps in units of sigma; weights of the sixth-order quotient at 1, 2 and 3 steps.
STEP, WEIGHTS = mpf(1) / 2000, (mpf(45), mpf(-9), mpf(1))


class Step(Site):
    """Height 1 on the side of y, e^-|y| on the other."""

    def log_likelihood(self, f):
        return -abs(self.y) if self.y * f < 0 else mpf(0)

    def peaks(self):
        # Just beside the edge, where the height is that of the side.
        edge = mpf(10) ** -40 * self.sigma
        return [(mp.ninf, min(self.mu, -edge), mpf(0)), (mpf(0), max(self.mu, edge), mp.inf)]

    def scale(self, f):
        return max(abs(f), mpf(10) ** -30 * self.sigma)


def raised(base, power):
    class Raised(base):
        def complement(self):
            return None

        def log_likelihood(self, f):
            return power * super().log_likelihood(f)

        def slope(self, f):
            return power * super().slope(f)

    return Raised


def outputs(kind, mu, sigma, y):
    log_z, mean, variance, star = integrate(kind(mu, sigma, y), FINE)
    return [log_z, mean, mp.sqrt(variance), star]


def derivatives(kind, mu, sigma, y):
    """Twelve numbers: values and quotients of differences."""
    m, s = mpf(mu), mpf(sigma)
    centre = outputs(kind, m, s, y)
    found = [[value] for value in centre]
    for by_mu, by_sigma in ((1, 0), (0, 1)):
        total = [mpf(0)] * 4
        for k, weight in enumerate(WEIGHTS, 1):
            for sign in (1, -1):
                h = sign * k * STEP * s
                moved = outputs(kind, m + by_mu * h, s + by_sigma * h, y)
                total = [t + sign * weight * v for t, v in zip(total, moved, strict=True)]
        for row, value in zip(found, total, strict=True):
            row.append(value / (60 * STEP * s))
    return [value for row in found for value in row]


def expected(kind, mu, sigma, y):
    """E log p, and the means of x log p/sigma and (x^2 - 1) log p/sigma, f = mu + sigma x."""
    site = kind(mu, sigma, y)
    m, s = site.mu, mpf(sigma)
    reach = mp.sqrt(2 * 60)

    def density(f):
        return mp.npdf((f - m) / s) / s

    marks = [mpf(0), *([mpf(y)] if isinstance(y, float) else [])]
    near = [c + sign * mpf(10) ** k for c in marks for k in range(-3, 4) for sign in (-1, 1)]
    edges = [m + s * v * reach / 6 for v in range(-6, 7)] + marks + near
    edges = sorted({e for e in edges if abs(e - m) <= s * reach})
    sums = []
    for factor in (lambda x: 1, lambda x: x / s, lambda x: (x * x - 1) / s):
        pieces = [
            mp.quad(lambda f, w=factor: density(f) * w((f - m) / s) * site.log_likelihood(f), piece)
            for piece in itertools.pairwise(edges)
        ]
        sums.append(mp.fsum(pieces))
    # Of labels the site is mirrored.
    sums[1] *= site.sign
    return sums


ROWS = [
    # Where 20 points of Gauss and Hermite fail.
    ("student-t(nu=4,scale=0.1)", student_t(4, 0.1), [(0.5, 1.0, 0.0), (2.0, 1.0, 0.0)], 1.0),
    ("poisson-exp", PoissonExp, [(0.0, 3.0, 100)], 1.0),
    ("logistic", Logistic, [(-90.0, 30.0, 1)], 1.0),
    # Ordinary, narrow, wide and far.
    ("probit", Probit, [(0.3, 0.8, 1), (1.0, 1e-4, -1), (-3.0, 10.0, 1), (-40.0, 2.0, 1)], 1.0),
    ("logistic", Logistic, [(0.3, 0.8, 1), (1.0, 1e-4, -1), (-3.0, 10.0, 1), (2.0, 1.0, 1)], 1.0),
    ("student-t", student_t(4, 1), [(0.3, 0.8, 1.0), (1.0, 1e-4, 2.0), (-30.0, 5.0, 1.0)], 1.0),
    ("laplace", laplace(1), [(0.3, 0.8, 1.0), (1.0, 1e-4, 2.0), (-30.0, 5.0, 1.0)], 1.0),
    ("poisson", PoissonSquare, [(1.0, 0.5, 2), (2.0, 1e-3, 3), (0.2, 5.0, 4), (3.0, 1.0, 0)], 1.0),
    ("poisson-exp", PoissonExp, [(0.3, 0.8, 2), (1.0, 1e-4, 0), (4.0, 0.5, 60)], 1.0),
    ("negative-binomial", negative_binomial(1), [(0.3, 0.8, 2), (1.0, 1e-4, 3)], 1.0),
    ("negative-binomial", negative_binomial(1), [(0.0, 3.0, 100)], 1.0),
    ("binomial", Binomial, [(0.3, 0.8, (2, 7)), (0.0, 4.0, (10, 10))], 1.0),
    ("heaviside", Heaviside, [(0.3, 0.8, 1), (-3.0, 1.0, 1), (2.0, 0.5, -1)], 1.0),
    ("step", Step, [(0.3, 0.8, 1.5), (-2.0, 0.5, 3.0), (1.0, 2.0, -0.7)], 1.0),
    # To powers.
    ("student-t", raised(student_t(4, 1), 0.5), [(0.3, 2.0, 1.0)], 0.5),
    ("logistic", raised(Logistic, 0.5), [(-0.4, 2.0, 1)], 0.5),
    ("poisson-exp", raised(PoissonExp, 2.0), [(0.3, 0.8, 2)], 2.0),
    ("laplace", raised(laplace(1), 0.5), [(0.3, 0.8, 1.0)], 0.5),
]


def row(task):
    name, kind_at, point, power = task
    kind = ROWS[kind_at][1]
    mu, sigma, y = point
    with mp.workdps(60):
        numbers = derivatives(kind, mu, sigma, y)
    with mp.workdps(30):
        means = [mp.ninf, mp.nan, mp.nan]
        if name != "heaviside":
            means = expected(kind, mu, sigma, y)
    words = [mp.nstr(v, 17) for v in numbers + means]
    shown = " ".join(map(str, y)) if isinstance(y, tuple) else repr(float(y))
    return [name, repr(mu), repr(sigma), shown, repr(power), *words]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="rows of this likelihood, printed and not kept")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    tasks = [
        (name, k, point, power)
        for k, (name, _, points, power) in enumerate(ROWS)
        for point in points
        if given.only in (None, name)
    ]
    with Pool(given.processes) as pool:
        rows = []
        for found in pool.imap(row, tasks):
            print(*found, sep=",", flush=True)
            rows.append(found)
    if given.only is None:
        write("certified", ["likelihood", "mu", "sigma", "y", "power", *COLUMNS], rows)


if __name__ == "__main__":
    main()
