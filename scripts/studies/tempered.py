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
from sklearn.model_selection import StratifiedKFold

from qpruntime import GPClassifier
from qpruntime.estimators.joint_classifier import exponents, tempered
from qpruntime.inference.multiclass.posterior import left_out_log_proba
from scripts.studies.coupling import calibration_error, table
from scripts.studies.joint import SETS, rows_of

ONE_THREAD = True
OTHERS = ("vehicle", "vowel", "contraceptive", "penbased", "segment", "satimage")
OPTIONS = {"data": {}, "sets": {"default": (*SETS, *OTHERS), "choices": (*SETS, *OTHERS)}}
_ROWS, _NEW, _CUTS = 250, 1000, 2


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
            best, near = exponents(left_out_log_proba(model.posterior_, np.arange(len(y))), y)
            model.exponent_ = 1.0
            taken.append(near)
            log_p = model.predict_log_proba(Z)
            for kind, a in (("plain", 1.0), ("near", near), ("best", best)):
                judged[kind].append((tempered(log_p, a), z))
        cells = []
        for pairs in judged.values():
            loss = np.mean(np.concatenate([-p[np.arange(len(z)), z] for p, z in pairs]))
            ece = np.mean([calibration_error(np.exp(p), z) for p, z in pairs])
            cells.append(f"{loss:.4f} ({ece:.3f})")
        said = ", ".join(f"{a:.2f}" for a in taken)
        print(f"| {name} | {said} | " + " | ".join(cells) + " |", flush=True)
