"""How often intervals of survival times hold the time: of the mode, and with all integrated.

    python -m scripts.studies survival_cover
    python -m scripts.studies survival_cover --rows 40 120 --seeds 12

Drawn sets of two features: log T = 1 + sin(2 u) + v / 2 + 0.5 e, e the noise of Weibull times,
censored by a uniform time of its own, nearly half of the rows. 400 new rows whose times are known.
Central intervals of 80 %, mean log density of new times, CPU seconds of a fit and its predictions.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from itertools import product
from typing import Any

import numpy as np

from qpruntime import GPSurvival
from scripts.records import RESULTS, Records
from scripts.reports.kinds import cover as table

OPTIONS = {
    "kept": {"default": RESULTS / "survival_cover.jsonl"},
    "report": {},
    "seeds": {"default": 12},
    "rows": {"default": [40, 120]},
}
_NEW, _SCALE, _LEVEL = 400, 0.5, 0.8


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print means with standard errors."""
    kept = Records(options.kept, "rows how seed")
    seeds = range(0 if options.report else options.seeds)
    for seed, rows, how in product(seeds, options.rows, ("mode", "integrate")):
        if (key := (rows, how, seed)) not in kept:
            kept.keep(key, _fitted(*key))
    print(table(list(kept.records.values())))


def _drawn(rows: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    noise = np.log(rng.exponential(size=rows))
    return X, np.exp(1.0 + np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + _SCALE * noise)


def _fitted(rows: int, how: str, seed: int) -> dict[str, float]:
    X, T = _drawn(rows, 2 * seed)
    new, known = _drawn(_NEW, 2 * seed + 1)
    end = np.random.default_rng(seed).uniform(0.0, 9.0, rows)
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        model = GPSurvival(method="ep", random_state=seed).set_params(hyperparameters=how)
        model.fit(X, np.minimum(T, end), event=end >= T)
        # A time is in the central interval where the probability to be later is between its tails.
        later = np.exp(model.predict_log_density(new, known, event=np.zeros(_NEW, dtype=bool)))
        density = model.predict_log_density(new, known)
    return {
        "censored": float((end < T).mean()),
        "covered": float((np.abs(later - 0.5) <= 0.5 * _LEVEL).mean()),
        "density": float(density.mean()),
        "cpu": round(time.process_time() - begun, 2),
    }
