"""Models on rows held out, fold by fold: what is kept is not done again."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import KFold

from scripts.records import Records

_FOLDS = 5
#: What a fit is judged by.
Scores = dict[str, Any]
Judge = Callable[[Any], Scores]


class Part(NamedTuple):
    """Rows of a fold: features of training and test, standardised ones, and observations."""

    X: Any
    new: Any
    scaled: Any
    scaled_new: Any
    y: Any
    other: Any


def parts(X: Any, y: Any) -> Iterator[Part]:
    """Training and test rows of five folds."""
    for train, test in KFold(_FOLDS, shuffle=True, random_state=0).split(X):
        centre, spread = X[train].mean(axis=0), X[train].std(axis=0)
        scaled = (X - centre) / np.where(spread > 0.0, spread, 1.0)
        yield Part(X[train], X[test], scaled[train], scaled[test], y[train], y[test])


def spans(y: Any) -> Any:
    """Return times as intervals, which have no end for censored rows."""
    return np.column_stack([y[:, 0], np.where(y[:, 1] > 0, y[:, 0], np.inf)])


def _timed(judge: Judge, part: Any) -> Scores:
    """Return the scores of a part and, unless they have them, CPU seconds."""
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        found = judge(part)
    return {"cpu": round(time.process_time() - begun, 3), **found}


def fill(
    kept: Records[Any],
    name: str,
    folds: Iterable[Any],
    models: Mapping[str, Judge],
    about: dict[str, Any],
) -> None:
    """Judge every model that is installed in every fold of a set that is not kept yet.

    A model that does not count its own seconds is judged twice in the first fold, as the first call
    compiles.
    """
    warm: set[str] = set()
    missing: set[str] = set()
    for fold, part in enumerate(folds):
        for model, judge in models.items():
            if (name, model, fold) in kept or model in missing:
                continue
            try:
                if model not in warm and not getattr(judge, "is_clocked", False):
                    _timed(judge, part)
                found = _timed(judge, part)
            except ImportError as error:
                print(f"{model} is left out: {error}")
                missing.add(model)
                continue
            warm.add(model)
            kept.keep((name, model, fold), {**about, **found})
