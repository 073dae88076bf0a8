"""Models of `scripts.studies kinds`: ours, and those that people use for such observations.

R returns a location for every row, training rows first, and the fitted parameters; densities are
computed here. Columns without new information are left out of linear models. Smooth terms of mgcv
are its default, `s(x)` by REML, for columns with more than three distinct values.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern

from qpruntime import GPOrdinal, GPSurvival, Search
from qpruntime.estimators.survival import concordance
from scripts.studies import r
from scripts.studies.held_out import Judge, Part, Scores, spans


class MaternSurvival(GPSurvival):
    """Times with the default kernel of other likelihoods, which has no linear part."""

    _has_linear_part = False


class MaternOrdinal(GPOrdinal):
    """Ordered levels with the default kernel of other likelihoods, which has no linear part."""

    _has_linear_part = False


def with_line(model: Any, d: int) -> Any:
    """Return a copy with a linear and a Matérn kernel of d features, and their priors.

    Linear weights are about 0.3 in all, and functions are smooth over the rows.
    """
    kernel = ConstantKernel(0.1) * DotProduct(1.0, "fixed")
    kernel += ConstantKernel(0.1) * Matern(np.sqrt(d), nu=2.5)
    priors = {
        "k1__k1__constant_value": ("log-normal", 0.1 / d, 1.0),
        "k2__k1__constant_value": ("log-normal", 0.1, 1.0),
        "length_scale": ("log-normal", np.sqrt(d), 0.5),
    }
    return clone(model).set_params(kernel=kernel, optimize=Search(priors=priors))


def ours(model: Any, line: bool = False) -> Judge:
    """Judge the default kernel on features as they are, or `with_line` on standardised ones."""

    def judge(part: Part) -> Scores:
        X, new = (part.scaled, part.scaled_new) if line else (part.X, part.new)
        own = with_line(model, X.shape[1]) if line else clone(model)
        if part.y.ndim == 1:
            found = own.fit(X, part.y).predict_log_density(new, part.other)
            return {"density": float(found.mean())}
        found = own.fit(X, spans(part.y)).predict_log_density(new, spans(part.other))
        return {
            "concordance": own.score(new, spans(part.other)),
            "density": float(found.mean()),
        }

    return judge


def lifelines(name: str) -> Judge:
    """A regression of accelerated times, or Cox's of hazards."""

    def judge(part: Part) -> Scores:
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
            return {"concordance": concordance(spans(part.other), -hazard)}
        found = concordance(spans(part.other), np.asarray(model.predict_median(test)))
        return {"concordance": found, "density": float(model.score(test))}

    return judge


def forest(part: Part) -> Scores:
    """Random survival forests of scikit-survival."""
    from sksurv.ensemble import RandomSurvivalForest
    from sksurv.util import Surv

    model = RandomSurvivalForest(300, min_samples_leaf=10, random_state=0)
    model.fit(part.X, Surv.from_arrays(part.y[:, 1] > 0, part.y[:, 0]))
    return {"concordance": concordance(spans(part.other), -model.predict(part.new))}


def _with_intercept(part: Part) -> tuple[Any, Any]:
    from statsmodels.api import add_constant

    return add_constant(part.scaled), add_constant(part.scaled_new, has_constant="add")


def _seen(p: Any, part: Part) -> Any:
    """Probabilities of the whole numbers that came, of those of all from 0."""
    return np.asarray(p)[np.arange(len(part.other)), part.other.astype(int)]


def mord(part: Part) -> Scores:
    """All thresholds of a logistic regression."""
    import mord

    model = mord.LogisticAT(alpha=1.0).fit(part.scaled, part.y.astype(int))
    return {"density": float(np.log(_seen(model.predict_proba(part.scaled_new), part)).mean())}


def inflated(part: Part) -> Scores:
    """Zero-inflated negative binomial counts of statsmodels."""
    import statsmodels.api as sm

    X, new = _with_intercept(part)
    own = sm.ZeroInflatedNegativeBinomialP(part.y, X, exog_infl=np.ones((len(X), 1)))
    model = own.fit(method="bfgs", maxiter=500, disp=0)
    counts = np.arange(int(part.other.max()) + 1)
    p = model.predict(new, exog_infl=np.ones((len(new), 1)), which="prob", y_values=counts)
    return {"density": float(np.log(_seen(p, part)).mean())}


def hurdle(part: Part) -> Scores:
    """A hurdle with negative binomial counts of statsmodels."""
    from statsmodels.discrete.truncated_model import HurdleCountModel

    X, new = _with_intercept(part)
    model = HurdleCountModel(part.y, X, dist="negbin", zerodist="poisson").fit(
        method="bfgs", maxiter=2000, disp=0
    )
    counts = np.arange(int(part.other.max()) + 1)
    p = _seen(model.predict(new, which="prob", y_values=counts), part)
    return {"density": float(np.log(np.maximum(p, 1e-300)).mean())}


def gpboost(likelihood: str) -> Judge:
    """A process with a length-scale a feature and an intercept, by Laplace's method.

    With one length-scale for all where the other fit ends in an error.
    """

    def judge(part: Part) -> Scores:
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


def glm(part: Part) -> Scores:
    """Gamma numbers of statsmodels, with logarithms as link."""
    import statsmodels.api as sm
    from scipy import stats

    X, new = _with_intercept(part)
    model = sm.GLM(part.y, X, family=sm.families.Gamma(sm.families.links.Log())).fit()
    shape = 1.0 / model.scale
    density = stats.gamma(shape, scale=model.predict(new) / shape).logpdf(part.other)
    return {"density": float(density.mean())}


