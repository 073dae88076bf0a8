"""Tables of ``benchmarks defaults``: sets with their peers, who is ahead, and why where we lose."""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.data.registry import KINDS
from scripts.benchmarks.data.small import RawSet
from scripts.benchmarks.peers.small import BASELINE
from scripts.reports.tables import table

#: A loss up to so many times the best peer's counts as good.
CLOSE = 1.1
_LOSS = {"classes": "log loss", "numbers": "mean absolute error", "counts": "Poisson deviance"}
_OURS = {"classes": "GPClassifier", "numbers": "GPRobustRegressor", "counts": "GPPoissonRegressor"}

_SEPARABLE = (
    "nearly separable, almost nothing is misclassified by either: logistic regression is surer of "
    "itself than the average over a posterior. On two pairs neither a linear kernel, a squared "
    "exponential, the leave-one-out objective nor the logistic link changed it by more than an "
    "eighth"
)
#: Why we lose, by set: written by hand after a look at each.
REASONS: dict[str, str] = {
    "digits_3_8": _SEPARABLE,
    "digits_4_9": _SEPARABLE,
    "digits_1_7": _SEPARABLE,
    "digits_all": _SEPARABLE,
    "noise_200": "200 features, most of them noise, and 240 rows: trees choose features; "
    "a length-scale for each does not raise the evidence enough to be kept",
    "skewed": "heavy-tailed features: trees see only their order, distances their size",
}
_HEAD = """\
# Defaults on raw data

Losses of estimators without any parameter on features as they come, in 5 shuffled folds, beside \
scikit-learn's: linear models and its Gaussian process on standardised features, random forest \
(300 trees) and histogram boosting. *to best*: our loss by that of the best peer; up to 1.10 is \
good. *time*: seconds of our fit by those of a fit of the same rows, scaled by hand, with \
`ConstantKernel() * RBF(sqrt(p))` given. *constant* predicts the training frequencies, median or \
rate, and is no peer.

Sets of even number were for choosing the defaults, sets of odd number for reporting. The \
forest's probabilities are at least half a vote before scaling, other models' at least 1e-15; \
rates at least half an event in all the training exposure. \
`python -m scripts.benchmarks defaults --data DIRECTORY --report` writes this file; the peers and \
how they are tuned stand in `scripts/benchmarks/peers/small.py`, the sets in \
`scripts/benchmarks/data/small.py`.

"""


@dataclass(frozen=True)
class Result:
    """One set: what each model has on average over its rows, ours under its label."""

    raw: RawSet
    ours: str
    loss: dict[str, float]
    error_rate: dict[str, float]
    log_density: dict[str, float]
    seconds: dict[str, float]
    explicit_seconds: float
    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    kernel: str

    @property
    def best(self) -> str:
        """Peer with the least loss."""
        peers = {m: v for m, v in self.loss.items() if m not in (self.ours, BASELINE)}
        return min(peers, key=lambda m: peers[m]) if peers else self.ours

    @property
    def ratio(self) -> float:
        """Our loss by that of the best peer."""
        own, other = self.loss[self.ours], self.loss[self.best]
        return own / other if other > 0.0 else 1.0 if own == other else math.inf

    @property
    def good(self) -> bool:
        """Whether we are ahead, or within 10 %."""
        return self.ratio <= CLOSE

    @property
    def slowness(self) -> float:
        """Seconds of our fits by those of fits with a kernel given."""
        return self.seconds[self.ours] / self.explicit_seconds if self.explicit_seconds else 1.0


def summarise(sets: Sequence[RawSet], records: Iterable[dict[str, Any]], ours: str) -> list[Result]:
    """Means over the folds, each row of a set counting alike; a failed fit has infinite loss."""
    by_set: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_set.setdefault(record["set"], []).append(record)
    return [_result(raw, by_set[raw.name], ours) for raw in sets]


