"""Fit the coal-mining disasters with EP and QP, test on the paper's splits, and draw the rate.

The data: disasters in British coal mines per year, 1851 to 1962, 112 counts; R. G. Jarrett, "A note
on the intervals between coal-mining disasters", Biometrika 66 (1979), 191-193, Table 1. They are
public and stand in most statistics packages as dates: ``coal`` in R's package boot, for one:

    Rscript -e 'y <- table(factor(floor(boot::coal$date), 1851:1962));
                write.csv(data.frame(year = names(y), count = as.vector(y)),
                          "coal-mining.csv", row.names = FALSE, quote = FALSE)'

Protocol of the paper's Table 1: every year goes to training with probability 1/2
(RandomState(seed).rand() > 0.5, seeds 0, 1, ...), prior mean 1, one squared exponential with
variance and length-scale (in years) started at 1. NTLL: mean of -log p(count) over the test years,
of the paper's negative binomial. TE: mean of |count - mode|.

The evidence has several maxima: from a length-scale of one year the optimiser reaches trends of
decades on most splits, and stops below four years on 28 of 200. They give NTLL 1591.5 and TE 114.1
for both methods. If the optimiser moves the parameters through log(1 + exp(u)), as GPy does,
instead of exp(u), it stops there on 48, and gives 1604.7 (116.8) and 118.3 (27.4) for EP and QP
alike: the published numbers, to a quarter of their standard errors.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPPoissonRegressor, Search
from qpruntime.estimators.predictive.density import rate_quantiles
from scripts.benchmarks.data import paper
from scripts.benchmarks.data.registry import DataError
from scripts.command_line import Failure

#: The paper's.
KERNEL = ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))
#: NTLL x 1e3 and TE x 100 in the paper, mean and standard deviation over 200 splits.
PUBLISHED = {"ep": (1606.8, 116.3, 118.6, 27.0), "qp": (1606.5, 116.3, 118.6, 27.0)}


class Score(NamedTuple):
    """Of one method on one split: NTLL by either predictive, test error, seconds of the fit."""

    ntll: float
    exact: float
    error: float
    seconds: float


def score(method: str, X: np.ndarray, y: np.ndarray, seed: int) -> Score:
    """Fit one split and test it."""
    train = np.random.RandomState(seed).rand(len(y)) > 0.5
    model = GPPoissonRegressor(KERNEL, method=method, mean=1.0)
    start = time.perf_counter()
    model.fit(X[train], y[train])
    seconds = time.perf_counter() - start
    test, counts = X[~train], y[~train]
    return Score(
        -model.predict_log_pmf(test, counts, predictive="gamma").mean(),
        -model.predict_log_pmf(test, counts).mean(),
        np.abs(counts - model.predict_count(test)).mean(),
        seconds,
    )


def draw(X: np.ndarray, y: np.ndarray, path: Path) -> GPPoissonRegressor:
    """Fit all years; draw the rate with its band, over the counts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = GPPoissonRegressor(KERNEL, mean=1.0).fit(X, y)
    fine = np.linspace(X[0, 0], X[-1, 0], 500)[:, None]
    low, median, high = rate_quantiles(*model.latent(fine), np.array([0.05, 0.5, 0.95])).T
    figure, axes = plt.subplots(figsize=(8.0, 4.2), layout="constrained")
    axes.bar(X[:, 0], y, width=0.8, color="0.82", label="disasters in the year")
    axes.fill_between(
        fine[:, 0], low, high, color="tab:blue", alpha=0.3, linewidth=0, label="90 % band"
    )
    axes.plot(fine[:, 0], median, color="tab:blue", linewidth=1.8, label="rate, posterior median")
    axes.set(xlim=(1850, 1963), ylim=(0, y.max() + 0.5), xlabel="year", ylabel="disasters a year")
    axes.set_title("Coal-mining disasters in Britain: Poisson rate by quantile propagation")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return model


OPTIONS = {
    "data": {"required": True, "help": "folder with coal-mining.csv"},
    "seeds": {"default": 20, "help": "splits; the paper has 200 (default 20)"},
    "figure": {},
}


def main(options: Namespace) -> None:
    """Test both methods, print and draw."""
    try:
        X, y = paper.load("mining", options.data)
    except DataError as error:
        help_ = "How to get the data: python -m scripts.examples coal --help"
        raise Failure(f"{error}\n{help_}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GPPoissonRegressor(KERNEL, optimize=Search(max_iter=2)).fit(X[::9], y[::9])  # compile first
    print(f"Coal mining: {len(y)} years, {y.sum():.0f} disasters, {options.seeds} splits")
    print("method   NTLL x 1e3 (sd)   published        exact pmf   TE x 100 (sd)    published")
    for method, (ntll, ntll_sd, error, error_sd) in PUBLISHED.items():
        rows = np.array([score(method, X, y, seed) for seed in range(options.seeds)])
        mean, sd = rows.mean(axis=0), rows.std(axis=0)
        print(
            f"{method.upper():6}{1e3 * mean[0]:10.1f} ({1e3 * sd[0]:.1f})"
            f"{ntll:10.1f} ({ntll_sd}){1e3 * mean[1]:12.1f}"
            f"{100 * mean[2]:10.1f} ({100 * sd[2]:.1f}){error:10.1f} ({error_sd})"
            f"   {mean[3]:.3f} s a fit",
            flush=True,
        )
    if options.figure:
        model = draw(X, y, options.figure)
        print(f"All years: {model.kernel_}, log evidence of EP {model.optimum_.value:.3f}")
        print(f"Figure of the rate: {options.figure}")
