"""Hurdle counts whose share of zeros follows the latent function, on visits to a doctor.

    python -m scripts.studies hurdle_slope
    python -m scripts.studies hurdle_slope --rows 300 --report

log((1 - zeros) / zeros) = slope f - log level: a likelihood of its own log density, with the
dispersion three parameters to learn; beside the hurdle with one share of zeros for all rows, and
negative binomial counts. Five folds of some rows of randhie, EP, 15 steps of the search: mean log
probability of a row held out, log evidence. Needs statsmodels for the data.
"""

from __future__ import annotations

import math
import time
import warnings
from argparse import Namespace
from typing import Any

import numba
import numpy as np

from qpruntime import GPRegressor, Likelihood, Search
from qpruntime.likelihoods.responses import counts
from scripts.records import RESULTS, Records
from scripts.studies.held_out import parts
from scripts.studies.kinds import randhie

OPTIONS = {
    "kept": {"default": RESULTS / "hurdle_slope.jsonl"},
    "report": {},
    "rows": {"default": [300]},
}


@numba.njit
def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@numba.njit
def _log_prob(f: float, y: float, theta: Any) -> float:
    r, level, slope = theta[0], theta[1], theta[2]
    some = slope * f - math.log(level)
    if y == 0.0:
        return -_softplus(some)
    g = f - math.log(r)
    none = r * _softplus(g)
    positive = -math.log(-math.expm1(-none)) if f > -600.0 else -f
    ways = math.lgamma(y + r) - math.lgamma(r) - math.lgamma(y + 1.0)
    return -_softplus(-some) + ways - y * _softplus(-g) - none + positive


def _sloped() -> Likelihood:
    return Likelihood.from_log_prob(
        _log_prob,
        name="hurdle-slope",
        theta=[1.0, 1.0, 1.0],
        parameters=["dispersion", "level", "slope"],
        validate=counts,
    )


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print means."""
    kept = Records(options.kept, "rows model fold")
    models = {"hurdle": "hurdle", "negative binomial": "negative-binomial", "slope": _sloped()}
    X, y = randhie()
    for rows in () if options.report else options.rows:
        for fold, part in enumerate(parts(X[:rows], y[:rows])):
            for name, likelihood in models.items():
                if (key := (rows, name, fold)) not in kept:
                    kept.keep(key, _fitted(likelihood, part))
    for rows in sorted({key.rows for key in kept.records}):
        own = [record for key, record in kept.records.items() if key.rows == rows]
        _say(rows, models, own)


def _fitted(likelihood: Any, part: Any) -> dict[str, Any]:
    begun = time.process_time()
    search = Search(max_iter=15, ftol=1e-5)
    with warnings.catch_warnings(action="ignore"):
        model = GPRegressor(likelihood=likelihood, method="ep", optimize=search, tol=1e-4)
        density = model.fit(part.X, part.y).predict_log_density(part.new, part.other)
    return {
        "density": float(density.mean()),
        "evidence": model.log_marginal_likelihood_value_,
        "parameters": model.parameters_,
        "cpu": round(time.process_time() - begun, 1),
    }


def _say(rows: int, models: Any, records: list[dict[str, Any]]) -> None:
    folds = [
        {record["fold"]: record for record in records if record["model"] == name} for name in models
    ]
    both = sorted(set.intersection(*map(set, folds)))
    for name, own in zip(models, folds, strict=True):
        means = [np.mean([own[k][what] for k in both]) for what in ("density", "evidence", "cpu")]
        print(rows, f"{len(both)} folds", name, *(f"{mean:.3f}" for mean in means))
