"""The objective of evidence maximisation: value and slope; the optimum is in test_classifier.py."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import infer
from qpruntime.learning.objective import KernelFamily, Objective
from qpruntime.learning.optimise import maximise
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case
from tests.tools.oracle import slopes, tight

KERNELS = [
    ConstantKernel(1.5) * RBF([0.7, 4.0]) + WhiteKernel(0.2),
    ConstantKernel(1e5) * RBF(2.0) + WhiteKernel(10.0),
    ConstantKernel(0.8) * Matern(1.1, nu=1.5),
]


# 24 sites that still change by 3e-4: the evidence is stationary in them, its slope is not.
@every_case(("settled", "of_value", "of_slope"), [(False, 1e-6, 1e-3), (True, 1e-9, 1e-6)])
@every_case("kernel", KERNELS)
@every_case("mean", [0.0, 0.5])
def test_value_and_gradient(kernel, mean, settled, of_value, of_slope, toy):
    family = KernelFamily(kernel, toy.x, np.full(len(toy.y), mean))
    objective = Objective(family, toy.y, Projector("probit", "ep"), 1e-11, 200)
    objective = tight(objective) if settled else objective

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(toy.x)
        return infer(K, toy.y, method="ep", mean=mean, tol=1e-11).log_evidence

    # Asked at several places, so that carried-over sites are part of what is tested.
    for theta in (kernel.theta, kernel.theta + 0.5, kernel.theta - 0.01):
        value, gradient = objective(theta)
        assert value == pytest.approx(-evidence(theta), abs=of_value)
        limit = of_slope * np.abs(gradient).max()
        # Fourth order: 1e-11 of the fifth derivative.
        assert -gradient == pytest.approx(slopes(evidence, theta, 4e-3), abs=limit)


def test_first_step_stays_near(toy):
    kernel = ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))
    X, y = np.tile(toy.x, (9, 1)), np.tile(toy.y, 9)
    X = X + 1e-3 * np.random.default_rng(0).standard_normal(X.shape)
    seen = []
    optimum, _ = maximise(
        KernelFamily(kernel, X, np.zeros(len(y))),
        y,
        Projector("probit", "ep"),
        callback=lambda theta, value: seen.append((theta, value)),
    )
    slope = Objective(
        KernelFamily(kernel, X, np.zeros(len(y))), y, Projector("probit", "ep"), 1e-6, 100
    )(kernel.theta)[1]
    assert np.abs(slope).max() > 2.5  # a step of that length is what the optimiser would take
    assert np.abs(seen[1][0] - seen[0][0]).max() == pytest.approx(2.0)
    # The value is that of the evidence, not of what was scaled.
    assert optimum.value == pytest.approx(max(value for _, value in seen), rel=1e-8)
    assert optimum.n_evaluations == len(seen)
    assert type(optimum.value) is float
