"""The objective of evidence maximisation: value and slope; the optimum is in test_estimators.py."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import infer
from qpruntime.hyper import Objective
from qpruntime.projection import Projector

KERNELS = [
    ConstantKernel(1.5) * RBF([0.7, 4.0]) + WhiteKernel(0.2),
    ConstantKernel(1e5) * RBF(2.0) + WhiteKernel(10.0),
    ConstantKernel(0.8) * Matern(1.1, nu=1.5),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_value_and_gradient(kernel, mean, toy):
    prior = np.full(len(toy.y), mean)
    objective = Objective(kernel, toy.x, toy.y, Projector("probit", "ep"), prior, 1e-11, 200)

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(toy.x)
        return infer(K, toy.y, method="ep", mean=mean, tol=1e-11).log_evidence

    # Asked at several places, so that carried-over sites are part of what is tested.
    for theta in (kernel.theta, kernel.theta + 0.5, kernel.theta - 0.01):
        value, gradient = objective(theta)
        # Sites settle to 3e-5 away from the optimum; the evidence is stationary in them.
        assert value == pytest.approx(-evidence(theta), abs=1e-8)
        limit = 1e-4 * np.abs(gradient).max()
        for i, step in enumerate(4e-3 * np.eye(kernel.n_dims)):
            near = evidence(theta + step) - evidence(theta - step)
            far = evidence(theta + 2 * step) - evidence(theta - 2 * step)
            # Fourth order: 1e-11 of the fifth derivative. The slope is right to what the sites are.
            assert -gradient[i] == pytest.approx((8 * near - far) / 48e-3, abs=limit)
