"""Dependence of predictions on one column, with a band, and importance of columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._validation import number
from qpruntime.criticism.inspection import (
    Importance,
    PartialDependence,
    partial_dependence,
    permutation_importance,
)
from qpruntime.errors import InputError
from qpruntime.estimators.base import GPEstimator
from qpruntime.plotting._style import BLUE, Display, axes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.lines import Line2D

__all__ = ["ImportanceDisplay", "PartialDependenceDisplay"]

# Inches of a bar, and of what is above and below.
_BAR, _REST = 0.32, 1.2


@dataclass(eq=False, kw_only=True)
class PartialDependenceDisplay(Display):
    """An average over rows by the value of one column: a line with a band, or levels with whiskers.

    Made by `from_estimator`.

    Attributes
    ----------
    dependence : PartialDependence
        The numbers.
    ax_, figure_, line_, band_
        What `plot` has drawn: axes, figure, the line or the whiskers, the band or None.

    See Also
    --------
    qpruntime.criticism.partial_dependence

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPClassifier
    >>> from qpruntime.plotting import PartialDependenceDisplay
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> y = X[:, 0] + X[:, 1] > 0.0
    >>> model = GPClassifier().fit(X[:40], y[:40])
    >>> display = PartialDependenceDisplay.from_estimator(model, X[:40], 0)
    >>> display.ax_.get_xlabel()
    '0'
    """

    dependence: PartialDependence
    line_: Line2D | ErrorbarContainer | None = field(init=False, default=None)
    band_: PolyCollection | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: GPEstimator,
        X: ArrayLike,
        column: int | str,
        *,
        ax: Axes | None = None,
        **options: Any,
    ) -> PartialDependenceDisplay:
        """Compute and draw.

        Parameters
        ----------
        estimator : fitted estimator of one latent function
        X : data frame or array-like, shape (N, d)
            Rows to average over.
        column : int or str
            By number or name.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `qpruntime.criticism.partial_dependence`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).
        """
        return cls(dependence=partial_dependence(estimator, X, column, **options)).plot(ax)

    def plot(self, ax: Axes | None = None, *, color: str = BLUE) -> PartialDependenceDisplay:
        """Draw the average and its band, and return the display.

        Parameters
        ----------
        ax : Axes, optional
        color : str
        """
        ax, dependence = axes_of(ax), self.dependence
        if dependence.categorical:
            at = np.arange(len(dependence.values))
            whisker = np.array(
                [dependence.middle - dependence.low, dependence.high - dependence.middle]
            )
            self.line_ = ax.errorbar(
                at, dependence.middle, whisker, color=color, fmt="o", capsize=3.0
            )
            words = ["missing" if level is None else str(level) for level in dependence.values]
            ax.set_xticks(at, words)
        else:
            values = np.asarray(dependence.values, dtype=float)
            self.band_ = ax.fill_between(
                values, dependence.low, dependence.high, color=color, alpha=0.2, linewidth=0.0
            )
            (self.line_,) = ax.plot(values, dependence.middle, color=color, linewidth=1.6)
        ax.set_xlabel(dependence.name)
        what = "predicted mean" if dependence.kind == "mean" else "latent function"
        ax.set_ylabel(f"{what}, {100.0 * dependence.level:g} % band")
        return self.keep(ax)


@dataclass(eq=False, kw_only=True)
class ImportanceDisplay(Display):
    """Log predictive density that is lost where a column is permuted, with standard errors.

    Made by `from_estimator`, or of an `Importance` that is there.

    Attributes
    ----------
    importance : Importance
        The numbers.
    ax_, figure_, bars_
        What `plot` has drawn.

    See Also
    --------
    qpruntime.criticism.permutation_importance

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPClassifier
    >>> from qpruntime.plotting import ImportanceDisplay
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> y = X[:, 0] + X[:, 1] > 0.0
    >>> model = GPClassifier().fit(X[:40], y[:40])
    >>> display = ImportanceDisplay.from_estimator(model, X[40:], y[40:], random_state=0)
    >>> display.ax_.get_xlabel()
    'log density lost, nats a row, and 2 standard errors'
    """

    importance: Importance
    bars_: BarContainer | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        estimator: GPEstimator,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ax: Axes | None = None,
        **options: Any,
    ) -> ImportanceDisplay:
        """Compute and draw.

        Parameters
        ----------
        estimator : fitted estimator
        X : data frame or array-like, shape (N, d)
            Rows that were not fitted.
        y : array-like, shape (N,)
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `qpruntime.criticism.permutation_importance`.

        Raises
        ------
        InputError
            If an argument is not usable, or matplotlib is missing (extra ``plot``).
        """
        return cls(importance=permutation_importance(estimator, X, y, **options)).plot(ax)

    def plot(
        self, ax: Axes | None = None, *, errors: float = 2.0, most: int = 20, color: str = BLUE
    ) -> ImportanceDisplay:
        """Draw a bar for each column, the largest on top, and return the display.

        Parameters
        ----------
        ax : Axes, optional
        errors : float
            Whiskers are so many standard errors long on either side.
        most : int
            Of more columns so many are drawn.
        color : str


        Raises
        ------
        InputError
            If there are no bars to draw.
        """
        importance, reach = self.importance, number(errors, "errors", above=0.0)
        order = np.argsort(-importance.loss, kind="stable")[:most][::-1]
        if not len(order):
            raise InputError("most must be 1 at least")
        ax = axes_of(ax, (6.0, _REST + _BAR * len(order)))
        self.bars_ = ax.barh(
            [importance.names[k] for k in order],
            importance.loss[order],
            xerr=reach * importance.se[order],
            color=color,
            height=0.6,
            capsize=2.5,
        )
        ax.set_xlabel(f"log density lost, nats a row, and {reach:g} standard errors")
        return self.keep(ax)
