"""Tables and figures of the study of posteriors, from the records that study_truth.py keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from scripts.records import RESULTS

__all__ = ["by_kind", "by_method", "by_word", "figures", "records", "said_of", "table", "wrong"]

METHODS = {
    "ep": "EP",
    "qp": "QP",
    "vb": "VB",
    "laplace": "Laplace",
    "fact": "fact",
    "blend": "blend",
    "tilt": "tilt",
}
#: Chains count as truth up to this R-hat.
MIXED = 1.01
#: Mean |log ratio| beyond which a correction is named as wrong, if chains can tell: so many errors.
BAR, ERRORS = 0.045, 2.0
#: Evidence that bridge sampling knows no better is left out.
KNOWN = 0.05
#: Mean spread above which corrections warn, and EP's log variance that is worth a word.
FLAGGED, NOTABLE = 0.25, 0.2

Record = dict[str, Any]


def records(mixed: bool = True) -> list[Record]:
    """Records of all problems, or of those whose chains have mixed."""
    lines = (RESULTS / "truth.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [r for r in found if not mixed or r["truth"]["rhat"] < MIXED]


def table(header: list[str], lines: list[list[str]]) -> str:
    """Markdown."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def with_error(values: list[float], form: str) -> str:
    """Mean over problems and its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):{form}} ± {error:{form.replace('+', '')}}"


def said_of(name: str) -> list[str]:
    """What `check()` speaks of on a problem, as study_weights.py keeps it."""
    lines = (RESULTS / "weights.jsonl").read_text().splitlines()
    return next((r["said"] for r in map(json.loads, lines) if r["name"] == name), [])


def trusted(record: Record) -> bool:
    """Whether corrections were possible, and their spread raised no warning."""
    return "blend" in record["methods"] and record["said"]["spread"] <= FLAGGED


def by_method() -> str:
    """Averages over problems; the last line is what the chains leave unknown."""
    found = [r for r in records() if trusted(r)]
    lines = []
    for key, name in METHODS.items():
        rows = [r["methods"][key] for r in found if key in r["methods"]]
        both = [(r["methods"][key], r["truth"]) for r in found if key in r["methods"]]
        gaps = [
            abs(row["evidence"])
            for row, truth in both
            if row["evidence"] is not None and truth["error evidence"] < KNOWN
        ]
        lines.append(
            [
                name,
                str(len(rows)),
                *(
                    with_error([row[what] for row in rows], form)
                    for what, form in (
                        ("mean", ".3f"),
                        ("log_variance", "+.3f"),
                        ("log_variance_abs", ".3f"),
                        ("quantiles", ".3f"),
                        ("coverage 0.5", ".3f"),
                        ("coverage 0.9", ".3f"),
                        ("coverage 0.99", ".4f"),
                        ("log_probability", ".3f"),
                    )
                ),
                with_error(gaps, ".3f") if gaps else "–",
            ]
        )
    errors = [r["truth"] for r in found]
    lines.append(
        [
            "*error of the chains*",
            str(len(found)),
            *(
                f"{np.mean([e[what] for e in errors]):.3f}"
                for what in ("error mean", "error log_variance", "error log_variance")
            ),
            f"{np.mean([e['error quantiles'] for e in errors]):.3f}",
            "",
            "",
            "",
            "",
            f"{np.mean([e for t in errors if (e := t['error evidence']) < KNOWN]):.3f}",
        ]
    )
    head = "method, problems, means (sd), log variance, its size, 5 and 95 % points (sd)"
    head += ", in 50 %, in 90 %, in 99 %, log P(y), log evidence"
    return table(head.split(", "), lines)


def kind(record: Record) -> str:
    """Group of a problem."""
    name = record["likelihood"].split("(")[0]
    if record["at"] == "data" and name == "probit":
        return "probit, data sets"
    if name == "poisson" and abs(record["mean"]) < 0.5:
        return "poisson, prior mean 0"
    hard = any(word in record["name"] for word in ("separable", "all one"))
    torn = "torn" in record["name"]
    extra = ", separable or of one kind" if hard else ", torn" if torn else ""
    return name + extra


def by_kind() -> str:
    """Log variance ratios and errors of means by kind of problem."""
    groups: dict[str, list[Record]] = {}
    for record in records():
        groups.setdefault(kind(record), []).append(record)
    lines = []
    for name, found in groups.items():
        cells = []
        for key in ("ep", "qp", "vb", "laplace", "blend"):
            rows = [r["methods"][key]["log_variance"] for r in found if key in r["methods"]]
            cells.append(f"{np.mean(rows):+.3f}" if rows else "–")
        for key in ("ep", "qp", "blend"):
            rows = [r["methods"][key]["mean"] for r in found if key in r["methods"]]
            cells.append(f"{np.mean(rows):.3f}" if rows else "–")
        error = np.mean([r["truth"]["error log_variance"] for r in found])
        lines.append([name, str(len(found)), *cells, f"{error:.3f}"])
    head = ["likelihood", "problems", *(f"{m} log variance" for m in ("EP", "QP", "VB"))]
    head += ["Laplace", "blend", "EP mean (sd)", "QP mean", "blend mean", "error of log variance"]
    return table(head, lines)


def spoken(record: Record) -> str:
    """Subjects of `check()` in a cell."""
    return ", ".join(said_of(record["name"])) or "nothing"


def wrong() -> str:
    """Problems on which "blend" misses by more than the chains' errors explain."""
    lines = []
    for record in records(mixed=False):
        truth, said = record["truth"], record["said"]
        best = record["methods"].get("blend")
        if best is None:
            reason = next((v for k, v in said.items() if "refused" in k), "not run")
            words = [reason.split(":")[0].split(", and corrections")[0]]
            lines.append([record["name"], "refused", "", "", "", *words, spoken(record)])
            continue
        if truth["rhat"] >= MIXED:
            words = [f"chains: R-hat {truth['rhat']:.3f}, no truth", spoken(record)]
            lines.append([record["name"], "", "", "", "", *words])
            continue
        gap, error = best["log_variance_abs"], truth["error log_variance"]
        off = best["evidence"]
        evidence_off = abs(off) - ERRORS * truth["error evidence"] > 0.03
        if (
            np.sqrt(max(gap**2 - error**2, 0.0)) > BAR
            or evidence_off
            or best["mean"] > (0.02 + ERRORS * truth["error mean"])
            or best["quantiles"] > (BAR + ERRORS * truth["error quantiles"])
        ):
            lines.append(
                [
                    record["name"],
                    f"{best['mean']:.3f} ± {truth['error mean']:.3f}",
                    f"{best['log_variance']:+.3f} ± {error:.3f}",
                    f"{best['quantiles']:.3f}",
                    f"{off:+.3f} ± {truth['error evidence']:.3f}",
                    f"spread {said['spread']:.2f}",
                    spoken(record),
                ]
            )
    head = ["problem", "mean (sd)", "log variance", "5 and 95 % (sd)", "log evidence"]
    head += ["note", "check() speaks of"]
    return table(head, lines)


