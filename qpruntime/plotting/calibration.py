"""Displays of calibration: reliability of probabilities, and ranks of observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, betaincinv
from sklearn.base import ClassifierMixin

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, finite, shown, whole
from qpruntime.criticism.loo import pit
from qpruntime.errors import InputError
from qpruntime.estimators.base import GPEstimator
from qpruntime.plotting._style import BLUE, GREY, Display, axes_of, legend_below
from qpruntime.plotting.function import known_level

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.patches import StepPatch

__all__ = ["CalibrationDisplay", "RanksDisplay", "Reliability", "reliability"]

# --- Histogram of ranks that are uniform where a model is right, with what chance makes of them.


@dataclass(eq=False, kw_only=True)
class RanksDisplay(Display):
    """Number of ranks in each of equal bins, with the range that a binomial expects.

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

    See Also
    --------
    qpruntime.criticism.pit, qpruntime.check_calibration

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> from qpruntime.plotting import RanksDisplay
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> display = RanksDisplay.from_estimator(model, random_state=0)
    >>> int(display.counts.sum())
    60
    """

    counts: np.ndarray
    expected: float
    low: int
    high: int
    level: float
    name: str
    bars_: BarContainer | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: GPEstimator,
        y: ArrayLike | None = None,
        *,
        random_state: int | np.random.Generator | None = 0,
        **options: Any,
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
        values = pit(estimator, y, random_state=random_state)
        return cls.from_values(values, **{"name": type(estimator).__name__, **options})

    @classmethod
    def from_values(
        cls,
        ranks: ArrayLike,
        *,
        n_bins: int = 10,
        level: float = 0.95,
        name: str = "model",
        ax: Axes | None = None,
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
        display = cls(
            counts=counts, expected=values.size / bins, low=low, high=high, level=known, name=name
        )
        return display.plot(ax, **options)

    def plot(self, ax: Axes | None = None, *, color: str = BLUE) -> RanksDisplay:
        """Draw the histogram over the band, and return the display.

        Parameters
        ----------
        ax : Axes, optional
        color : str
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
        ax.set(xlim=(0.0, 1.0), xlabel="rank of the observation", ylabel="rows")
        legend_below(ax, columns=2)
        return self.keep(ax)


def _ends(n: int, p: float, level: float) -> tuple[int, int]:
    """Quantiles of a binomial of n and p, with (1 - level)/2 beyond each at most."""
    mass: Array = bdtr(np.arange(n + 1), n, p)
    low, high = (int(np.searchsorted(mass, at)) for at in central_levels(level))
    return low, min(high, n)


# --- Reliability: how often what is said with probability p comes true, with counts and intervals.

# The axes of counts: how far below the diagram they begin, and how high they are, in points. Were
# they a part of its height, a layout would not know how much to leave for them.
_GAP, _HEIGHT = 14.0, 54.0
_LABEL = "qpruntime counts"


@dataclass(eq=False, kw_only=True)
class CalibrationDisplay(Display):
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

    See Also
    --------
    qpruntime.plotting.RanksDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPClassifier
    >>> from qpruntime.plotting import CalibrationDisplay
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> y = X[:, 0] + X[:, 1] > 0.0
    >>> model = GPClassifier().fit(X[:40], y[:40])
    >>> display = CalibrationDisplay.from_estimator(model, X[40:], y[40:], n_bins=4)
    >>> display.ax_.get_ylabel()
    'observed share of y = True'
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
    counts_ax_: Axes | None = field(init=False, default=None)
    line_: ErrorbarContainer | None = field(init=False, default=None)
    counts_: StepPatch | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: ClassifierMixin,
        X: ArrayLike,
        y: ArrayLike,
        *,
        positive: object = None,
        name: str | None = None,
        ax: Axes | None = None,
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
            raise InputError(f"of {len(classes)} classes name one: positive={shown(classes[0])}")
        label = classes[-1] if positive is None else positive
        if label not in list(classes):
            raise InputError(
                f"positive={shown(label)} is not among the classes {shown(list(classes))}"
            )
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
        positive: object = 1,
        ax: Axes | None = None,
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
        bins = reliability(y, probability, n_bins, strategy, known)
        display = cls(**bins._asdict(), level=known, positive=str(positive), name=name)
        return display.plot(ax, **options)

    def plot(
        self, ax: Axes | None = None, *, color: str = BLUE, marker: str = "o"
    ) -> CalibrationDisplay:
        """Draw the diagram, rows of every bin below it, and return the display.

        Parameters
        ----------
        ax : Axes, optional
            Axes of another `CalibrationDisplay` take this one beside it.
        color, marker : str
        """
        ax = axes_of(ax, (5.4, 5.8))
        below: Any = next((a for a in ax.child_axes if a.get_label() == _LABEL), None)
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
        self.counts_ax_ = below
        return self.keep(ax)


def _axes_of_counts(ax: Axes) -> Axes:
    """Add axes of a fixed height below others, as wide as these."""
    from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

    points = Affine2D().scale(1.0 / 72.0) + ax.figure.dpi_scale_trans
    inside: Any = ax.transAxes
    corner = ScaledTranslation(0.0, 0.0, inside)
    place = blended_transform_factory(inside, points + corner)
    bounds = (0.0, -_GAP - _HEIGHT, 1.0, _HEIGHT)
    return ax.inset_axes(bounds, transform=place, label=_LABEL, sharex=ax)


# --- Predicted probabilities in bins, with the share of each that came true and its interval.


class Reliability(NamedTuple):
    """Bins that have rows; attributes as of `CalibrationDisplay`."""

    predicted: Array
    observed: Array
    low: Array
    high: Array
    counts: np.ndarray
    edges: Array
    kept: np.ndarray


def reliability(
    y: ArrayLike, probability: ArrayLike, n_bins: int, strategy: str, level: float
) -> Reliability:
    """Sort predictions into bins and count.

    Intervals are quantiles of Beta(k + 1/2, n - k + 1/2), Jeffreys' posterior of k of n, extended
    to the share k/n, which lies outside where k is 0 or n.

    Raises
    ------
    InputError
        If an argument is not usable.
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
    edges = np.linspace(0.0, 1.0, whole(n_bins, "n_bins", 1) + 1)
    if choice(strategy, "strategy", ("uniform", "quantile")) == "quantile":
        inner = np.unique(np.quantile(p, edges[1:-1]))
        edges = np.array([0.0, *inner[(inner > 0.0) & (inner < 1.0)], 1.0])
    bins = edges.size - 1
    where = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, bins - 1)
    kept = np.unique(where)
    n, k, total = (np.bincount(where, w, bins)[kept] for w in (None, hit, p))
    low, high = (betaincinv(k + 0.5, n - k + 0.5, q) for q in central_levels(level))
    return Reliability(
        total / n, k / n, np.minimum(low, k / n), np.maximum(high, k / n), n, edges, kept
    )
