"""Figures of the reports, and those of docs/which-posterior.md as a command."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.data.paper import NAMES
from scripts.records import RESULTS
from scripts.reports import truth as posteriors
from scripts.reports.tables import Record

OPTIONS = {"out": {"default": RESULTS, "help": "folder (default tables/results)"}}


@contextmanager
def canvas(
    path: Path, size: tuple[float, float], dpi: int, shape: tuple[int, int] = (1, 1), **more: Any
) -> Iterator[Any]:
    """Axes of a figure that is saved at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(*shape, figsize=size, layout="constrained", **more)
    try:
        yield axes
        figure.savefig(path, dpi=dpi)
    finally:
        plt.close(figure)


def bayesopt(
    problem: str, gaps: dict[float, dict[str, dict[int, float]]], seeds: dict[str, int], path: Path
) -> None:
    """Median gaps by method with bands from the 25 % to the 75 % quantile."""
    with canvas(path, (6.0, 4.0), 120) as axes:
        for method, count in seeds.items():
            low, middle, high = (np.maximum(list(gaps[q][method].values()), 1e-6) for q in gaps)
            n = list(gaps[0.5][method])
            (line,) = axes.semilogy(n, middle, marker="o", label=f"{method} ({count})")
            axes.fill_between(n, low, high, color=line.get_color(), alpha=0.15)
        axes.set(xlabel="evaluations", ylabel="gap of the recommendation", title=problem)
        axes.legend()


def middle(rows: list[Record], ours: str, path: Path) -> None:
    """Losses by those of the best trees, a line a set."""
    rows = sorted(rows, key=lambda row: row[ours]["loss"] / row["trees"])
    at = np.arange(len(rows))
    with canvas(path, (7.0, 0.26 * len(rows) + 1.4), 130) as axes:
        for model, mark, size, colour, face in (
            ("default", "o", 9, "#1f5fa8", "none"),
            ("boosted mean", "D", 4, "#d1711f", "#d1711f"),
            ("linear", "|", 10, "#777777", "none"),
        ):
            ratio = [row[model]["loss"] / row["trees"] if model in row else np.nan for row in rows]
            style = {"color": colour, "markerfacecolor": face, "markersize": size}
            axes.plot(ratio, at, mark, label=model, **style)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlim(0.45, 3.0)
        ticks = [0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(at, [f"{r['set']}, {r['n']} × {r['columns']}, {r['kind']}" for r in rows])
        axes.tick_params(axis="y", labelsize=8)
        best = "the best of boosting, CatBoost and forest"
        axes.set_xlabel(f"loss of rows that were not fitted, by that of {best}")
        axes.legend(loc="lower right", frameon=False)


def table1(records: list[Record], titled: Callable[[str], str], path: Path) -> None:
    """Figure 1: predictive variances of QP against EP, classification and counts."""
    pairs: dict[str, list[Any]] = {name: [] for name in NAMES}
    for record in records:
        if record["block"] == "main" and record["data"] in pairs and "variances" in record:
            pairs[record["data"]].append(np.array(record["variances"]))
    sides = {
        "(a) Binary classification": [d for d in NAMES if d != "mining"],
        "(b) Poisson regression": ["mining"],
    }
    with canvas(path, (9.0, 8.0), 110, (2, 2)) as panels:
        for (axis, ratio), (title, names) in zip(panels.T, sides.items(), strict=True):
            points = {n: np.concatenate(pairs[n], axis=1) for n in names if pairs[n]}
            if not points:
                continue
            everything = np.concatenate(list(points.values()), axis=1)
            limits = 0.7 * everything.min(), 1.4 * everything.max()
            axis.plot(limits, limits, color="0.6", linewidth=1.0, linestyle="--")
            ratio.axhline(1.0, color="0.6", linewidth=1.0, linestyle="--")
            for name, (ep, qp) in points.items():
                style = {"s": 7, "alpha": 0.5, "linewidths": 0, "label": titled(name)}
                axis.scatter(ep, qp, **style)
                ratio.scatter(ep, qp / ep, **style)
            axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=title)
            ratio.set(xscale="log", xlim=limits)
            axis.set_ylabel("QP predictive variance of f")
            ratio.set_ylabel("QP / EP")
            ratio.set_xlabel("EP predictive variance of f")
            axis.legend(frameon=False, fontsize=8, markerscale=2)


def truth(records: list[Record], names: dict[str, str], folder: Path) -> None:
    """Variances by problem, and what is said beside what is true."""

    def off(record: Record, method: str = "ep") -> float:
        return float(record["methods"][method]["log_variance"])

    found = sorted(records, key=off)
    with canvas(folder / "truth_variances.png", (9.0, 4.5), 110) as axes:
        for key, mark in (("laplace", "x"), ("vb", "v"), ("qp", "s"), ("ep", "o"), ("blend", "D")):
            at = [i for i, r in enumerate(found) if key in r["methods"]]
            values = [off(found[i], key) for i in at]
            axes.plot(at, values, mark, label=names[key], markersize=4)
        axes.axhline(0.0, color="black", linewidth=0.7)
        words = "log(variance / true variance)"
        axes.set(ylim=(-1.4, 0.4), ylabel=words, xlabel="problem, by EP's error")
        axes.legend()
    told = [r for r in found if "predicted" in r["said"]]
    with canvas(folder / "truth_said.png", (4.8, 4.5), 110) as axes:
        said = [r["said"]["predicted"] for r in told]
        axes.plot(said, [-off(r) for r in told], "o", markersize=4)
        axes.plot([-0.1, 0.5], [-0.1, 0.5], color="black", linewidth=0.7)
        words = "log(true variance / EP's)"
        axes.set(xlabel="log(S/V), what is said", ylabel=words, ylim=(-0.15, 0.9))


def main(options: Namespace) -> None:
    """Draw those of the study of posteriors."""
    truth(posteriors.records(), posteriors.METHODS, options.out)
