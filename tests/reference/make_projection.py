"""Write the reference tables of one-site projections: log Z, mean, variance and QP deviation.

Run ``python -m tests.reference.make_projection [--only NAME]``; the CSV files land beside this
script. What a row means and how it is integrated is in `tilted`; which rows there are is here.
Inputs are doubles written with `repr`, outputs have 20 digits. An output too small for any double,
such as log Z of a probit at z = 40, is written as 0.0 or -0.0.
"""

import argparse
import math
from itertools import cycle

import numpy as np
from mpmath import mp, mpf

from tests.reference import tilted

INPUTS, OUTPUTS = ("mu", "sigma", "y"), ("log_z", "mean", "variance", "sigma_star")
DIGITS = 20
PROBIT_PRINTED = ((0.0, 1.0), (0.0, 10.0), (10.0, 10.0), (-10.0, 0.1), (3.0, 5.0), (-3.0, 10.0))
POISSON_PRINTED = ((1.0, 0.5, 2), (-3.0, 2.0, 1), (0.2, 5.0, 4), (0.0, 1.0, 3))


def labelled(points):
    """Give the points (mu, sigma) mixed labels; a label of -1 mirrors mu, hence keeps z."""
    labels = cycle((1, -1, 1, -1, -1))  # a period that no list of widths shares
    return [(y * mu, sigma, y) for (mu, sigma), y in zip(points, labels, strict=False)]


def at_k(ks, sigmas):
    """Points with mu = k sqrt(1 + sigma^2)."""
    return [(float(k) * math.hypot(1.0, sigma), float(sigma)) for k in ks for sigma in sigmas]


def probit():
    """The box |mu| <= 10, 0.1 <= sigma <= 10 of the paper, and k from -40 to 40 beyond it."""
    rng = np.random.default_rng(20200)
    edges = [(float(mu), sigma) for mu in range(-10, 11, 2) for sigma in (0.1, 10.0)]
    edges += [(mu, s) for mu in (-10.0, 10.0) for s in (0.15, 0.3, 0.6, 1.0, 1.5, 3.0, 6.0)]
    inside = [(rng.uniform(-10, 10), 10 ** rng.uniform(-1, 1)) for _ in range(100)]
    far = at_k((-40, -25, -10, -5, -2, -0.5, 0, 2, 5, 8), (20, 300, 1e4))
    spread = [at_k([rng.uniform(-40, 8)], [10 ** rng.uniform(-3, 4)])[0] for _ in range(52)]
    tails = at_k((-40, 40), (1e-4, 1e-2, 1, 10, 1e2, 1e4, 1e6))
    tails += [(-1000.0, 1.0), (1000.0, 1.0)]
    narrow = [(mu, 1e-4) for mu in (-10.0, -1.0, 0.0, 1.0, 10.0)]
    both = [(s * mu, sigma, y) for mu, sigma in PROBIT_PRINTED for s in (1, -1) for y in (1, -1)]
    return both + labelled(edges + inside + far + spread + tails + narrow)


def probit_far():
    """Widths from 1e-6 to 1e8, means to 1e12: every limit of the half-plane and what joins them."""
    rng = np.random.default_rng(20201)
    widths = (1e2, 1e4, 1e6, 1e8)
    ratios = [(r * sigma, sigma) for sigma in widths for r in (1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3)]
    remote = [at_k([-k], [s])[0] for k, s in ratios if k > 1e-3 and k * s < 1.1e12]
    onset = at_k((4, 5, 6, 7, 8, 9), (1e4, 1e6, 1e8))
    level = [(0.0, sigma) for sigma in (1e-6, 1e-3, 1e3, 1e5, 1e6, 1e8)]
    ends = [(s * 1e12, sigma) for s in (-1, 1) for sigma in (1e-6, 1e-3, 1.0, 1e3, 1e6, 1e8)]
    spread = [(-(10 ** rng.uniform(-3, 12)), 10 ** rng.uniform(-6, 8)) for _ in range(30)]
    return labelled(remote + onset + level + ends + spread)


