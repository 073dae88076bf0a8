"""Axes to draw into, colours and legends that all displays share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from qpruntime._formatting import install_hint
from qpruntime._validation import shown
from qpruntime.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.legend import Legend

__all__ = [
    "BLUE",
    "CLASSES",
    "GREEN",
    "GREY",
    "ORANGE",
    "Display",
    "axes_of",
    "legend_below",
    "probabilities",
]

# Colours of M. Okabe and K. Ito, which differ for every kind of colour vision and in grey.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#5A5A5A"
#: Colour and marker of the first and of the second class: shape tells what colour may not.
CLASSES = ((BLUE, "o"), (ORANGE, "^"))
# Range of a colour map that is used; markers would not stand out at its ends.
_TAKEN = (0.22, 0.78)
# Points between the axes and a legend below them: the tick labels and the label of the axis.
_BELOW = 36.0


@dataclass(eq=False, kw_only=True)
class Display:
    """Base of displays: the axes, and their figure, that `plot` has drawn into."""

    ax_: Axes | None = field(init=False, default=None, repr=False)
    figure_: Figure | SubFigure | None = field(init=False, default=None, repr=False)

    def keep(self, ax: Axes) -> Self:
        """Store what `plot` has drawn into, and return the display."""
        self.ax_, self.figure_ = ax, ax.figure
        return self


def axes_of(ax: object, size: tuple[float, float] = (6.4, 4.2)) -> Axes:
    """Return the axes given, or those of a new figure of `size` inches.

    Raises
    ------
    InputError
        If matplotlib is missing, or `ax` is not one of its axes.
    """
    try:
        from matplotlib.axes import Axes
    except ImportError as error:
        raise InputError(f"plotting needs matplotlib: {install_hint('plot')}") from error
    if isinstance(ax, Axes):
        return ax
    if ax is not None:
        raise InputError(
            f"ax must be one Axes of matplotlib, got {shown(ax)}; of several take one, as axes[0]"
        )
    # The import chooses a backend, which axes of the caller's own figure do not need.
    import matplotlib.pyplot as plt

    created = plt.subplots(figsize=size, layout="constrained")[1]
    assert isinstance(created, Axes)
    return created


def legend_below(ax: Axes, columns: int = 3, extra: float = 0.0, **options: Any) -> Legend:
    """Draw a legend under the axes, where no data are, `extra` points further down."""
    from matplotlib.transforms import ScaledTranslation

    down = ScaledTranslation(0.0, -(_BELOW + extra) / 72.0, ax.figure.dpi_scale_trans)
    return ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + down,
        ncols=columns,
        frameon=False,
        borderaxespad=0.0,
        **options,
    )


def probabilities() -> Colormap:
    """Return colours from blue, the first class, over white to red, the second."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.colors import ListedColormap

    return ListedColormap(mpl.colormaps["RdBu_r"](np.linspace(*_TAKEN, 256)))
