"""Powers, weights and cavities far out, for every likelihood, against 60 digits and closed forms.

`test_of_the_day` draws new cases every day; ``QP_SEED=20261121`` repeats those of a day."""

from functools import partial

import numpy as np
import pytest
from mpmath import mp
from scipy.special import gammaln

from qpruntime import infer, likelihoods
from qpruntime._numba import INTERPRETED
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many
from tests.likelihoods.test_registry import student_t
from tests.tools import multiprecision, oracle
from tests.tools.cases import every_case
from tests.tools.oracle import poisson

NAMES = likelihoods.names()
# Those of one peak, written with 60 digits; the others have oracles of their own below.
PEAKED = ("binomial", "laplace", "logistic", "negative-binomial", "poisson-exp", "probit")
TWO_PEAKS = {"poisson": poisson, "student-t": student_t}


def to_a_power(log_p, power, y, f):
    return power * log_p(f, y)


def raised(name, mu, sigma, y, power, method):
    """Log Z, mean and standard deviation of one site, of p^power; y is one number, or a row."""
    projector = Projector(name, method)
    powers = None if power == 1.0 else np.array([power])
    y = np.array([y] if np.ndim(y) else y, dtype=float)
    found = project_many(projector.likelihood, projector.source, mu, sigma, y, None, powers)
    return [float(np.ravel(v)[0]) for v in (found.log_z, found.mean, found.std)]


def errors_of(likelihood, log_p, mu, sigma, y, power, marks, count=0.0):
    """Errors of (log Z, mean, sigma_EP, sigma*), in units of what each is allowed: 1 is the limit.

    1e-10 of a standard deviation, or of log Z; next to that a mean rounds as a double does, and
    log p as f and its largest value, `count`, do where the cavity contradicts it.
    """
    log_z, mean, _, std, star = multiprecision.tilted(log_p, mu, sigma, power, marks)
    qp, ep = (raised(likelihood, mu, sigma, y, power, method) for method in ("qp", "ep"))
    close = 1e-10 * (1.0 + abs(log_z)) + 2.0**-52 * count
    far = 1e-10 * std + 4.0 * np.spacing(abs(mean))
    return np.abs(
        [
            *((qp[0] - log_z) / close, (ep[0] - log_z) / close, (qp[1] - mean) / far),
            *((ep[1] - mean) / far, (ep[2] / std - 1.0) / 1e-10, (qp[2] / star - 1.0) / 1e-9),
        ]
    )


def errors(name, mu, sigma, y, power=1.0, parameters=None):
    """The same by the name of a likelihood that `multiprecision` has."""
    parameters = parameters or {}
    log_p = multiprecision.log_density(name, y, parameters)
    marks = [0.0, *np.log(list(parameters.values()))]
    if name == "binomial":
        marks += [np.log(y[1]), -np.log(y[1])]
    elif name == "laplace":
        marks = [y]
    elif y > 1.0:
        marks.append(np.log(y))
    count = parameters.get("dispersion", 0.0) + (np.max(y) if name != "laplace" else 0.0)
    spelt = likelihoods.get(name, **parameters)
    return errors_of(spelt, log_p, mu, sigma, y, power, marks, count)


@pytest.mark.interpreted
@every_case(
    ("name", "mu", "sigma", "y"),
    [
        ("poisson-exp", 77024.754, 1.5e-6, 20.0),
        ("poisson-exp", 10.0, 1e-3, 1e6),
        ("poisson-exp", 10.0, 1e-3, 0.0),
        ("poisson-exp", 0.0, 1e8, 0.0),
        ("binomial", 52.0, 2.6e-6, (8442680, 42965159)),
        ("binomial", -1.0, 0.026, (8442680, 42965159)),
        ("binomial", 0.0, 1e-4, (8442680, 42965159)),
        # Seen from far right of the bend.
        *(("binomial", 60.0, 3.785, (1, 2)), ("binomial", 80.0, 3.785, (1, 3))),
        ("binomial", 80.0, 5.0, (1, 2)),
    ],
)
def test_cavities_that_contradict_the_data(name, mu, sigma, y):
    assert errors(name, mu, sigma, y).max() < 1.0


@pytest.mark.interpreted
@every_case("options", [{"weights": [2.0]}, {"power": 0.5}])
@every_case("method", ["ep", "qp"])
def test_a_large_count_with_a_weight(options, method):
    post = infer(np.eye(1), [300], "poisson-exp", mean=np.log(300), method=method, **options)
    assert post.converged
    # A weight of 2 is as good as the count twice: two sites on one latent value.
    if "weights" in options:
        twice = infer(np.ones((2, 2)), [300] * 2, "poisson-exp", mean=np.log(300), method=method)
        np.testing.assert_allclose(post.variance, twice.variance[:1], rtol=1e-3)
    log_p = multiprecision.log_density("poisson-exp", 300, {})
    weight = options.get("weights", [1.0])[0]
    _, mean, _, std, star = multiprecision.tilted(log_p, np.log(300), 1.0, weight)
    if "weights" in options:
        np.testing.assert_allclose(post.mean, mean, rtol=1e-9)
        expected = std if method == "ep" else star
        np.testing.assert_allclose(np.sqrt(post.variance), expected, rtol=1e-9)


@pytest.mark.parametrize(("mu", "sigma", "y"), [(1.0, 1.0, 300), (1.0, 9.0, 3), (0.0, 20.0, 0)])
def test_lp_projections_of_counts(mu, sigma, y):
    """p = 2 is the quantile projection."""
    lp = Projector("poisson-exp", "wp", p=2.0)
    found = project_many(lp.likelihood, lp.source, mu, sigma, y)
    _, mean, std = raised("poisson-exp", mu, sigma, y, 1.0, "qp")
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-9 * std)
    np.testing.assert_allclose(found.std, std, rtol=1e-9)


