"""Robust against plain Gaussian-process regression on the Glass data, with and without outliers.

The refractive index of 214 pieces of glass from the weights of eight oxides (UCI, "Glass
Identification"), on random splits of 150 to 64. A share of the *training* targets is then replaced
by draws from a normal ten times as wide as all targets; the test targets stay as they are. Both
models have one squared exponential over standardised features and maximise their evidence from the
same start; noise is Student-t with nu = 4, learnt scale (EP), against normal (scikit-learn).

NLPD: mean negative log predictive density of the test targets, in units of their standard
deviation. RMSE in the same units.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.preprocessing import StandardScaler

from qpruntime import GPRobustRegressor, Search
from scripts.benchmarks.data.paper import load

TRAIN = 150


class Score(NamedTuple):
    """Of one model on one split."""

    nlpd: float
    rmse: float
    seconds: float
    converged: float


class Split(NamedTuple):
    """Standardised features and targets, to fit and to test."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def make_split(folder: Path, seed: int, share: float) -> Split:
    """Draw one split, and outliers for this share of its training targets."""
    columns, _ = load("glass9", folder)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(columns))
    train, test = order[:TRAIN], order[TRAIN:]
    scaler = StandardScaler().fit(columns[train, 1:])
    mean, std = columns[train, 0].mean(), columns[train, 0].std()
    y, y_test = ((columns[rows, 0] - mean) / std for rows in (train, test))
    spoilt = rng.permutation(TRAIN)[: round(share * TRAIN)]
    y[spoilt] = 10.0 * rng.standard_normal(spoilt.size)
    X, X_test = (scaler.transform(columns[rows, 1:]) for rows in (train, test))
    return Split(X, y, X_test, y_test)


def robust(split: Split, method: str = "ep") -> Score:
    """Fit and test `GPRobustRegressor`."""
    start = time.perf_counter()
    model = GPRobustRegressor(ConstantKernel(1.0) * RBF(2.0), method=method).fit(split.X, split.y)
    seconds = time.perf_counter() - start
    error = model.predict(split.X_test) - split.y_test
    density = model.predict_log_density(split.X_test, split.y_test)
    return Score(-density.mean(), np.sqrt(np.mean(error**2)), seconds, model.converged_)


def plain(split: Split) -> Score:
    """Fit and test scikit-learn's `GaussianProcessRegressor`."""
    start = time.perf_counter()
    kernel = ConstantKernel(1.0) * RBF(2.0) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(split.X, split.y)
    seconds = time.perf_counter() - start
    mean, std = model.predict(split.X_test, return_std=True)
    nlpd = -norm.logpdf(split.y_test, mean, std).mean()
    return Score(nlpd, np.sqrt(np.mean((mean - split.y_test) ** 2)), seconds, True)


OPTIONS = {
    "data": {"required": True, "help": "folder with glass.data"},
    "seeds": {"default": 10, "help": "splits (default 10)"},
    "outliers": {
        "type": float,
        "nargs": "+",
        "default": [0.0, 0.1],
        "help": "shares; default 0 and 0.1",
    },
}


def main(options: Namespace) -> None:
    """Score both models on every split, print means and standard errors."""
    print("outliers  noise       NLPD            RMSE            seconds   converged")
    warnings.simplefilter("ignore")
    x = np.linspace(0.0, 1.0, 9)
    GPRobustRegressor(method="ep", optimize=Search(max_iter=2)).fit(
        x[:, None], x**2
    )  # compile before the clock
    for share in options.outliers:
        splits = [make_split(options.data, seed, share) for seed in range(options.seeds)]
        for name, fit in (("Student-t", robust), ("normal", plain)):
            scores = np.array([fit(split) for split in splits])
            mean, error = scores.mean(axis=0), scores.std(axis=0) / np.sqrt(len(scores))
            print(
                f"{100 * share:5.0f} %   {name:10}{mean[0]:7.3f} +- {error[0]:.3f}"
                f"{mean[1]:9.3f} +- {error[1]:.3f}{mean[2]:10.2f}{100 * mean[3]:9.0f} %",
                flush=True,
            )
