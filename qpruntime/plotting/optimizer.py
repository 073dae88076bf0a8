"""Progress of an optimiser: evaluated and feasible points, and the best so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qpruntime._typing import Array
from qpruntime._validation import number, shown
from qpruntime.bayesopt import Optimizer
from qpruntime.errors import InputError
from qpruntime.plotting._style import BLUE, GREEN, GREY, ORANGE, Display, axes_of, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["ProgressDisplay"]


@dataclass(eq=False, kw_only=True)
class ProgressDisplay(Display):
    """Values of the objective in the order of their evaluations, with the best feasible so far.

    Made by `from_optimizer`.

    Attributes
    ----------
    number : ndarray of int, shape (n,)
        Of the evaluations, from 1.
    value : ndarray, shape (n,)
        Of the objective, as it was told; NaN where it failed or is awaited.
    feasible : ndarray of bool, shape (n,)
        Whether all constraints were told, and none below 0.
    best : ndarray, shape (n,)
        Best feasible value up to every evaluation; NaN before the first.
    failed : ndarray of bool, shape (n,)
    maximise : bool
    optimum : float or None
        The true one, if it is known.
    ax_, figure_, line_, points_, optimum_
        What `plot` has drawn: axes, figure, Line2D of the best, a list of Line2D of evaluations,
        and the line of the optimum or None.

    See Also
    --------
    qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> from qpruntime.bayesopt import Optimizer
    >>> from qpruntime.plotting import ProgressDisplay
    >>> opt = Optimizer([(0.0, 1.0)], noise=0.0, random_state=0)
    >>> for _ in range(6):
    ...     x = opt.ask()
    ...     _ = opt.tell(x, f=(x[0] - 0.3) ** 2)
    ...
    >>> display = ProgressDisplay.from_optimizer(opt, optimum=0.0)
    >>> display.ax_.get_xlabel()
    'evaluation'
    """

    number: np.ndarray
    value: Array
    feasible: np.ndarray
    best: Array
    failed: np.ndarray
    maximise: bool
    optimum: float | None = None
    line_: Line2D | None = field(init=False, default=None)
    points_: list[Line2D] = field(init=False, default_factory=list)
    optimum_: Line2D | None = field(init=False, default=None)

    @classmethod
    def from_optimizer(
        cls, optimizer: Optimizer, *, optimum: float | None = None, ax: Axes | None = None
    ) -> ProgressDisplay:
        """Read the evaluations of an optimiser and draw.

        Parameters
        ----------
        optimizer : qpruntime.bayesopt.Optimizer
            With one evaluation or more.
        optimum : float, optional
            The true one, drawn as a line.
        ax : Axes, optional
            By default those of a new figure.

        Raises
        ------
        InputError
            If there is nothing to draw, or matplotlib is missing (extra ``plot``).
        """
        if not isinstance(optimizer, Optimizer):
            raise InputError(f"optimizer must be an Optimizer, got {shown(optimizer)}")
        columns = optimizer.columns()
        value = np.array(columns["f"], dtype=float)
        if np.isnan(value).all():
            raise InputError("no value of the objective is known: tell one evaluation first")
        rows = [np.array(columns[f"c{k + 1}"], dtype=float) for k in range(optimizer.constraints)]
        feasible = np.ones(value.size, dtype=bool)
        for row in rows:
            feasible &= row >= 0.0  # not NaN, which was not told
        feasible &= ~np.isnan(value)
        better = np.fmax if optimizer.maximise else np.fmin
        lost = columns.get("failed", [()] * value.size)
        display = cls(
            number=np.arange(1, value.size + 1),
            value=value,
            feasible=feasible,
            best=better.accumulate(np.where(feasible, value, np.nan)),
            failed=np.array([bool(failures) for failures in lost]),
            maximise=optimizer.maximise,
            optimum=None if optimum is None else number(optimum, "optimum"),
        )
        return display.plot(ax)

    def plot(self, ax: Axes | None = None) -> ProgressDisplay:
        """Draw evaluations, the best so far and a known optimum, and return the display."""
        ax = axes_of(ax, (6.8, 4.0))
        kinds = (
            (self.feasible, self.value, GREEN, "o", "feasible"),
            (~self.feasible & ~np.isnan(self.value), self.value, ORANGE, "x", "not feasible"),
            (self.failed, np.full(self.number.size, np.nanmax(self.value)), GREY, "v", "failed"),
        )
        self.points_ = []
        for mine, at, colour, marker, label in kinds:
            if mine.any():
                style: dict[str, Any] = {"color": colour, "marker": marker, "label": label}
                self.points_ += ax.plot(self.number[mine], at[mine], linestyle="none", **style)
        self.line_, self.optimum_ = None, None
        if self.feasible.any():
            (self.line_,) = ax.step(
                self.number, self.best, where="post", color=BLUE, label="best feasible so far"
            )
        if self.optimum is not None:
            self.optimum_ = ax.axhline(
                self.optimum, color=GREY, linestyle=":", label="true optimum"
            )
        what = "objective, maximised" if self.maximise else "objective, minimised"
        ax.set(xlabel="evaluation", ylabel=what)
        locator: Any = ax.xaxis.get_major_locator()
        locator.set_params(integer=True)
        legend_below(ax, columns=3)
        return self.keep(ax)
