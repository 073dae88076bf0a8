"""`monotone=` beside boosting's monotonic constraints, on small noisy data, seed by seed.

    python -m scripts.studies monotone

Labels, counts and numbers with outliers, of functions that rise in the first of three features: 40,
80 and 160 rows to fit to, 2000 to judge by. Log loss of labels, half the Poisson deviance of
counts, and of numbers the mean absolute distance from the function; each without the constraint
and with it. Boosting has the best of several settings on the rows that judge, which favours it.
"""

from __future__ import annotations

import itertools
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor

OPTIONS = {
    "repeats": {"type": int, "default": 10, "help": "seeds from 0"},
    "rows": {"default": [40, 80, 160]},
    "kinds": {"nargs": "+", "default": ["labels", "counts", "numbers"]},
}
# Settings of boosting: its default, and 50 short steps.
SHORT = {"max_iter": 50, "learning_rate": 0.05, "min_samples_leaf": 5}


def main(options: Namespace) -> None:
    """Print a line a problem, number of rows and model, and how often the constraint gains."""
    names = ("steps", "line", "flat")
    for kind, name, n in itertools.product(options.kinds, names, options.rows):
        found = [losses(kind, name, n, seed) for seed in range(options.repeats)]
        for model in ("process", "boosting"):
            free, held = (np.array([one[model, on] for one in found]) for on in (False, True))
            gain = free - held
            print(
                f"{kind:7} {name:6} {n:4} {model:9} {free.mean():.4f} {held.mean():.4f} gain "
                f"{gain.mean():+.4f} +- {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}, "
                f"{(gain > 0).sum()} of {len(gain)}",
                flush=True,
            )


def drawn(kind: str, name: str, n: int, seed: int) -> tuple[Any, Any, Any]:
    """Features (n, 3), observations and the function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 3))
    along = {
        "steps": np.tanh(4.0 * (X[:, 0] - 1.0)) + np.tanh(4.0 * (X[:, 0] + 1.0)),
        "line": X[:, 0],
        "flat": 0.0 * X[:, 0],
    }[name]
    f = along + np.sin(2.0 * X[:, 1])
    if kind == "labels":
        return X, (f + rng.normal(size=n) > 0.0).astype(int), f
    if kind == "counts":
        return X, rng.poisson(np.exp(0.7 * f)).astype(float), f
    return X, f + 0.5 * rng.standard_t(2.0, n), f


def losses(kind: str, name: str, n: int, seed: int) -> dict[tuple[str, bool], float]:
    """Loss by model, with the constraint and without."""
    X, y, _ = drawn(kind, name, n, seed)
    Z, z, f = drawn(kind, name, 2000, 1000 + seed)

    def loss(model: Any) -> float:
        if kind == "labels":
            return float(log_loss(z, model.fit(X, y).predict_proba(Z)))
        found = model.fit(X, y).predict(Z)
        if kind == "counts":
            return 0.5 * float(mean_poisson_deviance(z, found))
        return float(mean_absolute_error(f, found))

    found = {}
    with warnings.catch_warnings(action="ignore"):
        for held in (False, True):
            found["process", held] = loss(process(kind, {0: 1} if held else None))
            found["boosting", held] = min(loss(one) for one in boosted(kind, held))
    return found


def process(kind: str, monotone: dict[int, int] | None) -> Any:
    """The Gaussian process of this kind of observations."""
    if kind == "labels":
        return GPClassifier(monotone=monotone, random_state=0)
    if kind == "counts":
        return GPPoissonRegressor(link="exp", monotone=monotone, random_state=0)
    return GPRobustRegressor(monotone=monotone, random_state=0)


def boosted(kind: str, held: bool) -> list[Any]:
    """Boosting of this kind, in several settings."""
    own: dict[str, Any] = {"monotonic_cst": [1, 0, 0] if held else None, "random_state": 0}
    if kind == "labels":
        return [HistGradientBoostingClassifier(**own, **more) for more in ({}, SHORT)]
    kinds = ("poisson",) if kind == "counts" else ("squared_error", "absolute_error")
    return [
        HistGradientBoostingRegressor(loss=one, **own, **more)
        for one in kinds
        for more in ({}, SHORT)
    ]
