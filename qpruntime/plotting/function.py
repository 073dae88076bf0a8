"""A function of one feature with its band: latent values, probabilities, rates, observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri
from sklearn.base import BaseEstimator

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, finite, number, shown, whole
from qpruntime.errors import InputError
from qpruntime.likelihoods.base import CUT
from qpruntime.plotting._style import BLUE, CLASSES, GREY, Display, axes_of, legend_below
from qpruntime.predictive.counts import LINKS, exposures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

__all__ = [
    "QUANTITIES",
    "Band",
    "FunctionDisplay",
    "PlottedRows",
    "band",
    "drawn",
    "ends",
    "known_level",
    "label_of",
    "natural",
    "pair",
    "rate_ends",
]

# --- A function of one feature with its band: latent values, probabilities, rates, observations.


@dataclass(eq=False, kw_only=True)
class FunctionDisplay(Display):
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

    See Also
    --------
    qpruntime.plotting.PartialDependenceDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> from qpruntime.plotting import FunctionDisplay
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> display = FunctionDisplay.from_estimator(model, X, y)
    >>> bool(np.all(display.low <= display.high))
    True
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
    line_: Line2D | None = field(init=False, default=None)
    band_: PolyCollection | None = field(init=False, default=None)
    points_: list[Line2D] = field(init=False, default_factory=list)

    @classmethod
    def from_estimator(
        cls,
        estimator: BaseEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        feature: int | str = 0,
        at: ArrayLike | None = None,
        quantity: str | None = None,
        level: float = 0.9,
        exposure: ArrayLike | None = None,
        limits: ArrayLike | None = None,
        grid: int = 200,
        ax: Axes | None = None,
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
        """
        rows = PlottedRows(X)
        outcomes, j = rows.observed(y), rows.column(feature)
        wanted = natural(estimator) if quantity is None else quantity
        low, high = ends(rows.values[:, j], limits, "limits")
        x = np.linspace(low, high, whole(grid, "grid", 2))
        # Before a figure is made: what cannot be predicted leaves none behind.
        interval = band(estimator, rows.at(at, [j], x), wanted, known := known_level(level))
        labels = tuple(str(c) for c in getattr(estimator, "classes_", ()))
        at_rows = drawn(estimator, outcomes, exposure)
        # Counts are on another scale than f, and other features differ from row to row.
        other_scale = wanted == "latent" and (bool(labels) or hasattr(estimator, "link_"))
        display = cls(
            x=x,
            middle=interval.middle,
            low=interval.low,
            high=interval.high,
            level=known,
            points_x=rows.values[:, j],
            points_y=np.empty(0) if other_scale or len(rows.names) > 1 else at_rows,
            signs=at_rows == 1.0 if labels else np.zeros(0, dtype=bool),
            feature=rows.names[j],
            quantity=label_of(wanted, labels),
            classes=labels,
        )
        return display.plot(ax, **options)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        color: str = BLUE,
        name: str | None = None,
        points: bool = True,
    ) -> FunctionDisplay:
        """Draw the curve, its band and the rows, and return the display.

        Parameters
        ----------
        ax : Axes, optional
        color : str
            Of curve and band.
        name : str, optional
            Of the curve in the legend.
        points : bool
            Whether rows are drawn.
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
        return self.keep(ax)

    def _draw_points(self, ax: Axes) -> list[Line2D]:
        kinds = [(self.points_x == self.points_x, GREY, "o", "observed")]
        if self.classes:
            kinds = [
                (self.signs == bool(k), *CLASSES[k], f"y = {self.classes[k]}") for k in range(2)
            ]
        artists: list[Line2D] = []
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


# --- Rows where a model is drawn: along one feature or two, the others held at values of their own.

T = TypeVar("T")

# Margin on either side, as a share of the range of a feature.
_MARGIN = 0.05


class PlottedRows:
    """Rows as a user has them, an array or a data frame, with the names of their columns.

    Attributes
    ----------
    values : ndarray, shape (N, d)
    names : list of str
        Of the columns; ``x0``, ``x1``, ... if they have none.
    """

    def __init__(self, X: ArrayLike) -> None:
        self._given: Any = X
        self.values = finite(X, "X")
        if self.values.ndim != 2 or not self.values.size:
            raise InputError(
                f"X must have shape (N, d) with N and d of at least 1, got {self.values.shape}; "
                "one column is X[:, None]"
            )
        columns = getattr(X, "columns", range(self.values.shape[1]))
        self.names = [c if isinstance(c, str) else f"x{c}" for c in columns]

    def column(self, feature: object) -> int:
        """Return the number of a column that is given by number or name."""
        if isinstance(feature, str):
            if feature not in self.names:
                raise InputError(f"X has no column {shown(feature)}, but {shown(self.names)}")
            return self.names.index(feature)
        index = whole(feature, "feature", 0)
        if index >= len(self.names):
            raise InputError(f"X has {len(self.names)} columns: there is no feature {index}")
        return index

    def observed(self, y: ArrayLike) -> np.ndarray:
        """Return `y` as an array, one for each row."""
        outcomes = np.asarray(y)
        if outcomes.shape != (len(self.values),):
            raise InputError(
                f"y must have shape ({len(self.values)},) like X, got {outcomes.shape}"
            )
        return outcomes

    def at(self, others: ArrayLike | None, features: list[int], *grids: Array) -> ArrayLike:
        """Return rows with `grids` in columns `features` and `others` elsewhere.

        `others` has a value for every column, those of `features` are not looked at; by default
        medians. The rows are of the kind that was given.
        """
        width = len(self.names)
        base = np.median(self.values, axis=0)
        if others is not None:
            base = finite(others, "at", (width,))
        points = np.tile(base, (grids[0].size, 1))
        for j, grid in zip(features, grids, strict=True):
            points[:, j] = grid.ravel()
        if hasattr(self._given, "columns") and hasattr(self._given, "iloc"):
            frame = type(self._given)(points, columns=self._given.columns)
            return cast("ArrayLike", frame)
        return points


def ends(values: Array, given: ArrayLike | None, name: str) -> tuple[float, float]:
    """Return the ends of what is drawn: as given, or a little beyond the values."""
    if given is not None:
        low, high = finite(given, name, (2,))
        if not low < high:
            raise InputError(f"{name} must be a pair low < high, got {shown(given)}")
        return float(low), float(high)
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 0.5
    return low - margin, high + margin


def pair(given: tuple[T, T], name: str, what: str) -> tuple[T, T]:
    """Return the two things that are given, or raise `InputError` that says `what` they are."""
    try:
        first, second = given
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be two {what}, got {shown(given)}") from error
    return first, second


# --- What an estimator predicts at rows, with the ends of an interval: one function for all curves.

#: Quantities that can be drawn, and the method that an estimator needs for each.
QUANTITIES = {
    "latent": ("latent",),
    "probability": ("predict_proba", "predict_interval"),
    "rate": ("predict_count", "latent"),
    "observation": ("predict_quantiles",),
}
# Halvings of an interval, after which it is as short as double precision has it.
_HALVINGS = 60


class Band(NamedTuple):
    """Predictions and the two ends of their central interval, each of shape (T,)."""

    middle: Array
    low: Array
    high: Array


def known_level(level: object) -> float:
    """Return the probability of an interval, strictly between 0 and 1."""
    value = number(level, "level", above=0.0)
    if value >= 1.0:
        raise InputError(f"level must be below 1, got {value:g}: 0.9 is an interval of 90 %")
    return value


def natural(model: BaseEstimator) -> str:
    """Return what an estimator is drawn by if nothing is asked for."""
    for quantity in ("probability", "rate", "latent"):
        if all(hasattr(model, need) for need in QUANTITIES[quantity]):
            return quantity
    raise InputError(
        f"{shown(model)} has no intervals to draw: fit GPClassifier, GPPoissonRegressor or "
        "GPRobustRegressor"
    )


def band(
    model: BaseEstimator,
    points: ArrayLike,
    quantity: str,
    level: float,
    exposure: ArrayLike | None = None,
) -> Band:
    """Return one of `QUANTITIES` of a fitted estimator at rows.

    "latent" is the latent function with the interval of a normal of its mean and variance,
    "probability" that of the second class, "rate" the mean rate with quantiles of the rate,
    "observation" the median of an observation with its quantiles.
    """
    choice(quantity, "quantity", QUANTITIES)
    if missing := [need for need in QUANTITIES[quantity] if not hasattr(model, need)]:
        raise InputError(
            f"quantity={quantity!r} needs an estimator with {', '.join(missing)}, got "
            f"{shown(model)}: leave quantity out, or fit another estimator"
        )
    classes = getattr(model, "classes_", ())
    if len(classes) > 2:
        raise InputError(
            f"bands are drawn of two classes, the model has {len(classes)}: fit one class "
            "against the rest, y == label"
        )
    tails = central_levels(level)
    if quantity == "latent":
        mean, variance = model.latent(points)
        reach = ndtri(tails[1]) * np.sqrt(variance)
        return Band(mean, mean - reach, mean + reach)
    if quantity == "probability":
        low, high = model.predict_interval(points, level=level).T
        return Band(model.predict_proba(points)[:, 1], low, high)
    if quantity == "rate":
        scale = 1.0 if exposure is None else np.asarray(exposure, dtype=float)
        mean, variance = model.latent(points)
        low, high = scale * rate_ends(mean, variance, model.link_, tails).T
        return Band(model.predict(points, exposure=exposure), low, high)
    options = {} if exposure is None else {"exposure": exposure}
    quantiles = model.predict_quantiles(points, [tails[0], 0.5, tails[1]], **options)
    low, middle, high = np.asarray(quantiles, dtype=float).T
    return Band(middle, low, high)


def drawn(model: BaseEstimator, y: ArrayLike, exposure: ArrayLike | None) -> Array:
    """Return observations as they are drawn: 0 and 1 of two classes, counts by their exposures."""
    if exposure is not None and not hasattr(model, "predict_count"):
        raise InputError(f"exposure is for counts, and {shown(model)} is no model of counts")
    if (labels := getattr(model, "classes_", None)) is not None:
        return np.asarray((np.asarray(y) == labels[-1]).astype(float))
    outcomes = finite(y, "y")
    return outcomes if exposure is None else outcomes / exposures(exposure, len(outcomes))


def rate_ends(mean: Array, variance: Array, link: str, q: Array) -> Array:
    """Return quantiles of the rate, shape (T, len(q)), for normal f of this mean and variance."""
    rate = LINKS[link].distribution(mean, variance)
    least, most = rate.roots(np.full(mean.size, CUT), np.full(mean.size, CUT))
    low = np.repeat(least[:, None], q.size, axis=1)
    high = np.repeat(most[:, None], q.size, axis=1)
    for _ in range(_HALVINGS):
        root = 0.5 * (low + high)
        short = rate.tail(root**2, False) < q
        low, high = np.where(short, root, low), np.where(short, high, root)
    return (0.5 * (low + high)) ** 2
