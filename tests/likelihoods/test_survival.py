"""Times in spans, and bends far away: projections beside sums in long double, at the extremes.

The oracle looks for the peak of the log-concave tilted density by sections, for the places where it
is e^-60 of that, and sums over 40 001 points between: the trapezoid rule of a smooth density that
vanishes at both ends. Scores of its cumulated sums are right to 1e-6 or so.
"""

import numpy as np
import pytest
from scipy import special

from qpruntime import project
from qpruntime.likelihoods import get

L, INF = np.longdouble, np.inf


def log_chance(name, scale, low, high):
    """Log P(low < T < high) given f, or the log density of log T if low = high."""
    first, last = (
        L(np.log(t)) if 0.0 < t < INF else (-L(INF) if t == 0.0 else L(INF)) for t in (low, high)
    )

    def of(f):
        a, b = (first - f) / L(scale), (last - f) / L(scale)
        with np.errstate(all="ignore"):
            if name == "weibull":
                start = np.exp(a)
                if low == high:
                    return a - start
                gap = np.where(b - a < 40, start * np.expm1(np.minimum(b - a, 50)), np.exp(b))
                near = np.where(gap < 1e-300, b, np.log(-np.expm1(-gap)))
                return -start if high == INF else near - start
            if low == high:
                return a - 2 * np.logaddexp(L(0), a)
            found = -np.logaddexp(L(0), -b) - np.logaddexp(L(0), a)
            return found + (np.log(-np.expm1(a - b)) if low > 0.0 and high < INF else 0)

    return of


def oracle(log_p, mu, sigma, reach):
    """Mean, standard deviation and sigma* of a log-concave tilted density within mu +- reach."""

    def at(f):
        values = log_p(f) - ((f - L(mu)) / L(sigma)) ** 2 / 2
        return np.where(np.isnan(values), -INF, values)

    low, high = L(mu - reach), L(mu + reach)
    for _ in range(90):
        f = np.linspace(low, high, 41, dtype=L)
        best = int(np.argmax(at(f)))
        low, high = f[max(best - 1, 0)], f[min(best + 1, 40)]
    peak, top, ends = 0.5 * (low + high), at(np.array([0.5 * (low + high)]))[0], []
    for sign in (-1, 1):
        near, far = L(0), L(2 * reach)
        for _ in range(120):
            middle = 0.5 * (near + far)
            inside = at(np.array([peak + sign * middle]))[0] > top - 60
            near, far = (middle, far) if inside else (near, middle)
        ends.append(peak + sign * far)
    f = np.linspace(*ends, 40001, dtype=L)
    w = np.exp(at(f) - top)
    w /= w.sum()
    mean = (w * f).sum()
    std = np.sqrt((w * (f - mean) ** 2).sum())
    tail = np.minimum(np.cumsum(w) - w / 2, np.cumsum(w[::-1])[::-1] - w / 2).astype(float)
    height = np.exp(-0.5 * special.ndtri(np.clip(tail, 1e-300, 0.5)) ** 2) / np.sqrt(2 * np.pi)
    return float(mean), float(std), float(height.sum() * (f[1] - f[0]))


# Family, scale, first and last time, cavity: ends that a panel can step over, cavities far from
# the span on either side, scales from much larger to much smaller than the cavity.
SPANS = [
    ("weibull", 0.087122, 0.0, 0.836097, 6.0543, 3.235),
    ("weibull", 0.010768, 0.0, 0.209518, 156.384, 6.162),
    ("weibull", 0.0361535, 0.38769, 2.080472, -49.388, 7.9337),
    ("weibull", 0.0827685, 13.32197, 14.33928, -183.867, 0.0109584),
    ("weibull", 0.646675, 1.998328, 2.227624, -215.49995, 0.874115),
    ("weibull", 0.0053808, 10.872, 550.479, -3.25727, 8.2204),
    ("weibull", 0.0073195, 0.263994, 2.943953, 14.62514, 0.27242),
    ("weibull", 0.00146, 0.504072, 1.529169, 2.056482, 0.114824),
    ("weibull", 0.3, 5.52596, INF, -240.584, 0.0426417),
    ("weibull", 3.0, 0.01, 400.0, 2.0, 0.02),
    ("log-logistic", 0.0103915, 2.885294, 5.224809, 22.7972, 1.45713),
    ("log-logistic", 0.5, 1e-3, 1e3, 0.3, 9.0),
    ("log-logistic", 2.0, 1.0, 1.001, -30.0, 5.0),
    ("log-logistic", 0.949561, 0.1145826, 0.1145826, -64.0749, 3.59441),
]


@pytest.mark.parametrize(
    ("name", "scale", "low", "high", "mu", "sigma"),
    # What is censored on one side is not integrated by these kernels.
    [pytest.param(*case, marks=[pytest.mark.interpreted] * (case[3] < INF)) for case in SPANS],
)
def test_spans(name, scale, low, high, mu, sigma):
    reach = 12 * sigma + sigma**2 / scale + 60 * scale + abs(mu) + 10
    wanted = oracle(log_chance(name, scale, low, high), mu, sigma, reach)
    likelihood = get(name, scale=scale)
    mean, std = (v.item() for v in project(likelihood, mu, sigma, [[low, high]], method="ep"))
    star = project(likelihood, mu, sigma, [[low, high]], method="qp")[1].item()
    # 1e-9 of the distance: the cavity's mean less that of the density has so many digits.
    assert mean == pytest.approx(wanted[0], abs=1e-9 * wanted[1] + 1e-13 * abs(mu))
    assert std == pytest.approx(wanted[1], rel=1e-8)
    assert star == pytest.approx(wanted[2], rel=3e-6)


@pytest.mark.parametrize(
    ("k", "n", "mu", "sigma"), [(1, 2, 60.0, 3.785), (1, 3, 80.0, 3.785), (1, 2, 80.0, 5.0)]
)
def test_trials_seen_from_far_right_of_the_bend(k, n, mu, sigma):
    def log_p(f):
        return k * f - n * np.logaddexp(L(0), f)

    wanted = oracle(log_p, mu, sigma, 12 * sigma + n * sigma**2)
    mean, std = (v.item() for v in project("binomial", mu, sigma, [[k, n]], method="ep"))
    assert mean == pytest.approx(wanted[0], abs=1e-9 * sigma)
    assert std == pytest.approx(wanted[1], rel=1e-9)
