"""JAX for the formulas of `qpruntime.interop`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, erfc, gammaln

from qpruntime.interop.array_operations import MARGIN, Operations

__all__ = ["JAX"]


class JAX(Operations):
    """Operations of `jax.numpy`; functions with explicit derivatives are `jax.custom_jvp`."""

    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    expm1 = staticmethod(jnp.expm1)
    sqrt = staticmethod(jnp.sqrt)
    abs = staticmethod(jnp.abs)
    tanh = staticmethod(jnp.tanh)
    floor = staticmethod(jnp.floor)
    where = staticmethod(jnp.where)
    maximum = staticmethod(jnp.maximum)
    minimum = staticmethod(jnp.minimum)
    erf = staticmethod(erf)
    erfc = staticmethod(erfc)
    lgamma = staticmethod(gammaln)
    stop_gradient = staticmethod(jax.lax.stop_gradient)

    def arrays(self, *values: Any) -> list[Any]:
        tensors = [jnp.asarray(v) for v in values]
        # Numbers of Python have JAX's own type, single or double, and arrays say theirs.
        kinds = [
            a.dtype for a in tensors if jnp.issubdtype(a.dtype, jnp.floating) and not a.weak_type
        ]
        kind = jnp.result_type(*kinds, jnp.float32) if kinds else jnp.result_type(float)
        return list(jnp.broadcast_arrays(*(a.astype(kind) for a in tensors)))

    def constant(self, value: Any, like: Any) -> Any:
        return jnp.asarray(value, like.dtype)

    def exponent(self, like: Any) -> float:
        return math.log(float(jnp.finfo(like.dtype).max)) - MARGIN

    def take(self, table: Any, index: Any) -> Any:
        return table[index.astype(jnp.int32)]

    def total(self, x: Any) -> Any:
        return x.sum(axis=-1)

    def largest(self, x: Any) -> Any:
        return x.max(axis=-1)

    def derived(self, value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Any:
        function = jax.custom_jvp(value)

        @function.defjvp
        def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
            (z,), (dz,) = primals, tangents
            return function(z), slope(z) * dz

        return function

    def along(self, function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
        return jax.jvp(function, (x,), (jnp.ones_like(x),))
