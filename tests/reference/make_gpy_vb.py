"""Reference values of the variational Gaussian approximation from GPy 1.15, in ``gpy_vb.json``.

GPy's `GPVariationalGaussianApproximation` maximises the bound over 2 N parameters by L-BFGS-B, the
hyper-parameters fixed, on the data and at the settings of ``make_gpy.py``. GPy integrates the
likelihood with 20 Gauss-Hermite nodes; ``exact`` is the bound of the very Gaussian it ends with,
integrated here with 4000 nodes, and the one to compare with.
"""

import json
from pathlib import Path

import GPy
import numpy as np
from scipy.special import log_ndtr

from tests.reference.make_gpy import SETTINGS, load

OUTPUT = Path(__file__).with_name("gpy_vb.json")


def exact_bound(K, y, alpha, beta):
    """Bound of N(K alpha, (K^-1 + diag(beta^2))^-1) by dense algebra and a fine rule."""
    mean, n = K @ alpha, len(y)
    B = np.eye(n) + beta[:, None] * K * beta
    inverse = np.linalg.inv(B)
    S = K - (K * beta) @ inverse @ (beta[:, None] * K)
    t = np.linspace(-9.0, 9.0, 4001)
    f = mean[:, None] + np.sqrt(np.diag(S))[:, None] * t
    weight = np.exp(-0.5 * t * t) * (t[1] - t[0]) / np.sqrt(2 * np.pi)
    expected = log_ndtr(y[:, None] * f) @ weight
    kl = 0.5 * (np.trace(inverse) - n + alpha @ mean + np.linalg.slogdet(B)[1])
    return float(expected.sum() - kl)


def compute(dataset, variance, lengthscale):
    """Fit GPy's model and return its bound, reported and exact."""
    x, y, _ = load(dataset)
    kernel = GPy.kern.RBF(x.shape[1], variance, lengthscale)
    model = GPy.models.GPVariationalGaussianApproximation(
        x, (y[:, None] + 1) / 2, kernel, GPy.likelihoods.Bernoulli()
    )
    model.kern.fix()
    for _ in range(3):
        model.optimize("lbfgsb", max_iters=5000, gtol=1e-10, bfgs_factor=10)
    inference = model.inference_method
    alpha, beta = (np.array(v).ravel() for v in (inference.alpha, inference.beta))
    K = kernel.K(x)
    return {
        "kernel_variance": variance,
        "lengthscale": lengthscale,
        "reported": float(model.log_likelihood()),
        "exact": exact_bound(K, y, alpha, beta),
    }


def main():
    result = {"made_with": {"GPy": GPy.__version__, "numpy": np.__version__}}
    for dataset in ("wine", "breast_cancer"):
        result[dataset] = [compute(dataset, *setting) for setting in SETTINGS]
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