def _result(raw: RawSet, records: list[dict[str, Any]], ours: str) -> Result:
    models = list(dict.fromkeys(r["model"] for r in records))

    def mean(field: str, otherwise: float) -> dict[str, float]:
        found = {}
        for model in models:
            own = [r for r in records if r["model"] == model]
            if field == "loss" or any(field in r for r in own):
                total = sum(r["rows"] * r.get(field, otherwise) for r in own)
                found[model] = total / sum(r["rows"] for r in own)
        return found

    own = [r for r in records if r["model"] == ours]
    return Result(
        raw=raw,
        ours=ours,
        loss=mean("loss", math.inf),
        error_rate=mean("error_rate", 1.0),
        log_density=mean("log_density", -math.inf),
        seconds={m: sum(r.get("seconds", 0.0) for r in records if r["model"] == m) for m in models},
        explicit_seconds=sum(r.get("explicit_seconds", 0.0) for r in own),
        warnings=tuple(sorted({w for r in own for w in r.get("warnings", ())})),
        errors=tuple(sorted({f"{r['model']}: {r['error']}" for r in records if r.get("error")})),
        kernel=own[0].get("kernel", "") if own else "",
    )


def _columns(results: list[Result]) -> list[str]:
    """Models of one kind: ours, the peers, the baseline."""
    models = list(dict.fromkeys(m for r in results for m in r.loss))
    return sorted(models, key=lambda m: (m == BASELINE, m != results[0].ours))


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 1000.0 else f"{value:.4g}"


def _rows(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """A header, and a row per set of one kind."""
    models = _columns(results)
    ours = results[0].ours
    rows = []
    for r in results:
        shape = f"{r.raw.X.shape[0]} × {r.raw.X.shape[1]}"
        losses = [_number(r.loss.get(m, math.nan)) for m in models]
        ratio = f"{r.ratio:.2f}{'' if r.good else ' lost'}" if r.best != ours else ""
        rows.append([str(r.raw.number), r.raw.name, shape, *losses, ratio, f"{r.slowness:.1f}"])
    return ["#", "set", "rows × features", *models, "to best", "time"], rows


def _count(results: Iterable[Result]) -> str:
    found = [r.good for r in results]
    return f"{sum(found)} of {len(found)}"


def _halves(results: list[Result]) -> tuple[str, str, str]:
    """How many are good: of all, of those for choosing, of those reported."""
    even, odd = ([r for r in results if r.raw.number % 2 == k] for k in (0, 1))
    return _count(results), _count(even), _count(odd)


def _by_kind(results: list[Result]) -> dict[str, list[Result]]:
    found = {kind: [r for r in results if r.raw.kind == kind] for kind in KINDS}
    return {kind: own for kind, own in found.items() if own}


def notes(results: list[Result]) -> str:
    """What was raised and warned of, and the kernels, a line each."""
    return "\n".join(
        f"{r.raw.name}: {text}" for r in results for text in (*r.errors, *r.warnings, r.kernel)
    )


def tables(results: list[Result]) -> str:
    """Every kind in Markdown, its halves, and the sets that are lost with a reason."""
    kinds = _by_kind(results)
    halves = [[_OURS[kind], *_halves(own)] for kind, own in kinds.items()]
    lines = [table(["", "all", "for choosing", "reported"], halves)]
    for kind, own in kinds.items():
        lines += ["", f"## {_OURS[kind]}: {_LOSS[kind]}", ""]
        lines.append(table(*_rows(own)))
        if kind == "classes":
            lines += ["", "Share of wrong labels, per cent:", ""]
            lines.append(table(*_errors(own)))
        lost = [r for r in own if not r.good]
        if lost:
            lines += ["", "Lost:", ""]
            for r in lost:
                reason = REASONS.get(r.raw.name, "not looked into")
                lines.append(f"- **{r.raw.name}** ({r.best}, {r.ratio:.2f}): {reason}")
    return "\n".join(lines) + "\n"


def _errors(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    models = _columns(results)
    rows = [
        [r.raw.name, *(f"{100.0 * r.error_rate.get(m, math.nan):.1f}" for m in models)]
        for r in results
    ]
    return ["set", *models], rows


def write(results: list[Result], directory: Path) -> None:
    """Write ``defaults.md`` and ``defaults.csv``, a line per set and model."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "defaults.md").write_text(_HEAD + tables(results))
    fields = ("kind", "number", "set", "rows", "features", "model", "loss", "error_rate")
    with (directory / "defaults.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*fields, "log_density", "seconds"))
        for r in results:
            for model, loss in r.loss.items():
                more = (r.error_rate.get(model), r.log_density.get(model), r.seconds[model])
                shown = ["" if v is None else f"{v:.6g}" for v in (loss, *more)]
                out.writerow((r.raw.kind, r.raw.number, r.raw.name, *r.raw.X.shape, model, *shown))
