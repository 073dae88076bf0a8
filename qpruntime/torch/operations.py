"""PyTorch for the formulas of `qpruntime.interop`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch.autograd.function import FunctionCtx

from qpruntime._typing import ArrayLike
from qpruntime.interop.array_operations import MARGIN, ArrayLibrary

__all__ = ["Torch"]

Function = Callable[[torch.Tensor], torch.Tensor]


class Torch(ArrayLibrary[torch.Tensor]):
    """Operations of `torch`; functions with explicit derivatives are `torch.autograd.Function`."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    expm1 = staticmethod(torch.expm1)
    sqrt = staticmethod(torch.sqrt)
    abs = staticmethod(torch.abs)
    tanh = staticmethod(torch.tanh)
    floor = staticmethod(torch.floor)
    where = staticmethod(torch.where)
    erf = staticmethod(torch.erf)
    erfc = staticmethod(torch.erfc)
    lgamma = staticmethod(torch.lgamma)

    def maximum(self, x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
        """Return the larger of two, of which the second may be a number."""
        return torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, min=y)

    def minimum(self, x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
        """Return the smaller of two, of which the second may be a number."""
        return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y)

    def arrays(self, *values: ArrayLike) -> list[torch.Tensor]:
        """Return the values as tensors of one shape, type and device."""
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        floats = [v for v in tensors if v.is_floating_point()]
        kind, place = torch.float64, None
        for tensor in floats:
            kind = tensor.dtype if tensor is floats[0] else torch.promote_types(kind, tensor.dtype)
        for tensor in tensors:
            place = tensor.device
        # Convert to this type at once, because a Python number would go through single precision.
        made = [torch.as_tensor(v, dtype=kind, device=place) for v in values]
        return list(torch.broadcast_tensors(*made))

    def constant(self, value: ArrayLike, like: torch.Tensor) -> torch.Tensor:
        """Return a constant array of the type of `like`."""
        return torch.as_tensor(value, dtype=like.dtype, device=like.device)

    def exponent(self, like: torch.Tensor) -> float:
        """Return an exponent far within the type of `like`."""
        return math.log(torch.finfo(like.dtype).max) - MARGIN

    def stop_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same numbers, through which nothing is derived."""
        return x.detach()

    def take(self, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return entries of a flat array at floating whole numbers."""
        # A cavity that is not a number has no cell: its weights make NaN of any entry.
        return table[index.nan_to_num(0.0).long()]

    def total(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum over the last axis."""
        return x.sum(-1)

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maximum over the last axis."""
        return x.amax(-1)

    def derived(self, value: Function, slope: Function) -> Function:
        """Return `value` as a function whose derivative is `slope`."""

        class Derived(torch.autograd.Function):
            generate_vmap_rule = True

            forward = staticmethod(value)

            @staticmethod
            def setup_context(
                ctx: FunctionCtx, inputs: tuple[torch.Tensor], output: torch.Tensor
            ) -> None:
                (z,) = inputs
                ctx.save_for_backward(z)
                ctx.save_for_forward(z)

            @staticmethod
            def backward(ctx: FunctionCtx, grad: torch.Tensor) -> torch.Tensor:
                (z,) = ctx.saved_tensors
                return grad * slope(z)

            @staticmethod
            def jvp(ctx: FunctionCtx, tangent: torch.Tensor) -> torch.Tensor:
                (z,) = ctx.saved_tensors
                return tangent * slope(z)

        return cast("Function", Derived.apply)  # PyTorch has no type for it

    def along(self, function: Function, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an element-wise function at x, and its derivative."""
        value, slope, *_ = torch.func.jvp(function, (x,), (torch.ones_like(x),))
        return value, slope
