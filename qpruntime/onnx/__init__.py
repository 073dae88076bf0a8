"""Fitted classifiers as ONNX graphs, which run without Python (extra ``onnx``)."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper
from scipy.linalg import solve_triangular
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, RationalQuadratic
from sklearn.utils.validation import check_is_fitted

from qpruntime._atomic_file import write_whole
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import only_mode
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.joint_classifier import is_joint
from qpruntime.estimators.process import Process
from qpruntime.inference.dense.solution import DenseSolution
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.posterior import SparseSolution
from qpruntime.kernels.registry import Leaf, Multiplied, Node, read
from qpruntime.learning.scaling import Warp

__all__ = ["to_onnx"]

# --- A fitted classifier as one graph: features in, labels and class probabilities out.

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
        `correction`, `prior_mean`, `monotone` and nearest rows; classes one against the rest.
    path : path, optional
        A file to write, whole or not at all.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    InputError
        If the model has a part without a formula here; the message names it and what to do.

    See Also
    --------
    qpruntime.GPClassifier, qpruntime.load

    Examples
    --------
    >>> from qpruntime import GPClassifier
    >>> from qpruntime.onnx import to_onnx
    >>> model = GPClassifier().fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    >>> graph = to_onnx(model).graph
    >>> [node.name for node in graph.output]
    ['label', 'probabilities']
    """
    if not isinstance(model, GPClassifier):
        raise InputError(f"to_onnx takes a GPClassifier, got {type(model).__name__}")
    check_is_fitted(model)
    only_mode(model, "graphs are")
    noise = _checked(model)
    graph = OnnxGraph()
    X = "X" if model.warp_ is None else _warped(graph, model.warp_, model.n_features_in_)
    scores = []
    for process, prior in zip(model.processes(), model.prior_means(np.empty((0, 0))), strict=True):
        mean, var = _moments(graph, process, X)
        mean = graph.add("Add", mean, float(prior))
        scores.append(graph.add("Div", mean, graph.add("Sqrt", graph.add("Add", var, noise))))
    if len(scores) == 1:
        scores.insert(0, graph.add("Neg", scores[0]))
    score = graph.add("Concat", *scores, axis=1)
    logs = log_cdf(graph, score)
    # p_c/(1 - p_c)^b of several classes, each against the rest.
    b = model.coupling_ if len(model.classes_) > 2 else 0.0
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
    if is_joint(model):
        raise InputError(
            "probabilities of joint classes are an integral, which no ONNX graph has: fit with "
            'multi_class="one_vs_rest"'
        )
    if model.slopes_ is not None:
        raise InputError(
            "monotone features are observed slopes of the latent function, whose covariances have "
            "no ONNX graph here: fit with monotone=None"
        )
    likelihood = model.fitted_likelihood
    name = "a table of surfaces" if likelihood is None else likelihood.name
    if name not in _NOISE:
        raise InputError(
            f"p(y|x) of {name} is an integral, which no ONNX graph has: fit with one of "
            f"{tuple(_NOISE)}"
        )
    # Rows that were read in parts leave none.
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
    for process in model.processes():
        solution = solution_of(process.posterior)
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


def _moments(graph: OnnxGraph, process: Process, X: str) -> tuple[str, str]:
    """Latent mean and variance at X, each (T, 1)."""
    solution, node = solution_of(process.posterior), read(process.kernel)
    prior = variance(graph, node, X)
    if isinstance(solution, SparseSolution):
        inducing = solution.inducing
        across = covariance(graph, node, X, inducing.Z)
        phi = graph.add("MatMul", across, _inverse(inducing.L).T)
        mean = graph.add("MatMul", phi, solution.weights[:, None])
        residual = graph.add("Max", graph.add("Sub", prior, graph.squares(phi)), 0.0)
        spread = graph.add("MatMul", phi, _inverse(solution.root).T)
        return mean, graph.add("Add", residual, graph.squares(spread))
    kept = solution.kept
    if kept.negative.size:
        raise InputError("sites of negative precision have no ONNX graph here: use the probit")
    across = covariance(graph, node, X, process.X_train)
    mean = graph.add("MatMul", across, kept.weights[:, None])
    spread = graph.add("MatMul", across, (_inverse(kept.lower) * kept.root).T)
    return mean, graph.add("Max", graph.add("Sub", prior, graph.squares(spread)), 0.0)


