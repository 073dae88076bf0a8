"""Tables and figures of docs/bench-posterior.md, from the records of ``studies truth``."""

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Cell, Record, Table, count, mean_error, table

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

_SHOWN = {
    "mean": ("means (sd)", ".3f"),
    "log_variance": ("log variance", "+.3f"),
    "quantiles": ("5 and 95 % points (sd)", ".3f"),
    "coverage 0.9": ("in 90 %", ".3f"),
}


def records(mixed: bool = True) -> list[Record]:
    """Records of all problems, or of those whose chains have mixed."""
    return [r for r in lines("truth.jsonl") if not mixed or r["truth"]["rhat"] < MIXED]


def trusted(record: Record) -> bool:
    """Whether corrections were possible, and their spread raised no warning."""
    return "blend" in record["methods"] and record["said"]["spread"] <= FLAGGED


def _of(rows: list[Record], method: str, what: str) -> list[float]:
    """A figure of a method on all problems that have it."""
    return [r["methods"][method][what] for r in rows if method in r["methods"]]


def _mean(values: list[float], form: str) -> str:
    return f"{np.mean(values):{form}}" if values else "–"


def by_method() -> str:
    """Averages over problems; the last line is what the chains leave unknown."""
    found = [r for r in records() if trusted(r)]
    known = [r for r in found if r["truth"]["error evidence"] < KNOWN]
    rows = []
    for key, name in METHODS.items():
        cells = [mean_error(_of(found, key, what), form) for what, (_, form) in _SHOWN.items()]
        gaps = [abs(e) for e in _of(known, key, "evidence") if e is not None]
        rows.append([name, str(len(_of(found, key, "mean"))), *cells, mean_error(gaps)])
    errors = [
        _mean([r["truth"][f"error {what}"] for r in found], ".3f")
        for what in ("mean", "log_variance", "quantiles")
    ]
    last = _mean([r["truth"]["error evidence"] for r in known], ".3f")
    rows.append(["*error of the chains*", str(len(found)), *errors, "", last])
    heads = [head for head, _ in _SHOWN.values()]
    return table(["method", "problems", *heads, "log evidence"], rows)


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

    def figure(method: str, what: str, form: str) -> Cell:
        return lambda some: _mean(_of(some, method, what), form)

    columns: dict[str, Cell] = {"likelihood": "{kind}", "problems": count}
    for head, method in (
        ("log variance, EP", "ep"),
        *((m, m.lower()) for m in ("QP", "VB", "blend")),
    ):
        columns[head] = figure(method, "log_variance", "+.3f")
    columns |= {
        "mean (sd), EP": figure("ep", "mean", ".3f"),
        "blend, mean": figure("blend", "mean", ".3f"),
    }
    found = [{**record, "kind": kind(record)} for record in records()]
    return Table("truth.jsonl", columns, group=("kind",))(found)


def wrong() -> str:
    """Problems on which "blend" misses by more than the chains' errors explain."""
    # What `check()` speaks of, as the study of weights keeps it.
    speaks = {r["name"]: ", ".join(r["said"]) for r in reversed(lines("weights.jsonl"))}
    rows = []
    for record in records(mixed=False):
        truth, said = record["truth"], record["said"]
        best = record["methods"].get("blend")
        name, spoken = record["name"], speaks.get(record["name"]) or "nothing"
        if best is None:
            reason = next((v for k, v in said.items() if "refused" in k), "not run")
            words = reason.split(":")[0].split(", and corrections")[0]
            rows.append([name, "refused", "", words, spoken])
            continue
        if truth["rhat"] >= MIXED:
            words = f"chains: R-hat {truth['rhat']:.3f}, no truth"
            rows.append([name, "", "", words, spoken])
            continue
        gap, error, off = best["log_variance_abs"], truth["error log_variance"], best["evidence"]
        if (
            np.sqrt(max(gap**2 - error**2, 0.0)) > BAR
            or abs(off) - ERRORS * truth["error evidence"] > 0.03
            or best["mean"] > (0.02 + ERRORS * truth["error mean"])
            or best["quantiles"] > (BAR + ERRORS * truth["error quantiles"])
        ):
            rows.append(
                [
                    name,
                    f"{best['log_variance']:+.3f} ± {error:.3f}",
                    f"{off:+.3f} ± {truth['error evidence']:.3f}",
                    f"spread {said['spread']:.2f}",
                    spoken,
                ]
            )
    head = ["problem", "log variance", "log evidence"]
    return table([*head, "note", "check() warns of"], rows)


def by_word() -> str:
    """Say how often `check()` warns with cause and without."""
    rows = [r for r in records() if "predicted" in r["said"]]
    predicted = np.array([r["said"]["predicted"] for r in rows])
    true = -np.array([r["methods"]["ep"]["log_variance"] for r in rows])
    spread = np.array([r["said"]["spread"] for r in rows])
    miss = np.array([r["methods"]["blend"]["log_variance_abs"] for r in rows])
    error = np.array([r["truth"]["error log_variance"] for r in rows])
    quiet = spread <= FLAGGED
    warned, needed = predicted > NOTABLE, true > NOTABLE
    missed = miss > 0.1 + 3.0 * error
    correlation = np.corrcoef(predicted[quiet], true[quiet])[0, 1]
    sentences = (
        "`check()` predicts by how much EP's log variance is too low. The correlation with the "
        f"error is {correlation:.2f} ({len(rows)} problems).",
        f"It warns on {(warned & needed & quiet).sum()} of {(needed & quiet).sum()} problems on "
        f"which EP's log variance is more than {NOTABLE} too low. False alarms: "
        f"{(warned & ~needed & quiet).sum()}.",
        f"The spread of the corrections exceeds {FLAGGED} on {(~quiet & missed).sum()} of "
        f'{missed.sum()} problems on which "blend" errs by more than 0.1 plus three standard '
        f"errors of the chains. False alarms: {(~quiet & ~missed).sum()}.",
    )
    return "\n".join(f"- {sentence}" for sentence in sentences)
