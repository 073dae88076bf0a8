"""Integrate sigma* at every node of a grid, in runs of neighbouring cavities that share nodes."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.quadrature.sigma_star_kernels import OK, exact_run

__all__ = ["integrate"]

#: Cavities this many standard deviations apart still share their quadrature nodes.
_SPAN = 0.3


@kernel
def _fill_direct(
    theta: Array,
    has_frame: bool,
    split: int,
    frame: object,
    mu: Array,
    sigma: Array,
    y: float,
    out: Array,
) -> tuple[int, int, int]:
    """out[i, j] = sigma*(mu[i], sigma[j]); mu ascends. Return (status, i, j) of a failure."""
    row = np.empty((mu.size, 4))
    for j in range(sigma.size):
        i = 0
        while i < mu.size:
            stop = i + 1
            while stop < mu.size and mu[stop] - mu[i] <= _SPAN * sigma[j]:
                stop += 1
            status = exact_run(split, frame, has_frame, mu[i:stop], sigma[j], y, theta, row[i:stop])
            if status != OK:
                return status, i, j
            for k in range(i, stop):
                out[k, j] = row[k, 3]
            i = stop
    return OK, 0, 0


def integrate(likelihood: Likelihood, mu: Array, sigma: Array, y: float) -> Array:
    """Integrate sigma* (a standard deviation) at every pair of `mu` and `sigma`.

    Parameters
    ----------
    likelihood : Likelihood
    mu : ndarray, shape (M,)
        Ascending cavity means.
    sigma : ndarray, shape (S,)
        Cavity standard deviations.
    y : float
        The observation.

    Returns
    -------
    ndarray, shape (M, S)

    Raises
    ------
    NumericalError
        If the quadrature does not converge somewhere; the message says where.
    """
    theta, _, has_frame, split, _, frame = likelihood.functions()[:6]
    out = np.empty((mu.size, sigma.size))
    status, i, j = _fill_direct(theta, has_frame, split, frame, mu, sigma, y, out)
    if status != OK:
        likelihood.raise_failure()
        raise NumericalError(
            f"{likelihood.spelt}: no quadrature at mu = {mu[i]:g}, sigma = {sigma[j]:g} "
            f"(status {status}); narrow the ranges"
        )
    return out
