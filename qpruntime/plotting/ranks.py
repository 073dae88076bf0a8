"""Histogram of ranks that are uniform where a model is right, with what chance makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr

from qpruntime.arrays import Array
from qpruntime.criticism.pit import pit
from qpruntime.criticism.simulation import Calibration
from qpruntime.errors import InputError
from qpruntime.plotting.bands import known_level
from qpruntime.plotting.canvas import BLUE, GREY, axes_of, legend_below
from qpruntime.validation import finite, whole

__all__ = ["RanksDisplay"]


@dataclass(eq=False, kw_only=True)
class RanksDisplay:
    """How many ranks fall into each of equal bins, beside what a binomial expects of each.

    A hump in the middle means predictions too wide, a valley too narrow, a slope a bias.

    Attributes
    ----------
    counts : ndarray of int, shape (B,)
        Ranks in each bin.
    expected : float
        Of each bin.
    low, high : int
        A bin of a model that is right has so many with probability `level` at least.
    level : float
    name : str
    ax_, figure_, bars_
        What `plot` has drawn.
    """

    counts: np.ndarray
    expected: float
    low: int
    high: int
    level: float
    name: str
    ax_: Any = field(init=False, default=None)
    figure_: Any = field(init=False, default=None)
    bars_: Any = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls, estimator: Any, y: ArrayLike | None = None, *, random_state: Any = 0, **options: Any
    ) -> RanksDisplay:
        """Draw where the rows of a fit lie in their leave-one-out predictions.

        Parameters
        ----------
        estimator : fitted GPPoissonRegressor or GPRobustRegressor
        y : array-like, shape (N,), optional
            As of `qpruntime.criticism.pit`.
        random_state : int, Generator or None
            For counts.
        **options
            Of `from_values`.
        """
        found = pit(estimator, y, random_state=random_state)
        return cls.from_values(found, **{"name": type(estimator).__name__, **options})

    @classmethod
    def from_calibration(cls, calibration: Calibration, **options: Any) -> RanksDisplay:
        """Draw the ranks of `qpruntime.check_calibration`, one row of each simulation.

        Rows of one simulation depend on each other, and the band is of independent ranks.
        """
        return cls.from_values(calibration.ranks[:, 0], **{"name": "simulations", **options})

    @classmethod
    def from_values(
        cls,
        ranks: ArrayLike,
        *,
        n_bins: int = 10,
        level: float = 0.95,
        name: str = "model",
        ax: Any = None,
        **options: Any,
    ) -> RanksDisplay:
        """Count ranks, and draw.

        Parameters
        ----------
        ranks : array-like, shape (N,)
            From 0 to 1.
        n_bins : int
        level : float
            Probability of the band that a single bin is expected in.
        name : str
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).

        Examples
        --------
        >>> from qpruntime.plotting import RanksDisplay
        >>> RanksDisplay.from_values([0.1, 0.4, 0.6, 0.9], n_bins=2).counts.tolist()
        [2, 2]
        """
        values, bins, known = finite(ranks, "ranks"), whole(n_bins, "n_bins", 1), known_level(level)
        if values.ndim != 1 or not values.size:
            raise InputError(f"ranks must have shape (N,), N at least 1, got {values.shape}")
        if not ((values >= 0.0) & (values <= 1.0)).all():
            raise InputError(f"ranks must be from 0 to 1, got {values.min():g} to {values.max():g}")
        counts = np.histogram(values, bins, (0.0, 1.0))[0]
        low, high = _ends(values.size, 1.0 / bins, known)
        found = cls(
            counts=counts, expected=values.size / bins, low=low, high=high, level=known, name=name
        )
        return found.plot(ax, **options)

    def plot(self, ax: Any = None, *, color: str = BLUE) -> RanksDisplay:
        """Draw the histogram over the band.

        Parameters
        ----------
        ax : Axes, optional
        color : str

        Returns
        -------
        RanksDisplay
            The object itself.
        """
        ax = axes_of(ax)
        edges = np.linspace(0.0, 1.0, self.counts.size + 1)
        band = f"{100.0 * self.level:g} % of bins, if the model is right"
        ax.axhspan(self.low, self.high, color=GREY, alpha=0.2, linewidth=0.0, label=band)
        ax.axhline(self.expected, color=GREY, linewidth=1.0, linestyle=":")
        self.bars_ = ax.bar(
            edges[:-1], self.counts, np.diff(edges), align="edge", color=color, alpha=0.75,
            edgecolor="white", label=self.name,
        )  # fmt: skip
        ax.set(xlim=(0.0, 1.0), xlabel="rank of what was seen", ylabel="rows")
        legend_below(ax, columns=2)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _ends(n: int, p: float, level: float) -> tuple[int, int]:
    """Quantiles of a binomial of n and p, with (1 - level)/2 beyond each at most."""
    mass: Array = bdtr(np.arange(n + 1), n, p)
    tail = 0.5 - 0.5 * level
    low, high = (int(np.searchsorted(mass, at)) for at in (tail, 1.0 - tail))
    return low, min(high, n)
