"""Projections of `kinds` that are integrated, at their extremes, against 60 digits."""

import pytest
from mpmath import mp

from qpruntime import likelihoods
from tests.likelihoods.test_registry_extremes import errors_of


def beta(f, y, precision):
    a = precision / (1 + mp.exp(-f))
    b = precision / (1 + mp.exp(f))
    log_p = mp.loggamma(precision) - mp.loggamma(a) - mp.loggamma(b)
    return log_p + (a - 1) * mp.log(y) + (b - 1) * mp.log(1 - y)


def negative(f, y, r):
    g = f - mp.log(r)
    constant = mp.loggamma(y + r) - mp.loggamma(y + 1) - mp.loggamma(r)
    return constant - r * mp.log(1 + mp.exp(g)) - y * mp.log(1 + mp.exp(-g))


def hurdle(f, y, r, zeros):
    seen = -mp.expm1(-r * mp.log1p(mp.exp(f) / r))
    return mp.log(1 - zeros) + negative(f, y, r) - mp.log(seen)


def inflated(f, y, r, zeros):
    return mp.log(zeros + (1 - zeros) * mp.exp(negative(f, y, r)))


def flipped(f, y, flip):
    return mp.log(flip + (1 - 2 * flip) * mp.ncdf(y * f))


def level(f, y, gap, below=mp.ncdf):
    edges = (-mp.inf, mp.mpf(0), gap, mp.inf)
    low, high = edges[int(y)] - f, edges[int(y) + 1] - f
    # Of the larger tails, which do not cancel.
    if low > 0:
        low, high = -high, -low
    return mp.log(below(high) - below(low))


def odds(f, y, gap):
    return level(f, y, gap, lambda x: 1 / (1 + mp.exp(-x)))


def spans(later, event):
    """Log chance of low < T < high from survival; the log density of T where they are equal."""

    def log_p(f, y, scale):
        a, b = ((mp.log(t) - f) / scale if t else mp.ninf for t in y)
        if a == b:
            return event(a) - mp.log(scale) - mp.log(y[0])
        first, last = (later(z) if z > mp.ninf else mp.mpf(0) for z in (a, b))
        return first + (mp.log(-mp.expm1(last - first)) if b < mp.inf else 0)

    return log_p


weibull = spans(lambda z: -mp.exp(z), lambda z: z - mp.exp(z))
log_logistic = spans(lambda z: -mp.log1p(mp.exp(z)), lambda z: z - 2 * mp.log1p(mp.exp(z)))


#: Spelling, the log density again with its parameters; observation, cavity, power.
CASES = [
    ("beta(precision=1e6)", beta, (1e6,), 0.3, (0.0, 1.0), 1.0),
    ("beta(precision=1e-3)", beta, (1e-3,), 0.01, (1.0, 2.0), 1.0),
    ("beta(precision=50)", beta, (50.0,), 1e-12, (-3.0, 4.0), 0.5),
    ("beta(precision=300)", beta, (300.0,), 0.5, (30.0, 1.2), 1.0),
    ("hurdle(dispersion=1e-3, zeros=0.5)", hurdle, (1e-3, 0.5), 2.0, (0.0, 6.0), 1.0),
    ("hurdle(dispersion=1e9, zeros=0.5)", hurdle, (1e9, 0.5), 1.0, (6.0, 2.0), 0.5),
    ("hurdle(dispersion=5, zeros=0.5)", hurdle, (5.0, 0.5), 40000.0, (0.0, 3.0), 1.0),
    ("hurdle(dispersion=5, zeros=0.5)", hurdle, (5.0, 0.5), 1.0, (-60.0, 30.0), 1.0),
    ("zero-inflated(dispersion=2, zeros=1e-6)", inflated, (2.0, 1e-6), 0.0, (9.0, 2.0), 0.5),
    ("noisy-probit(flip=1e-6)", flipped, (1e-6,), 1.0, (-9.0, 2.0), 0.5),
    ("noisy-probit(flip=0.01)", flipped, (0.01,), -1.0, (0.0, 20.0), 0.5),
    ("ordinal(gap_2=1e-5, gap_3=1e8)", level, (1e-5,), 1.0, (2.0, 3.0), 0.5),
    ("ordinal(gap_2=40, gap_3=1e8)", level, (40.0,), 1.0, (60.0, 2.0), 0.5),
    ("ordinal-logistic(gap_2=1e-5, gap_3=1e8)", odds, (1e-5,), 1.0, (2.0, 3.0), 1.0),
    ("ordinal-logistic(gap_2=40, gap_3=1e8)", odds, (40.0,), 1.0, (-900.0, 2.0), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 1.0, (0.1, 0.7), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 2.0, (-50.0, 16.0), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 2.0, (5.0, 1e-4), 1.0),
    ("ordinal-logistic(gap_2=3, gap_3=1e8)", odds, (3.0,), 0.0, (2.0, 90.0), 1.0),
    ("ordinal-logistic(gap_2=0.1, gap_3=1e8)", odds, (0.1,), 1.0, (9.0, 2.0), 0.5),
    ("weibull(scale=0.01)", weibull, (0.01,), (1.0, 1.3), (0.0, 1.0), 0.5),
]


