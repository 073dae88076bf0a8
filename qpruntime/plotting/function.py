"""A function of one feature with its band: latent values, probabilities, rates, observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.plotting.bands import band, drawn, known_level, natural
from qpruntime.plotting.canvas import BLUE, CLASSES, GREY, axes_of, legend_below
from qpruntime.plotting.slices import Rows, ends
from qpruntime.validation import whole

__all__ = ["FunctionDisplay", "label_of"]


@dataclass(eq=False, kw_only=True)
class FunctionDisplay:
    """A curve with a band along one feature, and the rows it was learnt from.

    Made by `from_estimator`. Rows are drawn as points where they lie on the curve's scale and there
    is one feature; otherwise as ticks under the curve, for other features differ from row to row.

    Attributes
    ----------
    x, middle, low, high : ndarray, shape (T,)
        Where the curve is drawn, the prediction, and the ends of its central interval.
    level : float
        Probability of that interval.
    points_x, points_y : ndarray, shape (N,)
        The rows; `points_y` is empty where they are ticks.
    signs : ndarray of bool, shape (N,)
        Which rows are of the second class; empty where there are no classes.
    feature, quantity : str
        Labels of the axes.
    classes : tuple of str
        Labels of the two classes; empty where there are none.
    ax_, figure_, line_, band_, points_
        What `plot` has drawn: axes, figure, Line2D, PolyCollection and a list of artists.
    """

    x: Array
    middle: Array
    low: Array
    high: Array
    level: float
    points_x: Array
    points_y: Array
    signs: np.ndarray
    feature: str
    quantity: str
    classes: tuple[str, ...] = ()
    ax_: Any = field(init=False, default=None)
    figure_: Any = field(init=False, default=None)
    line_: Any = field(init=False, default=None)
    band_: Any = field(init=False, default=None)
    points_: list[Any] = field(init=False, default_factory=list)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        feature: int | str = 0,
        at: ArrayLike | None = None,
        quantity: str | None = None,
        level: float = 0.9,
        exposure: ArrayLike | None = None,
        limits: ArrayLike | None = None,
        grid: int = 200,
        ax: Any = None,
        **options: Any,
    ) -> FunctionDisplay:
        """Predict along one feature and draw.

        Parameters
        ----------
        estimator : fitted GPClassifier of two classes, GPPoissonRegressor or GPRobustRegressor
        X : array-like or data frame, shape (N, d)
        y : array-like, shape (N,)
            The rows to draw, as a rule those of the fit.
        feature : int or str
            The column along which to draw.
        at : array-like, shape (d,), optional
            Values of the other columns; by default their medians.
        quantity : {"latent", "probability", "rate", "observation"}, optional
            What to draw: the latent function; the probability of the second class; the rate of
            counts, for an exposure of 1; or what is observed. By default a probability or rate if
            the model has one, else the latent function, which `GPRobustRegressor` has in units of
            y. Intervals of "latent" and "rate" are those of a normal latent value with the moments
            of ``latent``.
        level : float
            Probability of the interval, between 0 and 1.
        exposure : array-like, shape (N,), optional
            Of the rows: counts are drawn as counts by exposure.
        limits : (float, float), optional
            Ends of the curve; by default a little beyond the rows.
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

        Examples
        --------
        >>> from qpruntime import GPClassifier
        >>> from qpruntime.plotting import FunctionDisplay
        >>> X, y = [[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]], [0, 0, 0, 1, 1, 1]
        >>> display = FunctionDisplay.from_estimator(GPClassifier().fit(X, y), X, y, grid=50)
        >>> display.middle.shape, display.ax_.get_ylabel()
        ((50,), 'P(y = 1)')
        """
        rows = Rows(X)
        seen, j = rows.observed(y), rows.column(feature)
        wanted = natural(estimator) if quantity is None else quantity
        low, high = ends(rows.values[:, j], limits, "limits")
        x = np.linspace(low, high, whole(grid, "grid", 2))
        # Before a figure is made: what cannot be predicted leaves none behind.
        found = band(estimator, rows.at(at, [j], x), wanted, known := known_level(level))
        labels = tuple(str(c) for c in getattr(estimator, "classes_", ()))
        at_rows = drawn(estimator, seen, exposure)
        # Counts are on another scale than f, and other features differ from row to row.
        other = wanted == "latent" and (bool(labels) or hasattr(estimator, "link_"))
        display = cls(
            x=x,
            middle=found.middle,
            low=found.low,
            high=found.high,
            level=known,
            points_x=rows.values[:, j],
            points_y=np.empty(0) if other or len(rows.names) > 1 else at_rows,
            signs=at_rows == 1.0 if labels else np.zeros(0, dtype=bool),
            feature=rows.names[j],
            quantity=label_of(wanted, labels),
            classes=labels,
        )
        return display.plot(ax, **options)

    def plot(
        self, ax: Any = None, *, color: str = BLUE, name: str | None = None, points: bool = True
    ) -> FunctionDisplay:
        """Draw the curve, its band and the rows.

        Parameters
        ----------
        ax : Axes, optional
        color : str
            Of curve and band.
        name : str, optional
            Of the curve in the legend.
        points : bool
            Whether rows are drawn.

        Returns
        -------
        FunctionDisplay
            The object itself.
        """
        ax = axes_of(ax)
        self.points_ = self._draw_points(ax) if points else []
        words = f"{100.0 * self.level:g} % interval"
        self.band_ = ax.fill_between(
            self.x,
            self.low,
            self.high,
            color=color,
            alpha=0.22,
            linewidth=0.0,
            label=words if name is None else f"{name}, {words}",
        )
        (self.line_,) = ax.plot(
            self.x, self.middle, color=color, linewidth=1.8, label=name or "prediction"
        )
        ax.set(xlabel=self.feature, ylabel=self.quantity)
        legend_below(ax, columns=4)
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _draw_points(self, ax: Any) -> list[Any]:
        kinds = [(self.points_x == self.points_x, GREY, "o", "observed")]
        if self.classes:
            kinds = [
                (self.signs == bool(k), *CLASSES[k], f"y = {self.classes[k]}") for k in range(2)
            ]
        artists: list[Any] = []
        for mine, colour, marker, label in kinds:
            style: dict[str, Any] = {"linestyle": "none", "color": colour, "label": label}
            if self.points_y.size:
                style |= {"marker": marker, "markersize": 4.5, "alpha": 0.65}
                artists += ax.plot(self.points_x[mine], self.points_y[mine], **style)
            else:
                # Ticks at the lower edge, whatever the scale; the second class at the upper one.
                edge = 0.985 if self.classes and mine is not kinds[0][0] else 0.015
                style |= {"marker": "|", "transform": ax.get_xaxis_transform(), "alpha": 0.65}
                artists += ax.plot(self.points_x[mine], np.full(mine.sum(), edge), **style)
        return artists


def label_of(quantity: str, classes: tuple[str, ...]) -> str:
    """Return the label of an axis that shows a quantity."""
    words = {"latent": "latent function f", "rate": "rate", "observation": "observation"}
    return f"P(y = {classes[1]})" if quantity == "probability" else words[quantity]
