"""What the power p of the Wasserstein distance does: inference with L_p projections, and EP.

Two questions, on data sets of Table 1 with its protocol, hyper-parameters from EP's evidence:

real    NTLL, test error and expected calibration error of the predictions on the test folds;
drawn   labels drawn from the fitted model at the same inputs, so that the latent values are known:
        how often central intervals of the approximate posterior hold them, and NTLL again.

Writes a table in Markdown:

    python -m scripts.studies powers --data DIRECTORY

Everything is seeded; the same arguments give the same table.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri
from threadpoolctl import threadpool_limits

from qpruntime import ConvergenceWarning, Posterior, infer
from scripts.benchmarks.data.paper import load
from scripts.benchmarks.data.protocol import Task
from scripts.benchmarks.metrics import calibration_error
from scripts.reports import tables
from scripts.studies.folds import Fold

Array = NDArray[np.float64]

POWERS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
#: Central intervals of the latent function whose coverage is counted.
LEVELS = (0.5, 0.9)
BINS = 10
FOLDS = 10


def posterior(K: Array, y: Array, p: float | None) -> Posterior:
    """Return the posterior with projections by W_p; None is EP, 2 is QP by table.

    The others take a millisecond a site: they start from QP's sites, and stop at what is far below
    any difference between them.
    """
    if p is None:
        return infer(K, y, method="ep")
    qp = infer(K, y, method="qp")
    if p == 2.0:
        return qp
    return infer(K, y, method="wp", p=p, order="parallel", sites=qp.sites, tol=1e-4)


def of_predicted(probability: Array, hit: Array) -> float:
    """Calibration error of the predicted class, over equal bins from 1/2 to 1."""
    sure = np.maximum(probability, 1.0 - probability)
    return calibration_error(sure, (probability > 0.5) == hit, 2 * BINS)


def draw(kernel: Any, fold: Fold, rng: np.random.Generator) -> tuple[Array, Array]:
    """Latent values from the prior at training and test inputs, and their labels."""
    X = np.concatenate([fold.X, fold.X_test])
    values, vectors = np.linalg.eigh(kernel(X))
    f = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(len(X)))
    return f, np.where(rng.random(len(X)) < ndtr(f), 1.0, -1.0)


def measure(fold: Fold, kernel: Any, drawn: tuple[Array, Array], p: float | None) -> dict[str, Any]:
    """All measures of one fold and one projection."""
    K, cross = kernel(fold.X), kernel(fold.X_test, fold.X)
    diagonal, n = kernel.diag(fold.X_test), len(fold.y)
    post = posterior(K, fold.y, p)
    mean, variance = post.predict(cross, diagonal)
    score = mean / np.sqrt(1.0 + variance)
    found: dict[str, Any] = {
        "probability": ndtr(score),
        "hit": fold.y_test > 0.0,
        "ntll": -log_ndtr(fold.y_test * score).mean(),
        "te": np.mean(np.where(mean > 0.0, 1.0, -1.0) != fold.y_test),
        "unsettled": int(not post.converged),
    }
    f, y = drawn
    post = posterior(K, y[:n], p)
    mean, variance = post.predict(cross, diagonal)
    found["unsettled"] += int(not post.converged)
    found["drawn ntll"] = -log_ndtr(y[n:] * mean / np.sqrt(1.0 + variance)).mean()
    found["std"] = np.sqrt(variance).mean()
    for name, z in (
        ("test", (f[n:] - mean) / np.sqrt(variance)),
        ("train", (f[:n] - post.mean) / np.sqrt(post.variance)),
    ):
        for level in LEVELS:
            found[f"{name} {level}"] = np.mean(np.abs(z) < ndtri(0.5 + 0.5 * level))
    return found


def study(
    data: str, directory: Path, rounds: int, folds: int, powers: Sequence[float]
) -> Iterator[tuple[float | None, list[dict]]]:
    """Yield (p, measures of every fold) for one data set; None is EP."""
    X, y = load(data, directory)
    cases = []
    for turn in range(rounds):
        for k in range(folds):
            fold = Fold(Task(data, "main", turn, k), X, y)
            kernel, _ = fold.softplus_optimum()
            cases.append((fold, kernel, draw(kernel, fold, np.random.default_rng([turn, k]))))
    for p in (None, *powers):
        yield p, [measure(*case, p) for case in cases]


def pooled(name: str, found: list[dict]) -> Array:
    """One quantity of all folds."""
    return np.array([record[name] for record in found])


def row(p: float | None, found: list[dict], base: list[dict]) -> dict[str, str]:
    """Cells by header; differences are paired with those of QP, folds being the units."""

    def difference(name: str) -> str:
        d = 1e3 * (pooled(name, found) - pooled(name, base))
        error = d.std(ddof=1) / np.sqrt(d.size)
        return f"{1e3 * pooled(name, found).mean():.1f} ({d.mean():+.2f} ± {error:.2f})"

    def share(name: str) -> str:
        return f"{100.0 * pooled(name, found).mean():.1f}"

    error = of_predicted(
        np.concatenate([r["probability"] for r in found]), np.concatenate([r["hit"] for r in found])
    )
    return {
        "p": "EP" if p is None else f"{p:g}",
        "NTLL × 1000 (less QP's)": difference("ntll"),
        "TE × 100": f"{100.0 * pooled('te', found).mean():.2f}",
        "ECE × 1000": f"{1e3 * error:.1f}",
        "drawn: NTLL × 1000 (less QP's)": difference("drawn ntll"),
        **{
            f"{name} in {100 * level:.0f} %": share(f"{name} {level}")
            for name in ("train", "test")
            for level in LEVELS
        },
        "std / QP's": f"{np.mean(pooled('std', found) / pooled('std', base)):.4f}",
        "unsettled": str(int(pooled("unsettled", found).sum())),
    }


def table(data: str, directory: Path, rounds: int, folds: int, powers: Sequence[float]) -> str:
    """The study of one data set as Markdown."""
    results = dict(study(data, directory, rounds, folds, powers))
    rows = [row(p, found, results[2.0]) for p, found in results.items()]
    text = tables.table(list(rows[0]), [list(cells.values()) for cells in rows], tight=True)
    return f"## {data}: {rounds * folds} folds\n\n{text}"


OPTIONS = {
    "data": {"required": True},
    "sets": {"default": ["wine1", "crabs"], "help": "binary sets of Table 1"},
    "rounds": {"default": 3},
    "folds": {"type": int, "default": FOLDS, "help": "of each round, at most 10"},
    "powers": {"nargs": "+", "type": float, "default": POWERS, "help": "2 is always done"},
    "out": {"help": "where to write it, besides stdout"},
}


def main(options: Namespace) -> None:
    """Run the study and write the table."""
    powers = sorted({2.0, *options.powers})
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # counted in the table
        parts = []
        for name in options.sets:
            parts.append(table(name, options.data, options.rounds, options.folds, powers))
            print(parts[-1], flush=True)
    if options.out:
        options.out.write_text("\n\n".join(parts) + "\n")