def _inverse(lower: Array) -> Array:
    # Entries above the diagonal are not part of a factor and may have any value.
    return solve_triangular(np.tril(lower), np.eye(len(lower)), lower=True)


def _warped(graph: OnnxGraph, warp: Warp, features: int) -> str:
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


def _labels(classes: ArrayLike) -> tuple[NDArray[Any], int]:
    """Return labels as the format has them: whole numbers, or text."""
    labels = np.asarray(classes)
    if labels.dtype.kind in "biu":
        return labels.astype(np.int64), TensorProto.INT64
    if labels.dtype.kind == "f":
        return labels.astype(np.float64), TensorProto.DOUBLE
    return labels.astype(str).astype(object), TensorProto.STRING


# --- log Phi(s) in double precision of operations that runtimes have; they have no error function.

#: Argument at which the continued fraction takes over from the series; both are right to 2e-11
#: there.
_MIDDLE, _TERMS, _DEPTH = 4.0, 60, 30


def log_cdf(graph: OnnxGraph, s: str) -> str:
    """Return log Phi(s): by its power series up to |s| = 4, by the Mills ratio beyond."""
    size = graph.add("Abs", s)
    near, far = graph.add("Min", size, _MIDDLE), graph.add("Max", size, _MIDDLE)
    # Phi(x) = 1/2 + phi(x) x (1 + x^2/3 + x^4/15 + ...), all terms positive. It is a polynomial in
    # x^2/16, because runtimes drop terms whose coefficients would be 0 in single precision.
    odd = 2.0 * np.arange(1, _TERMS) + 1.0
    coefficients = np.cumprod(np.r_[1.0, _MIDDLE**2 / odd])
    square = graph.add("Mul", near, near)
    share = graph.add("Mul", square, 1.0 / _MIDDLE**2)
    series = graph.polynomial(share, list(coefficients[::-1]))
    density = graph.add("Exp", graph.add("Mul", square, -0.5))
    part = graph.add("Mul", graph.add("Mul", density, near), series)
    below = graph.add("Sub", 0.5, graph.add("Mul", part, 1.0 / math.sqrt(2.0 * math.pi)))
    # The upper tail is phi(x) / (x + 1/(x + 2/(x + 3/(x + ...)))).
    ratio = far
    for k in range(_DEPTH, 0, -1):
        ratio = graph.add("Add", graph.add("Div", float(k), ratio), far)
    half = graph.add("Mul", graph.add("Mul", far, far), -0.5)
    tail = graph.add("Sub", half, graph.add("Log", ratio))
    tail = graph.add("Sub", tail, 0.5 * math.log(2.0 * math.pi))
    is_near = graph.add("Less", size, _MIDDLE)
    log_below = graph.add("Where", is_near, graph.add("Log", below), tail)
    above = graph.add("Sub", 1.0, graph.add("Exp", log_below))
    return graph.add("Where", graph.add("Less", s, 0.0), log_below, graph.add("Log", above))


# --- Covariances of new points with known ones, as operations of a graph.

#: Polynomials of Matern kernels in r sqrt(2 nu), from the highest power on.
_MATERN = {0.5: [1.0], 1.5: [1.0, 1.0], 2.5: [1.0 / 3.0, 1.0, 1.0]}


def covariance(graph: OnnxGraph, node: Node, X: str, Z: Array) -> str:
    """Return k(X, Z), shape (T, M); white noise of new points is no other's.

    Raises
    ------
    InputError
        If a kernel has no formula here.
    """
    if not isinstance(node, Leaf):
        operation = "Mul" if isinstance(node, Multiplied) else "Add"
        first, second = (covariance(graph, part, X, Z) for part in (node.first, node.second))
        return graph.add(operation, first, second)
    kernel, parts = node.kernel, node.parts
    if parts.constant:
        return graph.constant([[node.value]])
    if parts.noise:
        return graph.constant([[0.0]])
    if type(kernel) is DotProduct:
        return graph.add("Add", graph.add("MatMul", X, Z.T), kernel.sigma_0**2)
    if type(kernel) in (RBF, Matern, RationalQuadratic):
        squares = _squares(graph, X, Z, np.broadcast_to(kernel.length_scale, Z.shape[1]))
        return _radial(graph, kernel, squares)
    raise _unknown(kernel)


