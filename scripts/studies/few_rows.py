"""Regressions of 20 to 50 rows: intervals with hyper-parameters at their mode, and integrated.

    python -m scripts.studies few_rows --rows 20 30 50 --seeds 30
    python -m scripts.studies few_rows --report
    python -m scripts.studies few_rows --peer

Cover of 90 % intervals of an observation, their widths and log densities, on rows held out: of
functions that are drawn, and of the diabetes set of scikit-learn. ``--peer`` draws the
hyper-parameters of one regression by NumPyro, under the same priors, and compares.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from itertools import product
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime import GPRegressor, Integrate
from scripts.records import RESULTS, Records
from scripts.reports.integrated import few_rows as table

ONE_THREAD = True
OPTIONS = {
    "rows": {"default": [20, 30, 50]},
    "seeds": {"default": 30},
    "kept": {"default": RESULTS / "few_rows.jsonl"},
    "peer": {"action": "store_true", "help": "compare one posterior with NumPyro's"},
    "report": {},
}
_NEW, _NOISE = 200, 0.3


def main(options: Namespace) -> None:
    """Fit what is missing, and print the table."""
    if options.peer:
        print(beside_numpyro())
        return
    kept = Records(options.kept, "problem rows seed")
    seeds = range(0 if options.report else options.seeds)
    for seed, rows, problem in product(seeds, options.rows, PROBLEMS):
        if (key := (problem, rows, seed)) not in kept:
            kept.keep(key, {"of": _judged(*PROBLEMS[problem](rows, seed))})
    print(table(list(kept.records.values())))


def _drawn(rows: int, seed: int) -> tuple[Any, ...]:
    """A function of two features drawn from a Matérn process, with normal noise."""
    rng = np.random.default_rng([seed, rows])
    X = rng.uniform(0.0, 1.0, (rows + _NEW, 2))
    K = Matern(0.5, nu=2.5)(X) + 1e-9 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.standard_normal(len(X))
    y = f + _NOISE * rng.standard_normal(len(X))
    return X[:rows], y[:rows], X[rows:], y[rows:]


def _curve(rows: int, seed: int) -> tuple[Any, ...]:
    """A smooth curve of one feature, with normal noise."""
    rng = np.random.default_rng([seed, rows, 1])
    X = rng.uniform(0.0, 1.0, (rows + _NEW, 1))
    y = np.sin(9.0 * X[:, 0]) * X[:, 0] + 0.2 * rng.standard_normal(len(X))
    return X[:rows], y[:rows], X[rows:], y[rows:]


def _diabetes(rows: int, seed: int) -> tuple[Any, ...]:
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng([seed, rows]).permutation(len(y))
    some, rest = order[:rows], order[rows : rows + _NEW]
    return X[some], y[some], X[rest], y[rest]


PROBLEMS = {"drawn": _drawn, "curve": _curve, "diabetes": _diabetes}


def _judged(X: Any, y: Any, new: Any, seen: Any) -> dict[str, Any]:
    """Cover, width and log density by the mode and integrated, with the default kernel."""
    found = {}
    for name, how in {"mode": "mode", "integrated": Integrate()}.items():
        begun = time.process_time()
        with warnings.catch_warnings(action="ignore"):
            model = GPRegressor(method="ep", hyperparameters=how, random_state=0).fit(X, y)
        low, high = model.predict_interval(new, 0.9).T
        one = getattr(model, "integrated_", None)
        found[name] = {
            "covered": round(float(np.mean((low <= seen) & (seen <= high))), 4),
            "width": round(float(np.mean(high - low) / np.std(seen)), 4),
            "density": round(float(model.predict_log_density(new, seen).mean()), 5),
            "cpu": round(time.process_time() - begun, 2),
            "design": None if one is None else one.design,
        }
    return found


def beside_numpyro(rows: int = 30, draws: int = 4000) -> str:
    """Posterior means and deviations of log parameters, and of predictions, by both."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    X, y, new, _ = _curve(rows, 0)
    new = new[:5]
    middle, scale = float(np.log(np.median(pdist(X)))), 0.3
    square = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    cross = ((new[:, None] - X[None]) ** 2).sum(axis=2)

    def model() -> None:
        a = numpyro.sample("a", dist.Normal(0.0, 3.0))
        b = numpyro.sample("b", dist.Normal(middle, 1.5))
        s = numpyro.sample("s", dist.Normal(np.log(scale), 3.0))
        K = jnp.exp(a - 0.5 * square * jnp.exp(-2.0 * b)) + jnp.exp(2.0 * s) * jnp.eye(rows)
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(rows), K), obs=jnp.array(y))

    mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=draws, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0))
    theirs = np.column_stack([np.asarray(mcmc.get_samples()[name]) for name in "abs"])
    means = np.array([_mean(square, cross, y, *theta) for theta in theirs[::4]])
    kernel = ConstantKernel(1.0, (1e-9, 1e9)) * RBF(1.0, (1e-6, 1e6))
    lines = [f"NumPyro: {_words(theirs, None)}; predictions {_shown(means.mean(axis=0))}"]
    for design in ("grid", "importance"):
        n = None if design == "grid" else 512
        own = GPRegressor(
            kernel,
            likelihood=f"gaussian(scale={scale})",
            normalize_y=False,
            method="ep",
            parameter_bounds={"scale": (1e-6, 1e6)},
            hyperparameters=Integrate(design, n=n),
            random_state=0,
        ).fit(X, y)
        one = own.integrated_
        words = _words(one.theta, one.weights)
        lines.append(f"{design}: {words}; predictions {_shown(own.predict(new))}")
    return "\n".join(lines)


def _mean(square: Any, cross: Any, y: Any, a: float, b: float, s: float) -> Any:
    K = np.exp(a - 0.5 * square * np.exp(-2.0 * b)) + np.exp(2.0 * s) * np.eye(len(y))
    return np.exp(a - 0.5 * cross * np.exp(-2.0 * b)) @ np.linalg.solve(K, y)


def _words(theta: Any, weights: Any) -> str:
    mean = np.average(theta, axis=0, weights=weights)
    spread = np.sqrt(np.average((theta - mean) ** 2, axis=0, weights=weights))
    return f"means {_shown(mean)}, deviations {_shown(spread)}"


def _shown(values: Any) -> str:
    return " ".join(f"{v:.3f}" for v in values)
