"""Classes jointly: fixed points beside long chains, probabilities, iterations, seconds, scores.

    python -m scripts.studies joint --data DIRECTORY           # all parts, and the sets of --sets
    python -m scripts.studies joint --parts chains orthants iterations seconds
    python -m scripts.studies joint --data DIRECTORY --parts scores --sets iris glass

Prints tables. Chains, their inputs and orthants are those of `tests/reference/operators.json`.
Scores are of all folds together, `StratifiedKFold(5, shuffle=True, random_state=0)` of raw
features, three folds of 500 rows of the digits; seconds are CPU of this process.
"""

from __future__ import annotations

import json
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold

from qpruntime import GPClassifier, infer_classes
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from scripts.benchmarks.data.files import raw_path
from scripts.benchmarks.metrics import calibration_error
from scripts.benchmarks.timing import best

ONE_THREAD = True
PARTS = ("chains", "orthants", "iterations", "seconds", "scores")
SETS = ("iris", "wine", "crabs", "glass", "digits")
MODELS: dict[str, dict[str, Any]] = {
    "joint": {"multi_class": "joint"},
    "one vs rest": {},
}
_REFERENCE = Path(__file__).resolve().parents[2] / "tests" / "reference" / "operators.json"
_JITTER = 1e-6


def covariance(A: Any, B: Any, v: float, length: float = 1.0) -> Any:
    """Squared exponential of rows of inputs."""
    return v * np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(axis=-1) / length**2)


def own(X: Any, v: float, length: float = 1.0) -> Any:
    """The same of rows with themselves, with jitter."""
    return covariance(X, X, v, length) + _JITTER * v * np.eye(len(X))


def chains() -> Iterator[str]:
    """Means, log variances, class probabilities and evidence beside chains."""
    yield "| problem | method | log Z - true | corrected - true | means, sd | log variance | "
    found = json.loads(_REFERENCE.read_text())["chains"]
    for known in found["problems"]:
        if known["model"] != "probit":
            continue
        case = found["inputs"][known["name"]]
        X, at, C = np.array(case["X"]), np.array(case["X_star"]), case["classes"]
        K, K_star = own(X, case["v"], case["l"]), covariance(at, X, case["v"], case["l"])
        diagonal, probs = np.full(len(at), case["v"]), np.array(known["probs"])
        mean, variance = (np.reshape(known[part], (C, -1)).T for part in ("mean", "var"))
        for method in ("ep", "qp"):
            post = infer_classes(K, case["labels"], method, n_classes=C)
            spread = np.diagonal(post.covariance, axis1=1, axis2=2)
            error = (post.mean - mean) / np.sqrt(variance)
            cells = [
                f"{post.log_evidence - known['log_z']:+.3f}",
                f"{post.corrected_evidence().value - known['log_z']:+.3f}",
                f"{np.sqrt((error**2).mean()):.3f}",
                f"{np.log(spread / variance).mean():+.3f}",
            ]
            for correction in (None, "ratio"):
                log_p = post.predict_log_proba(K_star, diagonal, correction=correction)
                gap = np.exp(log_p) - probs
                cells.append(f"{np.sqrt((gap**2).mean()):.4f} ({np.abs(gap).max():.3f})")
            yield f"| {known['name']} | {method} | " + " | ".join(cells) + " |"


def drawn(rng: np.random.Generator, n: int, C: int, v: float) -> tuple[Any, Any]:
    """Covariance and labels of functions of two inputs."""
    K = own(rng.normal(size=(n, 2)), v)
    f = np.linalg.cholesky(K) @ rng.normal(size=(n, C))
    return K, np.argmax(f + rng.normal(size=(n, C)), axis=1)


def orthants() -> Iterator[str]:
    """Class probabilities of posteriors beside Genz' rule, and microseconds of CPU a point."""
    yield "| classes | variance | worst of 12 points | us a point |"
    rng = np.random.default_rng(0)
    for C, v in ((3, 100.0), (4, 25.0), (6, 25.0), (10, 25.0), (10, 400.0)):
        K, labels = drawn(rng, 60, C, v)
        post = infer_classes(K[:48, :48], labels[:48], "ep", n_classes=C)
        mean, S = post.predict(K[48:, :48], K.diagonal()[48:])
        found, worst = np.exp(log_probabilities(mean, S)), 0.0
        for t in range(len(mean)):
            for c in range(C):
                A = np.delete(np.eye(C)[c] - np.eye(C), c, axis=0)
                rule = multivariate_normal(A @ mean[t] * 0.0, A @ (S[t] + np.eye(C)) @ A.T)
                rule.abseps, rule.maxpts = 2e-6, 1_000_000
                worst = max(worst, abs(rule.cdf(A @ mean[t]) - found[t, c]))
        means, covariances = np.tile(mean, (40, 1)), np.tile(S, (40, 1, 1))
        call = partial(log_probabilities, means, covariances)
        each = best(call, 5, time.process_time) / len(means) * 1e6
        yield f"| {C} | {v:g} | {worst:.1e} | {each:.0f} |"


