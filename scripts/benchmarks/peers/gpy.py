"""GPy's sweep over the sites and its fit, for ``benchmarks speed``, and the kernel of fits."""

import time
import warnings
from typing import Any

import numpy as np


def kernel() -> Any:
    """Variance and one length-scale, both starting at 1."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    return ConstantKernel(1.0, (1e-4, 1e6)) * RBF(1.0, (1e-3, 1e3))


def gpy_sweep(K: np.ndarray, y: np.ndarray) -> float:
    """Seconds of GPy's loop over the sites, without its refresh."""
    from GPy.inference.latent_function_inference import EP
    from GPy.likelihoods import Bernoulli
    from paramz import ObsAr

    class Timed(EP):
        seconds = np.inf

        def _local_updates(self, *args, **kwargs):
            start = time.perf_counter()
            super()._local_updates(*args, **kwargs)
            self.seconds = min(self.seconds, time.perf_counter() - start)

    ep = Timed(ep_mode="nested", epsilon=0.0, max_iters=3)
    with warnings.catch_warnings(action="ignore"):
        ep.expectation_propagation(
            np.zeros(len(y)), K, ObsAr((y[:, None] + 1) / 2), Bernoulli(), None
        )
    return ep.seconds


def gpy_fit(X: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Seconds of GPy's fit with EP at every step, and the log evidence it reaches."""
    import GPy
    from GPy.inference.latent_function_inference import EP

    with warnings.catch_warnings(action="ignore"):
        start = time.perf_counter()
        model = GPy.core.GP(
            X,
            (y[:, None] + 1.0) / 2.0,
            GPy.kern.RBF(X.shape[1]),
            GPy.likelihoods.Bernoulli(),
            inference_method=EP(ep_mode="nested"),
        )
        model.optimize("lbfgsb", max_iters=1000)
        return time.perf_counter() - start, float(model.log_likelihood())
