"""Reliability: how often what is said with probability p comes true, with counts and intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.plotting.bands import known_level
from qpruntime.plotting.canvas import BLUE, GREY, axes_of, legend_below
from qpruntime.validation import choice, finite, shown, whole

__all__ = ["CalibrationDisplay"]

# Of the axes of counts below the diagram: left, bottom, width, height, in those of the diagram.
_COUNTS = (0.0, -0.30, 1.0, 0.22)
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
        p = finite(probability, "probability")
        hit = finite(y, "y", p.shape)
        if p.ndim != 1 or not p.size:
            raise InputError(f"probability must have shape (N,), N at least 1, got {p.shape}")
        if not ((p >= 0.0) & (p <= 1.0)).all():
            worst = p[np.argmax(np.abs(p - 0.5))]
            raise InputError(f"probabilities must be from 0 to 1, got {worst:g}")
        if not np.isin(hit, (0.0, 1.0)).all():
            raise InputError("y must be 0 or 1, whether a row is of the class: y == label")
        known, bins = known_level(level), whole(n_bins, "n_bins", 1)
        edges = np.linspace(0.0, 1.0, bins + 1)
        if choice(strategy, "strategy", ("uniform", "quantile")) == "quantile":
            inner = np.unique(np.quantile(p, edges[1:-1]))
            edges = np.array([0.0, *inner[(inner > 0.0) & (inner < 1.0)], 1.0])
        where = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, edges.size - 2)
        n = np.bincount(where, minlength=edges.size - 1)
        kept = np.flatnonzero(n)
        share = np.bincount(where, hit, n.size)[kept] / n[kept]
        k = share * n[kept]
        tail = 0.5 - 0.5 * known
        low, high = (betaincinv(k + 0.5, n[kept] - k + 0.5, q) for q in (tail, 1.0 - tail))
        display = cls(
            predicted=np.bincount(where, p, n.size)[kept] / n[kept],
            observed=share,
            # The share itself is within: Jeffreys' interval of 0 of n begins above 0.
            low=np.minimum(low, share),
            high=np.maximum(high, share),
            counts=n[kept],
            edges=edges,
            kept=kept,
            level=known,
            positive=str(positive),
            name=name,
        )
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
        ax = axes_of(ax, (5.4, 5.6))
        below = next((a for a in ax.child_axes if a.get_label() == _LABEL), None)
        if below is None:
            below = ax.inset_axes(_COUNTS, label=_LABEL, sharex=ax)
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
        legend_below(ax, columns=1, bottom=_COUNTS[1])
        self.ax_, self.counts_ax_, self.figure_ = ax, below, ax.figure
        return self
