"""`functions` of every likelihood against mpmath: values and both derivatives; bad arguments."""

import csv
import itertools
import math
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student_t

from qpruntime import Likelihood, NumericalError, functions, likelihoods, project
from qpruntime.interop.arguments import CLOSED_SLOPES
from tests.tools.cases import every_case, refuses
from tests.tools.half_plane import kind_of
from tests.tools.oracle import unit_normal

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


def test_every_likelihood_has_rows():
    assert {likelihoods.get(row["likelihood"]).name for row in ROWS} == set(likelihoods.names())


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


def gauss_hermite(log_p, mu, sigma):
    """Log Z and the tilted deviation by 20 points, as is common."""
    x, w = unit_normal(20)
    e = np.log(w) + np.array([log_p(mu + sigma * t) for t in x])
    p = np.exp(e - e.max())
    log_z = e.max() + math.log(p.sum())
    p /= p.sum()
    return log_z, sigma * math.sqrt(p @ (x - p @ x) ** 2)


def test_where_twenty_points_fail():
    """By how much the common rule is wrong where the rows above are right."""
    wide, _, counts, label = ROWS[:4]
    assert [r["likelihood"] for r in (counts, label)] == ["poisson-exp", "logistic"]
    lost, ratio = {}, {}
    for row in (wide, counts, label):
        mu, sigma, y, _ = arguments(row)
        own = likelihoods.get(row["likelihood"])
        rough = gauss_hermite(lambda f, own=own, y=y: float(own.log_prob(f, y)), mu, sigma)
        lost[own.name] = rough[0] - float(row["log_partition"])
        ratio[own.name] = rough[1] / float(row["std"])
    assert lost["poisson-exp"] == pytest.approx(-23.0, abs=0.1)
    assert ratio["logistic"] == pytest.approx(0.74, abs=0.01)
    assert ratio["student-t"] == pytest.approx(0.56, abs=0.01)
    # The slope of a bound by points moved with mu.
    x, w = unit_normal(20)
    f = 0.5 + x
    assert w @ (-5.0 * f / (4.0 * 0.1**2 + f * f)) == pytest.approx(-3.69, abs=0.01)
    own = functions("student-t(nu=4, scale=0.1)")
    assert own.expected_log_prob(0.5, 1.0, 0.0, derivatives=True).d_mu == pytest.approx(
        -1.824031356456717, rel=1e-10
    )


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
        given = {"mu": 0.0, "sigma": 1.0, "y": 1, **change}
        refuses(message, getattr(own, name), **given)


def test_what_is_not_known_is_refused():
    refuses("unknown likelihood", functions, "probitt")
    refuses("table must be", functions, "probit", table=3)
    rough = Likelihood.from_log_prob(lambda f, y: f * f, name="growing")
    refuses("does not decay", functions(rough).sigma_star, 0.0, 1.0, 0.0, error=NumericalError)


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


def call_at_extremes(name, methods, pipe):
    """Call a function at all sizes; send what is called first, and at the end what is wrong."""
    own, wrong = functions(name), []
    kind = kind_of(name)
    means = [0.0, *SIZES, *(-size for size in SIZES)]
    for method, derivatives in itertools.product(methods, (False, True)):
        getattr(own, method)(0.3, 0.8, EXTREME[kind][0], derivatives=derivatives)
        for given in itertools.product(means, SIZES, EXTREME[kind]):
            pipe.send((method, derivatives, *given))
            try:
                found = getattr(own, method)(*given, derivatives=derivatives)
            except NumericalError:
                continue
            value, *slopes = found if derivatives else (found,)
            no_value = np.isnan(value).any()
            # -inf is a log density beyond double precision, which has no slope.
            no_slope = np.isfinite(value).all() and not np.isfinite(slopes).all()
            if no_value or no_slope:
                wrong.append((method, given, found))
    pipe.send(wrong)


def ends_at_extremes(name, methods):
    """Call in another process, which is killed if it says nothing for long."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=call_at_extremes, args=(name, methods, theirs), daemon=True)
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


@pytest.mark.slow
@every_case("name", ["probit", "logistic", "student-t"])
def test_expectations_end_at_all_finite_arguments(name):
    ends_at_extremes(name, ("expected_log_prob",))


@pytest.mark.slow
@every_case("name", likelihoods.names())
def test_every_function_ends_at_all_finite_arguments(name):
    ends_at_extremes(name, METHODS)


EXPECTATIONS = [
    # A wide normal sees the bend at 0 as a kink: -E max(f, 0), or -E max(-f, 0)^2/2.
    ("logistic", 1e155, 1e155, 1.0, -1e155 * (norm.pdf(1.0) - norm.sf(1.0))),
    ("logistic", 1e155, 1e155, -1.0, -1e155 * (norm.pdf(1.0) + norm.cdf(1.0))),
    ("logistic", 0.0, 1e155, 1.0, -1e155 * norm.pdf(0.0)),
    ("logistic", 1e16, 4.0, -1.0, -1e16),
    ("logistic", 1e16, 4.0, 1.0, 0.0),
    ("probit", 1e150, 1e150, 1.0, -0.5e300 * (2.0 * norm.sf(1.0) - norm.pdf(1.0))),
    # E log X^2 = log s^2/2 - gamma for a normal about 0: no scale is seen but the normal's.
    (
        "student-t(nu=4, scale=0.1)",
        0.0,
        1e155,
        0.0,
        float(student_t.logpdf(0.0, 4.0)) + math.log(10.0)
        - 2.5 * (2.0 * math.log(1e156) - math.log(8.0) - np.euler_gamma),
    ),
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
