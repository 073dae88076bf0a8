"""Coverage of 90 % intervals on p(second class) with a prior mean by boosting, by simulation.

    python -m scripts.studies prior_mean --rows 500 2000 --seeds 8

The truth is known: thresholds of five of ten features, and a smooth function beside them. Printed
are log loss, coverage and mean width of the intervals without a prior mean, with one as the
estimator gives them, which adds the jackknife variance of the mean, and with that left out. The
log loss of the second is that of intervals: `predict_proba` leaves the variance out as well.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.ensemble import HistGradientBoostingClassifier

from qpruntime import GPClassifier


def drawn(rows: int, seed: int, smooth: float) -> tuple[Any, Any]:
    """Inputs and the latent function."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, 10))
    steps = sum(np.where(X[:, k] > 0.3 + 0.1 * k, 0.7, -0.7) for k in range(5))
    return X, steps + smooth * np.sin(4.0 * X[:, 5]) * X[:, 6]


def one(rows: int, seed: int, smooth: float) -> dict[str, tuple[float, float, float]]:
    """Log loss, coverage and width, by what was fitted."""
    X, f = drawn(rows + 2000, seed, smooth)
    rng = np.random.default_rng([seed, 1])
    y = f + rng.standard_normal(len(f)) > 0.0
    given = HistGradientBoostingClassifier(early_stopping=True, random_state=seed)
    found = {}
    new, truth, seen = X[rows:], ndtr(f[rows:]), y[rows:]
    for words, mean in (("none", None), ("boosting", given)):
        with warnings.catch_warnings(action="ignore"):
            model = GPClassifier(prior_mean=mean, random_state=seed).fit(X[:rows], y[:rows])
        centre, variance = model.latent(new)
        found[words] = _judged(centre, variance, truth, seen)
        if mean is not None:
            spread = model.prior_mean_.spread(new)[:, 0]
            found["boosting, as if it were known"] = _judged(centre, variance - spread, truth, seen)
    return found


def _judged(centre: Any, variance: Any, truth: Any, seen: Any) -> tuple[float, float, float]:
    reach = ndtri(0.95) * np.sqrt(variance)
    low, high = ndtr(centre - reach), ndtr(centre + reach)
    p = ndtr(centre / np.sqrt(1.0 + variance))
    loss = -float(np.log(np.where(seen, p, 1.0 - p)).mean())
    return loss, float(((low < truth) & (truth < high)).mean()), float((high - low).mean())


OPTIONS = {
    "rows": {"default": [500, 2000]},
    "seeds": {"default": 8},
    "smooth": {"type": float, "default": 2.0, "help": "how large the smooth function is"},
}


def main(options: Namespace) -> None:
    """Print a line for each number of rows and each way."""
    for rows in options.rows:
        runs = [one(rows, seed, options.smooth) for seed in range(options.seeds)]
        for words in runs[0]:
            loss, coverage, width = np.mean([run[words] for run in runs], axis=0)
            error = np.std([run[words][1] for run in runs]) / np.sqrt(len(runs))
            print(
                f"{rows:6} rows, {words:30} log loss {loss:.4f}, coverage {coverage:.3f} "
                f"(se {error:.3f}), width {width:.3f}",
                flush=True,
            )
