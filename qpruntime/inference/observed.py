"""What a posterior remembers of its problem, for corrections that look at the data once more."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.covariance import covariance
from qpruntime.likelihoods import Likelihood

__all__ = ["Observed"]

#: Two covariances are one if the posterior means that they give agree to this, in units of them.
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Observed:
    """Prior and data of N sites.

    Attributes
    ----------
    K : ndarray, shape (N, N), or None
        Prior covariance, the very array of the inference; pickles leave it out.
    y, prior : ndarray, shape (N,)
        Encoded observations and the prior mean.
    likelihood : Likelihood or None
        None where its code could not be pickled.
    power : float
    weights : ndarray, shape (N,), or None
    """

    K: Array | None
    y: Array
    prior: Array
    likelihood: Likelihood | None
    power: float = 1.0
    weights: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "K": None}
        try:
            pickle.dumps(self.likelihood)
        except Exception:  # of a user's function, whatever it is
            state["likelihood"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def with_covariance(self, K: ArrayLike, weights: Array, mean: Array) -> Observed:
        """Return a copy with a prior covariance, once it is known to be that of the inference.

        `weights` and `mean` are K^-1 (mean - prior mean) and the posterior mean.

        Raises
        ------
        InputError
            If it is another one.
        """
        own, _ = covariance(K)
        if own.shape != (mean.size, mean.size):
            raise InputError(f"K must have shape {(mean.size, mean.size)}, got {own.shape}")
        gap = np.abs(self.prior + own @ weights - mean)
        if not (gap <= _SAME * (np.abs(mean) + np.sqrt(own.diagonal()))).all():
            raise InputError(
                f"K is not the prior covariance of this posterior: with it the posterior mean of "
                f"site {int(np.argmax(gap))} would be off by {gap.max():.3g}"
            )
        return replace(self, K=own)
