"""Likelihoods of `kinds`: log densities by SciPy's formulas, moments by another quadrature."""

import copy
import pickle

import numpy as np
import pytest
from numba import config
from scipy import stats
from scipy.special import expit, gammaln, log_expit, log_ndtr, logsumexp, ndtr

from qpruntime import likelihoods
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import tilted

pytestmark = pytest.mark.interpreted

INF = np.inf


def normal_between(a, b):
    """log(Phi(b) - Phi(a)) by the log tail that is larger."""
    a, b = np.broadcast_arrays(a, b)
    upper = np.where(a > 0.0, log_ndtr(-a), log_ndtr(b))
    lower = np.where(a > 0.0, log_ndtr(-b), log_ndtr(a))
    with np.errstate(divide="ignore"):
        return upper + np.log(-np.expm1(lower - upper))


def gamma(f, y, shape):
    z = shape * (np.log(y) - f)
    tail = shape * np.exp(np.minimum(np.log(y) - f, 700.0))
    return z - tail + shape * np.log(shape) - gammaln(shape) - np.log(y)


def beta(f, y, precision):
    a, b = precision * expit(f), precision * expit(-f)
    constant = gammaln(precision) - gammaln(a) - gammaln(b)
    return constant + (a - 1.0) * np.log(y) + (b - 1.0) * np.log1p(-y)


def negative(f, y, r):
    constant = gammaln(y + r) - gammaln(y + 1.0) - gammaln(r)
    return constant - r * np.logaddexp(0.0, f - np.log(r)) - y * np.logaddexp(0.0, np.log(r) - f)


def inflated(f, y, dispersion, zeros):
    found = np.log1p(-zeros) + negative(f, y, dispersion)
    return np.logaddexp(np.log(zeros), found) if y == 0.0 else found


def hurdle(f, y, dispersion, zeros):
    if y == 0.0:
        return np.full_like(f, np.log(zeros))
    none = dispersion * np.logaddexp(0.0, f - np.log(dispersion))
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = np.where(f > -600.0, np.log(-np.expm1(-none)), f)
    return np.log1p(-zeros) + negative(f, y, dispersion) - seen


def flipped(f, y, flip):
    return np.logaddexp(np.log(flip), np.log1p(-2.0 * flip) + log_ndtr(y * f))


def levels(f, y, *edges):
    edges = (-INF, 0.0, *edges, INF)
    return normal_between(edges[int(y)] - f, edges[int(y) + 1] - f)


def odds(f, y, *edges):
    """Levels under logistic noise, by the difference of the smaller tails."""
    edges = (-INF, 0.0, *edges, INF)
    a, b = edges[int(y)] - f, edges[int(y) + 1] - f
    a, b = np.where(a > 0.0, -b, a), np.where(a > 0.0, -a, b)
    with np.errstate(divide="ignore"):
        return log_expit(b) + np.log(-np.expm1(log_expit(a) - log_expit(b)))


def log_normal(f, y, scale):
    a, b = ((np.log(t) if t > 0.0 else -INF) - f for t in y)
    if y[0] == y[1]:
        return stats.norm.logpdf(a / scale) - np.log(scale) - np.log(y[0])
    return normal_between(a / scale, b / scale)


def of_survival(later, event):
    """Log density from the log survival function and density of e, T = exp(f + scale e)."""

    def log_p(f, y, scale):
        a, b = (((np.log(t) if t > 0.0 else -INF) - f) / scale for t in y)
        if y[0] == y[1]:
            return event(a) - np.log(scale) - np.log(y[0])
        if y[1] == INF:
            return later(a)
        with np.errstate(divide="ignore", over="ignore"):
            gap = later(b) - later(a) if y[0] > 0.0 else later(b)
            # Where the gap is small its digits come from the slope of the log survival function.
            return (later(a) if y[0] > 0.0 else 0.0) + np.log(-np.expm1(gap))

    return log_p


weibull = of_survival(
    lambda z: -np.exp(np.minimum(z, 700.0)), lambda z: z - np.exp(np.minimum(z, 700.0))
)
log_logistic = of_survival(
    lambda z: -np.logaddexp(0.0, z), lambda z: z - 2.0 * np.logaddexp(0.0, z)
)

