"""Observations without noise: default fits follow them, settle, and do not warn."""

import numpy as np
import pytest

from qpruntime import GPRegressor, GPRobustRegressor, GPSurvival
from qpruntime.likelihoods import get

MODELS = {
    "gaussian": GPRegressor(),
    "laplace": GPRegressor(likelihood="laplace"),
    "student-t": GPRobustRegressor(),
    "weibull": GPSurvival(),
    "log-logistic": GPSurvival(likelihood="log-logistic"),
    "log-normal": GPSurvival(likelihood="log-normal"),
    "censored": GPSurvival(),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_default_fits_of_smooth_functions_settle(name, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 2))
    f = np.sin(X[:, 0]) + 0.3 * X[:, 1]
    is_survival, seen = isinstance(MODELS[name], GPSurvival), np.full(60, True)
    if name == "censored":
        seen = rng.random(60) < 0.7
        model = MODELS[name].fit(X, np.exp(f), event=seen)
    else:
        model = MODELS[name].fit(X, np.exp(f) if is_survival else f)
    assert model.converged_
    found = np.log(model.predict(X)) if is_survival else model.predict(X)
    # A scale of noise is at most at its lower bound, .002 of the spread, where nothing is noise.
    np.testing.assert_allclose(found[seen], f[seen], rtol=0.0, atol=5e-3)


def test_default_bounds_of_noise():
    assert get("gaussian").default_bounds("scale", 3.0) == pytest.approx((3e-5, 3e2))
    assert get("student-t").default_bounds("scale", 3.0) == pytest.approx((6e-3, 3e2))
