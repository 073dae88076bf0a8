"""Arguments of users that are more than numbers: powers, weights and sites."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.sites import Sites
from qpruntime.projection.projector import Projector
from qpruntime.validation import finite, number

__all__ = ["check_powers", "check_sites"]


def check_powers(
    power: float, weights: ArrayLike | None, projector: Projector, n: int
) -> tuple[float, Array | None]:
    """Return power and weights, None for weights of 1, or raise `InputError`."""
    power = number(power, "power", above=0.0, most=1.0)
    checked = None if weights is None else finite(weights, "weights", (n,))
    if checked is not None and (checked < 0.0).any():
        raise InputError(f"weights must not be negative, got {checked.min():g}")
    if checked is not None and (checked == 1.0).all():
        checked = None
    if power != 1.0 or checked is not None:
        if projector.method == "wp" and projector.table is not None:
            raise InputError(
                f"weights and powers are integrated, which the table {projector.table.path} of L_p "
                "projections does not do: leave it out"
            )
        projector.need_density("weights and powers are integrated")
        if projector.method == "vb":
            raise InputError('method "vb" takes neither weights nor a power; use "ep" or "qp"')
    return power, checked


def check_sites(
    sites: Sites | Sequence[ArrayLike] | None, n: int, log_concave: bool = True
) -> Sites | None:
    """Return starting sites as float arrays, or raise `InputError`."""
    if sites is None:
        return None
    try:
        first, second = sites
    except (TypeError, ValueError) as error:
        raise InputError(f"sites must be a pair (tau, nu) of arrays of shape ({n},)") from error
    tau, nu = finite(first, "tau", (n,)), finite(second, "nu", (n,))
    if log_concave and (tau < 0.0).any():
        raise InputError(f"site precisions must not be negative, got {tau.min():g}")
    return Sites(tau, nu)
