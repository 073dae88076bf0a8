"""What a posterior keeps of its factorisation: as much as prediction and the gradient need.

Inference leaves K, the factor and its inverse behind, 3 N^2 numbers. A prediction takes the weights
and the factor, the gradient of the evidence an inverse that is as soon computed again. A pickle
holds the one triangle of the factor that is not zero, N^2/2 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg.lapack import dtpttr, dtrttp

from qpruntime.arrays import Array
from qpruntime.inference.dense.factor import Factor

__all__ = ["Kept"]


class Kept(Factor):
    """A `Factor` for `weights`, `mean`, `log_det`, `reduction` and `inner`; it cannot be relocated.

    Parameters
    ----------
    factor : Factor
        Not changed; the triangle is shared with it.
    """

    def __init__(self, factor: Factor) -> None:
        factor._solve()  # takes K
        vars(self).update(vars(factor))
        self.K = np.empty((0, 0))
        self._half = self._inverse = None
        self._mirrored = False
        vars(self).pop("_spread", None)

    def inner(self) -> Array:
        """Return (K + diag(1/tau))^-1, shape (N, N); computed anew, and not kept.

        By a copy: half an inverse must not stay here, whoever interrupts or calls at the same time.
        """
        working = object.__new__(Factor)
        vars(working).update(vars(self))
        return working.inner()

    def __getstate__(self) -> dict[str, Any]:
        packed, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"lower": packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lower, _ = dtpttr(self.root.size, state["lower"], uplo="L")
