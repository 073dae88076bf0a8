"""Tables of docs/corrections.md: weights, Table 1 corrected, and the corrected objective.

From what ``studies weights``, ``table1`` and ``evidence`` keep.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scripts.records import document, lines
from scripts.reports.table1_numbers import published
from scripts.reports.tables import Cell, Record, Table, count, gain, mean_error, table
from scripts.reports.truth import FLAGGED, records

Array = NDArray[np.float64]

#: Bootstrap samples of problems; R-hat of shorter chains up to which they count.
_AGAIN, _MIXED = 400, 1.02
#: Where a parabola is known: positions of weights 0, 1/2 and 1 in the records.
_MEANS, _VARIANCES = (0, 2, 4), (0, 2, 5)
_HEAVY, _LABELS = ("student-t", "laplace"), ("probit", "logistic", "heaviside")


def problems() -> list[Record]:
    """Records of weights whose corrections are trusted, joined with those of the long chains."""
    truth = {r["name"]: r for r in records()}
    return [
        {**r, "study": truth[r["name"]]}
        for r in lines("weights.jsonl")
        if "terms" in r and r["rhat"] < _MIXED and r["spread"] <= FLAGGED and r["name"] in truth
    ]


def lacking(record: Record) -> float:
    """Log evidence that EP lacks."""
    return -float(record["study"]["methods"]["ep"]["evidence"])


def parabola(record: Record, what: str) -> Array:
    """Squared error as c0 + c1 w + c2 w^2, less what the chains leave open."""
    if what == "evidence":
        gap, slope = record["terms"]["pairs 3"] - lacking(record), record["terms"]["pairs 4"]
        return np.array([gap * gap, 2.0 * gap * slope, slope * slope])
    if what == "means":
        squares = [record["means"][i] ** 2 for i in _MEANS]
    else:
        squares = [record["log_variances"][i][1] ** 2 for i in _VARIANCES]
    noise = record["noise"][what != "means"] ** 2
    low, middle, high = (square - noise for square in squares)
    return np.array([low, -3.0 * low + 4.0 * middle - high, 2.0 * (low - 2.0 * middle + high)])


def best(found: list[Record], what: str) -> tuple[float, float]:
    """Weight of the least sum of squares over problems, and its standard error by bootstrap."""
    curves = np.array([parabola(r, what) for r in found])
    if what == "evidence":
        # Chains of separable problems know their evidence less well.
        noise = np.array([r["study"]["truth"]["error evidence"] for r in found])
        curves /= (noise**2 + 0.01**2)[:, None]
    rng = np.random.default_rng(0)
    sums = [curves.sum(axis=0)]
    sums += [curves[rng.integers(len(curves), size=len(curves))].sum(axis=0) for _ in range(_AGAIN)]
    weights = np.array([-c1 / (2.0 * c2) for _, c1, c2 in sums])
    return float(weights[0]), float(np.std(weights[1:], ddof=1))


def by_group() -> str:
    """Fitted weights by kind of problem."""
    found = problems()
    family = {r["name"]: r["study"]["likelihood"].split("(")[0] for r in found}
    skew, tight = (float(np.median([r[k] for r in found])) for k in ("skewness", "correlation"))
    groups: list[tuple[str, Callable[[Record], bool]]] = [
        ("all", lambda r: True),
        ("labels", lambda r: family[r["name"]] in _LABELS),
        ("heavy tails", lambda r: family[r["name"]] in _HEAVY),
        ("counts", lambda r: family[r["name"]] not in _LABELS + _HEAVY),
        (f"skewness above {skew:.2f}", lambda r: r["skewness"] > skew),
        ("… and below", lambda r: r["skewness"] <= skew),
        (f"correlation above {tight:.2f}", lambda r: r["correlation"] > tight),
        ("… and below", lambda r: r["correlation"] <= tight),
        ("data sets", lambda r: r["study"]["at"] == "data"),
    ]
    rows = []
    for name, test in groups:
        some = [r for r in found if test(r)]
        cells = [best(some, what) for what in ("evidence", "means", "log variances")]
        rows.append([name, str(len(some)), *(f"{w:.2f} ± {e:.2f}" for w, e in cells)])
    head = ["problems", "number", "pairs of fourth order: evidence", "… means"]
    return table([*head, "linear response: log variance"], rows)


def fitted(curves: Array, features: Array) -> Array:
    """Coefficients of weights linear in features (P, F) that minimise the sum of squares."""
    system = 2.0 * (features.T * curves[:, 2]) @ features
    found: Array = np.linalg.solve(system, -features.T @ curves[:, 1])
    return found


def error(curves: Array, weights: Array | float) -> float:
    """Root mean square error at these weights."""
    squares = curves[:, 0] + curves[:, 1] * weights + curves[:, 2] * np.square(weights)
    return float(np.sqrt(max(np.mean(squares), 0.0)))


def held_out() -> str:
    """Errors on halves of the problems, at weights fitted to the others and at those in use."""
    found, rng = problems(), np.random.default_rng(1)
    one = np.ones((len(found), 1))
    rules = [("one weight", one)] + [
        (f"linear in {what}", np.column_stack([one, [r[what] for r in found]]))
        for what in ("correlation", "skewness")
    ]
    rows = []
    for what, used in (("evidence", 0.5), ("means", 0.5), ("log variances", 2.0 / 3.0)):
        curves = np.array([parabola(r, what) for r in found])
        for name, features in rules:
            pairs = []
            for _ in range(200):
                some, rest = np.array_split(rng.permutation(len(found)), 2)
                weights = features[rest] @ fitted(curves[some], features[some])
                pairs.append([error(curves[rest], weights), error(curves[rest], used)])
            ours, kept = np.mean(pairs, axis=0)
            spread = np.std(np.subtract(*np.transpose(pairs)), ddof=1)
            rows.append([what, name, f"{ours:.4f}", f"{kept:.4f}", f"{spread:.4f}"])
    head = "error of, fitted to the other half, rms error so, at the weight in use"
    return table([*head.split(", "), "sd of the difference over splits"], rows)


def by_loops() -> str:
    """What is added to EP's log evidence, and the error that is left."""
    found = problems()
    ways: dict[str, Callable[[dict[str, float]], float]] = {
        "nothing": lambda t: 0.0,
        "pairs of third order (two loops)": lambda t: t["pairs 3"],
        "… and half the pairs of fourth (in use)": lambda t: t["pairs 3"] + 0.5 * t["pairs 4"],
        "… and all of them": lambda t: t["pairs 3"] + t["pairs 4"],
        "all terms of three loops": lambda t: t["pairs 3"] + three_loops(t),
        "pairs of third, and twice those of sixth order": lambda t: t["pairs 3"] + 2 * t["pairs 6"],
    }
    rng = np.random.default_rng(2)
    rows = []
    for name, way in ways.items():
        errors = np.array([way(r["terms"]) - lacking(r) for r in found])
        again = [np.sqrt(np.mean(rng.choice(errors, errors.size) ** 2)) for _ in range(_AGAIN)]
        root = np.sqrt(np.mean(errors**2))
        cells = [f"{root:.4f} ± {np.std(again, ddof=1):.4f}", f"{np.abs(errors).max():.3f}"]
        rows.append([name, *cells])
    return table(["added", "rms error", "largest"], rows)


