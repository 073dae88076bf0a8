"""Functions drawn from posteriors, whole: their update by algebra, and draws by moments."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, GPPoissonRegressor, GPRegressor, GPRobustRegressor
from qpruntime.estimators.latent_functions import dense_weights, inducing_weights
from qpruntime.inference.posterior import solution_of
from qpruntime.learning.options import Integrate
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(0.0, 5.0, (30, 1)), axis=0)
F = np.sin(2.0 * X[:, 0])
COUNTS = RNG.poisson(np.exp(1.0 + F))
OUTLIERS = F + 0.1 * RNG.standard_normal(30) + np.where(np.arange(30) % 7 == 0, 0.8, 0.0)
NEW = np.array([[1.0], [0.2], [4.9], [7.0]])
KERNEL = sk.ConstantKernel(0.8, "fixed") * sk.Matern(1.3, "fixed", nu=1.5)
FIXED = {"optimize": False, "method": "ep", "tol": 1e-10}
E = np.linspace(0.5, 3.0, 30)
MODELS = [
    (GPRegressor(KERNEL, solver="dense", **FIXED), 5.0 + 3.0 * F, {}),
    (GPPoissonRegressor(KERNEL, solver="dense", **FIXED), COUNTS, {"exposure": E}),
    (GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, solver="dense", **FIXED), OUTLIERS, {}),
    (GPRegressor(KERNEL, inducing=X[::3], **FIXED), F, {}),
    (
        GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, inducing=X[::3], **FIXED),
        OUTLIERS,
        {},
    ),
]


def by_unit_draws(model):
    """Mean and covariance of what is linear in draws: those of an exact prior, one at a time."""
    (process,) = model.processes()
    solution = solution_of(model.posterior_)
    dense = solution.name == "dense"
    at = X if dense else solution.Z
    n, m = len(at), len(NEW)
    prior = np.linalg.cholesky(model.kernel_(np.vstack([at, NEW])) + 1e-12 * np.eye(n + m))
    # Columns are draws: none, those of the prior, and of the noise.
    p = np.hstack([np.zeros((n + m, 1)), prior, np.zeros((n + m, n))])
    z = np.hstack([np.zeros((n, 1 + n + m)), np.eye(n)])
    if dense:
        slope = 1.0 if process.slope is None else process.slope[:, None]
        known = process.crossed(NEW)[0]
        weights = dense_weights(process, slope * p[:n], z)
    else:
        known = solution.inducing.features(NEW)[0]
        weights = inducing_weights(solution, p[:n], z)
    f = p[n:] + known @ weights
    apart = f[:, 1:] - f[:, :1]
    return f[:, 0] + model._constant(), apart @ apart.T


@every_case(("model", "y", "given"), MODELS)
def test_updates_have_mean_and_covariance_of_the_posterior(model, y, given):
    own = clone(model).fit(X, y, **given)
    if isinstance(model, GPRobustRegressor):
        # Precisions below zero, which widen.
        assert own.posterior_.sites.tau.min() < 0.0
    centre, unit = own.latent_units()
    mean, covariance = by_unit_draws(own)
    wanted, known = own.latent(NEW, full_covariance=True)
    np.testing.assert_allclose(centre + unit * mean, wanted, rtol=1e-7, atol=1e-8)
    # Jitter of inducing inputs is 1e-8.
    atol = 1e-6 if "inducing" in own.engine_ else 1e-9
    np.testing.assert_allclose(unit**2 * covariance, known, atol=atol * known.max())


@every_case(("model", "y", "given"), MODELS)
def test_draws_have_the_moments(model, y, given):
    own = clone(model).fit(X, y, **given)
    f = own.sample_paths(1000, random_state=0)(NEW)
    mean, covariance = own.latent(NEW, full_covariance=True)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * std / math.sqrt(1000)).all()
    # Five standard errors, and what 2000 random frequencies leave away from the data.
    within = 5.0 * np.outer(std, std) / math.sqrt(500)
    assert (np.abs(np.cov(f.T) - covariance) < within + 0.05 * covariance.max()).all()
    # Near data the prior does not count.
    near = own.latent(X[10:11], full_covariance=True)
    spread = np.std(own.sample_paths(1000, random_state=1)(X[10:11]), axis=0)
    assert spread[0] == pytest.approx(math.sqrt(near[1].item()), rel=5.0 / math.sqrt(2000))


def test_a_path_is_one_function():
    model = GPRegressor(KERNEL, solver="dense", **FIXED).fit(X, F)
    paths = model.sample_paths(4, random_state=2)
    line = np.linspace(-1.0, 6.0, 500)[:, None]
    whole = paths(line)
    assert whole.shape == (4, 500)
    assert len(paths) == 4
    np.testing.assert_array_equal(paths(line), whole)
    pieces = np.hstack([paths(line[i : i + 7]) for i in range(0, 500, 7)])
    np.testing.assert_allclose(pieces, whole, rtol=0.0, atol=1e-10)
    np.testing.assert_array_equal(model.sample_paths(4, random_state=2)(line), whole)
    # Continuous: the kernel has one derivative.
    assert np.abs(np.diff(whole, axis=1)).max() < 0.2
    model.fit(X, -F)
    np.testing.assert_array_equal(paths(line), whole)


def test_three_classes_have_a_column_each():
    labels = np.digitize(F, [-0.4, 0.4])
    model = GPClassifier(KERNEL, solver="dense", **FIXED).fit(X, labels)
    f = model.sample_paths(600, random_state=0)(NEW)
    mean, variance = model.latent(NEW)
    assert f.shape == (600, 4, 3)
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 600)).all()


@every_case(
    ("options", "message"),
    [
        ({"kernel": KERNEL, "solver": "markov"}, "sample_latent"),
        ({"kernel": KERNEL + sk.WhiteKernel(0.1, "fixed"), "solver": "dense"}, "white noise"),
        ({"kernel": KERNEL * sk.DotProduct(1.0, "fixed"), "solver": "dense"}, "cannot be drawn"),
        ({"kernel": KERNEL + sk.ExpSineSquared(1.0, 2.0, "fixed", "fixed")}, "cannot be drawn"),
    ],
)
def test_refusals(options, message):
    refuses(message, GPRegressor(**{**FIXED, **options}).fit(X, F).sample_paths, 2)


def test_rows_without_noise():
    f = np.sin(X[:, 0])
    model = GPRegressor().fit(X, f)
    within = np.linspace(X[0], X[-1], 40)
    drawn = model.sample_paths(5, random_state=0)(within)
    np.testing.assert_allclose(drawn, np.tile(np.sin(within[:, 0]), (5, 1)), atol=2e-3)


def test_columns_of_a_data_frame():
    """Text, with the default kernel: near rows the spread is the posterior's, new levels too."""
    pandas = pytest.importorskip("pandas")
    town = np.array(["a", "b", "c"])[np.arange(30) % 3]
    table = pandas.DataFrame({"x": X[:, 0], "town": town})
    model = GPRegressor().fit(table, F + (town == "b") + 0.1 * RNG.standard_normal(30))
    new = pandas.DataFrame({"x": [1.0, 2.0, 2.0, 3.0], "town": ["a", "b", "b", "elsewhere"]})
    f = model.sample_paths(1000, random_state=0)(new)
    mean, variance = model.latent(new)
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 1000)).all()
    np.testing.assert_allclose(f.std(axis=0)[:3], np.sqrt(variance[:3]), rtol=0.2)
    np.testing.assert_array_equal(f[:, 1], f[:, 2])


@pytest.mark.slow
@every_case("K", [1, 3])
def test_paths_of_integrated_hyperparameters_have_the_variance_of_the_mixture(K):
    few = X[::5] if K == 1 else X
    if K == 1:
        model, y = GPRegressor(hyperparameters=Integrate("composite")), F[::5]
    else:
        model = GPClassifier(hyperparameters=Integrate("composite"))
        y = np.digitize(F, [-0.4, 0.4])
    model.fit(few, y)
    nodes = model.integrated_ if K > 1 else (model.integrated_,)
    assert all(len(one.weights) > 1 for one in nodes)
    f = model.sample_paths(4000, random_state=1)(NEW)
    # By the law of total variance from the single nodes.
    mean, variance = model.latent(NEW)
    assert f.shape == ((4000, 4) if K == 1 else (4000, 4, 3))
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 4000)).all()
    np.testing.assert_allclose(f.std(axis=0), np.sqrt(variance), rtol=0.1)
    # Functions: the same in pieces.
    paths = model.sample_paths(20, random_state=1)
    np.testing.assert_allclose(paths(NEW)[:, 2], paths(NEW[2:3])[:, 0], rtol=0.0, atol=1e-10)
