"""Domain of a table of surfaces: a likelihood, its observations, and the ends of the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpruntime._validation import choice
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.projector import order
from qpruntime.projection.tabulated_likelihood import mode_of
from qpruntime.table_format.metadata import MOST_OUTCOMES, Axis

__all__ = ["LIMIT", "MU_RANGE", "SIGMA_RANGE", "Domain", "domain"]

#: Default domain, and the largest file.
MU_RANGE, SIGMA_RANGE, LIMIT = (-10.0, 10.0), (-2.0, 1.0), 128_000_000


@dataclass(frozen=True)
class Domain:
    """Likelihood, observations and ends of the axes of a table to be built.

    Attributes
    ----------
    likelihood : Likelihood
    source : str
        How the command line names it.
    mode : str
        One of `qpruntime.projection.tabulated_likelihood.MODES`.
    outcomes : tuple of float
        The y of each row, or the ends of the third axis.
    mu, log10_sigma : (float, float)
    limit : int
        Bytes of the largest table.
    p : float, optional
        Order of the L_p projections to store, in place of those of EP and QP.
    """

    likelihood: Likelihood
    source: str
    mode: str
    outcomes: tuple[float, ...]
    mu: tuple[float, float]
    log10_sigma: tuple[float, float]
    limit: int
    p: float | None = None

    @property
    def name(self) -> str:
        """Name of the likelihood."""
        return self.likelihood.name

    def axes(self, cells: Sequence[int]) -> tuple[Axis, ...]:
        """Return the axes with so many cells."""
        where = "mu - y" if self.mode == "location" else "y mu" if self.mode == "mirror" else "mu"
        names = (where, "log10_sigma", "y")
        ends = [self.mu, self.log10_sigma]
        if self.mode == "volume":
            ends.append((self.outcomes[0], self.outcomes[1]))
        return tuple(
            Axis(name, low, high, n + 1)
            for name, (low, high), n in zip(names, ends, cells, strict=False)
        )

    def nbytes(self, cells: Sequence[int]) -> int:
        """Size of a table with so many cells."""
        rows = cells[2] + 5 if self.mode == "volume" else len(self.outcomes)
        return 8 * interpolation.BANDS * rows * (cells[0] + 5) * (cells[1] + 5)


def domain(
    likelihood: Likelihood,
    source: str = "",
    *,
    outcomes: Sequence[float] | None = None,
    y_range: Sequence[float] | None = None,
    mu_range: Sequence[float] = MU_RANGE,
    log10_sigma_range: Sequence[float] = SIGMA_RANGE,
    limit: int = LIMIT,
    projection: str | None = None,
    p: float | None = None,
) -> Domain:
    """Check the options of a table of surfaces.

    Parameters
    ----------
    likelihood : Likelihood
        With a density.
    outcomes : sequence of float, optional
        The finite set of observations, for a likelihood that is neither mirror nor location.
    y_range : (float, float), optional
        The ends of a third axis, for continuous observations.
    mu_range, log10_sigma_range : (float, float)
        Of a location family the first is the range of mu - y.
    limit : int
        Bytes of the largest table.
    projection : {"wp"}, optional
        Store L_p projections of order `p` in place of those of EP and QP.

    Raises
    ------
    InputError
        If an option is not usable.
    """
    if outcomes is None and y_range is None:
        outcomes, y_range = _declared(likelihood)
    mode = mode_of(likelihood, y_range is not None)
    if not likelihood.has_density:
        raise InputError(f"likelihood {likelihood.name!r} has no density to integrate")
    if mode in ("mirror", "location"):
        observations: tuple[float, ...] = (1.0,) if mode == "mirror" else (0.0,)
    elif (outcomes is None) == (y_range is None):
        raise InputError(
            f"likelihood {likelihood.name!r} ({likelihood.outcomes}) needs either outcomes, the "
            "finite set of its observations, or y_range, the ends of a third axis "
            "(--outcomes 0,1,2 or --y-range LO HI)"
        )
    elif y_range is not None:
        observations = _ends("y", y_range)
        likelihood.validate(np.array(observations))
    else:
        assert outcomes is not None
        if len(outcomes) > MOST_OUTCOMES:
            raise InputError(
                f"surfaces hold at most {MOST_OUTCOMES} outcomes, got {len(outcomes)}; of "
                "continuous ones, use y_range (--y-range LO HI)"
            )
        observations = tuple(
            sorted({float(v) for v in likelihood.validate(np.array(list(outcomes)))})
        )
    low, high = _ends("log10_sigma", log10_sigma_range)
    if low < -8.0 or high > 8.0:
        raise InputError(f"log10 sigma must stay within -8 to 8, got {low:g} to {high:g}")
    if limit < 100_000:
        raise InputError(f"the size limit must be at least 100000 bytes, got {limit}")
    return Domain(
        likelihood,
        source,
        mode,
        observations,
        _ends("mu", mu_range),
        (low, high),
        limit,
        _order(projection, p),
    )


def _order(projection: str | None, p: float | None) -> float | None:
    """Return p of L_p projections, None of the others."""
    if projection is None:
        if p is not None:
            raise InputError('p is the order of projection="wp" (--projection wp): ask for both')
        return None
    choice(projection, "projection", ("wp",))
    if p is None:
        raise InputError('projection "wp" needs its order, such as p=1.5 (--p 1.5)')
    return order("wp", p)


def _declared(likelihood: Likelihood) -> tuple[Sequence[float] | None, tuple[float, float] | None]:
    """Return outcomes or the range of y, if a user's likelihood was made with them."""
    allowed = dict(likelihood.recipe or ()).get("outcomes")
    if allowed is None or likelihood.mirror or likelihood.location:
        return None, None
    if allowed.values is not None:
        return allowed.values, None
    ends = (allowed.low, allowed.high)
    return None, ends if math.isfinite(ends[1] - ends[0]) else None


def _ends(name: str, ends: Sequence[float]) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in ends)
    except (TypeError, ValueError) as error:
        raise InputError(f"axis {name}: needs two numbers, got {ends!r}") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"axis {name}: needs finite LO < HI, got {low:g} and {high:g}")
    return low, high
