"""Building a graph: operations in double precision, by the names of their results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

__all__ = ["Graph"]

#: Opset and format that runtimes of the last years read.
_OPSET, _FORMAT = 17, 8


class Graph:
    """Nodes and constants in the order in which they were added; results are names."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: ArrayLike, dtype: Any = np.float64) -> str:
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

    def columns(self, X: str, some: Any) -> str:
        """Return columns of an array (T, d)."""
        return self.add("Gather", X, self.constant(some, np.int64), axis=1)

    def squares(self, X: str) -> str:
        """Return sums of squares of the rows of an array, (T, 1)."""
        return self.add("ReduceSumSquare", X, axes=[1], keepdims=1)

    def polynomial(self, x: str, coefficients: list[float]) -> str:
        """Return a polynomial by Horner's rule, of coefficients from the highest on."""
        found = self.add("Mul", x, coefficients[0])
        for coefficient in coefficients[1:-1]:
            found = self.add("Mul", self.add("Add", found, coefficient), x)
        return self.add("Add", found, coefficients[-1])

    def model(self, features: int, outputs: dict[str, tuple[str, int, list[Any]]]) -> ModelProto:
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
