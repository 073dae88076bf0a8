"""Regression without layers on the splits of ``studies deep``: how far that gets."""

import time
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.metrics import normal_log_density

Array = NDArray[np.float64]
#: Log densities (T,) and means (T,) at new rows; seconds of CPU of a fit, and what else was found.
Found = tuple[Array, Array, dict[str, float]]


def dense(X: Array, y: Array, new: Array, target: Array, inducing: int) -> Found:
    """Exact Gaussian process of all rows by scikit-learn: RBF by features, evidence maximised."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    centre, scale, middle, unit = X.mean(axis=0), X.std(axis=0), y.mean(), y.std()
    lengths = np.full(X.shape[1], 3.0)
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(lengths, (1e-2, 1e4))
    begun = time.process_time()
    # Length-scales at their bounds: features without effect.
    with warnings.catch_warnings(action="ignore"):
        model = GaussianProcessRegressor(kernel + WhiteKernel(0.05, (1e-6, 1.0)))
        model.fit((X - centre) / scale, (y - middle) / unit)
    cpu = time.process_time() - begun
    mean, std = model.predict((new - centre) / scale, return_std=True)
    each = normal_log_density(mean, std, (target - middle) / unit) - np.log(unit)
    noise = unit * float(np.sqrt(model.kernel_.k2.noise_level))
    return each, middle + unit * mean, {"cpu": cpu, "noise": noise}


def robust(X: Array, y: Array, new: Array, target: Array, inducing: int) -> Found:
    """This package's sparse Student-t regression, as it comes."""
    from qpruntime import ConvergenceWarning, GPRobustRegressor

    begun = time.process_time()
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model = GPRobustRegressor(inducing=inducing, random_state=0).fit(X, y)
    cpu = time.process_time() - begun
    return model.predict_log_density(new, target), model.predict(new), {"cpu": cpu}


MODELS: dict[str, Callable[[Array, Array, Array, Array, int], Found]] = {
    "dense GP": dense,
    "Student-t GP": robust,
}
