"""Two features: the probability of a class, and where the boundary between the classes may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin

from qpruntime._typing import Array
from qpruntime._validation import choice, shown, whole
from qpruntime.errors import InputError
from qpruntime.plotting._style import CLASSES, Display, axes_of, legend_below, probabilities
from qpruntime.plotting.function import PlottedRows, ends, known_level, pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.contour import QuadContourSet
    from matplotlib.lines import Line2D

__all__ = ["BoundaryDisplay"]

_LEVELS = 20


@dataclass(eq=False, kw_only=True)
class BoundaryDisplay(Display):
    """A map of the probability of the second class, or of the width of its interval.

    Made by `from_estimator`. The solid line is where the probability is 1/2; between the dashed
    ones its interval holds 1/2, so that the model leaves open on which side the boundary is.

    Attributes
    ----------
    x, y : ndarray, shape (G,)
        Of the grid, along either feature.
    probability, low, high : ndarray, shape (G, G)
        P(second class) and the ends of its interval, rows along `y`; the ends are NaN for
        estimators without ``predict_interval``.
    level : float
        Probability of the interval.
    points : ndarray, shape (N, 2)
        The rows.
    signs : ndarray of bool, shape (N,)
        Which of them are of the second class.
    features, classes : tuple of str
        Labels.
    sliced : bool
        Whether there are other features, at values of their own; rows are then drawn faintly.
    ax_, figure_, surface_, boundary_, interval_, points_, colorbar_
        What `plot` has drawn: axes, figure, QuadContourSet of colours, lists of those of the solid
        line and of the dashed ones, a list of Line2D, and the Colorbar or None. A list is empty
        where a line is not on the map.

    See Also
    --------
    qpruntime.GPClassifier

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPClassifier
    >>> from qpruntime.plotting import BoundaryDisplay
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> y = X[:, 0] + X[:, 1] > 0.0
    >>> model = GPClassifier().fit(X[:40], y[:40])
    >>> display = BoundaryDisplay.from_estimator(model, X[:40], y[:40])
    >>> display.ax_.get_xlabel()
    'x0'
    """

    x: Array
    y: Array
    probability: Array
    low: Array
    high: Array
    level: float
    points: Array
    signs: np.ndarray
    features: tuple[str, str]
    classes: tuple[str, str]
    sliced: bool = False
    surface_: ScalarMappable | None = field(init=False, default=None)
    boundary_: list[QuadContourSet] = field(init=False, default_factory=list)
    interval_: list[QuadContourSet] = field(init=False, default_factory=list)
    points_: list[Line2D] = field(init=False, default_factory=list)
    colorbar_: Colorbar | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: ClassifierMixin,
        X: ArrayLike,
        y: ArrayLike,
        *,
        features: tuple[int | str, int | str] = (0, 1),
        at: ArrayLike | None = None,
        level: float = 0.9,
        grid: int = 80,
        limits: tuple[ArrayLike, ArrayLike] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> BoundaryDisplay:
        """Predict on a grid of two features and draw.

        Parameters
        ----------
        estimator : fitted classifier of two classes
            Any with ``predict_proba``; `GPClassifier` has ``predict_interval`` too, from which
            where the boundary may be is known.
        X : array-like or data frame, shape (N, d)
        y : array-like, shape (N,)
            The rows to draw, as a rule those of the fit.
        features : pair of int or str
            The columns that are drawn.
        at : array-like, shape (d,), optional
            Values of the other columns; by default their medians.
        level : float
            Probability of the interval, between 0 and 1.
        grid : int
            Points of one side of the grid.
        limits : pair of (float, float), optional
            Ends of both features; by default a little beyond the rows.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).
        """
        rows = PlottedRows(X)
        labels = getattr(estimator, "classes_", None)
        if labels is None or not hasattr(estimator, "predict_proba") or len(labels) != 2:
            raise InputError(
                f"a fitted classifier of two classes is needed, got {shown(estimator)}; of several "
                "classes fit one against the rest, y == label"
            )
        if len(rows.names) < 2:
            raise InputError("a map takes two features, X has one column: FunctionDisplay draws it")
        outcomes, names = rows.observed(y), pair(features, "features", "columns")
        columns = [rows.column(name) for name in names]
        if columns[0] == columns[1]:
            raise InputError(f"features must be two columns, got {shown(features)}")
        known, side = known_level(level), whole(grid, "grid", 2)
        ranges = (None, None) if limits is None else pair(limits, "limits", "pairs (low, high)")
        axes = [
            np.linspace(*ends(rows.values[:, j], limits_of_axis, "limits"), side)
            for j, limits_of_axis in zip(columns, ranges, strict=True)
        ]
        points = rows.at(at, columns, *np.meshgrid(*axes))
        p = estimator.predict_proba(points)[:, 1]
        interval = np.full((p.size, 2), np.nan)
        if hasattr(estimator, "predict_interval"):
            interval = estimator.predict_interval(points, level=known)
        display = cls(
            x=axes[0],
            y=axes[1],
            probability=p.reshape(side, side),
            low=interval[:, 0].reshape(side, side),
            high=interval[:, 1].reshape(side, side),
            level=known,
            points=rows.values[:, columns],
            signs=outcomes == labels[1],
            features=(rows.names[columns[0]], rows.names[columns[1]]),
            classes=(str(labels[0]), str(labels[1])),
            sliced=len(rows.names) > 2,
        )
        return display.plot(ax, **options)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        show: str = "probability",
        points: bool = True,
        bar: bool = True,
    ) -> BoundaryDisplay:
        """Draw the map, the lines and the rows, and return the display.

        Parameters
        ----------
        ax : Axes, optional
        show : {"probability", "width"}
            What the colours mean: P(second class), or the width of its interval.
        points, bar : bool
            Whether rows and a bar of the colours are drawn.
        """
        wide = choice(show, "show", ("probability", "width")) == "width"
        unknown = bool(np.isnan(self.low).any())
        if wide and unknown:
            raise InputError('show="width" takes an estimator with predict_interval: GPClassifier')
        ax = axes_of(ax, (6.2, 4.9))
        values = self.high - self.low if wide else self.probability
        colours = "YlOrBr" if wide else probabilities()
        self.surface_ = ax.contourf(
            self.x, self.y, values, np.linspace(0.0, 1.0, _LEVELS + 1), cmap=colours
        )
        self.boundary_ = self._lines(ax, [self.probability], "-", "P = 1/2")
        self.interval_ = []
        if not unknown:
            words = f"end of the {100.0 * self.level:g} % interval = 1/2"
            self.interval_ = self._lines(ax, [self.low, self.high], "--", words)
        self.points_ = []
        for k in range(2 if points else 0):
            mine, (colour, marker) = self.signs == bool(k), CLASSES[k]
            self.points_ += ax.plot(
                *self.points[mine].T,
                linestyle="none",
                marker=marker,
                markersize=6.0,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=0.7,
                alpha=0.35 if self.sliced else 0.95,
                label=f"y = {self.classes[k]}",
            )
        self.colorbar_ = None
        if bar:
            name = f"P(y = {self.classes[1]})"
            label = f"width of the {100.0 * self.level:g} % interval of {name}" if wide else name
            self.colorbar_ = ax.figure.colorbar(self.surface_, ax=ax, label=label)
        ax.set(xlabel=self.features[0], ylabel=self.features[1])
        legend_below(ax, columns=2)
        return self.keep(ax)

    def _lines(self, ax: Axes, maps: list[Array], style: str, label: str) -> list[QuadContourSet]:
        """Draw where maps are 1/2, if they are anywhere, and an entry of the legend."""
        look = {"colors": "black", "linestyles": style, "linewidths": 1.4}
        sets = [
            ax.contour(self.x, self.y, probabilities, [0.5], **look)
            for probabilities in maps
            if probabilities.min() < 0.5 < probabilities.max()
        ]
        if sets:
            ax.plot([], [], color="black", linestyle=style, linewidth=1.4, label=label)
        return sets
