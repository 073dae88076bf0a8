"""Priors on hyper-parameters: densities by SciPy, and modes of evidence times prior found again."""

from functools import cache

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import approx_fprime, minimize
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import GPClassifier, GPRegressor, Search, infer
from qpruntime.learning.hyperpriors import Priors
from qpruntime.likelihoods import get
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0.0, 5.0, (40, 1)), axis=0)
Y = np.sin(2.0 * X[:, 0]) + 0.3 * RNG.standard_normal(40)
KERNEL = ConstantKernel(1.0) * Matern(1.0, nu=1.5)
#: A prior, and the same as SciPy has it.
NAMED = [
    (("half-normal", 0.7), stats.halfnorm(scale=0.7)),
    (("log-normal", 2.0, 0.4), stats.lognorm(0.4, scale=2.0)),
    (("gamma", 3.0, 0.5), stats.gamma(3.0, scale=0.5)),
    (("inverse-gamma", 3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    (("pc-deviation", 2.0, 0.05), stats.expon(scale=-2.0 / np.log(0.05))),
    (("pc-length", 0.5, 0.1, 2.0), stats.invgamma(1.0, scale=-np.log(0.1) * 0.5)),
]


@every_case(("prior", "same"), [*NAMED, (stats.gamma(2.0), stats.gamma(2.0))])
def test_densities_are_of_the_logarithm(prior, same):
    own = Priors(((0, prior),))
    for t in (-2.0, 0.1, 1.3):
        value, slope = own(np.array([t]))
        assert value == pytest.approx(same.logpdf(np.exp(t)) + t, rel=1e-12)
        step = approx_fprime(np.array([t]), lambda v: same.logpdf(np.exp(v[0])) + v[0], 1e-6)
        assert slope[0] == pytest.approx(step[0], rel=1e-4, abs=1e-5)


@every_case("kind", ["pc-variance", "pc-deviation", "pc-length"])
def test_probabilities_of_tails(kind):
    """What the two numbers say, by integrals; and the slope, by differences of fourth order."""
    own = Priors(((0, (kind, 1.4, 0.2, *([3.0] if kind == "pc-length" else []))),))

    def density(t):
        return np.exp(own(np.array([t]))[0])

    edge = np.log(1.4) * (2.0 if kind == "pc-variance" else 1.0)
    ends = (-60.0, edge) if kind == "pc-length" else (edge, 30.0)
    tail = quad(density, *ends, epsabs=1e-12, epsrel=1e-10, limit=200, points=[0.0, 2.0])[0]
    assert tail == pytest.approx(0.2, rel=1e-7)
    by_difference = slopes(lambda t: own(t)[0], [0.3])
    assert own(np.array([0.3]))[1] == pytest.approx(by_difference, rel=1e-8)


PRIORS = {
    "k1__constant_value": ("gamma", 2.0, 0.3),
    "length_scale": stats.lognorm(0.2, scale=0.4),
    "scale": ("inverse-gamma", 5.0, 0.5),
}


def score(theta):
    """Evidence by dense algebra, times the priors of SciPy."""
    kernel, scale = KERNEL.clone_with_theta(theta[:2]), np.exp(theta[2])
    total = kernel(X) + scale**2 * np.eye(40)
    x = np.exp(theta)
    own = (stats.gamma(2.0, scale=0.3), stats.lognorm(0.2, scale=0.4), stats.invgamma(5, scale=0.5))
    prior = sum(p.logpdf(v) + np.log(v) for p, v in zip(own, x, strict=True))
    return stats.multivariate_normal(np.zeros(40), total).logpdf(Y) + prior


@cache
def best():
    return minimize(lambda t: -score(t), np.array([-1.0, -0.9, -1.2]), options={"gtol": 1e-5})


@every_case("options", [{"solver": "dense"}, {"solver": "markov"}, {"inducing": X}])
def test_modes_in_every_engine(options):
    search = Search(priors=PRIORS)
    model = GPRegressor(KERNEL, normalize_y=False, method="ep", optimize=search, **options)
    model.fit(X, Y)
    # Stages with inducing points end early, where little is left to gain.
    assert score(model.optimum_.theta) > -best().fun - (1e-2 if "inducing" in options else 1e-5)
    if "inducing" not in options:
        np.testing.assert_allclose(model.optimum_.theta, best().x, atol=2e-3)
        assert model.optimum_.score == pytest.approx(-best().fun, abs=1e-5)
    plain = GPRegressor(KERNEL, normalize_y=False, method="ep", **options).fit(X, Y)
    assert np.abs(plain.optimum_.theta - model.optimum_.theta).max() > 0.05


def test_of_classes_too():
    """A narrow prior holds the length-scale; where there is none the evidence decides."""
    search = Search(priors={"length_scale": ("log-normal", 2.5, 0.01)})
    model = GPClassifier(KERNEL, method="ep", optimize=search).fit(X, Y > 0.0)
    assert model.kernel_.k2.length_scale == pytest.approx(2.5, rel=0.01)
    post = infer(model.kernel_(X), np.where(Y > 0.0, 1.0, -1.0), get("probit"), method="ep")
    assert model.optimum_.value == pytest.approx(post.log_evidence, abs=1e-5)


GAMMA = ("gamma", 1.0, 2.0)


@every_case(
    ("priors", "words"),
    [
        (3, "priors must be None or a dict"),
        ({"length_scale": "gamma"}, "a name with numbers"),
        ({"length_scale": ("gama", 1.0, 2.0)}, "did you mean 'gamma'"),
        ({"length_scale": ("gamma", 1.0)}, "takes shape, scale"),
        ({"length_scale": ("gamma", -1.0, 2.0)}, "must be positive"),
        ({"length_scale": ("pc-length", 1.0, 1.5)}, "must be below 1"),
        ({"length_scal": GAMMA}, "no free parameter; there are"),
        ({"length_scale": GAMMA, "k2__length_scale": GAMMA}, "priors have two entries"),
        ({"length_scale": stats.uniform(2.0, 3.0)}, "begin inside its support"),
    ],
)
def test_refusals(priors, words):
    refuses(words, lambda: GPRegressor(KERNEL, optimize=Search(priors=priors)).fit(X, Y))


def test_the_default_kernel_has_its_own():
    search = Search(priors={"length_scale": GAMMA})
    same = Search(priors={"length_scale": GAMMA})
    assert (search, hash(search)) == (same, hash(same))
    refuses("default kernel has priors of its own", GPRegressor(optimize=search).fit, X, Y)
