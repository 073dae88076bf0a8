"""`monotone=` of counts and of numbers: rows of two likelihoods, against dense algebra of ours."""

import numpy as np
import pytest
from scipy.stats import nbinom, norm, poisson, t
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime import GPPoissonRegressor, GPRobustRegressor
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance
from qpruntime.learning.inputs import Data, Inputs, Slopes
from qpruntime.learning.solvers import GivenSlopes, SlopeFamily, with_slopes
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes, tight

KERNEL = ConstantKernel(0.8, "fixed") * RBF([0.9, 1.4], "fixed")
NUMBERS = {"normalize_y": False, "noise_bounds": {"scale": "fixed", "start": 0.3}}


def drawn(seed=0, n=14, counts=False):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    f = np.tanh(2.0 * X[:, 0]) + 0.5 * np.sin(2.0 * X[:, 1])
    if counts:
        return X, rng.poisson(np.exp(f)).astype(float)
    return X, f + 0.3 * rng.standard_t(4.0, n)


def t_density(f, y):
    return t.pdf((y - f) / 0.3, 4.0) / 0.3


CASES = [
    ("robust", GPRobustRegressor(KERNEL, method="ep", tol=1e-10, **NUMBERS), t_density),
    (
        "counts",
        GPPoissonRegressor(KERNEL, method="ep", tol=1e-10, mean=0.2, dispersion=np.inf),
        lambda f, y: poisson.pmf(y, np.exp(f)),
    ),
    (
        "dispersed",
        GPPoissonRegressor(KERNEL, method="ep", tol=1e-10, mean=0.2, dispersion=3.0),
        lambda f, y: nbinom.pmf(y, 3.0, 3.0 / (3.0 + np.exp(f))),
    ),
]


@every_case(("name", "model", "density"), CASES)
def test_the_fixed_point(name, model, density):
    """Tilted moments, by sums, are the marginals'; evidence and means by dense algebra."""
    X, y = drawn(counts=name != "robust")
    model = clone(model).set_params(monotone={0: 1, 1: -1}).fit(X, y)
    slopes, n, new = model.slopes_, len(X), np.array([[0.3, -0.2], [1.0, 1.0]])
    prior = 0.0 if name == "robust" else 0.2
    signs = 1.0 - 2.0 * slopes.feature
    K = covariance(KERNEL, DerivativeRows.both(X, slopes.where, slopes.feature))
    K.flat[n * (len(K) + 1) :: len(K) + 1] *= 1.0 + 1e-8
    scale = np.concatenate([np.ones(n), slopes.times])
    K *= np.outer(scale, scale)
    mean_0 = np.concatenate([np.full(n, prior), np.zeros(len(signs))])
    tau, nu = model.posterior_.sites
    V = np.linalg.solve(np.eye(len(K)) + K * tau, K)
    m = mean_0 + V @ (nu - tau * mean_0)
    log_z = 0.0
    for i in range(len(K)):
        kept = 1.0 - tau[i] * V[i, i]
        v = V[i, i] / kept
        centre = (m[i] - nu[i] * V[i, i]) / kept
        f = centre + np.sqrt(v) * np.linspace(-14.0, 14.0, 20_001)
        seen = density(f, y[i]) if i < n else norm.cdf(signs[i - n] * f)
        weight = seen * norm.pdf(f, centre, np.sqrt(v)) * (f[1] - f[0])
        mass = weight.sum()
        tilted = weight @ f / mass
        assert tilted == pytest.approx(m[i], abs=1e-4 * np.sqrt(V[i, i]))
        assert weight @ (f - tilted) ** 2 / mass == pytest.approx(V[i, i], rel=2e-4)
        # The site under its cavity; log Z has the tilted mass in its place.
        precise, pull = tau[i] + 1.0 / v, nu[i] + centre / v
        log_z += np.log(mass) + 0.5 * np.log(v * precise)
        log_z -= 0.5 * (pull**2 / precise - centre**2 / v)
    rest = nu - tau * mean_0
    log_z += nu @ mean_0 - 0.5 * tau @ mean_0**2 + 0.5 * rest @ V @ rest
    log_z -= 0.5 * np.linalg.slogdet(np.eye(len(K)) + K * tau)[1]
    assert model.log_marginal_likelihood_value_ == pytest.approx(log_z, abs=2e-4)
    # New points, by the regression on what was observed.
    crossed = covariance(
        KERNEL, DerivativeRows.values(new), DerivativeRows.both(X, slopes.where, slopes.feature)
    )
    crossed = crossed * scale
    weights = np.linalg.solve(np.eye(len(K)) + tau[:, None] * K, rest)
    np.testing.assert_allclose(model.latent(new)[0], prior + crossed @ weights, atol=1e-5)


def test_slope_of_the_evidence():
    """By differences of itself, also by the scale of the noise."""
    X, y = drawn(n=9)
    where, feature = X[:4] + 0.1, np.array([0, 0, 1, 0])
    seen = Slopes(where, feature, np.full(4, 20.0))
    projector = Projector(get("student-t", nu=4.0, scale=0.4), "ep")
    data = Data(Inputs(X), y, projector, np.zeros(9), own_signs=False)
    data = with_slopes(data, seen, np.array([1.0, 1.0, -1.0, 1.0]))
    kernel = ConstantKernel(1.2) * RBF([0.9, 1.4])
    family = SlopeFamily(kernel, seen.asked(X), data.observed_prior, data.scale, False)
    objective = tight(GivenSlopes(family, data.y, projector, 1e-11, 300, None, ("scale",)))
    theta = np.append(kernel.theta, np.log(0.4))
    by_difference = slopes(lambda at: objective(at)[0], theta, 4e-3)
    assert objective(theta)[1] == pytest.approx(by_difference, abs=2e-6)


def test_manners():
    X, y = drawn(counts=True)
    model = GPPoissonRegressor(KERNEL, monotone={0: 1}, dispersion=np.inf).fit(X, y)
    assert model.link_ == "exp"
    assert model.likelihood_ is get("poisson-exp")
    # Rows of weight 0 are none, and an exposure is a factor of the rate.
    more = np.vstack([X, X[:2] + 0.1]), np.append(y, [9.0, 9.0])
    weighed = clone(model).fit(*more, sample_weight=np.append(np.ones(14), [0.0, 0.0]))
    np.testing.assert_allclose(weighed.predict(X), model.predict(X), rtol=1e-12)
    exposed = clone(model).fit(X, y, exposure=np.full(14, 2.0))
    np.testing.assert_allclose(2.0 * exposed.predict(X), model.predict(X), rtol=1e-6)


@every_case(
    ("model", "said"),
    [
        (GPPoissonRegressor(link="square", monotone={0: 1}, optimize=False), 'use link="exp"'),
        (
            GPPoissonRegressor(monotone={0: 1}, correction="blend", dispersion=np.inf),
            "correction=None",
        ),
        (GPPoissonRegressor(monotone={0: 1}, optimize="loo", dispersion=np.inf), 'leave out "loo"'),
        (GPPoissonRegressor(monotone={3: 1}, dispersion=np.inf), "from 0 to 1"),
        (
            GPPoissonRegressor(Matern(nu=1.5), monotone={0: 1}, dispersion=np.inf),
            "times RBF or Matern",
        ),
        (GPRobustRegressor(monotone={0: 1}, inducing=5), "inducing=None"),
        (GPRobustRegressor(monotone={0: 1}, prior_mean=DummyRegressor()), "prior_mean"),
    ],
)
def test_what_is_refused(model, said):
    refuses(said, model.fit, *drawn(counts=isinstance(model, GPPoissonRegressor)))