def _squares(graph: OnnxGraph, X: str, Z: Array, scale: Array) -> str:
    """Squared distances in length-scales: by differences, which do not cancel as products do."""
    total = ""
    for k, length in enumerate(scale):
        gap = graph.add("Sub", graph.columns(X, [k]), Z[:, k][None, :])
        gap = graph.add("Div", gap, float(length))
        square = graph.add("Mul", gap, gap)
        total = graph.add("Add", total, square) if total else square
    return total


def _radial(graph: OnnxGraph, kernel: RBF | Matern | RationalQuadratic, squares: str) -> str:
    nu = getattr(kernel, "nu", math.inf)
    if type(kernel) is RationalQuadratic:
        base = graph.add("Add", graph.add("Div", squares, 2.0 * kernel.alpha), 1.0)
        return graph.add("Pow", base, -float(kernel.alpha))
    if nu == math.inf:
        return graph.add("Exp", graph.add("Mul", squares, -0.5))
    if nu not in _MATERN:
        raise _unknown(kernel)
    distance = graph.add("Sqrt", graph.add("Mul", squares, 2.0 * nu))
    decay = graph.add("Exp", graph.add("Neg", distance))
    if nu == 0.5:
        return decay
    return graph.add("Mul", graph.polynomial(distance, _MATERN[nu]), decay)


def variance(graph: OnnxGraph, node: Node, X: str) -> str:
    """Return k(x, x), shape (T, 1) or (1, 1)."""
    if not isinstance(node, Leaf):
        operation = "Mul" if isinstance(node, Multiplied) else "Add"
        first, second = (variance(graph, part, X) for part in (node.first, node.second))
        return graph.add(operation, first, second)
    if node.parts.constant or node.parts.noise:
        return graph.constant([[node.value]])
    if type(node.kernel) is DotProduct:
        return graph.add("Add", graph.squares(X), node.kernel.sigma_0**2)
    return graph.constant([[1.0]])


def _unknown(kernel: object) -> InputError:
    return InputError(
        f"{kernel} has no formula in an ONNX graph: sums and products of ConstantKernel, RBF, "
        "Matern with nu 1/2, 3/2 or 5/2, RationalQuadratic, DotProduct and WhiteKernel have"
    )


# --- Building a graph: operations in double precision, by the names of their results.

#: Opset and format that runtimes of the last years read.
_OPSET, _FORMAT = 17, 8


class OnnxGraph:
    """Nodes and constants in the order in which they were added; results are names."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def constant(self, value: ArrayLike, dtype: DTypeLike = np.float64) -> str:
        """Return the name of a constant."""
        name = f"c{len(self._constants)}"
        array = np.ascontiguousarray(np.asarray(value, dtype=dtype))
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operation: str, *inputs: str | ArrayLike, **attributes: Any) -> str:
        """Return the name of a result; inputs that are no names become constants."""
        name = f"v{len(self._nodes)}"
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self._nodes.append(helper.make_node(operation, names, [name], **attributes))
        return name

    def columns(self, X: str, some: ArrayLike) -> str:
        """Return columns of an array (T, d)."""
        return self.add("Gather", X, self.constant(some, np.int64), axis=1)

    def squares(self, X: str) -> str:
        """Return sums of squares of the rows of an array, (T, 1)."""
        return self.add("ReduceSumSquare", X, axes=[1], keepdims=1)

    def polynomial(self, x: str, coefficients: list[float]) -> str:
        """Return a polynomial by Horner's rule, of coefficients from the highest on."""
        value = self.add("Mul", x, coefficients[0])
        for coefficient in coefficients[1:-1]:
            value = self.add("Mul", self.add("Add", value, coefficient), x)
        return self.add("Add", value, coefficients[-1])

    def model(
        self, features: int, outputs: dict[str, tuple[str, int, list[str | int]]]
    ) -> ModelProto:
        """Return the checked model of inputs X (T, d), given name, type and shape of results."""
        for name, (result, _, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [result], [name]))
        graph = helper.make_graph(
            self._nodes,
            "qpruntime",
            [helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["T", features])],
            [
                helper.make_tensor_value_info(name, kind, shape)
                for name, (_, kind, shape) in outputs.items()
            ],
            self._constants,
        )
        opset = helper.make_opsetid("", _OPSET)
        made = helper.make_model(graph, opset_imports=[opset], producer_name="qpruntime")
        made.ir_version = _FORMAT
        checker.check_model(made)
        return made
