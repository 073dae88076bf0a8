"""Many series at once: what common hyper-parameters gain and cost, on series drawn from a model.

    python -m scripts.studies panels --kept tables/results/panels.jsonl
    python -m scripts.studies panels --kept tables/results/panels.jsonl --report

Daily counts of dispersion 6 with drifting levels; every series has an amplitude and a phase of its
week, and a drift of its own. Forecasts of 12 steps: -log p beside that of the rates they were drawn
with, the share within 90 %, and CPU seconds at one thread, after a first fit that compiles.
"""

import time
from argparse import Namespace
from typing import Any

import numpy as np
from scipy import stats

from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from scripts.records import RESULTS, Records
from scripts.reports.forecasts import panels

OPTIONS = {"kept": {"default": RESULTS / "panels.jsonl"}, "report": {}}
_AHEAD, _DISPERSION = 12, 6.0
_RUNS = ((60, 120, "shared"), (60, 120, "prior"), (60, 120, "own"), (2000, 150, "shared"))
_HOURLY = (1, 20_000, "hourly")


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, "series rows model")
    if not options.report:
        for run in _RUNS:
            if run not in kept:
                kept.keep(run, measured(*run))
        if _HOURLY not in kept:
            kept.keep(_HOURLY, hourly())
    print(panels(kept.records.values()))


def drawn(series: int, rows: int) -> tuple[Any, Any]:
    """Counts and log rates, shape (series, rows + 12)."""
    rng, t = np.random.default_rng(0), np.arange(rows + _AHEAD)
    size = (series, 1)
    wave = np.abs(rng.normal(0.4, 0.15, size)) * np.sin(
        2.0 * np.pi * t / 7.0 + rng.normal(0.0, 0.4, size)
    )
    steps = rng.normal(size=(series, t.size)) * 0.03 * np.exp(rng.normal(0.0, 0.5, size))
    f = rng.normal(1.5, 1.0, size) + wave + np.cumsum(steps, axis=1)
    return rng.negative_binomial(_DISPERSION, _DISPERSION / (_DISPERSION + np.exp(f))), f


def measured(series: int, rows: int, how: str) -> dict[str, Any]:
    """Scores and seconds of a panel."""
    y, f = drawn(series, rows)
    by = np.repeat(np.arange(series), rows)
    few = by < 12
    model = GPPanelForecaster(hyperparameters=how, sample=4)  # type: ignore[arg-type]
    model.fit(y[:, :rows].ravel()[few], by=by[few]).predict_interval(_AHEAD)
    begun = time.process_time()
    model = GPPanelForecaster(hyperparameters=how)  # type: ignore[arg-type]
    model.fit(y[:, :rows].ravel(), by=by)
    fitted = time.process_time()
    ends = model.predict_interval(_AHEAD)
    done = time.process_time()
    seen = y[:, rows:]
    log_p = [model.model(k).predict_log_density(seen[k], _AHEAD) for k in range(series)]
    rate = _DISPERSION / (_DISPERSION + np.exp(f[:, rows:]))
    return {
        "nlpd": round(float(-np.mean(log_p)), 4),
        "truth": round(float(-stats.nbinom.logpmf(seen, _DISPERSION, rate).mean()), 4),
        "within90": round(float(((seen >= ends[..., 0]) & (seen <= ends[..., 1])).mean()), 4),
        "fit": round(fitted - begun, 1),
        "ahead": round(done - fitted, 1),
    }


def hourly() -> dict[str, Any]:
    """20 000 hourly counts with a day, a week and a slow wave, by defaults; two weeks ahead."""
    n, ahead = 20_000, 336
    t = np.arange(n + ahead)
    day, week, slow = (2.0 * np.pi * t / p for p in (24.0, 168.0, 9000.0))
    f = 1.2 + 0.7 * np.sin(day) + 0.3 * np.cos(week) + 0.2 * np.sin(slow)
    y = np.random.default_rng(0).poisson(np.exp(f))
    GPForecaster().fit(y[:2400])
    begun = time.process_time()
    model = GPForecaster().fit(y[:n])
    fitted = time.process_time()
    ends = model.predict_quantiles(ahead, q=np.arange(1, 100) / 100.0)
    done = time.process_time()
    log_p = model.predict_log_density(y[n:], ahead)
    inside = (y[n:] >= ends[:, 4]) & (y[n:] <= ends[:, 94])
    return {
        "nlpd": round(float(-log_p.mean()), 4),
        "truth": round(float(-stats.poisson.logpmf(y[n:], np.exp(f[n:])).mean()), 4),
        "within90": round(float(inside.mean()), 4),
        "fit": round(fitted - begun, 1),
        "ahead": round(done - fitted, 2),
    }