def three_loops(terms: dict[str, float]) -> float:
    """All terms of three loops."""
    return sum(terms[k] for k in ("pairs 4", "triangles", "squares", "tetrahedra"))


def corrected_table1() -> str:
    """NTLL of EP, QP and corrected EP, over rounds of Table 1."""
    paper, rows = published(), []
    for entry in document("table1_corrected.json")["rows"]:
        methods = entry["methods"]
        rounds = {m: np.array(methods[m]["ntll_rounds"]) for m in ("ep", "qp", "blend")}
        gap = rounds["blend"] - rounds["ep"]
        cells = [f"{rounds[m].mean():.1f}" for m in rounds]
        errors = [f"{methods[m]['te']['mean']:.2f}" for m in ("ep", "blend")]
        p = f"{entry['blend_against_ep']['p']:.2g}"
        title = paper[entry["data"]]["title"]
        rows.append([title, str(gap.size), *cells, mean_error(gap, "+.2f"), p, *errors])
    head = "data, rounds, NTLL EP, QP, corrected, corrected - EP, p, TE EP, corrected"
    return table(head.split(", "), rows)


def _moves(k: int) -> Cell:
    """From the optimum of EP's evidence to that of the corrected one."""
    return lambda some: mean_error(
        [np.subtract(*(r["of"][way]["theta"][k] for way in ("corrected", "ep"))) for r in some],
        "+.2f",
    )


def _longer(some: list[Record]) -> str:
    taken = [[r["of"][way]["seconds"] for way in ("corrected", "ep")] for r in some]
    return f"{np.median(np.divide(*np.transpose(taken))):.1f}"


#: How far the optimum moves when the corrected evidence is maximised, and what that gains.
hyper_parameters = Table(
    "evidence.jsonl",
    {
        "data": lambda some: str(published()[some[0]["data"]]["title"]),
        "splits": count,
        "log variance moves by": _moves(0),
        "log length-scale by": _moves(1),
        "NTLL x 1000 by": gain("ntll", "ep", "corrected", "+.2f", 1000.0),
        "times as long": _longer,
    },
    group=("data",),
)
