"""The picture of the documentation's first page: labels and counts with 90 % intervals.

Data are drawn from functions that are known and dashed here: the probability of a label, and a rate
of counts. Both models are those without arguments.

    python -m scripts.examples first --figure docs/_static/first.png
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime import GPClassifier, GPPoissonRegressor
from scripts.reports.figures import canvas

OPTIONS = {"figure": {"type": Path, "default": Path("docs/_static/first.png"), "help": "file"}}
BLUE, GREY = "#1f5fa8", "#555555"


def probability(x: np.ndarray) -> np.ndarray:
    """Return the true probability of a label."""
    return 0.5 + 0.45 * np.sin(2.0 * x)


def rate(x: np.ndarray) -> np.ndarray:
    """Return the true rate of counts."""
    return 6.0 + 4.0 * np.cos(1.5 * x)


def classes(axes: Any, rng: np.random.Generator) -> float:
    """Draw labels and what is known of their probability; return the share that intervals hold."""
    x = np.sort(np.r_[rng.uniform(0.0, 3.0, 110), rng.uniform(4.6, 6.0, 40)])
    y = rng.uniform(size=x.size) < probability(x)
    model = GPClassifier().fit(x[:, None], y)
    at = np.linspace(0.0, 6.0, 241)
    low, high = model.predict_interval(at[:, None], level=0.9).T
    axes.plot(x, np.where(y, 1.03, -0.03), "|", color=GREY, markersize=7, label="labels")
    axes.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0, label="90 % interval")
    axes.plot(at, model.predict_proba(at[:, None])[:, 1], color=BLUE, label="prediction")
    axes.plot(at, probability(at), "--", color="black", linewidth=1.0, label="truth")
    axes.set(xlabel="x", ylabel="probability of a label", ylim=(-0.08, 1.08))
    return float(np.mean((low <= probability(at)) & (probability(at) <= high)))


def counts(axes: Any, rng: np.random.Generator) -> float:
    """Draw counts and their quantiles; return the share of new counts that these hold."""
    x = np.sort(rng.uniform(0.0, 6.0, 90))
    y = rng.poisson(rate(x))
    model = GPPoissonRegressor().fit(x[:, None], y)
    at = np.linspace(0.0, 7.0, 241)
    low, high = model.predict_quantiles(at[:, None], q=(0.05, 0.95)).T
    axes.plot(x, y, ".", color=GREY, markersize=5, label="counts")
    axes.fill_between(at, low, high, color=BLUE, alpha=0.22, linewidth=0, step="mid")
    axes.plot(at, model.predict(at[:, None]), color=BLUE)
    axes.plot(at, rate(at), "--", color="black", linewidth=1.0)
    axes.set(xlabel="x", ylabel="counts")
    new = rng.poisson(rate(at))
    return float(np.mean((low <= new) & (new <= high)))


def main(options: Namespace) -> None:
    """Draw the picture; print what the intervals hold."""
    rng = np.random.default_rng(2)
    with canvas(options.figure, (9.0, 3.3), 110, (1, 2)) as axes:
        held = classes(axes[0], rng), counts(axes[1], rng)
        for one in axes:
            one.spines[["top", "right"]].set_visible(False)
        above = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.13), "ncols": 4}
        axes[0].legend(frameon=False, fontsize=8, **above)
    print(f"intervals hold {held[0]:.2f} of the probabilities, {held[1]:.2f} of new counts")
