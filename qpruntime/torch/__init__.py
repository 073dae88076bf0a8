"""`qpruntime.functions` on PyTorch: autograd and `torch.func`, any order of derivatives.

The extra ``torch``.
"""

from __future__ import annotations

import os

from qpruntime._formatting import install_hint

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"qpruntime.torch needs PyTorch: {install_hint('torch')} ({error})"
    ) from error

from qpruntime.interop.array_api import PortableFunctions
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.table import Table
from qpruntime.torch.operations import Torch

__all__ = ["functions"]


def functions(
    likelihood: str | Likelihood | None = None, table: Table | str | os.PathLike[str] | None = None
) -> PortableFunctions:
    """Functions of a likelihood of the package, of tensors.

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
        ``log_predictive`` of ``(mu, sigma, y)``. Results have the type and device of the tensors
        among these, double precision where there is none.

    Raises
    ------
    InputError
        If the likelihood is not one of the package, or the table is not compact.

    Examples
    --------
    >>> import torch
    >>> from qpruntime.torch import functions
    >>> mu = torch.zeros((), dtype=torch.float64, requires_grad=True)
    >>> functions("probit").log_partition(mu, 1.0, 1.0).backward()
    >>> round(mu.grad.item(), 4)
    0.5642
    """
    return PortableFunctions(Torch(), likelihood, table)
