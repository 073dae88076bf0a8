"""What models of counts and numbers say of single observations: intervals and densities.

Ours and GPBoost have predictive distributions. Boosting is fitted again with quantile losses; a
model with a Poisson loss is taken at its word; linear models of numbers add the quantiles of their
residuals. Others have no intervals.
"""

from typing import Any

import numpy as np
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor

from scripts.benchmarks.data.middle import Middle
from scripts.benchmarks.metrics import coverage

#: Ends of the intervals.
LEVELS = (0.05, 0.95)


def judged(name: str, model: Any, data: Middle, seed: int) -> dict[str, float | None]:
    """Share of new observations in 90 % intervals, their mean width, and mean log density."""
    found = _interval(name, model, data, seed)
    density = _log_density(model, data)
    inside, width = (None, None) if found is None else coverage(*found, data.y_new)
    return {
        "coverage": inside,
        "width": width,
        "nlpd": None if density is None else -float(np.mean(density)),
    }


def _interval(name: str, model: Any, data: Middle, seed: int) -> tuple[Any, Any] | None:
    if hasattr(model, "predict_quantiles"):
        ends = model.predict_quantiles(data.X_new, LEVELS)
        return ends[:, 0], ends[:, 1]
    if name == "boosting":
        ends = [_boosted(model.best_params_, data, level, seed) for level in LEVELS]
        return np.minimum(*ends), np.maximum(*ends)
    if name == "linear" and data.kind == "counts":
        rate = np.maximum(model.predict(data.X_new), 1e-9)
        return stats.poisson.ppf(LEVELS[0], rate), stats.poisson.ppf(LEVELS[1], rate)
    if name == "linear":
        low, high = np.quantile(data.y - model.predict(data.X), LEVELS)
        found = model.predict(data.X_new)
        return found + low, found + high
    return None


def _boosted(best: dict[str, Any], data: Middle, level: float, seed: int) -> Any:
    options = {"early_stopping": True, "max_iter": 500, "random_state": seed, **best}
    model = HistGradientBoostingRegressor(loss="quantile", quantile=level, **options)
    return model.fit(data.X, data.y).predict(data.X_new)


def _log_density(model: Any, data: Middle) -> Any:
    for method in ("predict_log_pmf", "predict_log_density"):
        if hasattr(model, method):
            return getattr(model, method)(data.X_new, data.y_new)
    if data.kind == "counts":
        return stats.poisson.logpmf(data.y_new, np.maximum(model.predict(data.X_new), 1e-9))
    return None
