"""Latent functions by name, and components of sums of kernels, against linear algebra."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, GPPoissonRegressor, GPRegressor, GPRobustRegressor
from qpruntime.estimators.latent_functions import dense_weights, inducing_weights
from qpruntime.inference.posterior import solution_of
from qpruntime.kernels import On, Same
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
ROBUST = {"kernel": KERNEL, "noise_bounds": {"start": 0.2}, **FIXED}
MODELS = [
    (GPRegressor(KERNEL, solver="dense", **FIXED), 5.0 + 3.0 * F, {}),
    (GPPoissonRegressor(KERNEL, solver="dense", **FIXED), COUNTS, {"exposure": E}),
    (GPRobustRegressor(solver="dense", **ROBUST), OUTLIERS, {}),
    (GPRegressor(KERNEL, inducing=X[::3], **FIXED), F, {}),
    (GPRobustRegressor(inducing=X[::3], **ROBUST), OUTLIERS, {}),
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
def test_updates_and_draws_have_the_moments_of_the_posterior(model, y, given):
    own = clone(model).fit(X, y, **given)
    if isinstance(model, GPRobustRegressor):
        # Precisions below zero, which widen.
        assert own.posterior_.sites.tau.min() < 0.0
    centre, unit = own.latent_units()
    wanted, covariance = own.latent(NEW, full_covariance=True)
    updated = by_unit_draws(own)
    np.testing.assert_allclose(centre + unit * updated[0], wanted, rtol=1e-7, atol=1e-8)
    # Jitter of inducing inputs is 1e-8.
    atol = (1e-6 if "inducing" in own.engine_ else 1e-9) * covariance.max()
    np.testing.assert_allclose(unit**2 * updated[1], covariance, atol=atol)
    f = own.sample_paths(1000, random_state=0)(NEW)
    std = np.sqrt(np.diag(covariance))
    assert (np.abs(f.mean(axis=0) - wanted) < 5.0 * std / math.sqrt(1000)).all()
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
    mean, variance = model.latent(NEW)
    assert f.shape == ((4000, 4) if K == 1 else (4000, 4, 3))
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 4000)).all()
    np.testing.assert_allclose(f.std(axis=0), np.sqrt(variance), rtol=0.1)
    paths = model.sample_paths(20, random_state=1)
    np.testing.assert_allclose(paths(NEW)[:, 2], paths(NEW[2:3])[:, 0], rtol=0.0, atol=1e-10)


PARTS = [
    sk.ConstantKernel(1.4, "fixed") * On(sk.RBF(0.9, "fixed"), [0]),
    sk.ConstantKernel(0.6, "fixed") * On(sk.Matern(1.7, "fixed", nu=2.5), [1]),
    sk.ConstantKernel(0.5, "fixed") * On(Same(), [2]),
]
SUM = PARTS[0] + PARTS[1] + PARTS[2]


def drawn(n=40):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(n, 2)), rng.integers(0, 4, n)])
    return X, np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + 0.5 * (X[:, 2] - 1.5), rng


def by_hand(parts, X, sites, new, mean=0.0, scale=1.0):
    """Means and variances of each part, from the joint normal of parts and rows."""
    K = scale**2 * sum(part(X) for part in parts)
    found = []
    gain = np.linalg.inv(K + np.diag(1.0 / sites.tau))
    pseudo = sites.nu / sites.tau - scale * mean
    for part in parts:
        crossed = scale * part(new, X)
        variance = part.diag(new) - np.einsum("ij,jk,ik->i", crossed, gain, crossed)
        found.append((crossed @ gain @ pseudo, variance))
    return np.array(found).transpose(1, 2, 0)


@every_case("kernel", [SUM, sk.ConstantKernel(1.0, "fixed") * SUM])
def test_of_classes(kernel):
    X, f, rng = drawn()
    model = GPClassifier(kernel, method="ep", tol=1e-10).fit(X, f + rng.normal(size=40) > 0.0)
    new = np.column_stack([rng.normal(size=(9, 2)), rng.integers(0, 6, 9)])
    found = model.components(new)
    mean, variance = by_hand(PARTS, X, model.posterior_.sites, new)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.variance, variance, atol=1e-8)
    np.testing.assert_allclose(found.mean.sum(axis=1), model.latent(new)[0], atol=1e-8)
    np.testing.assert_array_equal(found.offset, np.zeros(9))
    assert len(found.names) == 3
    assert "Same()" in found.names[2]
    # A group without rows is as before them.
    np.testing.assert_allclose(found.variance[new[:, 2] > 3, 2], 0.5)
    # Centred: less their means over the rows of the fit, by the same algebra with differences.
    plain, found = found, model.components(new, centred=True)
    sites = model.posterior_.sites
    gain = np.linalg.inv(SUM(X) + np.diag(1.0 / sites.tau))
    both = np.vstack([new, X])
    less = np.hstack([np.eye(9), np.full((9, 40), -1.0 / 40.0)])
    for j, part in enumerate(PARTS):
        crossed = less @ part(both, X)
        mean = crossed @ gain @ (sites.nu / sites.tau)
        wide = less @ part(both, both) @ less.T - crossed @ gain @ crossed.T
        np.testing.assert_allclose(found.mean[:, j], mean, atol=1e-8)
        np.testing.assert_allclose(found.variance[:, j], np.diag(wide), atol=1e-8)
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(new)[0], atol=1e-8)
    assert np.ptp(found.offset) < 1e-12
    assert found.variance.mean() < plain.variance.mean()


def test_of_counts_numbers_and_several_classes():
    X, f, rng = drawn()
    exposure = rng.uniform(0.5, 2.0, 40)
    y = rng.poisson(exposure * np.exp(f))
    model = GPPoissonRegressor(SUM, link="exp", method="ep", tol=1e-9)
    model.fit(X, y, exposure=exposure)
    found = model.components(X[:5])
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(X[:5])[0], atol=1e-8)
    sites = model.posterior_.sites
    shifted = type(sites)(sites.tau, sites.nu - sites.tau * np.log(exposure))
    mean, variance = by_hand(PARTS, X, shifted, X[:5], model.mean_)
    np.testing.assert_allclose(found.mean, mean, atol=1e-7)
    np.testing.assert_allclose(found.variance, variance, atol=1e-7)
    # In the units of y; white noise is a part that knows nothing of new rows.
    X, f, rng = drawn()
    y = 7.0 + 30.0 * (f + 0.1 * rng.standard_t(4, 40))
    kernel = SUM + sk.WhiteKernel(0.05, "fixed")
    model = GPRobustRegressor(kernel, method="ep", noise_bounds={"start": 2.0}).fit(X, y)
    found = model.components(X[:6])
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(X[:6])[0], rtol=1e-10)
    np.testing.assert_array_equal(found.mean[:, 3], np.zeros(6))
    np.testing.assert_allclose(found.variance[:, 3], 0.05 * model._unit_**2)
    # Of several classes, each with the default kernel.
    X, f, _ = drawn()
    model = GPClassifier().fit(X, np.digitize(f, [-0.5, 0.5]))
    found = model.components(X[:4])
    assert len(found) == 3
    means = np.column_stack([one.mean.sum(axis=1) for one in found])
    np.testing.assert_allclose(means, model.latent(X[:4])[0], atol=1e-8)
    assert found[0].mean.shape == (4, 2)  # a constant, and a function


@every_case("options", [{"inducing": 8}, {"solver": "markov", "kernel": sk.Matern(nu=1.5)}])
def test_other_engines_are_refused(options):
    X, f, _ = drawn()
    model = GPClassifier(optimize=False, **({"kernel": sk.RBF()} | options)).fit(X[:, :1], f > 0.0)
    refuses("components need a covariance matrix", model.components, X[:2, :1])