@pytest.mark.interpreted
def test_heaviside_is_what_it_is_to_every_power():
    for mu, sigma, y in [(0.3, 1.0, 1.0), (-30.0, 2.0, 1.0), (1e4, 1e8, -1.0)]:
        for method in ("ep", "qp"):
            once = raised("heaviside", mu, sigma, y, 1.0, method)
            for power in (0.01, 3.0, 100.0):
                got = raised("heaviside", mu, sigma, y, power, method)
                # The first power looks sigma* up.
                np.testing.assert_allclose(got, once, rtol=1e-9)


@pytest.mark.interpreted
@every_case("y", [0.0, 1.0, 3.0, 7.0, 60.0])
@every_case("power", [0.01, 0.5, 2.0, 1.7, 10.0, 100.0])
def test_square_link_to_a_power_is_a_count_of_its_own(y, power):
    """w log p at f is that of w y at sqrt(w) f, but for a constant, where w y is whole."""
    v, root = power * y, np.sqrt(power)
    shift = gammaln(v + 1.0) - power * gammaln(y + 1.0) - v * np.log(power)
    cavities = [(0.0, 1.0), (0.4, 3.0), (-2.0, 0.3), (5.0, 0.01), (30.0, 100.0)]
    for mu, sigma in cavities[:: 2 if INTERPRETED else 1]:
        for method in ("ep", "qp"):
            log_z, mean, std = raised("poisson", mu, sigma, y, power, method)
            if v != np.floor(v):
                marks = [np.sqrt(y), -np.sqrt(y)]
                want = oracle.tilted(lambda f: power * poisson(f, y), mu, sigma, marks)
                want = want[0], want[1], want[3] if method == "qp" else np.sqrt(want[2])
            else:
                log_z -= shift
                want = np.array(raised("poisson", root * mu, root * sigma, v, 1.0, method))
                want[1:] /= root
            np.testing.assert_allclose(log_z, want[0], rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(mean, want[1], rtol=1e-10, atol=1e-10 * std)
            # Shipped tables of the first power are right to 1e-9.
            np.testing.assert_allclose(std, want[2], rtol=1e-9)


def case(rng):
    """A random cavity, observation and power for a likelihood of one peak."""
    name = str(rng.choice(PEAKED))
    power = float(rng.choice([1.0, rng.integers(2, 6), 10.0 ** rng.uniform(-2, 2)]))
    sigma = float(10.0 ** (rng.uniform(-6, 8) if rng.random() < 0.5 else rng.uniform(-1.5, 1.5)))
    mu = float(rng.normal() * 10.0 ** rng.uniform(-2, 3))
    if rng.random() < 0.5:
        mu = float(rng.normal() * 3.0 * (1.0 + sigma))
    parameters = {}
    if name in ("probit", "logistic"):
        y = float(rng.choice([-1.0, 1.0]))
    elif name == "binomial":
        n = int(10.0 ** rng.uniform(0, 5))
        y = int(rng.integers(0, n + 1)), n
    elif name == "laplace":
        y, parameters = float(rng.normal() * 10.0 ** rng.uniform(-2, 2)), {"scale": 1.0}
        parameters["scale"] = float(10.0 ** rng.uniform(-2, 2))
    else:
        y = float(rng.choice([0, 1, 3, 40, 1000, 10_000]))
        if name == "negative-binomial":
            parameters = {"dispersion": float(10.0 ** rng.uniform(-3, 5))}
    return name, mu, sigma, y, power, parameters


def check_cases(seed, number):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        drawn = case(rng)
        wrong = errors(*drawn)
        assert wrong.max() < 1.0, f"QP_SEED={seed}: {drawn} is wrong by {wrong} of its limits"


def check_two_peaks(seed, number):
    rng = np.random.default_rng([seed, 2])
    for _ in range(number):
        name = str(rng.choice(sorted(TWO_PEAKS)))
        mu, sigma = float(rng.normal() * 5.0), float(10.0 ** rng.uniform(-1.0, 1.5))
        y = float(rng.integers(0, 30)) if name == "poisson" else float(rng.normal() * 10.0)
        power = float(10.0 ** rng.uniform(-1.5, 1.5))
        marks = [y] if name == "student-t" else [np.sqrt(y), -np.sqrt(y)]
        want = oracle.tilted(partial(to_a_power, TWO_PEAKS[name], power, y), mu, sigma, marks)
        qp, ep = (raised(name, mu, sigma, y, power, method) for method in ("qp", "ep"))
        got = [qp[0], qp[1], ep[2], qp[2], ep[0], ep[1]]
        want = [want[0], want[1], np.sqrt(want[2]), want[3], want[0], want[1]]
        note = f"QP_SEED={seed}: {name}, {mu}, {sigma}, {y}, power {power}"
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * ep[2], err_msg=note)


@pytest.mark.interpreted
def test_of_the_day():
    """Cases that nobody has seen before; the seed is in the report's header and in a failure."""
    number = 12 if INTERPRETED else 24
    check_cases(multiprecision.SEED, number)
    check_two_peaks(multiprecision.SEED, number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_random_cases(seed):
    check_cases(seed, 60)
    check_two_peaks(seed, 60)


def test_every_likelihood_has_its_powers_tested():
    # The step's are in test_step.py.
    assert set(NAMES) == {*PEAKED, *TWO_PEAKS, "heaviside", "step"}


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
