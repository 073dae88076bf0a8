"""Effects of a term as intervals: of groups by size, along time and age as bands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.plotting.canvas import BLUE, GREY, axes_of
from qpruntime.validation import number

__all__ = ["CaterpillarDisplay"]

# Levels whose names are written.
_NAMED = 60


@dataclass(eq=False, kw_only=True)
class CaterpillarDisplay:
    """Posterior means and intervals of the effects of one term of `qpruntime.effects.EffectsModel`.

    Made by `from_estimator`.

    Attributes
    ----------
    names : tuple of str
        Of the effects.
    mean, lower, upper : ndarray, shape (R,)
    level : float
        Posterior probability of each interval.
    term : str
    ax_, figure_, intervals_
        What `plot` has drawn: axes, figure, and the lines or the band.
    """

    names: tuple[str, ...]
    mean: Array
    lower: Array
    upper: Array
    level: float
    term: str
    ax_: Any = field(init=False, default=None)
    figure_: Any = field(init=False, default=None)
    intervals_: Any = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls, model: Any, term: str, *, level: float = 0.95, ax: Any = None, **options: Any
    ) -> CaterpillarDisplay:
        """Ask a fitted model for the effects of a term and draw them.

        Parameters
        ----------
        model : EffectsModel
        term : str
            As of `EffectsModel.effects`.
        level : float
            Posterior probability of the intervals.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If there is no such term, or matplotlib is missing (extra ``plot``).
        """
        inside = number(level, "level", above=0.0, most=0.999999)
        if not hasattr(model, "effects"):
            raise InputError(f"a caterpillar is of a fitted EffectsModel, got {model!r:.80}")
        table = model.effects(term, (0.5 - 0.5 * inside, 0.5 + 0.5 * inside))
        lower, upper = table.values[:, 2], table.values[:, 3]
        mean = table.column("mean")
        found = cls(names=table.names, mean=mean, lower=lower, upper=upper, level=inside, term=term)
        return found.plot(ax=ax, **options)

    def plot(self, *, ax: Any = None, sort: bool = True, band: bool = False) -> CaterpillarDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
        sort : bool
            Whether effects are drawn from the least to the largest.
        band : bool
            Whether names are numbers, and a band is drawn along them instead.
        """
        ax = axes_of(ax)
        if band:
            try:
                at = np.array([float(name) for name in self.names])
            except ValueError as error:
                raise InputError("band=True is for terms along a number, as Walk") from error
            self.intervals_ = ax.fill_between(at, self.lower, self.upper, color=BLUE, alpha=0.25)
            ax.plot(at, self.mean, color=BLUE)
            ax.set(ylabel=f"effect, {100 * self.level:g} %", xlabel=self.term)
        else:
            order = np.argsort(self.mean) if sort else np.arange(len(self.mean))
            place = np.arange(len(order))
            self.intervals_ = ax.hlines(place, self.lower[order], self.upper[order], color=BLUE)
            ax.plot(self.mean[order], place, "o", color=BLUE, markersize=3)
            ax.axvline(0.0, color=GREY, linewidth=0.8)
            if len(order) <= _NAMED:
                size = min(10.0, 260.0 / max(1, len(order)))
                ax.set_yticks(place, [self.names[k] for k in order], fontsize=size)
            else:
                ax.set_yticks([])
            ax.set(xlabel=f"effect, {100 * self.level:g} %", ylabel=self.term)
        self.ax_, self.figure_ = ax, ax.figure
        return self