def heaviside():
    """Points z = y mu / sigma from -1e4 to 40, at widths from 1e-4 to 1e5."""
    rng = np.random.default_rng(20202)
    z = [-1e4, -3e3, -1e3, -300, -100, -40, -20, -10, -7, -5, -4, -3, -2, -1.5, -1, -0.7, -0.3]
    z += [-0.1, -1e-3, -1e-8, 0, 1e-8, 1e-3, 0.1, 0.3, 0.7, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]
    z += [10, 12, 15, 20, 30, 37, 38, 40]
    fixed = [(k * 1.0, 1.0) for k in z] + [(k * 37.5, 37.5) for k in z[::2]]
    widths = (1e-4, 0.1, 1e5)
    spread = [(s * rng.uniform(-12, 8), s) for s in widths for _ in range(8)]
    return labelled(fixed + spread)


def with_b(b, sigma, y):
    """Point of the Poisson likelihood with mu = b sigma sqrt(1 + 2 sigma^2)."""
    return float(b) * sigma * math.sqrt(1 + 2 * sigma**2), float(sigma), y


def poisson():
    """Counts to 1000: two peaks at small |b|, one at large, means to 1e3, widths 1e-4 to 1e4."""
    rng = np.random.default_rng(20203)
    points = list(POISSON_PRINTED)
    for y in (0, 1, 2, 3, 4, 7, 10, 30, 100, 300, 1000):
        points += [(0.0, sigma, y) for sigma in (1e-4, 1.0, 1e4)]
        points += [with_b(b, 0.7, y) for b in (1e-9, 1e-3, -0.03, 0.2, 1, -3, 8, 50)]
        points += [(1e3, 1e-4, y), (-1e3, 1e4, y), (1e3, 1.0, y), (-1e3, 30.0, y)]
        for _ in range(5):
            points.append((rng.normal(0, 10), 10 ** rng.uniform(-1, 1), y))
        for _ in range(3):
            points.append(with_b(10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-4, 4), y))
    return points


def poisson_large():
    """Counts too large for a recursion over them."""
    return [
        with_b(b, sigma, y)
        for y in (10**4, 10**5, 10**6)
        for b, sigma in (
            *((0, 1.0), (1e-6, 100.0), (1e-3, 2.0), (-5e-3, 10.0), (0.03, 1.0), (-1.0, 0.1)),
            *((30.0, 50.0), (math.sqrt(y), 3.0), (-20 * math.sqrt(y), 1e-2)),
        )
    ]


def logistic():
    """Widths from 1e-6 to 1e8; the likelihood's edge inside, outside and at the tilted mass."""
    rng = np.random.default_rng(20204)
    points = [(mu, sigma) for mu in (-8.0, 0.5, 3.0) for sigma in (1e-6, 0.1, 1.0)]
    # The tilted mass lies k standard deviations from the edge, on either of its sides.
    for sigma in (1.5, 2.0, 5.0, 1e3):
        points += [(k * sigma, sigma) for k in (-9.0, -6.0, -2.0, 3.0, 6.0, 11.0)]
        points += [(k * sigma - sigma**2, sigma) for k in (-11.0, -8.0, -4.0, 3.0, 7.0)]
    points += [(k * sigma, sigma) for sigma in (1e5, 1e8) for k in (-10.0, 0.0, 1.0)]
    points += [(s * 1e8, sigma) for s in (-1, 1) for sigma in (1e-6, 1.0, 100.0)]
    points += [(-0.4 * s * s, s) for s in (3.0, 30.0, 1e3)]
    points += [(rng.normal(0, 10), 10 ** rng.uniform(-2, 2)) for _ in range(15)]
    return labelled(points)


def noisy(width):
    """Real observations: cavities from far narrower to far wider than the noise, near and far."""
    rng = np.random.default_rng(20205)
    points = []
    for ratio in (1e-6, 0.3, 1.0, 3.0, 30.0, 1e8):
        sigma = ratio * width
        points += [(d * max(sigma, width) + 0.5, sigma, 0.5) for d in (0.1, -2.5, 5.0)]
        points += [(d * max(sigma, width) - 1.0, sigma, -1.0) for d in (-8.0, 40.0, 1e3)]
    points += [(0.0, 0.01 * width, 1e8 * width), (0.0, width, -1e6 * width)]
    for _ in range(12):
        spread = width * 10 ** rng.uniform(-1.5, 1.5)
        points.append((rng.normal(0, 5) * max(spread, width), spread, rng.normal()))
    return points


