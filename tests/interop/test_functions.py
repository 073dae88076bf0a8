"""`functions` of every likelihood against mpmath: values and both derivatives; bad arguments."""

import csv
import itertools
import math
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.stats import norm, t as student_t

from qpruntime import Likelihood, NumericalError, functions, likelihoods, project
from qpruntime.interop.arguments import CLOSED_SLOPES
from tests.tools.cases import every_case, refuses
from tests.tools.half_plane import kind_of

REFERENCE = Path(__file__).parents[1] / "reference" / "certified.csv"
ROWS = list(csv.DictReader(REFERENCE.read_text().splitlines()))
METHODS = ("log_partition", "moments", "sigma_star", "expected_log_prob")


def arguments(row):
    y = [float(v) for v in row["y"].split()]
    return float(row["mu"]), float(row["sigma"]), y[0] if len(y) == 1 else y, float(row["power"])


def wanted(row, name):
    return [float(row[name + end]) for end in ("", "_d_mu", "_d_sigma")]


def near(got, want, unit):
    """To 1e-9 of the value, or to 1e-12 of what derivatives of this kind are measured in."""
    if math.isnan(want) or math.isinf(want):
        assert np.array_equal(got, want, equal_nan=True), (float(got), want)
    else:
        assert abs(got - want) <= max(1e-9 * abs(want), 1e-12 * unit), (float(got), want)


def compare(own, row):
    mu, sigma, y, power = arguments(row)
    found = {name: getattr(own, name)(mu, sigma, y, power, derivatives=True) for name in METHODS}
    mean, std = zip(*found.pop("moments"), strict=True)
    found |= {"mean": mean, "std": std, "expected": found.pop("expected_log_prob")}
    for name, parts in found.items():
        steep = name in ("log_partition", "expected")
        # The mean is rounded as mu is.
        units = (abs(mu) if name == "mean" else 0.0, *(2 * (1.0 / sigma if steep else 1.0,)))
        for part, want, unit in zip(parts, wanted(row, name), units, strict=True):
            near(part, want, unit)


@every_case("row", ROWS)
def test_values(row):
    """What needs no derivative of a tilted density, whose kernels take long to compile."""
    mu, sigma, y, power = arguments(row)
    own = functions(row["likelihood"])
    near(own.log_partition(mu, sigma, y, power), wanted(row, "log_partition")[0], 0.0)
    mean, std = own.moments(mu, sigma, y, power)
    near(mean, wanted(row, "mean")[0], abs(mu))
    near(std, wanted(row, "std")[0], 0.0)
    found = own.expected_log_prob(mu, sigma, y, power, derivatives=True)
    if row["likelihood"] in CLOSED_SLOPES:
        found = [*found, *own.log_partition(mu, sigma, y, derivatives=True)[1:]]
    right = [*wanted(row, "expected"), *wanted(row, "log_partition")[1:]]
    for got, want in zip(found, right, strict=False):
        near(got, want, 1.0 / sigma)


@pytest.mark.slow
@every_case("row", ROWS)
def test_against_mpmath(row):
    compare(functions(row["likelihood"]), row)


OWN = {
    "logistic": Likelihood.from_log_prob(
        lambda f, y, theta: -math.log1p(math.exp(-abs(f))) - max(-y * f, 0.0),
        name="own-logistic",
        outcomes=[-1.0, 1.0],
    ),
    "laplace": Likelihood.from_log_prob(
        lambda f, y, theta: -abs(y - f) - math.log(2.0),
        name="own-laplace",
        location=True,
        landmarks=lambda y, theta: [y],
    ),
}


@pytest.mark.slow
@every_case("row", [r for r in ROWS if r["likelihood"] in OWN and float(r["sigma"]) > 1e-3])
def test_own_log_densities(row):
    compare(functions(OWN[row["likelihood"]]), row)


def test_arguments_broadcast():
    own = functions("probit")
    mu, sigma, y = np.zeros((3, 1)), np.array([0.5, 1.0]), 1
    value, d_mu, d_sigma = own.log_partition(mu, sigma, y, derivatives=True)
    assert value.shape == d_mu.shape == d_sigma.shape == (3, 2)
    mean, std = own.moments(mu, sigma, y, power=[[1.0], [0.5], [2.0]])
    assert mean.shape == std.shape == (3, 2)
    expected = project("probit", 0.0, sigma, 1)[1]
    np.testing.assert_array_equal(own.sigma_star(0.0, sigma, y), expected)
    pairs = functions("binomial").log_predictive(np.zeros(2), 1.0, [[1, 3], [2, 3]])
    assert pairs.shape == (2,)
    assert pairs[0] == pytest.approx(pairs[1], rel=1e-12)
    assert own.log_partition([], 1.0, 1).shape == (0,)


