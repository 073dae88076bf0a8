"""`Integrate`: how hyper-parameters are integrated, as one value, checked when it is made."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from qpruntime.errors import InputError
from qpruntime.learning.options import Options
from qpruntime.validation import choice, shown, whole

__all__ = ["DESIGNS", "Integrate", "integrate_of"]

DESIGNS = ("auto", "grid", "composite", "importance", "nuts")
_EVIDENCES = ("ep", "corrected")
#: Designs of which the number of nodes is asked for, and its limits.
_DRAWN, _FEWEST, _MOST = ("auto", "importance", "nuts"), 8, 10_000


@dataclass(frozen=True, eq=False, repr=False)
class Integrate(Options):
    """How hyper-parameters are integrated: ``hyperparameters="integrate"`` is this as by default.

    Parameters
    ----------
    design : {"auto", "grid", "composite", "importance", "nuts"}
        Where the density of the log parameters is looked at. "grid" is a lattice around its mode,
        for three parameters at most; "composite" a central composite design, for eight at most;
        "importance" draws of a Student t around the mode, weighted; "nuts" a chain by the slope of
        the evidence. "auto" is a grid for two parameters at most, then importance, and a chain
        where that fails.
    n : int, optional
        Draws of "importance", a power of 2 spreads them best, or of "nuts" after its warm-up. By
        default 64. Without a ``random_state`` of the estimator every fit has the same draws.
    evidence : {"ep", "corrected"}
        What weighs nodes, beside the prior: that of EP, or `Posterior.corrected_evidence`, of the
        dense engine alone.

    Raises
    ------
    InputError
        If an option is not usable.

    Examples
    --------
    >>> from qpruntime import Integrate
    >>> Integrate("importance", n=128)
    Integrate('importance', n=128)
    """

    design: Literal["auto", "grid", "composite", "importance", "nuts"] = "auto"
    _: KW_ONLY
    n: int | None = None
    evidence: Literal["ep", "corrected"] = "ep"

    def __post_init__(self) -> None:
        self._set(
            design=choice(self.design, "design", DESIGNS),
            evidence=choice(self.evidence, "evidence", _EVIDENCES),
        )
        if self.n is None:
            return
        self._set(n=whole(self.n, "n", _FEWEST))
        if self.n > _MOST:
            raise InputError(f"n must be at most {_MOST}, got {self.n}")
        if self.design not in _DRAWN:
            raise InputError(
                f"n={self.n} cannot act with design={shown(self.design)}, whose nodes are found "
                'from the density: leave it out, or use design="importance"'
            )


def integrate_of(given: Any) -> Integrate | None:
    """Return what an estimator was given as ``hyperparameters=``; None is the mode alone."""
    if isinstance(given, Integrate):
        return given
    words = ("mode", "integrate")
    return Integrate() if choice(given, "hyperparameters", words) == "integrate" else None