Array = NDArray[np.float64]
#: Distributions of log times and latent levels by the names that R has.
_OF_LOG_TIMES = {
    "weibull": stats.gumbel_l,
    "loglogistic": stats.logistic,
    "lognormal": stats.norm,
    "cnorm": stats.norm,
}
_COLUMNS = """
train <- d[d$train == 1, ]
x <- grep("^x", names(d), value = TRUE)
q <- qr(cbind(1, as.matrix(train[x])))
x <- x[sort(setdiff(q$pivot[seq_len(q$rank)], 1)) - 1]
"""
_SURVREG = """
run <- function() {
  m <- survreg(reformulate(x, "Surv(time, event)"), train, dist = arguments[1])
  list(location = predict(m, d, type = "lp"), parameters = m$scale, loglik = m$loglik[2])
}
"""
_COXPH = """
run <- function() {
  m <- coxph(reformulate(x, "Surv(time, event)"), train)
  location <- -predict(m, d, type = "lp")
  held <- d$train == 0
  score <- concordance(Surv(time, event) ~ location, d, subset = held)
  list(location = location, concordance = score$concordance)
}
"""
_CLM = """
train$y <- factor(train$y)
run <- function() {
  m <- clm(reformulate(x, "y"), data = train)
  location <- as.matrix(d[x]) %*% m$beta[x]
  list(location = location, parameters = m$alpha, loglik = as.numeric(logLik(m)))
}
"""
_GAM = """
term <- function(name) {
  distinct <- length(unique(train[[name]]))
  if (distinct > 3) sprintf("s(%s, k = %d)", name, min(10, distinct)) else name
}
name <- arguments[1]
family <- switch(name, Gamma = Gamma("log"), ocat = ocat(R = max(d$y)), get(name)())
if (name == "cnorm") {
  train$y <- cbind(log(train$time), ifelse(train$event == 1, log(train$time), Inf))
}
run <- function() {
  m <- gam(reformulate(sapply(x, term), "y"), family, train, method = "REML")
  parameters <- if (name == "Gamma") 1 / m$sig2 else m$family$getTheta(TRUE)
  # mgcv counts log times for cnorm, and takes another dispersion for the log-likelihood of Gamma.
  loglik <- switch(name, cnorm = logLik(m) - sum(log(train$time[train$event == 1])),
    Gamma = sum(dgamma(train$y, parameters, scale = fitted(m) / parameters, log = TRUE)), logLik(m))
  list(location = predict(m, d), parameters = parameters, loglik = as.numeric(loglik))
}
"""
_SCRIPTS = {"survreg": _SURVREG, "coxph": _COXPH, "clm": _CLM, "gam": _GAM}
_PACKAGES = {"clm": "ordinal", "gam": "mgcv"}


def fitted(function: str, part: Part, *arguments: str) -> dict[str, Array]:
    """Fit a function of R to the training rows of a part; return its numbers for all rows."""
    X = np.vstack([part.scaled, part.scaled_new])
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    y = np.concatenate([part.y, part.other])
    if y.ndim == 2:
        frame = frame.assign(time=y[:, 0], event=y[:, 1])
    else:
        # Levels count from 1 in R.
        frame["y"] = y + (function == "clm" or "ocat" in arguments)
    frame["train"] = (np.arange(len(X)) < len(part.y)).astype(int)
    package = _PACKAGES.get(function, "survival")
    return r.run(_COLUMNS + _SCRIPTS[function], package, frame, *arguments)


def log_density(family: str, y: Array, location: Array, parameters: Array) -> Array:
    """Return log densities of observations under a model that R has fitted.

    Parameters
    ----------
    family : str
        The distribution of survreg, the family of gam, or "clm".
    y : ndarray, shape (N,) or (N, 2)
        Observations, or times beside whether the event was seen.
    location : ndarray, shape (N,)
        R's linear predictor.
    parameters : ndarray
        Scale, shape or thresholds.
    """
    if family in _OF_LOG_TIMES:
        log_time = np.log(y[:, 0])
        law = _OF_LOG_TIMES[family](location, parameters[0])
        return np.where(y[:, 1] > 0, law.logpdf(log_time) - log_time, law.logsf(log_time))
    if family in ("clm", "ocat"):
        ends = np.concatenate([[-np.inf], parameters, [np.inf]])
        low, high = (ends[y.astype(int) + k] - location for k in (0, 1))
        # A difference of tails that are both near 0, where one of values near 1 would cancel.
        flip = low > 0.0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        return np.log(stats.logistic.cdf(high) - stats.logistic.cdf(low))
    mean = np.exp(location)
    if family == "nb":
        return stats.nbinom(parameters[0], parameters[0] / (parameters[0] + mean)).logpmf(y)
    if family == "Gamma":
        return stats.gamma(parameters[0], scale=mean / parameters[0]).logpdf(y)
    # ziP: the log-log link of P(y > 0) is a line in the log of the Poisson mean.
    rate = np.exp(parameters[0] + parameters[1] * location)
    positive = np.log(-np.expm1(-rate)) - np.log(-np.expm1(-mean))
    return np.where(y > 0, positive + stats.poisson(mean).logpmf(y), -rate)


class Peer(NamedTuple):
    """A function of R with a family, as a judge that takes CPU seconds from R."""

    function: str
    family: str = ""
    is_clocked: bool = True

    def __call__(self, part: Part) -> Scores:
        """Return concordance of times, and mean log density of held-out rows."""
        fit = fitted(self.function, part, *filter(None, [self.family]))
        location = fit["location"][len(part.y) :]
        scores: Scores = {"cpu": round(fit["cpu"].item(), 3)}
        if part.other.ndim == 2:
            scores["concordance"] = concordance(spans(part.other), location)
        if "parameters" in fit:
            family = self.family or self.function
            density = log_density(family, part.other, location, fit["parameters"])
            scores["density"] = float(density.mean())
        return scores
