"""Held-out log loss of `GPPreference` beside Bradley-Terry models by logistic regression.

    python -m scripts.studies preferences --season rugby.csv

The season has columns home_team, away_team, home_score, away_score and year: rugby.csv of the
examples of pymc3 3.8 has four years of the Six Nations. Without a file the simulated leagues alone
are run: strengths that stay, and strengths that drift, of which the last fifth of the games is
held out.
"""

from __future__ import annotations

import csv
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import KFold

from qpruntime import GPPreference
from qpruntime.kernels import On, Same

OPTIONS = {
    "season": {"type": Path, "help": "a file of results; none is run without"},
    "repeats": {"type": int, "default": 10, "help": "seeds from 0"},
}
_LEVEL = (1e-4, 1e4)


def main(options: Namespace) -> None:
    """Print a line a set and model: mean log loss, and its standard error over repeats."""
    sets: dict[str, Any] = {"stays": drawn, "drifts": lambda seed: drawn(seed, drift=True)}
    if options.season:
        sets["season"] = lambda seed: season(options.season, seed)
    for name, make in sets.items():
        losses = {}
        for seed in range(options.repeats):
            for model, loss in judged(list(make(seed))).items():
                losses.setdefault(model, []).append(loss)
        for model, found in losses.items():
            error = np.std(found, ddof=1) / np.sqrt(len(found))
            print(f"{name:8} {model:28} {np.mean(found):.4f} +- {error:.4f}")


def drawn(seed: int, drift: bool = False) -> Iterator[tuple[Any, ...]]:
    """A league of 20 with 400 games on days: (pairs, home, times, first won), train and test."""
    rng = np.random.default_rng(seed)
    skill, phase = rng.normal(size=20), rng.uniform(0.0, 2.0 * np.pi, 20)
    pairs = np.array([rng.choice(20, 2, replace=False) for _ in range(400)])
    times = np.sort(rng.uniform(0.0, 300.0, 400))
    f = skill[pairs] + drift * 1.5 * np.sin(phase[pairs] + times[:, None] / 50.0)
    first = f[:, 0] - f[:, 1] + rng.normal(size=400) > 0.0
    train = np.arange(400) < 320 if drift else rng.permutation(400) < 320
    yield _part(pairs, None, times, first, train)


def season(path: Path, seed: int) -> Iterator[tuple[Any, ...]]:
    """Five folds of the games of a season that were not drawn."""
    rows = [row for row in csv.DictReader(path.open()) if row["home_score"] != row["away_score"]]
    pairs = np.array([[row["home_team"], row["away_team"]] for row in rows])
    pairs = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    first = np.array([int(row["home_score"]) > int(row["away_score"]) for row in rows])
    years = np.array([float(row["year"]) for row in rows])
    home = np.tile([1.0, 0.0], (len(rows), 1))
    for train, _ in KFold(5, shuffle=True, random_state=seed).split(pairs):
        yield _part(pairs, home, years, first, np.isin(np.arange(len(rows)), train))


def _part(pairs, home, times, first, train):  # type: ignore[no-untyped-def]
    return tuple(
        tuple(None if a is None else a[rows] for a in (pairs, home, times, first))
        for rows in (train, ~train)
    )


def judged(parts: list[tuple[Any, ...]]) -> dict[str, float]:
    """Mean log loss of every model over the games held out of these parts."""
    found: dict[str, list[float]] = {}
    for train, test in parts:
        n = 1 + max(train[0].max(), test[0].max())
        told = {
            "GPPreference": by_process(train, test, n, False),
            "GPPreference, dates": by_process(train, test, n, True),
            "Bradley-Terry": by_regression(train, test, n, LogisticRegression(C=1e6)),
            "Bradley-Terry, ridge by CV": by_regression(
                train,
                test,
                n,
                LogisticRegressionCV(
                    Cs=10, scoring="neg_log_loss", l1_ratios=(0.0,), use_legacy_attributes=False
                ),
            ),
        }
        for model, p in told.items():
            p = np.where(test[3], p, 1.0 - p)
            found.setdefault(model, []).extend(-np.log(np.clip(p, 1e-12, 1.0)))
    return {model: float(np.mean(values)) for model, values in found.items()}


def by_process(train: Any, test: Any, n: int, dated: bool) -> Any:
    """Probabilities that the first side wins."""
    (pairs, home, times, first), (other, other_home, later, _) = train, test
    when = {"times": times if dated else None}, {"times": later if dated else None}
    if home is None:
        model = GPPreference().fit(np.arange(n), pairs, scores=first.astype(float), **when[0])
        return model.predict_proba(other, **when[1])[:, 0]
    # A side is a team at home or away: rows of X, of which one number is what the home has.
    X = np.array([[team, at] for team in range(n) for at in (0.0, 1.0)])
    kernel = ConstantKernel(1.0, _LEVEL) * On(Same(), [0])
    kernel += ConstantKernel(0.1, _LEVEL) * On(DotProduct(0.0, "fixed"), [1])
    if dated:
        kernel += ConstantKernel(0.1, _LEVEL) * On(Same(), [0, 2])
    model = GPPreference(kernel)
    model.fit(X, (2 * pairs + home).astype(int), scores=first.astype(float), **when[0])
    return model.predict_proba((2 * other + other_home).astype(int), **when[1])[:, 0]


def by_regression(train: Any, test: Any, n: int, model: Any) -> Any:
    """Probabilities that the first side wins, by one column a team and one for the home."""

    def columns(part: Any) -> Any:
        pairs, home = part[:2]
        found = np.zeros((len(pairs), n + 1))
        rows = np.arange(len(pairs))
        found[rows, pairs[:, 0]], found[rows, pairs[:, 1]] = 1.0, -1.0
        found[:, n] = 0.0 if home is None else home[:, 0] - home[:, 1]
        return found

    # Without an intercept: either side may stand first.
    model = model.set_params(fit_intercept=False, max_iter=10_000)
    with warnings.catch_warnings(action="ignore"):
        model.fit(columns(train), train[3])
    return model.predict_proba(columns(test))[:, 1]
