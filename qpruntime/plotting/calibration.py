"""Reliability: how often what is said with probability p comes true, with counts and intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.plotting.bands import known_level
from qpruntime.plotting.canvas import BLUE, GREY, axes_of, legend_below
from qpruntime.plotting.reliability import reliability
from qpruntime.validation import shown

__all__ = ["CalibrationDisplay"]

# The axes of counts: how far below the diagram they begin, and how high they are, in points. Were
# they a part of its height, a layout would not know how much to leave for them.
_GAP, _HEIGHT = 14.0, 54.0
_LABEL = "qpruntime counts"


@dataclass(eq=False, kw_only=True)
class CalibrationDisplay:
    """Observed share by predicted probability, with intervals, and how many rows are behind each.

    Made by `from_estimator` or `from_predictions`. Several can be drawn into the same axes.

    Attributes
    ----------
    predicted, observed : ndarray, shape (B,)
        Mean probability and share of the class in every bin that has rows.
    low, high : ndarray, shape (B,)
        Ends of the interval of the share: quantiles of Beta(k + 1/2, n - k + 1/2), Jeffreys'
        posterior of k of n.
    counts : ndarray of int, shape (B,)
        Rows of every bin.
    edges : ndarray, shape (n_bins + 1,)
        Of the bins, from 0 to 1.
    kept : ndarray of int, shape (B,)
        Which bins have rows.
    level : float
        Probability of the intervals.
    positive, name : str
        The class whose probability is meant, and the model, for labels.
    ax_, counts_ax_, figure_, line_, counts_
        What `plot` has drawn: axes of the diagram and of the counts, figure, ErrorbarContainer and
        StepPatch.
    """

    predicted: Array
    observed: Array
    low: Array
    high: Array
    counts: np.ndarray
    edges: Array
    kept: np.ndarray
    level: float
    positive: str
    name: str
    ax_: Any = field(init=False, default=None)
    counts_ax_: Any = field(init=False, default=None)
    figure_: Any = field(init=False, default=None)
    line_: Any = field(init=False, default=None)
    counts_: Any = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        positive: Any = None,
        name: str | None = None,
        ax: Any = None,
        **options: Any,
    ) -> CalibrationDisplay:
        """Predict probabilities of rows that were not fitted, and draw.

        Parameters
        ----------
        estimator : fitted classifier with ``predict_proba``
            Any of scikit-learn's manner.
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            Labels.
        positive : label, optional
            The class whose probability is meant; by default the second of two.
        name : str, optional
            Of the model in the legend; by default its class.
        ax, **options
            As of `from_predictions`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).
        """
        classes = getattr(estimator, "classes_", None)
        if classes is None or not hasattr(estimator, "predict_proba"):
            raise InputError(f"a fitted classifier with predict_proba is needed, got {estimator}")
        if positive is None and len(classes) > 2:
            raise InputError(f"of {len(classes)} classes name one: positive={classes[0]!r}")
        label = classes[-1] if positive is None else positive
        if label not in list(classes):
            raise InputError(f"positive={label!r} is not among the classes {shown(list(classes))}")
        p = estimator.predict_proba(X)[:, list(classes).index(label)]
        words = type(estimator).__name__ if name is None else name
        # Foreign probabilities may be 1 + 1e-16.
        return cls.from_predictions(
            np.asarray(y) == label, np.clip(p, 0.0, 1.0), name=words, positive=label, ax=ax,
            **options,
        )  # fmt: skip

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        probability: ArrayLike,
        *,
        n_bins: int = 10,
        strategy: str = "uniform",
        level: float = 0.9,
        name: str = "model",
        positive: Any = 1,
        ax: Any = None,
        **options: Any,
    ) -> CalibrationDisplay:
        """Sort predictions into bins, and draw.

        Parameters
        ----------
        y : array-like of bool or of 0 and 1, shape (N,)
            Whether a row was of the class.
        probability : array-like, shape (N,)
            That it would be.
        n_bins : int
        strategy : {"uniform", "quantile"}
            Bins of equal width, or of about as many rows.
        level : float
            Probability of the intervals, between 0 and 1.
        name, positive : str
            Of the model, and of the class, for labels.
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
        >>> from qpruntime.plotting import CalibrationDisplay
        >>> display = CalibrationDisplay.from_predictions([0, 0, 1, 1], [0.1, 0.1, 0.1, 0.9])
        >>> display.counts.tolist(), display.observed.round(2).tolist()
        ([3, 1], [0.33, 1.0])
        """
        known = known_level(level)
        found = reliability(y, probability, n_bins, strategy, known)
        display = cls(**found._asdict(), level=known, positive=str(positive), name=name)
        return display.plot(ax, **options)

    def plot(self, ax: Any = None, *, color: str = BLUE, marker: str = "o") -> CalibrationDisplay:
        """Draw the diagram, with the rows of every bin below it.

        Parameters
        ----------
        ax : Axes, optional
            Axes of another `CalibrationDisplay` take this one beside it.
        color, marker : str

        Returns
        -------
        CalibrationDisplay
            The object itself.
        """
        ax = axes_of(ax, (5.4, 5.8))
        below = next((a for a in ax.child_axes if a.get_label() == _LABEL), None)
        if below is None:
            below = _axes_of_counts(ax)
            ax.plot([0.0, 1.0], [0.0, 1.0], color=GREY, linewidth=1.0, linestyle=":")
            ax.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
            ax.set_ylabel(f"observed share of y = {self.positive}")
            ax.tick_params(labelbottom=False)
            below.set(xlabel=f"predicted P(y = {self.positive})", ylabel="rows")
        whisker = np.array([self.observed - self.low, self.high - self.observed])
        self.line_ = ax.errorbar(
            self.predicted,
            self.observed,
            whisker,
            color=color,
            marker=marker,
            markersize=5.0,
            linewidth=1.4,
            elinewidth=1.0,
            capsize=2.5,
            label=f"{self.name}, {100.0 * self.level:g} % intervals",
        )
        height = np.zeros(self.edges.size - 1)
        height[self.kept] = self.counts
        self.counts_ = below.stairs(height, self.edges, color=color, linewidth=1.4)
        legend_below(ax, columns=1, extra=_GAP + _HEIGHT)
        self.ax_, self.counts_ax_, self.figure_ = ax, below, ax.figure
        return self


def _axes_of_counts(ax: Any) -> Any:
    """Add axes of a fixed height below others, as wide as these."""
    from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

    points = Affine2D().scale(1.0 / 72.0) + ax.figure.dpi_scale_trans
    corner = ScaledTranslation(0.0, 0.0, ax.transAxes)
    place = blended_transform_factory(ax.transAxes, points + corner)
    bounds = (0.0, -_GAP - _HEIGHT, 1.0, _HEIGHT)
    return ax.inset_axes(bounds, transform=place, label=_LABEL, sharex=ax)
