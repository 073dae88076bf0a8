"""Charts of the benchmark pages, one for each question, drawn from kept results.

``python -m scripts.reports pages`` writes them to ``docs/_static/benchmarks`` as SVG.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scripts.records import TOP, document, lines
from scripts.reports import bayesopt, kinds, middle, speed, truth
from scripts.reports.figures import canvas
from scripts.reports.table1_numbers import merge, published
from scripts.reports.tables import grouped

FOLDER = TOP / "docs" / "_static" / "benchmarks"
#: Okabe and Ito (2008): colours that all readers can tell apart.
BLUE, ORANGE, GREEN, RED, PINK, SKY, GREY = [
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#777777",
]
_CYCLE = (BLUE, ORANGE, GREEN, RED, PINK, SKY, GREY)
_MARKS = "osD^vPX"


@contextmanager
def chart(path: Path, size: tuple[float, float] = (7.2, 3.8), *shape: int) -> Iterator[Any]:
    """Yield the axes of an SVG whose bytes depend on the data alone."""
    import matplotlib as mpl

    style = {
        "svg.hashsalt": "qpruntime",
        "axes.spines.right": False,
        "axes.spines.top": False,
        "legend.frameon": False,
        "axes.prop_cycle": mpl.cycler(color=_CYCLE),
    }
    with mpl.rc_context(style), canvas(path, size, 100, shape or (1, 1), {"Date": None}) as axes:
        yield axes


def boosting(path: Path) -> None:
    """Draw the loss and the time of the default as ratios to the best tree model."""
    with chart(path, (7.2, 4.4)) as axes:
        for (kind, colour), mark in zip(
            {"classes": BLUE, "counts": ORANGE, "numbers": GREEN}.items(), _MARKS, strict=False
        ):
            rows = [row for row in middle.most(middle.kept()) if row["kind"] == kind]
            x = [row["default"]["loss"] / row["trees"] for row in rows]
            y = [row["default"]["cpu"] / row["boosting"]["cpu"] for row in rows]
            axes.scatter(x, y, color=colour, marker=mark, label=f"{kind} ({len(rows)} data sets)")
            for row, a, b in zip(rows, x, y, strict=True):
                if abs(np.log(a)) > 0.1:
                    axes.annotate(row["set"], (a, b), (4, 3), textcoords="offset points", size=8)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log")
        ticks = [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        heights = [2, 5, 10, 20]
        axes.set_yticks(heights, [str(height) for height in heights])
        axes.minorticks_off()
        axes.set_xlabel("loss of the default / loss of the best of boosting, CatBoost and forest")
        axes.set_ylabel("CPU time / time of tuned boosting")
        axes.legend(loc="lower right")


def mixed_models(path: Path) -> None:
    """Draw estimated standard deviations between groups, relative to the truth."""
    records = [r for r in lines("effects.jsonl") if isinstance(r.get("sd"), list) and "seeds" in r]
    models = list(dict.fromkeys(r["model"] for r in records))
    problems = list(dict.fromkeys(r["problem"] for r in records))
    with chart(path) as axes:
        for k, model in enumerate(models):
            rows = [r for r in records if r["model"] == model]
            true = np.array([1.0 if "poisson" in r["problem"] else 1.5 for r in rows])
            sd, rmse = np.array([r["sd"] for r in rows]).T / true
            at = [problems.index(r["problem"]) + 0.13 * (k - len(models) / 2) for r in rows]
            axes.errorbar(
                at, sd, rmse, fmt=_MARKS[k], label=model, capsize=2, color=_CYCLE[k], markersize=5
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(problems)), [f"{p}\n(groups x rows)" for p in problems])
        axes.set_ylabel("estimated / true standard deviation")
        axes.legend(fontsize=8, ncols=2)
        axes.set_ylim(0.6, 1.45)


def forecasts(path: Path) -> None:
    """Draw accuracy and coverage of forecasts by model, on both groups of series."""
    with chart(path, (7.2, 3.4), 1, 2) as (left, right):
        for k, (label, words) in enumerate(
            {"seen": "used to set defaults", "others": "not used"}.items()
        ):
            own = [r for r in lines("forecasts.jsonl") if r["group"] == label]
            models = sorted({r["model"] for r in own}, key=lambda m: (m != "GPForecaster", m))
            best = {
                s: min(r["crps"] for r in own if r["set"] == s) for s in {r["set"] for r in own}
            }
            at = np.arange(len(models)) + 0.36 * (k - 0.5)
            over = [
                np.exp(
                    np.mean([np.log(r["crps"] / best[r["set"]]) for r in own if r["model"] == m])
                )
                for m in models
            ]
            held = [100 * np.mean([r["within95"] for r in own if r["model"] == m]) for m in models]
            left.barh(at, over, 0.34, label=f"series {words}", color=_CYCLE[k])
            right.barh(at, held, 0.34, color=_CYCLE[k])
            left.set_yticks(range(len(models)), models)
            right.set_yticks(range(len(models)), [""] * len(models))
        left.set(xlabel="CRPS / best CRPS (geometric mean)", xlim=(0.9, None))
        right.axvline(95.0, color="black", linewidth=0.8)
        right.set(xlabel="coverage of 95 % intervals, %", xlim=(60, 100))
        left.invert_yaxis()
        right.invert_yaxis()
        left.figure.legend(fontsize=8, loc="outside upper center", ncols=2)


def cost(path: Path) -> None:
    """Draw CPU seconds of fits by the number of rows."""
    kept = speed.numbers()
    curves: dict[str, dict[float, float]] = {
        label: {n: kept[f"N={n}: {what}"] for n in (200, 500, 1000) if f"N={n}: {what}" in kept}
        for label, what in {
            "dense, GPClassifier (EP)": "fit, ep",
            "dense, scikit-learn (Laplace)": "fit, scikit-learn (Laplace)",
            "dense, GPBoost (Laplace)": "fit, GPBoost (Laplace)",
        }.items()
    }
    curves["default, all stages"] = {
        r["rows"]: r["cpu"] for r in lines("scale.jsonl") if "model" not in r
    }
    curves["200 inducing points"] = {
        r["rows"]: r["cpu"] for r in lines("sparse_sizes.jsonl") if "rows" in r
    }
    curves["LightGBM"] = {r["rows"]: r["cpu"] for r in lines("scale.jsonl") if "model" in r}
    series = {name: value for name, (value, _) in document("bench_series.json").items()}
    for label, what in {
        "series": "fit, probit",
        "series, GPBoost (Vecchia)": "GPBoost, fit",
    }.items():
        curves[label] = {
            10.0**k: series[f"N={10**k}: {what}"]
            for k in range(4, 8)
            if f"N={10**k}: {what}" in series
        }
    with chart(path, (7.2, 4.4)) as axes:
        for k, (label, points) in enumerate(curves.items()):
            n = sorted(points)
            colour = (*_CYCLE, "black")[k]
            axes.loglog(n, [points[i] for i in n], "-o", label=label, color=colour, markersize=4)
        axes.set(xlabel="number of rows N", ylabel="CPU seconds of a fit")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def posterior(path: Path) -> None:
    """Draw log variance ratios to long chains, problem by problem."""
    found = sorted(truth.records(), key=lambda r: r["methods"]["ep"]["log_variance"])
    with chart(path, (7.2, 4.0)) as axes:
        for key, mark, colour in (
            ("laplace", "x", GREY),
            ("vb", "v", PINK),
            ("qp", "s", ORANGE),
            ("ep", "o", BLUE),
            ("blend", "D", GREEN),
        ):
            at = [i for i, r in enumerate(found) if key in r["methods"]]
            values = [found[i]["methods"][key]["log_variance"] for i in at]
            name = "corrected (blend)" if key == "blend" else truth.METHODS[key]
            axes.plot(at, values, mark, label=name, markersize=4, color=colour)
        axes.axhline(0.0, color="black", linewidth=0.8)
        words = "log(variance / true variance)"
        axes.set(ylim=(-1.4, 0.4), ylabel=words, xlabel="problem, ordered by EP's error")
        axes.legend(ncols=2)


def paper(path: Path) -> None:
    """Draw reproduced log losses against the published ones."""
    theirs, own = published(), merge(document("table1.json"))
    names = [name for name in own if name in theirs]
    with chart(path) as axes:
        for k, method in enumerate(("ep", "qp", "vb")):
            x = np.array([theirs[n][f"ntll_{method}"] for n in names])
            sd = np.array([theirs[n][f"ntll_{method}_sd"] for n in names])
            y = np.array([own[n][method]["ntll"]["mean"] for n in names])
            at = np.arange(len(names)) + 0.2 * (k - 1)
            axes.errorbar(
                at, y / x, sd / x, fmt=_MARKS[k], label=method.upper(), color=_CYCLE[k], capsize=2
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(names)), [theirs[n]["title"] for n in names], rotation=30)
        axes.set_ylabel("reproduced / published log loss")
        axes.legend()


def classes(path: Path) -> None:
    """Draw log losses of several classes relative to the default's."""
    groups = kinds.classes.groups()
    names = [f"{name}, {n}" for n, name in groups]
    with chart(path, (7.2, 4.2)) as axes:
        for k, model in enumerate(("scaled", "exactly one", "linear", "boosting")):
            ratio = []
            for some in groups.values():
                loss = {m: np.mean([r["loss"] for r in some if r["model"] == m] or [np.nan])
                        for m in ("default", model)}  # fmt: skip
                ratio.append(loss[model] / loss["default"])
            axes.plot(ratio, _MARKS[k], label=model, color=_CYCLE[k + 1], markersize=5)
        axes.axhline(1.0, color="black", linewidth=0.8, label="the default")
        axes.set(yscale="log", ylabel="log loss / log loss of the default")
        ticks = [0.7, 1.0, 1.5, 2.0, 3.0, 5.0]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.legend(fontsize=8, ncols=3)


