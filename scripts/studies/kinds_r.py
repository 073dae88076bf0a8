"""Models of R for `scripts.studies kinds`: R fits, and densities are computed here.

R returns a location for every row, training rows first, and the fitted parameters. Columns without
new information are left out of linear models. Smooth terms of mgcv are its default, `s(x)` by REML,
for columns with more than three distinct values; others are linear.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from qpruntime.estimators.survival import concordance
from scripts.studies import r
from scripts.studies.held_out import Part, Scores, spans

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
