"""Whether inducing points can serve a fit at all; raised before anything is computed."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.learning.data import Data
from qpruntime.learning.settings import Settings

__all__ = ["check"]


def check(data: Data, settings: Settings, points: Array) -> None:
    """Raise `InputError` if inducing points cannot serve this fit; `points` are some rows of X."""
    sparse, n = settings.sparse, len(data.y)
    assert sparse is not None
    if data.projector.method == "vb":
        raise InputError(
            'method "vb" is dense only: use "ep" or "qp" with Inducing(200, power=0.05)'
        )
    if settings.objective == "loo":
        raise InputError(
            'optimize="loo" needs inducing=None: inducing points are learnt by optimize="evidence"'
        )
    if settings.n_restarts:
        raise InputError(
            "restarts needs inducing=None: stages with inducing points go on from one another; "
            "give a kernel that begins elsewhere, and compare log_marginal_likelihood_value_"
        )
    given = sparse.inducing
    if isinstance(given, int) and given > n:
        rows = "1 sample" if n == 1 else f"{n} rows"
        raise InputError(
            f"inducing={given} is more than the {rows}: use inducing=None, the dense engine, "
            "or fewer"
        )
    if isinstance(given, np.ndarray):
        if given.shape[1] != points.shape[1]:
            raise InputError(
                f"inducing must have {points.shape[1]} columns like X, got {given.shape[1]}"
            )
        low, high = points.min(axis=0), points.max(axis=0)
        reach = 10.0 * np.maximum(high - low, 1e-12)
        beyond = (given < low - reach) | (given > high + reach)
        if beyond.any(axis=1).all():
            raise InputError(
                "every inducing input is more than ten times the range of X away from X: give "
                "them in the units of X, or their number"
            )
