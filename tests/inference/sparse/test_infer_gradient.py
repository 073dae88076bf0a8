"""The gradient of sparse EP's evidence against differences of that evidence, also in odd places."""

import math

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import infer_sparse
from tests.inference.sparse.test_infer import COUNTS, EXTREME, HEAVY, LABELS, T4, S, X, Z
from tests.tools.cases import every_case

TWICE = np.concatenate([Z, Z[:1]])
MANY = np.linspace(-3.0, 3.0, 50)[:, None]
WEIGHTS = np.random.default_rng(1).uniform(0.0, 2.0, 40)
EVENTS = np.round((EXTREME * (0.8 + 0.15 * np.sin(1.3 * X[:, 0]))) ** 2)
FAR = {"mean": 0.8, "scale": EXTREME, "power": 1.0, "tol": 1e-9}
STEP = 1e-4


def kernel(variance=2.0, length=0.9):
    return ConstantKernel(variance, (1e-9, 1e12)) * RBF(length, (1e-9, 1e9))


CASES = [
    (kernel(), LABELS, Z, "probit", {"power": 1.0}),
    (kernel() + WhiteKernel(0.3), LABELS, Z, "probit", {"weights": WEIGHTS}),
    (kernel(length=1e-3), LABELS, Z, "probit", {}),
    (kernel(length=1e3), LABELS, Z, "probit", {}),
    (kernel(variance=1e10), LABELS, Z, "probit", {}),
    (kernel(), LABELS, TWICE, "probit", {}),
    (kernel(), LABELS, MANY, "probit", {}),
    (ConstantKernel(2.0) * Matern(0.9, nu=1.5), COUNTS, Z, "poisson-exp", {"power": 0.3}),
    (kernel(), HEAVY, Z, T4, {"power": 0.7}),
    (kernel(), HEAVY, Z, "laplace(scale=1e-7)", {"power": 1.0}),
    (kernel(), HEAVY, Z, "laplace(scale=0.5)", {"power": 1.0, "weights": WEIGHTS}),
    (kernel(), COUNTS, Z, "negative-binomial(dispersion=0.4)", {"power": 1.0}),
    (kernel(0.2), np.round(S**2 * COUNTS / 2.0), Z, "poisson", {"mean": 1.2, "scale": S}),
    (kernel(0.04), EVENTS, Z, "poisson", FAR),
    (kernel() + WhiteKernel(0.2), HEAVY, Z, "laplace(scale=0.5)", {"power": 1.0, "scale": S}),
]


@every_case("k, y, z, likelihood, options", CASES)
def test_differences(k, y, z, likelihood, options):
    def settled(theta=0.0, move=0.0, mean=0.0, noise=0.0):
        named = likelihood
        if noise:
            stem, value = likelihood[:-1].rsplit("=", 1)
            named = f"{stem}={float(value) * math.exp(noise)!r})"
        at = k.clone_with_theta(k.theta + theta)
        moved = z + move * (np.arange(len(z)) == 1)[:, None]
        given = {"method": "ep", "tol": 1e-10, "n_jobs": 1, "mean": 0.2, **options}
        given["mean"] += mean
        return infer_sparse(X, y, at, moved, named, **given)

    def slope(name, unit=1.0):
        ends = [settled(**{name: sign * STEP * unit}).log_evidence for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]) / (2.0 * STEP)

    names = [likelihood.rsplit("=", 1)[0].split("(")[1].split()[-1]] if "(" in likelihood else []
    found = settled()._solution.engine.evaluate(0, names)
    expected = [slope("theta", unit) for unit in np.eye(k.theta.size)]
    expected += [slope("move"), slope("mean")]
    expected += [slope("noise") for _ in names]
    computed = [*found.by_theta, found.by_Z[1, 0], found.by_mean, *found.by_parameters]
    # Second order in the step leaves some third derivatives times 2e-9.
    scale = 1.0 + np.abs(expected).max()
    np.testing.assert_allclose(computed, expected, rtol=0.0, atol=2e-7 * scale)


def test_reference_values():
    for power, theta in ((1.0, [2.8190509, -4.0244329]), (0.5, [2.7988182, -3.8519561])):
        options = {"power": power, "method": "ep", "jitter": 0.0, "tol": 1e-12}
        found = infer_sparse(X, LABELS, kernel(), Z, **options)._solution.engine.evaluate(0)
        np.testing.assert_allclose(found.by_theta, theta, rtol=0.0, atol=6e-8)
        if power == 1.0:
            np.testing.assert_allclose(found.by_Z[1, 0], -0.106075223, rtol=0.0, atol=6e-10)


def test_float32_steers():
    """Its gradient is right to a thousandth of its largest entry, its evidence to 1e-6 of it."""
    post = infer_sparse(X, LABELS, kernel(), Z, method="ep", tol=1e-10)
    exact = post._solution.engine.evaluate(0)
    post._solution.engine.move(kernel(), Z, np.float32)
    rough = post._solution.engine.evaluate(0)
    assert abs(rough.value - exact.value) < 1e-5 * abs(exact.value)
    for name in ("by_theta", "by_Z"):
        one, two = getattr(exact, name), getattr(rough, name)
        np.testing.assert_allclose(two, one, rtol=0.0, atol=1e-3 * np.abs(one).max())