def test_powers_that_change_the_observation():
    value, d_mu, _ = functions("step").log_partition(0.3, 0.8, 1.5, power=2.0, derivatives=True)
    assert (value, d_mu) == functions("step").log_partition(0.3, 0.8, 3.0, derivatives=True)[:2]
    heaviside = functions("heaviside")
    assert heaviside.moments(0.3, 0.8, 1, power=3.0) == heaviside.moments(0.3, 0.8, 1)


def test_it_pickles_and_says_what_it_is():
    assert {likelihoods.get(row["likelihood"]).name for row in ROWS} == set(likelihoods.names())
    own = pickle.loads(pickle.dumps(functions("student-t(nu=4, scale=0.1)")))
    assert repr(own) == "<functions of student-t(nu=4, scale=0.1)>"
    wanted = float(ROWS[0]["log_partition"])
    assert own.log_partition(0.5, 1.0, 0.0) == pytest.approx(wanted, rel=1e-12)


@every_case(
    "change, message",
    [
        ({"mu": np.nan}, "mu must be finite"),
        ({"sigma": 0.0}, "must be positive and finite"),
        ({"sigma": np.inf}, "must be positive and finite"),
        ({"y": 0}, "labels must be -1 or"),
        ({"mu": "high"}, "mu must be an array of real numbers"),
        ({"power": 0.0}, "power must be positive and finite, got 0"),
        ({"power": -1.0}, "power must be positive"),
        ({"mu": np.zeros(2), "sigma": np.ones(3)}, "must broadcast"),
        ({"derivatives": "yes"}, "derivatives must be True or False"),
    ],
)
def test_arguments_that_are_refused(change, message):
    own = functions("probit")
    for name in METHODS:
        refuses(message, getattr(own, name), **{"mu": 0.0, "sigma": 1.0, "y": 1, **change})


def test_what_is_not_known_is_refused():
    refuses("unknown likelihood", functions, "probitt")
    refuses("table must be", functions, "probit", table=3)
    rough = Likelihood.from_log_prob(lambda f, y: f * f, name="growing")
    refuses("does not decay", functions(rough).sigma_star, 0.0, 1.0, 0.0, error=NumericalError)
    refuses("name must be one of", functions("probit").kernel, "sigma")
    refuses("'binomial' has 2; call the methods", functions("binomial").kernel, "moments")


#: Sizes of arguments from the smallest to the largest, where squares vanish and overflow.
SIZES = (1e-300, 1e-155, 1e-8, 1.0, 30.0, 1e8, 1e155, 1e300, 1.7e308)
#: Seconds for one call, of which the slowest takes milliseconds.
PATIENCE = 120.0
EXTREME = {
    "labels": (-1.0, 1.0),
    "counts": (0.0, 1.0, 50.0, 51.0, 1e6),
    "pairs": ([0, 1], [3, 7], [7, 7]),
    "numbers": (0.0, 0.3, -1e-300, 1e8, -1e100),
}


def call_at_extremes(name, pipe):
    """Call a function at all sizes; send what is called first, and at the end what is wrong."""
    own, wrong = functions(name), []
    kind = kind_of(name)
    means = [0.0, *SIZES, *(-size for size in SIZES)]
    for method, derivatives in itertools.product(METHODS, (False, True)):
        getattr(own, method)(0.3, 0.8, EXTREME[kind][0], derivatives=derivatives)
        for given in itertools.product(means, SIZES, EXTREME[kind]):
            pipe.send((method, derivatives, *given))
            try:
                found = getattr(own, method)(*given, derivatives=derivatives)
            except NumericalError:
                continue
            value, *slopes = found if derivatives else (found,)
            # -inf is a log density beyond double precision, which has no slope.
            no_slope = np.isfinite(value).all() and not np.isfinite(slopes).all()
            if np.isnan(value).any() or no_slope:
                wrong.append((method, given, found))
    pipe.send(wrong)


