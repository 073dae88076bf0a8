"""Whether a fit is one that the policy is for."""

from __future__ import annotations

from qpruntime.learning.data import Data
from qpruntime.learning.policy.subsets import FEWEST
from qpruntime.learning.settings import Settings

__all__ = ["DENSE", "acts", "acts_on_few"]

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


def _free(data: Data, settings: Settings) -> bool:
    """Not where the user gives the kernel, its start or what is maximised.

    Nor where corrections or method "vb" ask for the dense engine, nor for one column: that is a
    series. A scheduler computes passes over all rows, of which few need none.
    """
    return (
        settings.auto is not None
        and int(data.X.shape[1]) > 1
        and settings.kernel is None
        and settings.optimize
        and settings.n_restarts == 0
        and settings.objective == "evidence"
        and settings.solver == "auto"
        and (settings.scheduler is None or len(data.y) > DENSE)
        and data.projector.method in ("ep", "qp")
    )
