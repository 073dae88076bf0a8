"""`monotone=` beside boosting's monotonic constraints, on small noisy data, seed by seed.

    python -m scripts.studies monotone

Labels of functions that rise in the first of three features: 40, 80 and 160 rows to fit to, 2000 to
judge by. Log loss of each model without and with the constraint; boosting's is the better of its
default and of 50 short steps, by log loss on the rows that judge, which favours boosting.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from qpruntime import GPClassifier

OPTIONS = {
    "repeats": {"type": int, "default": 10, "help": "seeds from 0"},
    "rows": {"default": [40, 80, 160]},
}


def main(options: Namespace) -> None:
    """Print a line a problem, number of rows and model, and how often the constraint gains."""
    for name in ("steps", "line", "flat"):
        for n in options.rows:
            found = [losses(name, n, seed) for seed in range(options.repeats)]
            for model in ("process", "boosting"):
                free, held = (np.array([one[model, on] for one in found]) for on in (False, True))
                gain = free - held
                print(
                    f"{name:6} {n:4} {model:9} {free.mean():.4f} {held.mean():.4f} gain "
                    f"{gain.mean():+.4f} +- {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}, "
                    f"{(gain > 0).sum()} of {len(gain)}"
                )


def drawn(name: str, n: int, seed: int) -> tuple[Any, Any]:
    """Features (n, 3) and labels."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 3))
    along = {
        "steps": np.tanh(4.0 * (X[:, 0] - 1.0)) + np.tanh(4.0 * (X[:, 0] + 1.0)),
        "line": X[:, 0],
        "flat": 0.0 * X[:, 0],
    }[name]
    f = along + np.sin(2.0 * X[:, 1])
    return X, (f + rng.normal(size=n) > 0.0).astype(int)


def losses(name: str, n: int, seed: int) -> dict[tuple[str, bool], float]:
    """Log loss by model, with the constraint and without."""
    X, y = drawn(name, n, seed)
    Z, z = drawn(name, 2000, 1000 + seed)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for held in (False, True):
            model = GPClassifier(monotone={0: 1} if held else None, random_state=0).fit(X, y)
            found["process", held] = log_loss(z, model.predict_proba(Z))
            boosted = [
                HistGradientBoostingClassifier(
                    monotonic_cst=[1, 0, 0] if held else None, random_state=0, **own
                ).fit(X, y)
                for own in ({}, {"max_iter": 50, "learning_rate": 0.05, "min_samples_leaf": 5})
            ]
            found["boosting", held] = min(log_loss(z, one.predict_proba(Z)) for one in boosted)
    return found
