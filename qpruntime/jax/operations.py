"""JAX for the formulas of `qpruntime.interop`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, erfc, gammaln

from qpruntime._typing import ArrayLike
from qpruntime.interop.array_operations import MARGIN, ArrayLibrary

__all__ = ["JAX"]

Function = Callable[[jax.Array], jax.Array]


class JAX(ArrayLibrary[jax.Array]):
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

    def arrays(self, *values: ArrayLike) -> list[jax.Array]:
        """Return the values as arrays of one shape and type."""
        tensors = [jnp.asarray(v) for v in values]
        # Numbers of Python have JAX's own type, single or double, and arrays say theirs.
        kinds = [
            a.dtype for a in tensors if jnp.issubdtype(a.dtype, jnp.floating) and not a.weak_type
        ]
        kind = jnp.result_type(*kinds, jnp.float32) if kinds else jnp.result_type(float)
        return list(jnp.broadcast_arrays(*(a.astype(kind) for a in tensors)))

    def constant(self, value: ArrayLike, like: jax.Array) -> jax.Array:
        """Return a constant array of the type of `like`."""
        return jnp.asarray(value, like.dtype)

    def exponent(self, like: jax.Array) -> float:
        """Return an exponent far within the type of `like`."""
        return math.log(float(jnp.finfo(like.dtype).max)) - MARGIN

    def take(self, table: jax.Array, index: jax.Array) -> jax.Array:
        """Return entries of a flat array at floating whole numbers."""
        return table[index.astype(jnp.int32)]

    def total(self, x: jax.Array) -> jax.Array:
        """Return the sum over the last axis."""
        return x.sum(axis=-1)

    def largest(self, x: jax.Array) -> jax.Array:
        """Return the maximum over the last axis."""
        return x.max(axis=-1)

    def derived(self, value: Function, slope: Function) -> Function:
        """Return `value` as a function whose derivative is `slope`."""
        function = jax.custom_jvp(value)

        @function.defjvp
        def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
            (z,), (dz,) = primals, tangents
            return function(z), slope(z) * dz

        return cast("Function", function)  # JAX has no type for it

    def along(self, function: Function, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return an element-wise function at x, and its derivative."""
        value, slope = jax.jvp(function, (x,), (jnp.ones_like(x),))
        return value, slope
