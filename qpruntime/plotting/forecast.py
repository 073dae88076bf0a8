"""A series and its forecast: the function with a band, and a wider band of what is observed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from qpruntime._typing import Array
from qpruntime._validation import finite, number, whole
from qpruntime.errors import InputError
from qpruntime.plotting._style import BLUE, GREEN, GREY, Display, axes_of, legend_below
from qpruntime.plotting.function import (
    Band,
    PlottedRows,
    band,
    drawn,
    known_level,
    label_of,
    natural,
    pair,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

__all__ = ["ForecastDisplay"]


@dataclass(eq=False, kw_only=True)
class ForecastDisplay(Display):
    """One column, time as a rule: what was observed, and what is expected beyond it.

    Made by `from_estimator`.

    Attributes
    ----------
    t : ndarray, shape (T,)
        Times of the curve, from the first row to the end of the forecast.
    function, observation : Band
        Arrays (T,) `middle`, `low` and `high` of the function (a rate, a probability, or the
        function without noise) and of new observations; the latter is None for classes.
    level : float
        Probability of both bands.
    last : float
        Time of the last row that was fitted.
    seen_t, seen_y, later_t, later_y : ndarray
        Rows that were fitted, and rows that were not.
    covered : ndarray of bool
        Which of the latter are in the band of observations, with their own exposures.
    time, quantity : str
        Labels of the axes.
    ax_, figure_, line_, band_, outer_, points_, end_
        What `plot` has drawn: axes, figure, Line2D of the function, PolyCollections of its band and
        of observations, a list of Line2D, and the line where the forecast begins.

    See Also
    --------
    qpruntime.GPPoissonRegressor, qpruntime.forecasting.GPForecaster

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> from qpruntime.plotting import ForecastDisplay
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> display = ForecastDisplay.from_estimator(model, X, y, until=12.0)
    >>> display.ax_.get_ylabel()
    'rate'
    """

    t: Array
    function: Band
    observation: Band | None
    level: float
    last: float
    seen_t: Array
    seen_y: Array
    later_t: Array
    later_y: Array
    covered: np.ndarray
    time: str
    quantity: str
    line_: Line2D | None = field(init=False, default=None)
    band_: PolyCollection | None = field(init=False, default=None)
    outer_: PolyCollection | None = field(init=False, default=None)
    points_: list[Line2D] = field(init=False, default_factory=list)
    end_: Line2D | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        until: float | None = None,
        later: tuple[ArrayLike, ArrayLike] | None = None,
        exposure: ArrayLike | None = None,
        later_exposure: ArrayLike | None = None,
        level: float = 0.9,
        grid: int = 300,
        ax: Axes | None = None,
        **options: Any,
    ) -> ForecastDisplay:
        """Predict from the first row to beyond the last, and draw.

        Parameters
        ----------
        estimator : fitted GPPoissonRegressor, GPRobustRegressor or GPClassifier of two classes
        X : array-like or data frame, shape (N, 1)
        y : array-like, shape (N,)
            The rows of the fit, in any order.
        until : float, optional
            Where the forecast ends; by default with the last of the later rows, or, without any,
            after a quarter of the time observed.
        later : pair of array-like, shapes (M, 1) and (M,), optional
            Rows that were not fitted, to compare.
        exposure, later_exposure : float or array-like, shape (N,) or (M,), optional
            Of counts: they are drawn by exposure, and the bands are those of an exposure of 1.
        level : float
            Probability of the bands, between 0 and 1.
        grid : int
            Points of the curve.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).
        """
        rows, known = PlottedRows(X), known_level(level)
        inputs, (t, seen_y) = rows, _series(estimator, rows, y, exposure)
        later_t, later_y, covered = np.empty(0), np.empty(0), np.zeros(0, dtype=bool)
        wanted = "latent" if not hasattr(estimator, "link_") else "rate"
        wanted = natural(estimator) if hasattr(estimator, "classes_") else wanted
        outside = hasattr(estimator, "predict_quantiles")
        if later is not None:
            new_X, new_y = pair(later, "later", "arrays (X, y)")
            later_t, later_y = _series(estimator, PlottedRows(new_X), new_y, later_exposure)
            if outside:
                _, low, high = band(estimator, new_X, "observation", known, later_exposure)
                later_values = finite(new_y, "later")
                covered = (low <= later_values) & (later_values <= high)
        first, last = float(t.min()), float(t.max())
        end = float(later_t.max()) if later is not None else last + 0.25 * (last - first)
        end = end if until is None else number(until, "until", above=last)
        if not end > first:
            raise InputError("the series has one time: say where the forecast ends, until=")
        times = np.linspace(first, end, whole(grid, "grid", 2))
        points = inputs.at(None, [0], times)
        display = cls(
            t=times,
            function=band(estimator, points, wanted, known),
            observation=band(estimator, points, "observation", known) if outside else None,
            level=known,
            last=last,
            seen_t=t,
            seen_y=seen_y,
            later_t=later_t,
            later_y=later_y,
            covered=covered,
            time=rows.names[0],
            quantity=label_of(wanted, tuple(map(str, getattr(estimator, "classes_", ())))),
        )
        return display.plot(ax, **options)

    def plot(self, ax: Axes | None = None) -> ForecastDisplay:
        """Draw rows, function, bands and the beginning of the forecast; return the display."""
        ax = axes_of(ax, (7.6, 4.0))
        share = f"{100.0 * self.level:g} %"
        self.outer_ = None
        if (outer := self.observation) is not None:
            label = f"{share} of observations"
            style: dict[str, Any] = {"color": BLUE, "alpha": 0.13, "linewidth": 0.0}
            self.outer_ = ax.fill_between(self.t, outer.low, outer.high, label=label, **style)
        style = {"color": BLUE, "alpha": 0.35, "linewidth": 0.0}
        inner, label = self.function, f"{share} interval of the {self._word()}"
        self.band_ = ax.fill_between(self.t, inner.low, inner.high, label=label, **style)
        (self.line_,) = ax.plot(self.t, inner.middle, color=BLUE, linewidth=1.8, label=self._word())
        dots: dict[str, Any] = {"linestyle": "none", "markersize": 4.0}
        self.points_ = ax.plot(
            self.seen_t, self.seen_y, marker="o", color=GREY, alpha=0.65, label="observed", **dots
        )
        if self.later_t.size:
            label = "observed later"
            if self.covered.size:
                label += f", {self.covered.sum()} of {self.covered.size} in the band"
            self.points_ += ax.plot(
                self.later_t, self.later_y, marker="D", mfc="none", color=GREEN, label=label, **dots
            )
        self.end_ = ax.axvline(self.last, color=GREY, linestyle=":", linewidth=1.2)
        ax.set(xlabel=self.time, ylabel=self.quantity)
        ax.margins(x=0.01)
        legend_below(ax, columns=2)
        return self.keep(ax)

    def _word(self) -> str:
        return {"latent function f": "function"}.get(self.quantity, self.quantity)


def _series(
    estimator: BaseEstimator, rows: PlottedRows, y: ArrayLike, exposure: ArrayLike | None
) -> tuple[Array, Array]:
    """Return times and what is drawn at them: counts by exposure, classes as 0 and 1."""
    if len(rows.names) != 1:
        raise InputError(
            f"a series has one column, X has {len(rows.names)}: FunctionDisplay draws slices"
        )
    return rows.values[:, 0], drawn(estimator, rows.observed(y), exposure)
