"""Labels of classes: which there are, and the signs of each class against the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.data import checked
from qpruntime.likelihoods import Likelihood

__all__ = ["check_announced", "check_labels", "check_signs", "classes_of", "signs_of"]


def check_labels(labels: NDArray[Any]) -> None:
    """Raise `ValueError` unless labels are of classes, and of one type, which can be sorted."""
    if labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels):
        types = sorted({type(label).__name__ for label in labels})
        if len(types) > 1:
            raise InputError(
                f"labels must be of one type, got {' and '.join(types)}: leave out rows without a "
                "label, or make all labels strings"
            )
    checked(check_classification_targets, labels)


def check_announced(classes: ArrayLike, labels: ArrayLike) -> None:
    """Raise `InputError` unless the first part has rows of every class announced, and no others."""
    if (missing := np.setdiff1d(classes, labels)).size:
        raise InputError(
            f"the first part has no rows of {missing.tolist()}, and kernels are learnt "
            "from it: begin with rows of every class"
        )
    if (more := np.setdiff1d(labels, classes)).size:
        raise InputError(
            f"y has labels {more.tolist()} that are not in classes={np.ravel(classes).tolist()}: "
            "name all, or leave classes out"
        )


def classes_of(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the classes, sorted; `name` is that of the estimator that needs two or more."""
    classes = np.unique(labels)
    if classes.size < 2:
        raise InputError(f"{name} needs two classes or more, got one class: {classes.tolist()}")
    return classes


def signs_of(labels: NDArray[Any], classes: NDArray[Any], kind: Any = np.float64) -> list[Array]:
    """Return +1 and -1 for the second of two classes, or for each of several against the rest."""
    positive = classes[1:] if classes.size == 2 else classes
    return [np.where(labels == label, kind(1), kind(-1)) for label in positive]


def check_signs(likelihood: Likelihood) -> None:
    """Raise `InputError` unless the likelihood takes the labels -1 and +1, and not any number."""
    try:
        likelihood.validate((-1.0, 1.0))
    except InputError as error:
        raise _no_classes(likelihood) from error
    try:
        likelihood.validate((0.5,))
    except InputError:
        return
    raise _no_classes(likelihood)


def _no_classes(likelihood: Likelihood) -> InputError:
    return InputError(
        f"the likelihood {likelihood.name!r} is not one of two classes: it takes "
        f"{likelihood.outcomes}; GPClassifier needs the labels -1 and +1, as 'probit', 'logistic' "
        "and 'heaviside' take them"
    )