def counted(centre, outcomes):
    """Outcomes, and where log p(y|f) has its peak: cavities around it, far off it and wide."""
    rng = np.random.default_rng(20206)
    points = []
    for y in outcomes:
        c = centre(y)
        points += [(c + k * s, s, y) for s in (1e-6, 1.5, 4.0) for k in (-7.0, 3.0)]
        points += [(c + 0.01, 1e8, y), (c - 30.0, 0.1, y), (c + 30.0, 0.5, y)]
        if np.ravel(y)[0] > 0:  # otherwise the density is level there, and log Z is 0
            points.append((c - 1e6, 3.0, y))
        points += [(c + rng.normal(0, 5), 10 ** rng.uniform(-1, 1), y) for _ in range(2)]
    return points


def poisson_exp():
    return counted(lambda y: math.log(y + 0.1), (0, 1, 2, 7, 50, 1000, 10**6))


def negative():
    return counted(lambda y: math.log(y + 0.1), (0, 1, 3, 40, 1000, 10**6))


def binomial():
    pairs = ((0, 1), (1, 1), (1, 2), (0, 10), (10, 10), (3, 10), (1, 1000), (999, 1000))
    pairs += ((30, 10**4), (4 * 10**5, 10**6), (0, 10**6))
    return counted(lambda y: math.log((y[0] + 0.1) / (y[1] - y[0] + 0.1)), pairs)


TABLES = {
    "logistic": (tilted.Logistic, logistic),
    "student-t": (tilted.student_t(4, 1), lambda: noisy(1.0)),
    "student-t(nu=1,scale=0.3)": (tilted.student_t(1, 0.3), lambda: noisy(0.3)),
    "student-t(nu=50,scale=2)": (tilted.student_t(50, 2), lambda: noisy(2.0)),
    "laplace": (tilted.laplace(1), lambda: noisy(1.0)),
    "laplace(scale=0.2)": (tilted.laplace(0.2), lambda: noisy(0.2)),
    "poisson-exp": (tilted.PoissonExp, poisson_exp),
    "negative-binomial": (tilted.negative_binomial(1), negative),
    "negative-binomial(dispersion=0.2)": (tilted.negative_binomial(0.2), negative),
    "negative-binomial(dispersion=50)": (tilted.negative_binomial(50), negative),
    "binomial": (tilted.Binomial, binomial),
    "probit": (tilted.Probit, probit),
    "probit_far": (tilted.Probit, probit_far),
    "poisson": (tilted.PoissonSquare, poisson),
    "heaviside": (tilted.Heaviside, heaviside),
    "poisson_large": (tilted.PoissonSquare, poisson_large),
}


def text(value):
    """Return 20 digits, or a signed zero for what underflows every double."""
    if abs(value) < mpf(2) ** -1075:
        return "-0.0" if value < 0 else "0.0"
    return mp.nstr(value, DIGITS, strip_zeros=False)


def write(name):
    """Compute a table and write it whole; return its rows and worst disagreement."""
    likelihood, points = TABLES[name]
    rows, worst = [], mpf(0)
    inputs = (*INPUTS[:2], "successes", "trials") if name == "binomial" else INPUTS
    for mu, sigma, y in dict.fromkeys(points()):
        outputs, error = tilted.evaluate(likelihood, mu, sigma, y)
        worst = max(worst, error)
        rows.append((repr(mu + 0.0), repr(sigma), *np.ravel(y), *map(text, outputs)))  # no -0.0
    tilted.write(name, (*inputs, *OUTPUTS), rows)
    return len(rows), worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TABLES, help="write this table alone")
    only = parser.parse_args().only
    for name in [only] if only else TABLES:
        count, worst = write(name)
        print(f"{name}.csv: {count} rows, resolutions agree to {mp.nstr(worst, 2)}", flush=True)


if __name__ == "__main__":
    main()
