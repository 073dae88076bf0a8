"""Classify the Wine data (classes 1 and 2) with EP and with QP on a table, one round of 10 folds.

The protocol of the paper's Table 1: features standardised on the training folds, one squared
exponential kernel with variance and length-scale started at 1, hyper-parameters by EP's evidence.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from qpruntime import GPClassifier, Table, open_table

FOLDS = 10


@dataclass
class Tally:
    """Results of one method over all folds."""

    method: str
    errors: list[float] = field(default_factory=list)
    ntll: list[float] = field(default_factory=list)
    variances: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0
    inside: int = 0
    outside: int = 0

    def row(self) -> str:
        """One line of the printed table."""
        return (
            f"{self.method.upper():4}{100 * np.mean(self.errors):12.2f}"
            f"{1000 * np.mean(self.ntll):12.2f}{self.seconds / FOLDS:14.3f}"
            f"{self.inside:12d}{self.outside:12d}"
        )


def run_folds(method: str, table: Table, X: np.ndarray, y: np.ndarray, seed: int) -> Tally:
    """Fit and test one method on the ten folds of one permutation."""
    tally = Tally(method)
    order = np.random.RandomState(seed).permutation(len(y))
    size = len(y) // FOLDS
    for fold in range(FOLDS):
        test = order[fold * size : (fold + 1) * size]
        train = np.setdiff1d(order, test)
        scaler = StandardScaler().fit(X[train])
        model = GPClassifier(method=method, table=table if method == "qp" else None)
        start = time.perf_counter()
        model.fit(scaler.transform(X[train]), y[train])
        tally.seconds += time.perf_counter() - start
        points = scaler.transform(X[test])
        column = (y[test] == model.classes_[1]).astype(int)
        log_proba = model.predict_log_proba(points)
        tally.ntll.append(-log_proba[np.arange(size), column].mean())
        tally.errors.append(float((model.predict(points) != y[test]).mean()))
        tally.variances.append(model.latent(points)[1])
        tally.inside += model.posterior_.lookups.inside
        tally.outside += model.posterior_.lookups.outside
    return tally


def draw(ep: Tally, qp: Tally, path: Path) -> None:
    """Scatter QP's predictive variances against EP's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y = np.concatenate(ep.variances), np.concatenate(qp.variances)
    limits = (0.8 * min(x.min(), y.min()), 1.25 * max(x.max(), y.max()))
    figure, axes = plt.subplots(figsize=(5.0, 4.6), layout="constrained")
    axes.plot(limits, limits, color="0.6", linewidth=1.0, label="equal")
    axes.scatter(x, y, s=12, alpha=0.6, label=f"{x.size} test points")
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    axes.set_xlabel("EP predictive variance of f")
    axes.set_ylabel("QP predictive variance of f")
    axes.set_title("Wine, classes 1 and 2")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Parse options, run both methods, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True, help="table file, or name of an installed one")
    parser.add_argument("--figure", type=Path, default=None, help="where to write the figure")
    parser.add_argument("--seed", type=int, default=0, help="permutation of the rows (default 0)")
    options = parser.parse_args()

    data = load_wine()
    rows = data.target < 2
    X, y = data.data[rows], data.target_names[data.target[rows]]
    table = open_table(options.table)
    GPClassifier(method="qp", table=table).fit(X[::9], y[::9])  # compile before the clock starts

    print(f"Wine, classes 1 and 2: {len(y)} rows, {X.shape[1]} features, {FOLDS} folds")
    print("method   error x 100   NTLL x 1e3   fit s/fold   inside grid   outside")
    tallies = []
    for method in ("ep", "qp"):
        tallies.append(run_folds(method, table, X, y, options.seed))
        print(tallies[-1].row(), flush=True)
    if options.figure:
        draw(*tallies, options.figure)
        print(f"Figure of the predictive variances: {options.figure}")


if __name__ == "__main__":
    main()