def optimisation(path: Path) -> None:
    """Draw the median gap of the recommendation by evaluations, with quartiles."""
    problems = bayesopt.of_problems(bayesopt.runs())
    problems = {name: methods for name, methods in problems.items() if methods}
    with chart(path, (9.0, 3.2), 1, len(problems)) as panels:
        for axes, (problem, methods) in zip(panels, problems.items(), strict=True):
            for k, (method, rows) in enumerate(methods.items()):
                low, middle_, high = (
                    np.maximum(list(bayesopt.quantiles(rows, q).values()), 1e-7)
                    for q in (0.25, 0.5, 0.75)
                )
                n = list(bayesopt.quantiles(rows))
                axes.semilogy(n, middle_, marker=_MARKS[k], markersize=4, label=method)
                axes.fill_between(n, low, high, alpha=0.15)
            axes.set(xlabel="evaluations", title=problem)
        panels[0].set_ylabel("gap to the optimum")
        panels[1].legend(fontsize=8, loc="lower left")


def deep(path: Path) -> None:
    """Draw log-likelihoods by CPU time of deep models here and in GPyTorch."""
    with chart(path, (7.2, 3.4), 1, 2) as panels:
        for axes, name in zip(panels, ("boston", "diamonds"), strict=True):
            for k, row in enumerate(r for r in lines("bench_deep.jsonl") if r["data"] == name):
                cpu, value = (
                    [mark[key] for mark in row["marks"]] for key in ("cpu", "log_density")
                )
                label = {"deep": "qpruntime, deep", "robust": "qpruntime, one layer"}
                label = label.get(row["program"], "GPyTorch, deep")
                axes.plot(cpu, value, f"-{_MARKS[k]}", label=label, markersize=5)
            axes.set(xlabel="CPU seconds", title=name)
        panels[0].set_ylabel("mean test log-likelihood")
        panels[1].legend(fontsize=8)


