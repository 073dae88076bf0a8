"""Reference values of expectation propagation from GPy 1.15, written to ``gpy_ep.json``.

Gaussian-process classification with the probit likelihood, zero prior mean and GPy's isotropic RBF
kernel ``variance * exp(-|x - x'|**2 / (2 * lengthscale**2))``, for two data sets and three settings
of the hyper-parameters.  The file carries the data; only ``python -m tests.reference.make_gpy`` and
`compute`, the same values live, need GPy and scikit-learn.

Made with GPy 1.15.0, numpy 2.4.6 and scipy 1.17.1, which work together unpatched.  Three choices:

* GPy stops at a *mean square* site change below ``epsilon``.  At 1e-16 a gradient is still wrong in
  the sixth digit for the largest variance, at 1e-22 in the ninth; rounding may keep it above 1e-26.
* GPy visits the sites in an order drawn from numpy's global generator; here they go first to last.
* GPy's default ``max_iters`` is infinite and a finite one ends in silence; here that raises.

Relative error against the same fixed point in 80-bit arithmetic: evidence 5e-13, probability 3e-10,
all else 1e-8 (rounding in ``K - K W K`` at variance 1000); at variance 1 all are below 1e-11.
"""

import json
from pathlib import Path

import GPy
import numpy as np
import scipy
import sklearn
from GPy.inference.latent_function_inference import EP
from sklearn.datasets import load_breast_cancer, load_wine

OUTPUT = Path(__file__).with_name("gpy_ep.json")
LOADERS = {"wine": load_wine, "breast_cancer": load_breast_cancer}
SETTINGS = ((1.0, 1.0), (10.0, 3.0), (1000.0, 8.0))
EPSILON = 1e-22
MAX_ITERS = 200
RECIPE = {
    "wine": "sklearn load_wine, rows with target 0 (y = -1) or 1 (y = +1)",
    "breast_cancer": "sklearn load_breast_cancer, first 150 rows, first 8 features, y = 2*target-1",
    "x": "standardised by the mean and the population standard deviation of these rows",
    "x_test": "rng = default_rng(0); x[rng.choice(N, 20, replace=False)] + 0.5 * standard_normal",
    "gradient": "d log_evidence / d log variance, d log_evidence / d log lengthscale",
    "mean, variance": "of the latent posterior at x; test_*: at x_test; probability: p(y = +1)",
}


class BoundedEP(EP):
    """GPy's EP, sites in order, remembering whether the stopping rule was met."""

    converged = False

    def _local_updates(self, num_data, *args):
        super()._local_updates(num_data, *args, update_order=np.arange(num_data))

    def _stop_criteria(self, ga_approx):
        self.converged = bool(super()._stop_criteria(ga_approx))
        return self.converged


def load(dataset):
    """Return ``x`` (N, D), labels ``y`` (N,) in {-1, +1} and ``x_test`` (20, D) of a data set."""
    raw, target = LOADERS[dataset](return_X_y=True)
    if dataset == "wine":
        raw, target = raw[target <= 1], target[target <= 1]
    else:
        raw, target = raw[:150, :8], target[:150]
    x = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    rng = np.random.default_rng(0)
    rows = rng.choice(len(x), 20, replace=False)
    return x, 2 * target - 1, x[rows] + 0.5 * rng.standard_normal((20, x.shape[1]))


def fit(dataset, variance, lengthscale, epsilon=EPSILON):
    """Return the GPy model with EP run to convergence; raise RuntimeError if it is not reached."""
    x, y, _ = load(dataset)
    inference = BoundedEP(ep_mode="nested", epsilon=epsilon, max_iters=MAX_ITERS)
    kernel = GPy.kern.RBF(x.shape[1], variance, lengthscale)
    labels, likelihood = (y[:, None] + 1) / 2, GPy.likelihoods.Bernoulli()  # which wants {0, 1}
    model = GPy.core.GP(x, labels, kernel, likelihood, inference_method=inference)
    if not inference.converged:
        raise RuntimeError(f"EP on {dataset!r} missed epsilon={epsilon} in {MAX_ITERS} sweeps")
    return model


def compute(dataset, variance, lengthscale, epsilon=EPSILON):
    """Return GPy's evidence, gradient, posterior and predictions as a dict of plain numbers."""
    model, x_test = fit(dataset, variance, lengthscale, epsilon), load(dataset)[2]
    parameters, posterior = (model.kern.variance, model.kern.lengthscale), model.posterior
    test_mean, test_variance = model.predict_noiseless(x_test)
    return {
        "kernel_variance": float(variance),
        "lengthscale": float(lengthscale),
        "log_evidence": float(model.log_likelihood()),
        "gradient": [theta.item() * theta.gradient.item() for theta in parameters],
        "mean": posterior.mean[:, 0].tolist(),
        "variance": np.diag(posterior.covariance).tolist(),
        "test_mean": test_mean[:, 0].tolist(),
        "test_variance": test_variance[:, 0].tolist(),
        "test_probability": model.predict(x_test)[0][:, 0].tolist(),
    }


def render(value, indent=""):
    """Return JSON text with one row of numbers per line; floats keep every digit (repr)."""
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(k)}: {render(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], list | dict):
        return "[\n" + ",\n".join(inner + render(v, inner) for v in value) + f"\n{indent}]"
    return json.dumps(value)


def main():
    made_with = {m.__name__: m.__version__ for m in (GPy, np, scipy, sklearn)}
    result = {"made_with": made_with, "epsilon": EPSILON, "recipe": RECIPE}
    for dataset in LOADERS:
        x, y, x_test = (array.tolist() for array in load(dataset))
        cases = [compute(dataset, *setting) for setting in SETTINGS]
        result[dataset] = {"x": x, "y": y, "x_test": x_test, "cases": cases}
    OUTPUT.write_text(render(result) + "\n")


if __name__ == "__main__":
    main()
