"""Models that are judged, fitted once."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (60, 1))
WAVE = np.sin(2.0 * X[:, 0])
KERNEL = ConstantKernel(1.0) * Matern(1.0, nu=2.5)
EXPOSURE = RNG.uniform(0.5, 3.0, 60)
LABELS = np.where(WAVE + 0.5 * RNG.standard_normal(60) > 0.0, "up", "down")
COUNTS = RNG.poisson(EXPOSURE * np.exp(WAVE))
NUMBERS = 5.0 + 10.0 * WAVE + RNG.standard_t(4.0, 60)


@pytest.fixture(scope="session")
def labels():
    return GPClassifier(KERNEL, optimize=False).fit(X, LABELS)


@pytest.fixture(scope="session")
def counts():
    return GPPoissonRegressor(KERNEL, link="exp", optimize=False).fit(X, COUNTS, EXPOSURE)


@pytest.fixture(scope="session")
def numbers():
    model = GPRobustRegressor(KERNEL, noise_bounds={"start": 1.0}, method="ep", optimize=False)
    return model.fit(X, NUMBERS)