def families(path: Path) -> None:
    """Draw log densities of models of times, levels, counts and positive numbers beside R."""
    sets = kinds.by_set()
    with chart(path, (7.2, 6.4)) as axes:
        for k, (side, mark) in enumerate(zip(kinds.SIDES, "oDs^", strict=True)):
            tops = [kinds.leaders(models).get(side) for models in sets.values()]
            x = [np.nan if top is None else -top["gap"] for top in tops]
            at = np.arange(len(x)) + 0.15 * (k - 1.5)
            axes.plot(x, at, mark, color=_CYCLE[k], label=side, markersize=4)
        axes.set_yticks(range(len(sets)), list(sets))
        axes.invert_yaxis()
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_xlabel("mean log density of held-out rows, minus that of the best model")
        axes.figure.legend(fontsize=8, loc="outside upper center", ncols=4)


def integrals(path: Path) -> None:
    """Draw errors of log Z by twenty Gauss-Hermite points."""
    with chart(path) as axes:
        for k, ((title,), some) in enumerate(
            grouped(document("certified.json")["failures"], ("curve",)).items()
        ):
            error = [max(abs(r["log_z"]), 1e-16) for r in some]
            axes.loglog([r["sigma"] for r in some], error, label=title, color=_CYCLE[k % 7])
        axes.axhline(1e-9, color="black", linestyle=":", label="bound held by qpruntime")
        axes.set(xlabel="standard deviation of the Gaussian q", ylabel="error of log Z, nats")
        axes.legend(fontsize=7)


#: What a page shows first, by the name of its page.
CHARTS: dict[str, Callable[[Path], None]] = {
    "boosting": boosting,
    "mixed-models": mixed_models,
    "forecasts": forecasts,
    "cost": cost,
    "posterior": posterior,
    "paper": paper,
    "classes": classes,
    "bayesopt": optimisation,
    "deep": deep,
    "families": families,
    "integrals": integrals,
}


def path_of(name: str) -> Path:
    """Return where a chart is kept."""
    return FOLDER / f"{name}.svg"
