"""A fitted classifier as one graph: features in, labels and class probabilities out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto
from scipy.linalg import solve_triangular
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.over_nodes import only_mode
from qpruntime.inference.dense.solution import DenseSolution
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.solution import SparseSolution
from qpruntime.kernels.tree import read
from qpruntime.learning.warp import Warp
from qpruntime.onnx.covariances import covariance, variance
from qpruntime.onnx.graph import Graph
from qpruntime.onnx.normal import log_cdf
from qpruntime.whole_file import write_whole

__all__ = ["to_onnx"]

#: Bytes that a file of this format can have.
_LARGEST = 2**31 - 2**20
#: Variances that latent noise of each likelihood adds, where p(+1) is a normal CDF.
_NOISE = {"probit": 1.0, "heaviside": 0.0}


def to_onnx(model: GPClassifier, path: str | os.PathLike[str] | None = None) -> ModelProto:
    """Return the class probabilities of a fitted classifier as an ONNX model.

    Its input is ``X``, double, shape (T, d), as `GPClassifier.predict_proba` takes it. Its outputs
    are ``probabilities``, double, (T, K) in the order of ``classes_``, equal to 1e-9, and
    ``label``, (T,), whole numbers or text. All is computed in double precision. A dense model of N
    rows takes 8 N^2 bytes, one of M inducing points 16 M^2.

    Parameters
    ----------
    model : GPClassifier
        Fitted by the dense engine or by inducing points, for "probit" or "heaviside", without
        `correction`, `prior_mean` and nearest rows.
    path : path, optional
        A file to write, whole or not at all.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    InputError
        If the model has a part without a formula here; the message names it and what to do.
    """
    if not isinstance(model, GPClassifier):
        raise InputError(f"to_onnx takes a GPClassifier, got {type(model).__name__}")
    check_is_fitted(model)
    only_mode(model, "graphs are")
    noise = _checked(model)
    graph = Graph()
    X = "X" if model.warp_ is None else _warped(graph, model.warp_, model.n_features_in_)
    scores = []
    for process, prior in zip(model._processes(), model._prior_at(np.empty((0, 0))), strict=True):
        mean, var = _moments(graph, process, X)
        mean = graph.add("Add", mean, float(prior))
        scores.append(graph.add("Div", mean, graph.add("Sqrt", graph.add("Add", var, noise))))
    if len(scores) == 1:
        scores.insert(0, graph.add("Neg", scores[0]))
    score = graph.add("Concat", *scores, axis=1)
    logs = log_cdf(graph, score)
    # p_c/(1 - p_c)^b of several classes, each against the rest.
    b = getattr(model, "coupling_", 0.0) if len(model.classes_) > 2 else 0.0
    if b:
        others = log_cdf(graph, graph.add("Neg", score))
        logs = graph.add("Sub", logs, graph.add("Mul", others, b))
    top = graph.add("ReduceMax", logs, axes=[1], keepdims=1)
    shares = graph.add("Exp", graph.add("Sub", logs, top))
    total = graph.add("ReduceSum", shares, graph.constant([1], np.int64), keepdims=1)
    probabilities = graph.add("Div", shares, total)
    best = graph.add("ArgMax", score, axis=1, keepdims=0)
    labels, kind = _labels(model.classes_)
    label = graph.add("Gather", graph.constant(labels, labels.dtype), best, axis=0)
    made = graph.model(
        model.n_features_in_,
        {
            "label": (label, kind, ["T"]),
            "probabilities": (probabilities, TensorProto.DOUBLE, ["T", len(labels)]),
        },
    )
    if path is not None:
        write_whole(path, lambda file: file.write(made.SerializeToString()))
    return made


def _checked(model: GPClassifier) -> float:
    """Return the variance that the likelihood adds, or raise `InputError`."""
    own = model._likelihood_
    name = "a table of surfaces" if own is None else own.name
    if name not in _NOISE:
        raise InputError(
            f"p(y|x) of {name} is an integral, which no ONNX graph has: fit with one of "
            f"{tuple(_NOISE)}"
        )
    # Models of before, unpickled, have none.
    table = getattr(model, "columns_", None)
    if table is not None and not table.plain:
        raise InputError(
            "columns of levels and missing values have no formula in an ONNX graph: fit numbers, "
            "encoded and filled in before"
        )
    for option in ("correction", "prior_mean_", "nearest_"):
        if getattr(model, option) not in (None, 0):
            raise InputError(
                f"{option.rstrip('_')} has no formula in an ONNX graph: fit without it"
                + ("; inducing=Inducing(M, nearest=0)" if option == "nearest_" else "")
            )
    known = (DenseSolution, SparseSolution)
    numbers = 0
    for one in model._processes():
        solution = solution_of(one.posterior)
        if not isinstance(solution, known):
            raise InputError(
                f"the engine {solution.name!r} has no ONNX graph: fit with "
                'solver="dense", or with inducing points'
            )
        width = solution.width
        numbers += width**2 * (1 if isinstance(solution, DenseSolution) else 2)
    if 8 * numbers > _LARGEST:
        raise InputError(
            f"the graph would take {8 * numbers / 2**30:.1f} GB, and the format has at most 2 GB: "
            "fit with inducing points"
        )
    return _NOISE[name]


def _moments(graph: Graph, process: Any, X: str) -> tuple[str, str]:
    """Latent mean and variance at X, each (T, 1)."""
    solution, node = solution_of(process.posterior), read(process.kernel)
    prior = variance(graph, node, X)
    if isinstance(solution, SparseSolution):
        inducing = solution.inducing
        across = covariance(graph, node, X, inducing.Z)
        phi = graph.add("MatMul", across, _inverse(inducing.L).T)
        mean = graph.add("MatMul", phi, solution.weights[:, None])
        rest = graph.add("Max", graph.add("Sub", prior, graph.squares(phi)), 0.0)
        spread = graph.add("MatMul", phi, _inverse(solution.root).T)
        return mean, graph.add("Add", rest, graph.squares(spread))
    kept = solution.kept
    if kept.negative.size:
        raise InputError("sites of negative precision have no ONNX graph here: use the probit")
    across = covariance(graph, node, X, process.X_train)
    mean = graph.add("MatMul", across, kept.weights[:, None])
    spread = graph.add("MatMul", across, (_inverse(kept.lower) * kept.root).T)
    return mean, graph.add("Max", graph.add("Sub", prior, graph.squares(spread)), 0.0)


def _inverse(lower: Array) -> Array:
    # What is above the diagonal is not part of a factor, and may be anything.
    found: Array = solve_triangular(np.tril(lower), np.eye(len(lower)), lower=True)
    return found


def _warped(graph: Graph, warp: Warp, features: int) -> str:
    """Return the ranks of features: linear between knots, constant beyond them."""
    columns = []
    for k in range(features):
        knots, levels = warp.knots[k], warp.levels[k]
        x = graph.columns("X", [k])
        if len(knots) == 1:
            columns.append(graph.add("Add", graph.add("Mul", x, 0.0), float(levels[0])))
            continue
        # The share of each interval that lies below x, in units of it.
        share = graph.add("Sub", x, knots[None, :-1])
        share = graph.add("Div", share, np.diff(knots)[None, :])
        share = graph.add("Max", graph.add("Min", share, 1.0), 0.0)
        rank = graph.add("MatMul", share, np.diff(levels)[:, None])
        columns.append(graph.add("Add", rank, float(levels[0])))
    return graph.add("Concat", *columns, axis=1)


def _labels(classes: Any) -> tuple[Any, int]:
    """Return labels as the format has them: whole numbers, or text."""
    found = np.asarray(classes)
    if found.dtype.kind in "biu":
        return found.astype(np.int64), TensorProto.INT64
    if found.dtype.kind == "f":
        return found.astype(np.float64), TensorProto.DOUBLE
    return found.astype(str).astype(object), TensorProto.STRING