#: Times in spans: ends that a panel can step over, cavities far from the span on either side,
#: scales from much larger to much smaller than the cavity.
SPANS = [
    ("weibull", 0.087122, (0.0, 0.836097), (6.0543, 3.235)),
    ("weibull", 0.010768, (0.0, 0.209518), (156.384, 6.162)),
    ("weibull", 0.0361535, (0.38769, 2.080472), (-49.388, 7.9337)),
    ("weibull", 0.0827685, (13.32197, 14.33928), (-183.867, 0.0109584)),
    ("weibull", 0.646675, (1.998328, 2.227624), (-215.49995, 0.874115)),
    ("weibull", 0.0053808, (10.872, 550.479), (-3.25727, 8.2204)),
    ("weibull", 0.0073195, (0.263994, 2.943953), (14.62514, 0.27242)),
    ("weibull", 0.00146, (0.504072, 1.529169), (2.056482, 0.114824)),
    ("weibull", 0.3, (5.52596, mp.inf), (-240.584, 0.0426417)),
    ("weibull", 3.0, (0.01, 400.0), (2.0, 0.02)),
    ("log-logistic", 0.0103915, (2.885294, 5.224809), (22.7972, 1.45713)),
    ("log-logistic", 0.5, (1e-3, 1e3), (0.3, 9.0)),
    ("log-logistic", 2.0, (1.0, 1.001), (-30.0, 5.0)),
    ("log-logistic", 0.949561, (0.1145826, 0.1145826), (-64.0749, 3.59441)),
]
OF_SPANS = [
    (f"{name}(scale={scale})", {"weibull": weibull}.get(name, log_logistic), (scale,), *rest, 1.0)
    for name, scale, *rest in SPANS
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([c for c in OF_SPANS if c[3][1] < mp.inf], marks=pytest.mark.interpreted),
        [c for c in OF_SPANS if c[3][1] == mp.inf],
        pytest.param(CASES, marks=pytest.mark.slow),
    ],
)
def test_projections(cases):
    for name, log_p, values, y, cavity, power in cases:
        exact = [mp.mpf(v) for v in values]
        seen = [mp.mpf(t) for t in y] if isinstance(y, tuple) else mp.mpf(y)
        marks = [float(mp.log(t)) for t in seen if 0 < t < mp.inf] if isinstance(y, tuple) else ()
        y = tuple(map(float, y)) if isinstance(y, tuple) else y

        def of(f, log_p=log_p, seen=seen, exact=exact):
            return log_p(f, seen, *exact)

        assert errors_of(likelihoods.get(name), of, *cavity, y, power, marks).max() < 1.0, name