@pytest.mark.slow
@every_case("name", likelihoods.names())
def test_every_function_ends_at_all_finite_arguments(name):
    """Called in another process, which is killed if it says nothing for long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=call_at_extremes, args=(name, theirs), daemon=True)
    process.start()
    theirs.close()
    called = None
    try:
        while not isinstance(called, list):
            assert ours.poll(PATIENCE), f"{called} does not end"
            called = ours.recv()
    finally:
        process.kill()
        process.join()
    assert not called, called[:5]


EXPECTATIONS = [
    # A wide normal sees the bend at 0 as a kink: -E max(f, 0), or -E max(-f, 0)^2/2.
    ("logistic", 1e155, 1e155, 1.0, -1e155 * (norm.pdf(1.0) - norm.sf(1.0))),
    ("logistic", 1e155, 1e155, -1.0, -1e155 * (norm.pdf(1.0) + norm.cdf(1.0))),
    ("logistic", 0.0, 1e155, 1.0, -1e155 * norm.pdf(0.0)),
    ("logistic", 1e16, 4.0, -1.0, -1e16),
    ("logistic", 1e16, 4.0, 1.0, 0.0),
    ("probit", 1e150, 1e150, 1.0, -0.5e300 * (2.0 * norm.sf(1.0) - norm.pdf(1.0))),
    # E log X^2 = log s^2/2 - gamma for a normal about 0: no scale is seen but the normal's.
    ("student-t(nu=4, scale=0.1)", 0.0, 1e155, 0.0,
     float(student_t.logpdf(0.0, 4.0)) + math.log(10.0)
     - 2.5 * (2.0 * math.log(1e156) - math.log(8.0) - np.euler_gamma)),
    ("laplace", 1e8, 1e-300, -1e8, -2e8 - math.log(2.0)),
    ("poisson", 0.0, 1e-200, 2.0, 2.0 * (2.0 * math.log(1e-200) - math.log(2.0) - np.euler_gamma)
     - math.log(2.0)),
    ("poisson", 3.0, 1e-200, 2.0, 2.0 * math.log(9.0) - 9.0 - math.log(2.0)),
]  # fmt: skip


@every_case("name, mu, sigma, y, want", EXPECTATIONS)
def test_expectations_at_extremes_are_right(name, mu, sigma, y, want):
    assert functions(name).expected_log_prob(mu, sigma, y) == pytest.approx(want, rel=1e-11)


def test_expectations_reach_far_into_the_tails():
    """E f^20 = 19!! of a unit normal, of which 2e-4 are beyond 7 standard deviations."""
    own = functions(Likelihood.from_log_prob(lambda f, y: -((f - y) ** 20), name="own-steep"))
    found = own.expected_log_prob(0.5, 1.0, 0.5, derivatives=True)
    double_factorial = math.prod(range(1, 20, 2))
    assert found.value == pytest.approx(-double_factorial, rel=1e-11)
    assert found.d_sigma == pytest.approx(-20.0 * double_factorial, rel=1e-10)


STEP = mpf(10) ** -10


def closed(mu, sigma, y):
    """Log Z, mean and standard deviation (Rasmussen & Williams, 3.58, 3.82, 3.85)."""
    root = mp.sqrt(1 + sigma**2)
    z = y * mu / root
    Z = mp.erfc(-z / mp.sqrt(2)) / 2
    r = mp.npdf(z) / Z
    variance = sigma**2 - sigma**4 * r * (z + r) / (1 + sigma**2)
    return mp.log(Z), mu + y * sigma**2 * r / root, mp.sqrt(variance)


def quotients(mu, sigma, y):
    """Rows of a value and its differences of fourth order in mu and sigma."""
    m, s = mpf(mu), mpf(sigma)
    h = STEP * s
    rows = [[float(v)] for v in closed(m, s, y)]
    for by_mu, by_sigma in ((1, 0), (0, 1)):
        at = {k: closed(m + by_mu * k * h, s + by_sigma * k * h, y) for k in (-2, -1, 1, 2)}
        for row, *moved in zip(rows, *(at[k] for k in (-2, -1, 1, 2)), strict=True):
            row.append(float((8 * (moved[2] - moved[1]) - (moved[3] - moved[0])) / (12 * h)))
    return np.array(rows)


@pytest.mark.slow
def test_probit_narrow_and_wide_near_and_far():
    rng = np.random.default_rng(20)
    n = 60
    sigma = 10.0 ** rng.uniform(-6.0, 6.0, n)
    reach = 10.0 ** rng.uniform(-3.0, 2.5, n) * np.maximum(sigma, 1.0) ** rng.uniform(0.0, 1.0, n)
    mu, y = rng.choice([-1.0, 1.0], n) * reach, rng.choice([-1.0, 1.0], n)
    own = functions("probit")
    log_z = own.log_partition(mu, sigma, y, derivatives=True)
    mean, std = zip(*own.moments(mu, sigma, y, derivatives=True), strict=True)
    with mp.workdps(60):
        want = np.array([quotients(*at) for at in zip(mu, sigma, y, strict=True)])
    # Units: of the values, then of both derivatives; see `LikelihoodFunctions`.
    one = np.ones(n)
    units = ((1e-3 * one, 1.0 / sigma), (np.abs(mu) + sigma, one), (0.0 * one, one))
    for k, found in enumerate((log_z, mean, std)):
        for j in range(3):
            right, unit = want[:, k, j], units[k][min(j, 1)]
            error = np.abs(found[j] - right)
            allowed = np.maximum(1e-9 * np.abs(right), 1e-12 * unit)
            assert (error <= allowed).all(), (k, j, mu[error > allowed], sigma[error > allowed])
