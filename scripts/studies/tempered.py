"""One exponent on joint class probabilities, learnt from rows left out: what it gains and loses.

    python -m scripts.studies tempered --data DIRECTORY
    python -m scripts.studies tempered --sets digits penbased

Class probabilities to a power a, scaled to sum to 1, a that of the highest leave-one-out log
probability of the labels, or of all within one standard error of it the nearest to 1. Folds of
the small sets are those of `studies joint`; other sets are two random cuts of 250 rows, judged by
1000. Log loss, and in brackets the calibration error in ten bins.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.model_selection import StratifiedKFold

from qpruntime import GPClassifier
from qpruntime.inference.classes.probabilities import log_probabilities
from scripts.studies.coupling import calibration_error, table
from scripts.studies.joint import SETS, rows_of

ONE_THREAD = True
OTHERS = ("vehicle", "vowel", "contraceptive", "penbased", "segment", "satimage")
OPTIONS = {
    "data": {},
    "sets": {"default": (*SETS, *OTHERS), "choices": (*SETS, *OTHERS)},
}
_ROWS, _NEW, _CUTS = 250, 1000, 2
_POWERS, _RATE = np.exp(np.linspace(np.log(0.5), np.log(5.0), 61)), 2.0


def left_out(post: Any) -> Any:
    """Log probabilities of all classes of every row, its own sites taken off its posterior."""
    V, m = post.covariance, post.mean
    tau, nu = post.sites
    own = np.isnan(tau)
    D, told = np.where(own, 1.0, tau), np.where(own, 0.0, -nu)
    share = D / D.sum(axis=1, keepdims=True)
    precision = np.eye(D.shape[1]) * D[:, :, None] - D[:, :, None] * share[:, None, :]
    told = told - share * told.sum(axis=1, keepdims=True)
    left = np.eye(D.shape[1]) - V @ precision
    covariance = np.linalg.solve(left, V)
    gap = m - np.einsum("ncd,nd->nc", V, told)
    mean = np.linalg.solve(left, gap[:, :, None])[:, :, 0]
    return log_probabilities(mean, 0.5 * (covariance + covariance.transpose(0, 2, 1)))


def powered(log_p: Any, a: float) -> Any:
    """Log probabilities to a power, scaled."""
    return a * log_p - logsumexp(a * log_p, axis=1, keepdims=True)


def powers(log_p: Any, own: Any) -> tuple[float, float]:
    """The best power, and the nearest to 1 that is within one standard error of it."""
    rows = np.arange(len(own))
    lost = np.array([-powered(log_p, a)[rows, own] for a in _POWERS])
    away = np.abs(np.log(_POWERS))
    total = lost.sum(axis=1) + _RATE * away
    best = int(np.argmin(total))
    error = np.sqrt(len(own)) * (lost - lost[best]).std(axis=1)
    near = np.argmin(np.where(total <= total[best] + error, away, np.inf))
    return float(_POWERS[best]), float(_POWERS[near])


def cuts(name: str, directory: Path | None) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Rows and labels to fit to, and to judge by."""
    if name in SETS:
        X, y, folds = rows_of(name, directory)
        found = StratifiedKFold(folds, shuffle=True, random_state=0).split(X, y)
    else:
        X, y = table(name)
        orders = [np.random.default_rng(seed).permutation(len(y)) for seed in range(_CUTS)]
        found = ((order[:_ROWS], order[_ROWS : _ROWS + _NEW]) for order in orders)
    for train, test in found:
        classes, codes = np.unique(y[train], return_inverse=True)
        test = test[np.isin(y[test], classes)]
        yield X[train], codes, X[test], np.searchsorted(classes, y[test])


def main(options: Namespace) -> None:
    """Print a line a set."""
    warnings.simplefilter("ignore")
    print("| set | powers | as they are | within one standard error | best |")
    for name in options.sets:
        judged: dict[str, list[tuple[Any, Any]]] = {"plain": [], "near": [], "best": []}
        taken = []
        for X, y, Z, z in cuts(name, None if options.data is None else Path(options.data)):
            model = GPClassifier(multi_class="joint").fit(X, y)
            best, near = powers(left_out(model.posterior_), y)
            taken.append(near)
            log_p = model.predict_log_proba(Z)
            for kind, a in (("plain", 1.0), ("near", near), ("best", best)):
                judged[kind].append((powered(log_p, a), z))
        cells = []
        for pairs in judged.values():
            loss = np.mean(np.concatenate([-p[np.arange(len(z)), z] for p, z in pairs]))
            ece = np.mean([calibration_error(np.exp(p), z) for p, z in pairs])
            cells.append(f"{loss:.4f} ({ece:.3f})")
        said = ", ".join(f"{a:.2f}" for a in taken)
        print(f"| {name} | {said} | " + " | ".join(cells) + " |", flush=True)
