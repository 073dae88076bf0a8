"""Reference values of EP with other likelihoods from GPy 1.15, written to ``gpy_likelihoods.json``.

Student's t and Poisson with the log link: moments of single cavities, and EP to convergence on 60
wines. GPy has no logistic, Laplace or negative binomial likelihood, and no logistic link for its
binomial one.

GPy's EP sets every site precision that would be negative to 2e-16, so that what it finds for
``student-t(nu=4, scale=0.3)``, six of whose targets are outliers, is no fixed point of EP. The
wider noise of ``student-t(nu=4, scale=1)`` with targets as they are leaves no precision negative.

GPy integrates moments with scipy's `quad`, whose default tolerance of 1.5e-8 they carry. With
numpy 2 its Poisson likelihood fails inside `quad`, to which it returns arrays; `ScalarPoisson`
returns numbers.
"""

from pathlib import Path

import GPy
import numpy as np
import scipy
from GPy.likelihoods import Poisson, StudentT
from GPy.likelihoods.link_functions import Log
from sklearn.datasets import load_wine

from tests.reference.make_gpy import BoundedEP, render

OUTPUT = Path(__file__).with_name("gpy_likelihoods.json")
CAVITIES = {
    "student-t(nu=4, scale=0.3)": [
        (0.5, 0.0, 1.0),
        (3.0, 0.0, 1.0),
        (-2.0, 1.0, 4.0),
        (20.0, 0.0, 1.0),
        (8.0, 0.0, 9.0),
    ],
    "student-t(nu=4, scale=1)": [(1.5, -0.5, 0.3), (-4.0, 0.0, 2.0)],
    "poisson-exp": [(0, 0.0, 1.0), (3, 0.0, 1.0), (10, 1.0, 0.5), (100, 0.0, 4.0)],
}
SETTINGS = ((1.0, 1.0), (4.0, 2.5))


class ScalarPoisson(Poisson):
    """GPy's Poisson likelihood with densities that are numbers."""

    def pdf_link(self, inv_link_f, y, Y_metadata=None):
        density = np.exp(self.logpdf_link(inv_link_f, y, Y_metadata))
        return density.item() if np.size(density) == 1 else density


def make(name):
    if name == "poisson-exp":
        return ScalarPoisson(gp_link=Log())
    return StudentT(deg_free=4.0, sigma2=0.09 if "0.3" in name else 1.0)


def load():
    """Return x (60, 2), and targets by likelihood: with six outliers, as they are, and counts."""
    raw = load_wine().data[::3][:60]
    x = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    clean = x[:, 5]  # total phenols
    targets = clean.copy()
    rng = np.random.default_rng(0)
    targets[rng.choice(60, 6, replace=False)] += 5.0 * rng.standard_normal(6)
    counts = np.round(raw[:, 12] / 100.0)  # proline
    # flavanoids and OD280
    return x[:, [6, 11]], dict(zip(CAVITIES, (targets, clean, counts), strict=True))


def fit(name, variance, lengthscale):
    """Return GPy's EP result, or raise RuntimeError if it has not converged."""
    x, targets = load()
    inference = BoundedEP(ep_mode="nested", epsilon=1e-16, max_iters=200)
    model = GPy.core.GP(
        x,
        targets[name][:, None],
        GPy.kern.RBF(2, variance, lengthscale),
        make(name),
        inference_method=inference,
    )
    return {
        "kernel_variance": variance,
        "lengthscale": lengthscale,
        "converged": inference.converged,
        "log_evidence": float(model.log_likelihood()),
        "mean": model.posterior.mean[:, 0].tolist(),
        "variance": np.diag(model.posterior.covariance).tolist(),
    }


def moments(name, y, mu, variance):
    """Return log Z, mean and variance of one tilted density."""
    z, mean, spread = make(name).moments_match_ep(np.array(float(y)), 1.0 / variance, mu / variance)
    return [y, mu, variance, float(np.log(z)), float(mean), float(spread)]


def main():
    x, targets = load()
    made_with = {m.__name__: m.__version__ for m in (GPy, np, scipy)}
    result = {"made_with": made_with, "x": x.tolist()}
    for name, cavities in CAVITIES.items():
        result[name] = {
            "y": targets[name].tolist(),
            "moments": [moments(name, *cavity) for cavity in cavities],
            "cases": [fit(name, *setting) for setting in SETTINGS],
        }
    OUTPUT.write_text(render(result) + "\n")


if __name__ == "__main__":
    main()