def iterations() -> Iterator[str]:
    """Parallel iterations to 1e-6 from nothing."""
    line = np.linspace(0.0, 6.0, 60)[:, None]
    cases = {
        f"separable, v = {v:g}": (own(line, v, 1.5), np.arange(60) // 20, 3)
        for v in (1e4, 1e5, 1e6, 1e7)
    }
    for v in (100.0, 1e4, 1e6):
        cases[f"one class of three, v = {v:g}"] = own(line, v, 1.5), np.zeros(60, dtype=int), 3
    rng = np.random.default_rng(0)
    for v in (25.0, 1e4):
        X = np.sort(rng.uniform(-3.0, 3.0, 80))[:, None]
        cases[f"six classes at random, v = {v:g}"] = own(X, v), rng.integers(0, 6, 80), 6
    for n, C, v in ((60, 3, 4.0), (60, 3, 400.0), (500, 6, 25.0), (400, 10, 100.0), (200, 10, 1e4)):
        cases[f"drawn, N = {n}, C = {C}, v = {v:g}"] = *drawn(rng, n, C, v), C
    yield "| problem | EP | QP |"
    for name, (K, labels, C) in cases.items():
        both = [infer_classes(K, labels, method, n_classes=C) for method in ("ep", "qp")]
        said = [f"{p.n_sweeps}" + ("" if p.converged else ", not settled") for p in both]
        yield f"| {name} | {said[0]} | {said[1]} |"


def seconds() -> Iterator[str]:
    """CPU seconds of inference, and of a sweep in Cholesky factorisations of N rows and a class."""
    yield "| N | C | sweeps | EP, s | sweep / (C factorisations) | gradient, s |"
    rng = np.random.default_rng(0)
    for n, C in ((400, 10), (1000, 3), (1000, 10)):
        K, labels = drawn(rng, n, C, 4.0)
        infer_classes(K[:40, :40], labels[:40], "ep", n_classes=C)
        infer = partial(infer_classes, K, labels, "ep", n_classes=C)
        spent, post = best(infer, 2, time.process_time), infer()
        factor = best(partial(np.linalg.cholesky, K), 5, time.process_time)
        gradient = best(partial(post.evidence_gradient, K), 1, time.process_time)
        share = spent / (post.n_sweeps - 1) / C / factor
        yield f"| {n} | {C} | {post.n_sweeps} | {spent:.2f} | {share:.1f} | {gradient:.2f} |"


def rows_of(name: str, directory: Path | None) -> tuple[Any, Any, int]:
    """Features, classes from 0 and the number of folds of a set."""
    if name in ("iris", "wine"):
        found = (load_iris if name == "iris" else load_wine)()
        return found.data, found.target, 5
    if name == "digits":
        found = load_digits()
        some = np.random.default_rng(0).permutation(len(found.target))[:500]
        return found.data[some], found.target[some], 3
    path = raw_path({"crabs": "crabs.dat", "glass": "glass.data"}[name], directory or Path())
    lines = [line.replace(",", " ").split() for line in path.read_text().splitlines()]
    if name == "crabs":
        lines = lines[1:]
        labels = [line[0] + line[1] for line in lines]
        X = np.array([line[-5:] for line in lines], dtype=float)
    else:
        lines = [line for line in lines if line]
        labels = [line[-1] for line in lines]
        X = np.array([line[1:-1] for line in lines], dtype=float)
    return X, np.unique(labels, return_inverse=True)[1], 5


def scores(names: list[str], directory: Path | None) -> Iterator[str]:
    """Log loss, error, calibration error and seconds of a fit, on pooled folds."""
    yield "| set | model | log loss | error | calibration error | CPU s a fit |"
    for name in names:
        X, y, folds = rows_of(name, directory)
        for model, options in MODELS.items():
            p, spent = np.zeros((len(y), y.max() + 1)), 0.0
            split = StratifiedKFold(folds, shuffle=True, random_state=0).split(X, y)
            for train, test in split:
                begun = time.process_time()
                fitted = GPClassifier(**options).fit(X[train], y[train])
                spent += time.process_time() - begun
                p[test] = fitted.predict_proba(X[test])
            loss = -np.log(p[np.arange(len(y)), y]).mean()
            hit = p.argmax(axis=1) == y
            ece = calibration_error(p.max(axis=1), hit, 10)
            error = 1.0 - hit.mean()
            cells = f"{loss:.4f} | {error:.3f} | {ece:.3f} | {spent / folds:.2f}"
            yield f"| {name} | {model} | {cells} |"


OPTIONS = {
    "data": {},
    "sets": {"default": SETS, "choices": SETS},
    "parts": {"nargs": "+", "default": PARTS, "choices": PARTS, "help": "which tables"},
}


def main(options: Namespace) -> None:
    """Print the tables that are asked for."""
    directory = None if options.data is None else Path(options.data)
    made = {
        "chains": chains,
        "orthants": orthants,
        "iterations": iterations,
        "seconds": seconds,
        "scores": lambda: scores(list(options.sets), directory),
    }
    with warnings.catch_warnings(action="ignore"):
        for part in options.parts:
            print(f"\n{part}\n")
            for line in made[part]():
                print(line, flush=True)
