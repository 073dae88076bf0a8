"""Models of `scripts.studies kinds`: ours, and those that people use for such observations."""

import contextlib
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern

from qpruntime import GPOrdinal, GPSurvival, Search
from qpruntime.estimators.survival import concordance
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