GAPS = "gap_2=0.7, gap_3=0.01, gap_4=1e8"
SPANS = [(2.0, 2.0), (2.0, INF), (0.0, 2.0), (1.0, 3.0)]
#: Spelling: the log density written again, its arguments, observations.
CASES = {
    "gaussian(scale=0.3)": (lambda f, y, s: stats.norm.logpdf(y, f, s), (0.3,), (0.7, -40.0)),
    "gamma(shape=0.4)": (gamma, (0.4,), (1.3, 1e-3)),
    "gamma(shape=30)": (gamma, (30.0,), (1.3, 200.0)),
    "beta(precision=12)": (beta, (12.0,), (0.3, 0.999)),
    "beta(precision=0.5)": (beta, (0.5,), (0.01, 0.5)),
    "zero-inflated(dispersion=2, zeros=0.3)": (inflated, (2.0, 0.3), (0.0, 1.0, 40.0)),
    "hurdle(dispersion=2, zeros=0.3)": (hurdle, (2.0, 0.3), (0.0, 1.0, 2.0, 40.0)),
    "hurdle(dispersion=0.05, zeros=0.6)": (hurdle, (0.05, 0.6), (1.0, 3.0)),
    "hurdle(dispersion=1e3, zeros=0.01)": (hurdle, (1e3, 0.01), (1.0, 900.0)),
    "noisy-probit(flip=0.1)": (flipped, (0.1,), (1.0, -1.0)),
    f"ordinal({GAPS})": (levels, (0.7, 0.71), (0.0, 1.0, 2.0, 3.0)),
    f"ordinal-logistic({GAPS})": (odds, (0.7, 0.71), (0.0, 1.0, 2.0, 3.0)),
    "log-normal(scale=0.4)": (log_normal, (0.4,), SPANS),
    "weibull(scale=0.4)": (weibull, (0.4,), SPANS),
    "weibull(scale=2)": (weibull, (2.0,), SPANS),
    "log-logistic(scale=0.4)": (log_logistic, (0.4,), SPANS),
}
F = np.array([-4.0, -1.0, -0.2, 0.3, 1.0, 3.0])
CAVITIES = [(0.0, 1.0), (-3.0, 0.5), (2.0, 3.0), (0.02, 1e-2), (-4.0, 8.0)]


def test_all_are_here():
    assert {name.split("(")[0] for name in CASES} == set(likelihoods.names(kinds=True))
    assert not set(likelihoods.names()) & set(likelihoods.names(kinds=True))


@every_case("name", CASES)
def test_densities_and_claims(name):
    own, (log_p, values, seen) = likelihoods.get(name), CASES[name]
    assert likelihoods.is_registered(own)
    assert pickle.loads(pickle.dumps(own)) is own is copy.deepcopy(own)
    assert set(own.limits) == set(own.parameters)
    line = np.linspace(-6.0, 6.0, 49)
    for y in seen:
        np.testing.assert_allclose(own.log_prob(F, y), log_p(F, y, *values), rtol=1e-11, atol=1e-12)
        if own.log_concave:
            found = own.log_prob(line, y)
            bend = found[2:] + found[:-2] - 2.0 * found[1:-1]
            assert not (bend > 1e-9 * (1.0 + np.abs(found[1:-1]))).any(), y


def check(name, y, mu, sigma, power=1.0, method="ep", marks=(), near=1e-9):
    """Log Z, mean and standard deviation of a site against the oracle's quadrature."""
    own, (log_p, values, _) = likelihoods.get(name), CASES[name]
    centre = np.log(max(y[0], 1.0)) if isinstance(y, tuple) else 0.0
    marks = (centre, centre + 0.7, *marks, *(values if "ordinal" in name else ()))
    want = tilted(lambda f: power * log_p(f, y, *values), mu, sigma, marks)
    powers = None if power == 1.0 else np.array([power])
    source = Projector(own, method).source
    log_z, mean, std, *_ = project_many(own, source, mu, sigma, np.array(y), None, powers)
    wanted = np.sqrt(want[2]) if method == "ep" else want[3]
    np.testing.assert_allclose(log_z.item(), want[0], rtol=near, atol=near)
    assert abs(mean.item() - want[1]) < near * (wanted + 1e-3 * abs(want[1]))
    np.testing.assert_allclose(std.item(), wanted, rtol=10.0 * near)


@every_case("name", CASES)
@every_case(("mu", "sigma"), CAVITIES[:: 2 if config.DISABLE_JIT else 1])
def test_moments(name, mu, sigma):
    if likelihoods.get(name).moments is None and sigma != 1.0:
        return  # the adaptive rule has tests of its own
    for y in CASES[name][2]:
        check(name, y, mu, sigma)


#: Interpreted, all of them; each takes two seconds to compile, which is for the slow tests.
POWERED = CASES if config.DISABLE_JIT else ("gamma(shape=30)", "beta(precision=12)")


@pytest.mark.parametrize("names", [POWERED, pytest.param(CASES, marks=pytest.mark.slow)])
def test_moments_of_powers(names):
    """As inducing points take them; narrow, usual and wide cavities."""
    for name in names:
        for y in CASES[name][2]:
            for mu, sigma, power in ((0.3, 0.8, 0.5), (-4.0, 6.0, 0.5), (2.0, 0.05, 0.13)):
                check(name, y, mu, sigma, power)


OF_POWERS = [
    *(("gaussian(scale=0.3)", 0.7), ("gamma(shape=30)", 1.3), ("beta(precision=12)", 0.3)),
    *((f"ordinal({GAPS})", 1.0), (f"ordinal-logistic({GAPS})", 1.0)),
    ("log-normal(scale=0.4)", (1.0, 3.0)),
]


