"""Boosting of scikit-learn: the columns that it sees, and its trees as arrays for files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from qpruntime._restorable import restorable, restorable_call
from qpruntime._sealed_file import DamagedFile
from qpruntime._typing import Array, IntArray
from qpruntime.estimators.boosted_trees_kernels import add_trees

__all__ = ["BoostedTrees", "CodedColumns", "as_arrays"]

# Fewest columns of 0 and 1 that become one, and the fewest rows in which two of them would be 1 if
# they were independent. Boosting of 322 000 flights takes a fifth of the time with 8 columns in
# place of 54. The losses of trees on 17 other tables change by -2 to 2 %, and not on average.
_FEWEST_COLUMNS, _FEWEST_OVERLAPS = 3, 20.0


@restorable("coded-columns/1")
@dataclass(frozen=True, eq=False)
class CodedColumns:
    """Inputs with one column of codes for adjacent columns of 0 and 1 that exclude each other.

    Such columns are the levels of a category. A code is the place of the 1, from 1 on, and 0 if
    there is none; it is missing where a column is neither 0 nor 1.

    Attributes
    ----------
    first, end : ndarray of int, shape (G,)
        First column of each category, and the one after its last. There are none by default.
    """

    first: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    end: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))

    @classmethod
    def of(cls, X: Array) -> CodedColumns:
        """Return the categories among the columns of X, shape (N, d).

        Runs of columns that exclude each other end before a column that does not.
        """
        n, d = X.shape
        categories: list[tuple[int, int]] = []
        start, shares = 0, np.empty(0)
        occupied = np.zeros(n, dtype=bool)
        for k in range(d + 1):
            is_binary = k < d and bool(((X[:, k] == 0.0) | (X[:, k] == 1.0)).all())
            if not is_binary or (occupied & (X[:, k] == 1.0)).any():
                overlaps = n * (shares.sum() ** 2 - (shares**2).sum()) / 2.0
                if k - start >= _FEWEST_COLUMNS and overlaps >= _FEWEST_OVERLAPS:
                    categories.append((start, k))
                start, shares = k if is_binary else k + 1, np.empty(0)
                occupied = np.zeros(n, dtype=bool)
            if is_binary:
                occupied |= X[:, k] == 1.0
                shares = np.append(shares, X[:, k].mean())
        first, end = np.array(categories, dtype=np.intp).reshape(-1, 2).T
        return cls(first, end)

    def __call__(self, X: Array) -> Array:
        """Return inputs with codes, shape (T, d), those of no category first."""
        if not self.first.size:
            return X
        spans = [slice(first, end) for first, end in zip(self.first, self.end, strict=True)]
        others = np.delete(X, np.r_[tuple(spans)], axis=1)
        return np.column_stack([others, *(_codes(X[:, span]) for span in spans)])


@restorable_call("boosted-trees/1")
@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Fitted histogram boosting of scikit-learn: the same predictions, from arrays alone.

    Attributes
    ----------
    base : ndarray, shape (K,)
        Scores without trees.
    roots : ndarray of int
        First node of each tree; the trees of the K scores take turns.
    children : ndarray of int, shape (nodes, 2)
        Nodes after a node. Those of a leaf are the leaf.
    feature : ndarray of int
    threshold : ndarray
        Rows with a feature up to this go left.
    missing_left : ndarray of bool
        Whether rows without the feature go left.
    value : ndarray
        What a leaf adds to the score.
    link : {"identity", "log", "classes"}
        Map of predictions to scores.
    n_features_in_ : int
    classes_ : ndarray or None
        Labels of the classes, if there are any.
    """

    base: Array
    roots: IntArray
    children: IntArray
    feature: IntArray
    threshold: Array
    missing_left: NDArray[np.bool_]
    value: Array
    link: str
    n_features_in_: int
    classes_: NDArray[Any] | None = None

    def predict(self, X: Array) -> Array:
        """Return rates or numbers, shape (T,)."""
        scores = self._scores(X)[:, 0]
        return np.exp(scores) if self.link == "log" else scores

    def predict_proba(self, X: Array) -> Array:
        """Return the probabilities of the classes, shape (T, C)."""
        scores = self._scores(X)
        if self.base.size > 1:
            return np.asarray(softmax(scores, axis=1))
        shares = expit(scores[:, 0])
        return np.column_stack([1.0 - shares, shares])

    def _scores(self, X: Array) -> Array:
        if X.shape[1] != self.n_features_in_:
            raise DamagedFile(f"trees of {self.n_features_in_} columns, and {X.shape[1]} of inputs")
        sums = np.tile(self.base, (len(X), 1))
        arrays = self.roots, self.children, self.feature, self.threshold
        add_trees(np.ascontiguousarray(X), *arrays, self.missing_left, self.value, sums)
        return sums

    def __post_init__(self) -> None:
        """Refuse arrays whose trees a kernel would walk without end or out of bounds."""
        nodes = self.feature, self.threshold, self.missing_left, self.value
        arrays = self.base, self.roots, self.children, *nodes
        node_count = self.value.size
        if (
            "".join(array.dtype.kind for array in arrays) != "fiiifbf"
            or {array.shape for array in nodes} != {(node_count,)}
            or self.children.shape != (node_count, 2)
            or not ((self.roots >= 0) & (self.roots < node_count)).all()
            or not ((self.feature >= 0) & (self.feature < self.n_features_in_)).all()
            or not ((self.children >= 0) & (self.children < node_count)).all()
        ):
            raise DamagedFile("trees that no fit has made")

    def __reduce__(self) -> tuple[type[BoostedTrees], tuple[Any, ...]]:
        """Make a copy by a call, which checks what a file holds."""
        return BoostedTrees, tuple(vars(self).values())


def _codes(indicators: Array) -> Array:
    """Return the codes of rows of indicators."""
    is_one = indicators == 1.0
    codes = np.where(is_one.any(axis=1), np.argmax(is_one, axis=1) + 1.0, 0.0)
    return np.where((is_one | (indicators == 0.0)).all(axis=1), codes, np.nan)


# Map of predictions to scores by the loss of a regressor.
_LINKS = {"poisson": "log", "absolute_error": "identity", "squared_error": "identity"}


def as_arrays(model: Any) -> Any:
    """Return fitted histogram boosting of scikit-learn as `BoostedTrees`, other models as they are.

    So are models with categorical features or other losses, and those of releases of scikit-learn
    that keep their trees in another way.
    """
    boosting = HistGradientBoostingClassifier, HistGradientBoostingRegressor
    if type(model) not in boosting:
        return model
    classes = getattr(model, "classes_", None)
    link = "classes" if classes is not None else _LINKS.get(model.loss)
    try:
        trees = [tree.nodes for step in model._predictors for tree in step]
        nodes, baseline = np.concatenate(trees), np.ravel(model._baseline_prediction)
        if link is None or nodes["is_categorical"].any():
            return model
        sizes = [len(tree) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        indices, first_nodes = np.arange(len(nodes)), np.repeat(roots, sizes)
        is_leaf = nodes["is_leaf"].astype(bool)
        left, right = (
            np.where(is_leaf, indices, first_nodes + nodes[side]) for side in ("left", "right")
        )
        return BoostedTrees(
            baseline.astype(float),
            roots.astype(np.intp),
            np.column_stack([left, right]).astype(np.intp),
            nodes["feature_idx"].astype(np.intp),
            nodes["num_threshold"].astype(float),
            nodes["missing_go_to_left"].astype(bool),
            nodes["value"].astype(float),
            link,
            model.n_features_in_,
            classes,
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return model
