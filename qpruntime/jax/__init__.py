"""`qpruntime.functions` on JAX: jit, vmap, grad, any order of derivatives, no call-back to a host.

The extra ``jax``. Double precision is JAX's own switch, ``jax_enable_x64``; in single precision
results have what that has.
"""

from __future__ import annotations

import os

from qpruntime._formatting import install_hint

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"qpruntime.jax needs JAX: {install_hint('jax')} ({error})") from error

from qpruntime.interop.array_api import PortableFunctions
from qpruntime.jax.operations import JAX
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.table import Table

__all__ = ["functions"]


def functions(
    likelihood: str | Likelihood | None = None, table: Table | str | os.PathLike[str] | None = None
) -> PortableFunctions:
    """Functions of a likelihood of the package as pure functions of JAX arrays.

    Parameters
    ----------
    likelihood : str, Likelihood or None
        One that comes with the package; None is the likelihood of the table, probit without one.
    table : None, path, name or Table
        A compact table, from which sigma* comes; by default the one that ships.

    Returns
    -------
    PortableFunctions
        With the methods ``log_partition``, ``moments``, ``sigma_star``, ``expected_log_prob`` and
        ``log_predictive`` of ``(mu, sigma, y)``.

    Raises
    ------
    InputError
        If the likelihood is not one of the package, or the table is not compact.

    Examples
    --------
    >>> import jax
    >>> from qpruntime.jax import functions
    >>> slope = jax.jit(jax.grad(functions("probit").log_partition))
    >>> round(float(slope(0.0, 1.0, 1.0)), 4)
    0.5642
    """
    return PortableFunctions(JAX(), likelihood, table)
