"""Coal-mining disasters by day: 112 years as 40 907 days, fitted in seconds on one core.

The raw file has counts by year (`benchmarks.data.files` says where from). Days are simulated:
every disaster of a year falls on a day of that year, drawn evenly with a seed, so that the days add
up to the years. A Poisson process of rate e^f per year, f a Gaussian process with a Matérn 3/2
kernel and a constant, is fitted to the days, whose exposure is 1/365.25 of a year, and to the
years; the two see the same data, and the rates agree. Prints both fits with their times; draws the
rate with its 90 % band.

    python -m scripts.examples series --data DIRECTORY --figure series.png
"""

import time
from argparse import Namespace
from pathlib import Path

import numpy as np
from scipy.special import ndtri
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import GPPoissonRegressor
from scripts.benchmarks.data import paper
from scripts.reports.figures import canvas

DAYS = 365.25


def by_day(years: np.ndarray, counts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Time in years and count of every day, which add up to the counts of the years."""
    rng = np.random.default_rng(seed)
    first = years.astype(str).astype("datetime64[D]")
    last = (years + 1).astype(str).astype("datetime64[D]")
    days = np.arange(first[0], last[-1])
    seen = np.zeros(days.size)
    for begin, end, count in zip(first, last, counts, strict=True):
        place = rng.integers(0, (end - begin).astype(int), count) + (begin - first[0]).astype(int)
        np.add.at(seen, place, 1.0)
    middle = (days - first[0]).astype(float) + 0.5
    return years[0] + middle / DAYS, seen


def fit(
    t: np.ndarray, counts: np.ndarray, exposure: float, method: str
) -> tuple[GPPoissonRegressor, float]:
    """The fitted model and the seconds it took."""
    kernel = ConstantKernel(1.0) * Matern(20.0, (1.0, 1000.0), nu=1.5)
    model = GPPoissonRegressor(kernel, link="exp", method=method, solver="markov")
    start = time.perf_counter()
    model.fit(t[:, None], counts, exposure=exposure)
    return model, time.perf_counter() - start


def band(model: GPPoissonRegressor, t: np.ndarray) -> np.ndarray:
    """Rate per year: its 5 %, 50 % and 95 % quantiles, shape (3, T)."""
    mean, variance = model.latent(t[:, None])
    return np.exp(mean + ndtri([0.05, 0.5, 0.95])[:, None] * np.sqrt(variance))


def draw(years, counts, t, bands, figure: Path) -> None:
    """Counts of the years, and the rates found from days and from years."""
    with canvas(figure, (8.0, 3.6), 120) as axes:
        axes.bar(years + 0.5, counts, width=1.0, color="0.85", label="disasters in a year")
        for (name, found), colour in zip(bands.items(), ("C0", "C3"), strict=True):
            axes.plot(t, found[1], color=colour, label=f"rate, from {name}")
            axes.plot(t, found[0], color=colour, lw=0.7, ls="--")
            axes.plot(t, found[2], color=colour, lw=0.7, ls="--")
        axes.set(xlabel="year", ylabel="per year", xlim=(years[0], years[-1] + 1.0))
        axes.legend(frameon=False)


OPTIONS = {
    "data": {"required": True, "help": "folder with coal-mining.csv"},
    "figure": {},
    "method": {},
    "years": {"type": int, "default": 112, "help": "the first so many"},
    "seed": {},
}


def main(options: Namespace) -> None:
    """Fit, print, draw."""
    X, y = paper.load("mining", options.data)
    years, counts = (a[: options.years].astype(int) for a in (X[:, 0], y))
    t = np.linspace(years[0], years[-1] + 1.0, 400)
    days, seen = by_day(years, counts, options.seed)
    bands = {}
    for name, (x, y, exposure) in {
        "days": (days, seen, 1.0 / DAYS),
        "years": (years + 0.5, counts, 1.0),
    }.items():
        model, seconds = fit(x, y, exposure, options.method)
        bands[name] = band(model, t)
        print(
            f"{name:6} N = {x.size:6}  {seconds:6.2f} s  {model.posterior_.status}, "
            f"{int(y.sum())} disasters, length-scale {model.kernel_.k2.length_scale:.1f} years, "
            f"rate {bands[name][1][0]:.2f} to {bands[name][1][-1]:.2f} a year"
        )
    off = np.abs(np.log(bands["days"][1] / bands["years"][1])).max()
    print(f"rates from days and years differ by {100.0 * off:.1f} % at most")
    if options.figure:
        draw(years, counts, t, bands, options.figure)
