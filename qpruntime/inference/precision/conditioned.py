"""What constraints C x = 0 take from an inverse: W (C W)^-1 W' with W = P^-1 C'."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.precision.factorised import Factorised

__all__ = ["Conditioned"]


class Conditioned:
    """What a constraint takes from the inverse of a factorised matrix.

    Parameters
    ----------
    factor : Factorised
    C : ndarray, shape (m, K)

    Raises
    ------
    NumericalError
        If constraints repeat each other.
    """

    def __init__(self, factor: Factorised, C: Array) -> None:
        self.C = C[:, factor.symbolic.order]
        self.W = factor.solve(self.C.T)
        inner = self.C @ self.W
        try:
            self._inner = cho_factor(0.5 * (inner + inner.T), lower=True)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                f"the {len(C)} constraints repeat each other, or leave no room: drop those that "
                "follow from others"
            ) from error
        self.log_det = 2.0 * float(np.log(self._inner[0].diagonal()).sum())

    def project(self, x: Array) -> Array:
        """Return x (K,) or (K, T) moved to where C x = 0; in the factor's order of elimination."""
        moved: Array = x - self.W @ cho_solve(self._inner, self.C @ x)
        return moved

    def half(self) -> Array:
        """H (m, K) with H'H = W (C W)^-1 W', in the order of elimination."""
        found: Array = solve_triangular(self._inner[0], self.W.T, lower=True)
        return found
