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


def fill(
    kept: Records[Any],
    name: str,
    folds: Iterable[Any],
    models: Mapping[str, Callable[[Any], Scores]],
    about: dict[str, Any],
) -> None:
    """Judge every model in every fold of a set that is not kept yet, and keep CPU seconds."""
    for fold, part in enumerate(folds):
        for model, judge in models.items():
            if (name, model, fold) not in kept:
                begun = time.process_time()
                with warnings.catch_warnings(action="ignore"):
                    found = judge(part)
                seconds = round(time.process_time() - begun, 2)
                kept.keep((name, model, fold), {**about, "cpu": seconds, **found})