@every_case(
    ("name", "y", "cavity", "options"),
    [
        ("beta(precision=12)", 0.3, (-4.0, 80.0), {}),
        ("hurdle(dispersion=1e3, zeros=0.01)", 900.0, (0.0, 60.0), {}),
        ("gaussian(scale=0.3)", 0.7, (0.0, 50.0), {}),
        *((*case, (0.3, 0.8), {"power": 0.4, "method": "ep"}) for case in OF_POWERS),
        *((*case, (0.3, 0.8), {"power": 0.4, "method": "qp"}) for case in OF_POWERS),
    ],
)
def test_powers_and_narrow_likelihoods_under_wide_cavities(name, y, cavity, options):
    check(name, y, *cavity, **options or {"marks": (np.log(y),), "near": 1e-10})


def _frozen(given):
    return given.dist(*given.parameters, **given.scale)


@every_case("name", [name for name in CASES if likelihoods.get(name).given is not None])
def test_distributions_are_those_of_the_density(name):
    """CDF, quantiles and moments of y given f are those of the log density."""
    own, (log_p, values, seen) = likelihoods.get(name), CASES[name]
    for f in (-0.5, 1.2):
        given = own.given(np.array([f]), own.theta)
        is_level = own.name.startswith("ordinal")
        if own.name in ("zero-inflated", "hurdle") or is_level:
            y = np.arange(4.0 if is_level else 4000.0)
            p = np.exp([float(log_p(np.array(f), k, *values)) for k in y])
            assert p.sum() == pytest.approx(1.0, abs=1e-9)
            mean = p @ y
            assert given.mean()[0] == pytest.approx(mean, rel=1e-9)
            assert given.var()[0] == pytest.approx(p @ (y - mean) ** 2, rel=1e-9)
            np.testing.assert_allclose([given.cdf(k)[0] for k in y[:4]], np.cumsum(p)[:4], 1e-9)
            np.testing.assert_allclose([given.sf(k)[0] for k in y[:3]], 1 - np.cumsum(p)[:3], 1e-7)
            for q in (0.2, 0.6, 0.9):
                assert given.ppf(q)[0] == y[np.searchsorted(np.cumsum(p), q)]
            drawn = own.given(np.full(20_000, f), own.theta).rvs(20_000, np.random.default_rng(0))
            assert drawn.mean() == pytest.approx(mean, abs=5.0 * np.sqrt(p @ y**2 / 20_000))
        elif own.columns == 2:
            for t in (0.4, 2.0):
                below = np.exp(log_p(np.array([f]), (0.0, t), *values))
                np.testing.assert_allclose(given.cdf(t), below, rtol=1e-12)
                expected = log_p(np.array([f]), (t, t), *values)
                np.testing.assert_allclose(_frozen(given).logpdf(t), expected, rtol=1e-12)
        else:
            wanted = [log_p(np.array([f]), y, *values) for y in seen]
            np.testing.assert_allclose([_frozen(given).logpdf(y) for y in seen], wanted, rtol=1e-11)


def test_slopes_by_parameters_are_those_of_log_z():
    """Spans hold their rows while the scale moves."""
    holding, numbers = likelihoods.get("weibull(scale=0.4)").observing([(2.0, 2.0), (1.0, 3.0)])
    moved = holding.with_parameters(scale=0.5)
    for likelihood, scale in ((holding, 0.4), (moved, 0.5)):
        found = project_arrays(likelihood, 0.3, 0.8, numbers, method="ep").log_z
        spelt = likelihoods.get("weibull", scale=scale)
        wanted = project_arrays(spelt, 0.3, 0.8, [(2.0, 2.0), (1.0, 3.0)], method="ep").log_z
        np.testing.assert_array_equal(found, wanted)


@every_case(
    ("name", "wrong"),
    [
        ("gamma", (0.0, -1.0, np.nan, INF, "a")),
        ("beta", (0.0, 1.0, 35.0, np.nan)),
        ("ordinal", (-1.0, 0.5, 12.0, np.nan)),
        ("zero-inflated", (-1.0, 0.5)),
        ("hurdle", (-1.0, 0.5)),
        ("noisy-probit", (0.0, 2.0)),
        ("weibull", (3.0, (3.0, 2.0), (0.0, 0.0), (0.0, INF), (-1.0, 2.0), (np.nan, 2.0))),
    ],
)
def test_refusals(name, wrong):
    for y in wrong:
        refuses(".", likelihoods.get(name).validate, [y])


@every_case(("name", "below"), [("ordinal", ndtr), ("ordinal-logistic", expit)])
def test_levels_add_up(name, below):
    own = likelihoods.get(f"{name}({GAPS})")
    every = [own.log_prob(F, k) for k in range(4)]
    np.testing.assert_allclose(logsumexp(every, axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(np.exp(every[0]), below(-F), rtol=1e-13)
