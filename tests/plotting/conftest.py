"""Models that are drawn, fitted once; figures without a screen, closed after every test."""

import matplotlib
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed():
    """Close what a test has opened; say which figures there are."""
    from matplotlib import pyplot

    pyplot.close("all")
    yield pyplot.get_fignums
    pyplot.close("all")


@pytest.fixture(scope="session")
def labels():
    """Return rows of two features and two labels, and their model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2)) * [1.0, 3.0] + [0.0, 5.0]
    y = np.where(X[:, 0] + 0.3 * (X[:, 1] - 5.0) + 0.5 * rng.normal(size=40) > 0, "up", "down")
    return GPClassifier(4.0 * RBF([1.0, 3.0]), optimize=False).fit(X, y), X, y


@pytest.fixture(scope="session")
def line():
    """Return rows of one feature and two labels, and their model."""
    rng = np.random.default_rng(1)
    X = rng.uniform(0.0, 4.0, (30, 1))
    y = (rng.random(30) < 0.25 * X[:, 0]).astype(int)
    return GPClassifier(2.0 * RBF(1.0), optimize=False).fit(X, y), X, y


@pytest.fixture(scope="session", params=["exp", "square"])
def counts(request):
    """Return counts in time with exposures, and their model, of either link."""
    rng = np.random.default_rng(2)
    t = np.arange(30.0)[:, None]
    hours = rng.uniform(0.5, 2.0, 30)
    y = rng.poisson(hours * (4.0 + 3.0 * np.sin(0.4 * t[:, 0])))
    kernel = 0.5 * Matern(5.0, nu=2.5)
    options = {"link": request.param, "dispersion": np.inf, "optimize": False}
    model = GPPoissonRegressor(kernel, solver="dense", **options)
    return model.fit(t, y, exposure=hours), t, y, hours


@pytest.fixture(scope="session")
def outliers():
    """Return numbers with an outlier, and their model."""
    x = np.linspace(0.0, 6.0, 25)[:, None]
    y = np.sin(x[:, 0])
    y[7] += 5.0
    options = {"noise_bounds": {"start": 0.1}, "optimize": False, "method": "ep"}
    model = GPRobustRegressor(1.0 * RBF(1.0), **options)
    return model.fit(x, y), x, y


def band_ends(collection):
    """Return x, low and high of a drawn band, from the corners of its polygon."""
    corners = np.concatenate([path.vertices for path in collection.get_paths()])
    x = np.unique(corners[:, 0])
    ends = [(c.min(), c.max()) for c in (corners[corners[:, 0] == at, 1] for at in x)]
    return x, *np.array(ends).T


@pytest.fixture(name="band_ends", scope="session")
def _band_ends():
    return band_ends
