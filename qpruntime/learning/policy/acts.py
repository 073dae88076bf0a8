"""Whether a fit is one that the policy is for."""

from __future__ import annotations

from qpruntime.learning.data import Data
from qpruntime.learning.policy.subsets import FEWEST
from qpruntime.learning.settings import Settings

__all__ = ["DENSE", "acts", "acts_on_few", "why_never"]

#: More rows than this are not fitted densely.
DENSE = 1500


def acts(data: Data, settings: Settings) -> bool:
    """Whether kernel and engine are chosen for the rows there are.

    For more rows than are fitted densely; ``inducing="judged"`` asks for it from 60 rows on.
    """
    auto = settings.auto
    fewest = FEWEST if auto is not None and auto.few else DENSE + 1
    return len(data.y) >= fewest and _free(data, settings)


def acts_on_few(data: Data, settings: Settings) -> bool:
    """Whether the features of few rows may be taken as their ranks."""
    return FEWEST <= len(data.y) <= DENSE and _free(data, settings)


def why_never(data: Data, settings: Settings) -> str:
    """Say why nothing is chosen, however many rows there are; nothing if it may be.

    Not where the user gives the kernel, its start or what is maximised. Nor where method "vb" asks
    for the dense engine, nor for one column: that is a series.
    """
    method = data.projector.method
    for why, holds in (
        ("X has one column, which is a series", int(data.X.shape[1]) <= 1 and not data.levels),
        ("the kernel is given", settings.kernel is not None),
        ("optimize=False learns no kernel", not settings.optimize),
        ("restarts are of the dense engine", settings.n_restarts > 0),
        ('optimize="loo" is of the dense engine', settings.objective != "evidence"),
        ("the solver is given", settings.solver != "auto"),
        (f'method "{method}" is of the dense engine', method not in ("ep", "qp")),
    ):
        if holds:
            return why
    return ""


def _free(data: Data, settings: Settings) -> bool:
    """Not where the user asks for something else, nor where corrections ask for the dense engine.

    A scheduler computes passes over all rows, of which few need none.
    """
    return (
        settings.auto is not None
        and not why_never(data, settings)
        and (settings.scheduler is None or len(data.y) > DENSE)
    )