def by_word() -> str:
    """Agreement of what a posterior says of itself with the chains."""
    found = [r for r in records() if "predicted" in r["said"]]
    told = np.array([r["said"]["predicted"] for r in found])
    true = -np.array([r["methods"]["ep"]["log_variance"] for r in found])
    spread = np.array([r["said"]["spread"] for r in found])
    left = np.array([r["methods"]["blend"]["log_variance_abs"] for r in found])
    error = np.array([r["truth"]["error log_variance"] for r in found])
    sites = [r["said"] for r in found if abs(r["said"]["predicted"]) > 0.1]
    one = spread <= FLAGGED
    warned, needed = told > NOTABLE, true > NOTABLE
    missed = left > 0.1 + 3.0 * error
    lines = [
        ["problems", str(len(found))],
        [
            "correlation over problems of log(S/V) with the error of EP's log variance",
            f"{np.corrcoef(told[one], true[one])[0, 1]:.2f}",
        ],
        ["… slope of that error on it", f"{told[one] @ true[one] / (told[one] @ told[one]):.2f}"],
        [
            "… correlation over sites: median where the mean is above 0.1",
            f"{np.median([s['correlation'] for s in sites]):.2f}",
        ],
        [
            f"EP's log variance more than {NOTABLE} too low: warned of / all",
            f"{(warned & needed & one).sum()} / {(needed & one).sum()}",
        ],
        ["… warned of where it is not", str((warned & ~needed & one).sum())],
        [
            f"blend off by more than 0.1 and three errors: spread above {FLAGGED} / all",
            f"{(~one & missed).sum()} / {missed.sum()}",
        ],
        ["… flagged where it is not", str((~one & ~missed).sum())],
    ]
    return table(["", ""], lines)


def figures() -> None:
    """Draw variances by problem, and what is said beside what is true; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = sorted(records(), key=lambda r: r["methods"]["ep"]["log_variance"])
    fig, axes = plt.subplots(figsize=(9.0, 4.5), layout="constrained")
    for key, mark in (("laplace", "x"), ("vb", "v"), ("qp", "s"), ("ep", "o"), ("blend", "D")):
        at = [i for i, r in enumerate(found) if key in r["methods"]]
        axes.plot(
            at,
            [found[i]["methods"][key]["log_variance"] for i in at],
            mark,
            label=METHODS[key],
            markersize=4,
        )
    axes.axhline(0.0, color="black", linewidth=0.7)
    axes.set(
        ylim=(-1.4, 0.4), ylabel="log(variance / true variance)", xlabel="problem, by EP's error"
    )
    axes.legend()
    fig.savefig(RESULTS / "truth_variances.png", dpi=110)
    plt.close(fig)
    fig, axes = plt.subplots(figsize=(4.8, 4.5), layout="constrained")
    told = [r for r in found if "predicted" in r["said"]]
    axes.plot(
        [r["said"]["predicted"] for r in told],
        [-r["methods"]["ep"]["log_variance"] for r in told],
        "o",
        markersize=4,
    )
    axes.plot([-0.1, 0.5], [-0.1, 0.5], color="black", linewidth=0.7)
    axes.set(xlabel="log(S/V), what is said", ylabel="log(true variance / EP's)", ylim=(-0.15, 0.9))
    fig.savefig(RESULTS / "truth_said.png", dpi=110)
    plt.close(fig)
