"""CPU seconds of default fits of kinds of y, beside counts, at one thread.

    OMP_NUM_THREADS=1 python -m scripts.studies kinds_time --rows 20000

Three features, a smooth function of two. Kernels are compiled by smaller fits before.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import numpy as np

from qpruntime import GPOrdinal, GPPoissonRegressor, GPRegressor

OPTIONS: dict[str, dict[str, Any]] = {"rows": {"default": [20_000]}, "models": {"default": None}}
# Rows of fits that compile: with inducing points, and where they are chosen.
_BEFORE = (400, 1600)


def main(options: Namespace) -> None:
    """Print a line for each model and number of rows."""
    for name in options.models or MODELS:
        for rows in _BEFORE:
            model, X, y = problem(name, rows)
            model.set_params(inducing=40 if rows == _BEFORE[0] else "auto").fit(X, y)
        for rows in options.rows:
            model, X, y = problem(name, rows)
            begun = time.process_time()
            model.fit(X, y)
            print(f"{name}, {rows} rows: {time.process_time() - begun:.1f} s of CPU", flush=True)


def problem(name: str, rows: int) -> tuple[Any, Any, Any]:
    """A model, features and observations."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 6.0, (rows, 3))
    f = np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1])
    if name == "poisson":
        return GPPoissonRegressor(link="exp", random_state=0), X, rng.poisson(np.exp(f))
    if name == "ordinal":
        noisy = f + rng.standard_normal(rows)
        return GPOrdinal(random_state=0), X, np.digitize(noisy, [-1.0, -0.3, 0.4, 1.2])
    if name == "beta":
        mean = 1.0 / (1.0 + np.exp(-f))
        y = np.clip(rng.beta(10.0 * mean, 10.0 * (1.0 - mean)), 1e-6, 1.0 - 1e-6)
    else:
        y = np.where(rng.uniform(size=rows) < 0.4, 0.0, 1.0 + rng.poisson(np.exp(f)))
    return GPRegressor(likelihood=name, random_state=0), X, y


MODELS = ("poisson", "ordinal", "beta", "hurdle")
