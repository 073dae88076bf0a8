"""Counts with exposure and targets with outliers, for the benchmarks of sparse inference."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime import GPPoissonRegressor, GPRobustRegressor
from qpruntime.learning.inducing_points import clusters
from scripts.benchmarks.data.drawn import counts, diamonds, outliers
from scripts.benchmarks.metrics import judge_noise

#: Set, rows, inducing inputs: CPU seconds of SVGP at each rate.
NOISY = {
    ("counts", 1_000_000, 100): 120.0,
    ("diamonds", 43_940, 100): 60.0,
    ("outliers", 100_000, 200): 90.0,
}
NU = 4.0


def noisy(case: tuple[str, int, int], packages: Path | None) -> dict[str, Any]:
    """Arrays of one case, features and targets in units of their spread, and Z to begin with."""
    name, n, m = case
    if name == "counts":
        data, exposure, exposure_test = counts(n)
        found = {**data._asdict(), "exposure": exposure, "exposure_test": exposure_test}
    else:
        data = outliers(n) if name == "outliers" or packages is None else diamonds(packages, n)
        centre, spread = data.X.mean(axis=0), data.X.std(axis=0)
        middle = np.median(data.y)
        unit = 1.4826 * np.median(np.abs(data.y - middle))
        found = {
            "X": (data.X - centre) / spread,
            "X_test": (data.X_test - centre) / spread,
            "y": (data.y - middle) / unit,
            "y_test": (data.y_test - middle) / unit,
            "nu": NU,
        }
    return {**found, "Z": clusters(found["X"], m, np.random.default_rng(0))}


def own_noisy(data: dict[str, Any], Z: np.ndarray) -> dict[str, Any]:
    """Our fit: (seconds, negative log density, coverage of 90 % intervals) at its end."""
    begun, started = time.process_time(), time.perf_counter()
    options: dict[str, Any] = {"inducing": Z, "random_state": 0, "n_jobs": 1}
    if "nu" in data:
        model: Any = GPRobustRegressor(normalize_y=False, nu=data["nu"], **options)
        model.fit(data["X"], data["y"])
        noise = {"nu": data["nu"], "scale": model.scale_}
    else:
        model = GPPoissonRegressor(link="exp", **options)
        model.fit(data["X"], data["y"], exposure=data["exposure"])
        noise = {"exposure": data["exposure_test"]}
    spent, wall = time.process_time() - begun, time.perf_counter() - started
    judged = judge_noise(noise, *model.latent(data["X_test"]), data["y_test"])
    return {
        "path": [[spent, *judged]],
        "wall": wall,
        "kernel": repr(model.kernel_),
        "sweeps": model.posterior_.n_sweeps,
        "noise": float(noise["scale"]) if "nu" in data else 0.0,
    }
