"""Kinds of y beside the models that people use for them, on sets that packages ship, held out.

    python -m scripts.studies kinds --kept tables/results/kinds.jsonl
    python -m scripts.studies kinds --kept tables/results/kinds.jsonl --report
    python -m scripts.studies kinds --sets "engel (positive)" "randhie (counts)"

Needs lifelines, scikit-survival, statsmodels, mord and gpboost. Five folds of at most 600 rows
each; raw features, standardised for peers alone. Times: concordance of medians, and mean log
density of events, or log probability of being censored so late. Levels, shares of counts and
positive numbers: mean log probability or density.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern
from sklearn.model_selection import KFold

from qpruntime import GPOrdinal, GPRegressor, GPSurvival, Search
from qpruntime.estimators.concordance import concordance
from scripts.records import RESULTS, Records
from scripts.reports.kinds import kinds as table

OPTIONS = {
    "kept": {"default": RESULTS / "kinds.jsonl"},
    "report": {},
    "sets": {"default": None, "help": "only these"},
}
_ROWS, _FOLDS = 600, 5


class Key(NamedTuple):
    """One fit."""

    set: str
    model: str
    fold: int


class Part(NamedTuple):
    """Rows of a fold: features of training and test, standardised ones, and observations."""

    X: Any
    new: Any
    scaled: Any
    scaled_new: Any
    y: Any
    other: Any


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, Key)
    if not options.report:
        for name, (load, models) in SETS.items():
            if options.sets and name not in options.sets:
                continue
            X, y = load()
            for fold, part in enumerate(parts(X, y)):
                for model, judge in models.items():
                    key = Key(name, model, fold)
                    if key not in kept:
                        begun = time.process_time()
                        with warnings.catch_warnings(action="ignore"):
                            found = judge(part)
                        seconds = round(time.process_time() - begun, 2)
                        kept.add({**key._asdict(), "rows": len(X), "cpu": seconds, **found})
    print(table(list(kept.records.values())))


def parts(X: Any, y: Any) -> Iterator[Part]:
    """Training and test rows of five folds."""
    for train, test in KFold(_FOLDS, shuffle=True, random_state=0).split(X):
        centre, spread = X[train].mean(axis=0), X[train].std(axis=0)
        scaled = (X - centre) / np.where(spread > 0.0, spread, 1.0)
        yield Part(X[train], X[test], scaled[train], scaled[test], y[train], y[test])


def _some(X: Any, y: Any) -> tuple[Any, Any]:
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    return np.asarray(X, dtype=float)[rows], np.asarray(y, dtype=float)[rows]


def _rossi() -> tuple[Any, Any]:
    from lifelines.datasets import load_rossi

    frame = load_rossi()
    return _some(frame.drop(columns=["week", "arrest"]), frame[["week", "arrest"]])


def _gbsg() -> tuple[Any, Any]:
    from lifelines.datasets import load_gbsg2

    frame = load_gbsg2()
    own = frame.drop(columns=["time", "cens"])
    own = own.assign(
        horTh=own.horTh == "yes", menostat=own.menostat == "Post", tgrade=own.tgrade.str.len()
    )
    return _some(own, frame[["time", "cens"]])


def _lung() -> tuple[Any, Any]:
    from lifelines.datasets import load_lung

    frame = load_lung().drop(columns=["inst", "meal.cal"]).dropna()
    return _some(frame.drop(columns=["time", "status"]), frame[["time", "status"]])


def _veterans() -> tuple[Any, Any]:
    import pandas
    from sksurv.datasets import load_veterans_lung_cancer

    X, y = load_veterans_lung_cancer()
    X = pandas.get_dummies(X, drop_first=True)
    return _some(X, np.column_stack([y["Survival_in_days"], y["Status"]]))


def _anes() -> tuple[Any, Any]:
    from statsmodels.datasets import anes96

    frame = anes96.load_pandas().data
    return _some(frame[["logpopul", "selfLR", "age", "educ", "income"]], frame["PID"])


def _randhie() -> tuple[Any, Any]:
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    return _some(frame.drop(columns=["mdvis"]), frame["mdvis"])


def _engel() -> tuple[Any, Any]:
    from statsmodels.datasets import engel

    frame = engel.load_pandas().data
    return _some(frame[["income"]], frame["foodexp"])


def _spans(y: Any) -> Any:
    return np.column_stack([y[:, 0], np.where(y[:, 1] > 0, y[:, 0], np.inf)])


def _survival(likelihood: str) -> Callable[[Part], dict[str, Any]]:
    def judge(part: Part) -> dict[str, Any]:
        model = GPSurvival(likelihood=likelihood).fit(part.X, _spans(part.y))
        test = _spans(part.other)
        density = model.predict_log_density(part.new, test)
        return {"concordance": model.score(part.new, test), "density": float(density.mean())}

    return judge


def _linear(and_smooth: bool) -> Callable[[Part], dict[str, Any]]:
    """Of standardised features, as peers have them; with a Matérn part as well, or alone."""

    def judge(part: Part) -> dict[str, Any]:
        kernel = ConstantKernel(0.1) * DotProduct(1.0, "fixed")
        if and_smooth:
            kernel += ConstantKernel(0.1) * Matern(np.sqrt(part.X.shape[1]), nu=2.5)
        model = GPSurvival(kernel).fit(part.scaled, _spans(part.y))
        test = _spans(part.other)
        density = model.predict_log_density(part.scaled_new, test)
        concordance = model.score(part.scaled_new, test)
        return {"concordance": concordance, "density": float(density.mean())}

    return judge


def _lifelines(name: str) -> Callable[[Part], dict[str, Any]]:
    def judge(part: Part) -> dict[str, Any]:
        import lifelines
        import pandas

        def frame(X: Any, y: Any) -> Any:
            own = pandas.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
            return own.assign(time=y[:, 0], event=y[:, 1])

        model = getattr(lifelines, name)(penalizer=0.01)
        model.fit(frame(part.scaled, part.y), duration_col="time", event_col="event")
        test = frame(part.scaled_new, part.other)
        if name == "CoxPHFitter":
            hazard = np.asarray(model.predict_log_partial_hazard(test))
            return {"concordance": concordance(_spans(part.other), -hazard)}
        found = concordance(_spans(part.other), np.asarray(model.predict_median(test)))
        return {"concordance": found, "density": float(model.score(test))}

    return judge


def _forest(part: Part) -> dict[str, Any]:
    from sksurv.ensemble import RandomSurvivalForest
    from sksurv.util import Surv

    model = RandomSurvivalForest(300, min_samples_leaf=10, random_state=0)
    model.fit(part.X, Surv.from_arrays(part.y[:, 1] > 0, part.y[:, 0]))
    return {"concordance": concordance(_spans(part.other), -model.predict(part.new))}


def _ordinal(part: Part) -> dict[str, Any]:
    model = GPOrdinal().fit(part.X, part.y)
    return {"density": float(model.predict_log_density(part.new, part.other).mean())}


def _with_line(model: Any) -> Callable[[Part], dict[str, Any]]:
    """The kernel of docs/survival-times.md, with its priors, of standardised features."""

    def judge(part: Part) -> dict[str, Any]:
        d = part.X.shape[1]
        kernel = ConstantKernel(0.1) * DotProduct(1.0, "fixed")
        kernel += ConstantKernel(0.1) * Matern(np.sqrt(d), nu=2.5)
        priors = {
            "k1__k1__constant_value": ("log-normal", 0.1 / d, 1.0),
            "k2__k1__constant_value": ("log-normal", 0.1, 1.0),
            "length_scale": ("log-normal", np.sqrt(d), 0.5),
        }
        own = clone(model).set_params(kernel=kernel, optimize=Search(priors=priors))
        own.fit(part.scaled, part.y)
        found = own.predict_log_density(part.scaled_new, part.other)
        return {"density": float(found.mean())}

    return judge


def _mord(part: Part) -> dict[str, Any]:
    import mord

    model = mord.LogisticAT(alpha=1.0).fit(part.scaled, part.y.astype(int))
    p = model.predict_proba(part.scaled_new)[np.arange(len(part.other)), part.other.astype(int)]
    return {"density": float(np.log(p).mean())}


def _regression(likelihood: str) -> Callable[[Part], dict[str, Any]]:
    def judge(part: Part) -> dict[str, Any]:
        model = GPRegressor(likelihood=likelihood).fit(part.X, part.y)
        return {"density": float(model.predict_log_density(part.new, part.other).mean())}

    return judge


def _inflated(part: Part) -> dict[str, Any]:
    import statsmodels.api as sm

    X, new = sm.add_constant(part.scaled), sm.add_constant(part.scaled_new, has_constant="add")
    own = sm.ZeroInflatedNegativeBinomialP(part.y, X, exog_infl=np.ones((len(X), 1)))
    model = own.fit(method="bfgs", maxiter=500, disp=0)
    counts = np.arange(int(part.other.max()) + 1)
    p = model.predict(new, exog_infl=np.ones((len(new), 1)), which="prob", y_values=counts)
    seen = np.asarray(p)[np.arange(len(new)), part.other.astype(int)]
    return {"density": float(np.log(seen).mean())}


def _hurdle(part: Part) -> dict[str, Any]:
    import statsmodels.api as sm
    from statsmodels.discrete.truncated_model import HurdleCountModel

    X, new = sm.add_constant(part.scaled), sm.add_constant(part.scaled_new, has_constant="add")
    model = HurdleCountModel(part.y, X, dist="negbin", zerodist="poisson").fit(
        method="bfgs", maxiter=2000, disp=0
    )
    counts = np.arange(int(part.other.max()) + 1)
    p = np.asarray(model.predict(new, which="prob", y_values=counts))
    seen = p[np.arange(len(new)), part.other.astype(int)]
    return {"density": float(np.log(np.maximum(seen, 1e-300)).mean())}


def _gpboost(likelihood: str) -> Callable[[Part], dict[str, Any]]:
    """A process with a length-scale a feature and an intercept, by Laplace's method.

    With one length-scale for all where the other fit ends in an error.
    """

    def judge(part: Part) -> dict[str, Any]:
        import gpboost
        from scipy import stats

        for function in ("matern_ard", "matern") if part.X.shape[1] > 1 else ("matern",):
            model = gpboost.GPModel(
                gp_coords=part.scaled,
                cov_function=function,
                cov_fct_shape=2.5,
                likelihood=likelihood,
                num_parallel_threads=1,
            )
            with contextlib.suppress(gpboost.basic.GPBoostError):
                model.fit(y=part.y, X=np.ones((len(part.X), 1)))
                break
        found = model.predict(
            gp_coords_pred=part.scaled_new,
            X_pred=np.ones((len(part.new), 1)),
            predict_var=True,
            predict_response=False,
        )
        shape = float(np.ravel(model.get_aux_pars(format_pandas=False))[0])
        z, w = np.polynomial.hermite_e.hermegauss(80)
        mean = np.exp(found["mu"][:, None] + np.sqrt(found["var"])[:, None] * z)
        y = part.other[:, None]
        if likelihood == "gamma":
            given = stats.gamma(shape, scale=mean / shape).pdf(y)
        else:
            given = stats.nbinom(shape, shape / (shape + mean)).pmf(y)
        return {"density": float(np.log(given @ w / w.sum()).mean())}

    return judge


def _glm(part: Part) -> dict[str, Any]:
    import statsmodels.api as sm
    from scipy import stats

    X, new = sm.add_constant(part.scaled), sm.add_constant(part.scaled_new, has_constant="add")
    model = sm.GLM(part.y, X, family=sm.families.Gamma(sm.families.links.Log())).fit()
    shape = 1.0 / model.scale
    density = stats.gamma(shape, scale=model.predict(new) / shape).logpdf(part.other)
    return {"density": float(density.mean())}


_BOTH = "GPSurvival, Weibull, linear plus Matérn kernel"
_TIMES = {
    "GPSurvival, Weibull": _survival("weibull"),
    "GPSurvival, log-logistic": _survival("log-logistic"),
    "lifelines WeibullAFTFitter": _lifelines("WeibullAFTFitter"),
    "lifelines LogLogisticAFTFitter": _lifelines("LogLogisticAFTFitter"),
    "lifelines CoxPHFitter": _lifelines("CoxPHFitter"),
    "scikit-survival RandomSurvivalForest": _forest,
}
SETS: dict[str, tuple[Callable[[], tuple[Any, Any]], dict[str, Callable[[Part], dict[str, Any]]]]]
SETS = {
    "veterans (times)": (_veterans, _TIMES),
    "lung (times)": (_lung, {**_TIMES, _BOTH: _linear(True)}),
    "rossi (times)": (
        _rossi,
        {**_TIMES, "GPSurvival, Weibull, linear kernel": _linear(False), _BOTH: _linear(True)},
    ),
    "gbsg2 (times)": (_gbsg, {**_TIMES, _BOTH: _linear(True)}),
    "anes96 (7 levels)": (
        _anes,
        {
            "GPOrdinal": _ordinal,
            "mord LogisticAT": _mord,
            "GPOrdinal, linear plus Matérn, priors": _with_line(GPOrdinal()),
        },
    ),
    "randhie (counts)": (
        _randhie,
        {
            "GPRegressor, zero-inflated": _regression("zero-inflated"),
            "GPRegressor, negative-binomial": _regression("negative-binomial"),
            "statsmodels ZeroInflatedNegativeBinomialP": _inflated,
            "GPRegressor, hurdle": _regression("hurdle"),
            "statsmodels HurdleCountModel, negbin": _hurdle,
            "gpboost GPModel, negative binomial": _gpboost("negative_binomial"),
            "GPRegressor, negative-binomial, linear plus Matérn, priors": _with_line(
                GPRegressor(likelihood="negative-binomial")
            ),
        },
    ),
    "engel (positive)": (
        _engel,
        {
            "GPRegressor, gamma": _regression("gamma"),
            "statsmodels GLM Gamma": _glm,
            "gpboost GPModel, gamma": _gpboost("gamma"),
            "GPRegressor, gamma, linear plus Matérn, priors": _with_line(
                GPRegressor(likelihood="gamma")
            ),
        },
    ),
}
