"""Ratio of QP's standard deviation to EP's over the cavities of a table."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime._validation import whole
from qpruntime.errors import InputError
from qpruntime.plotting._style import Display, axes_of
from qpruntime.plotting.function import ends
from qpruntime.projection.open import open_table
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.contour import QuadContourSet

__all__ = ["RatioDisplay", "domain", "outcome_of"]

# Steps of the lines, the first that gives five or more.
_STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002)
_LINES = 5


@dataclass(eq=False, kw_only=True)
class RatioDisplay(Display):
    """A map of sigma*/sigma_EP, both standard deviations, over cavity means and deviations.

    Made by `from_table`.

    Attributes
    ----------
    mu : ndarray, shape (M,)
        Cavity means.
    log10_sigma : ndarray, shape (S,)
        Decimal logarithms of cavity standard deviations.
    ratio : ndarray, shape (S, M)
        sigma*/sigma_EP, above 0 and at most 1 (paper, Theorem 2).
    likelihood : str
    outcome : float
        The observation y.
    ax_, figure_, surface_, lines_, colorbar_
        What `plot` has drawn: axes, figure, QuadMesh, QuadContourSet and Colorbar; the last two may
        be None.

    See Also
    --------
    qpruntime.open_table, qpruntime.project

    Examples
    --------
    >>> from qpruntime import open_table
    >>> from qpruntime.plotting import RatioDisplay
    >>> display = RatioDisplay.from_table(open_table("probit"))
    >>> display.ax_.get_xlabel()[:11]
    'cavity mean'
    """

    mu: Array
    log10_sigma: Array
    ratio: Array
    likelihood: str
    outcome: float
    surface_: ScalarMappable | None = field(init=False, default=None)
    lines_: QuadContourSet | None = field(init=False, default=None)
    colorbar_: Colorbar | None = field(init=False, default=None)

    @classmethod
    def from_table(
        cls,
        table: Table | str | os.PathLike[str],
        y: float | None = None,
        *,
        mu_range: ArrayLike | None = None,
        log10_sigma_range: ArrayLike | None = None,
        grid: int = 121,
        ax: Axes | None = None,
        **options: Any,
    ) -> RatioDisplay:
        """Look a table up on a grid of cavities and draw.

        Parameters
        ----------
        table : Table, path or name
            As `qpruntime.open_table` takes it; ``"probit-compact"`` and others are shipped.
        y : float, optional
            The observation; by default 1, or the first that the table holds.
        mu_range, log10_sigma_range : (float, float), optional
            What to draw; by default the axes of the table, and -10 to 10 and -2 to 2 of a compact
            one, which holds for every cavity.
        grid : int
            Points of one side.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If an argument is not usable, the table holds L_p projections, or matplotlib is missing
            (extra ``plot``).
        TableError
            If the table cannot be opened, or has no number for a cavity.
        """
        opened = table if isinstance(table, Table) else open_table(table)
        if opened.metadata.projection is not None:
            raise InputError(f"{opened.path} holds L_p projections: it has no sigma* to draw")
        outcome = outcome_of(opened, y)
        side = whole(grid, "grid", 2)
        mu_ends, sigma_ends = domain(opened, outcome)
        if mu_range is not None:
            mu_ends = ends(np.empty(0), mu_range, "mu_range")
        if log10_sigma_range is not None:
            sigma_ends = ends(np.empty(0), log10_sigma_range, "log10_sigma_range")
        mu, log10_sigma = np.linspace(*mu_ends, side), np.linspace(*sigma_ends, side)
        sigma = 10.0 ** log10_sigma[:, None]
        source = opened if opened.metadata.kind == "surfaces" else None
        ep = project_arrays(opened.likelihood, mu, sigma, outcome, "ep", source).std
        display = cls(
            mu=mu,
            log10_sigma=log10_sigma,
            ratio=opened.lookup(mu, sigma, outcome)[0] / ep,
            likelihood=opened.likelihood.name,
            outcome=outcome,
        )
        return display.plot(ax, **options)

    def plot(self, ax: Axes | None = None, *, bar: bool = True) -> RatioDisplay:
        """Draw the map, lines of equal ratio and a bar of the colours; return the display.

        Parameters
        ----------
        ax : Axes, optional
        bar : bool
            Whether there is a bar of the colours.
        """
        ax = axes_of(ax, (6.2, 4.4))
        least = min(float(self.ratio.min()), 0.999)
        self.surface_ = ax.pcolormesh(
            self.mu,
            self.log10_sigma,
            self.ratio,
            cmap="viridis",
            vmin=least,
            vmax=1.0,
            shading="gouraud",
            rasterized=True,
        )
        step = next((s for s in _STEPS if (1.0 - least) / s >= _LINES), _STEPS[-1])
        levels = 1.0 - step * np.arange(int((1.0 - least) / step), 0, -1)
        levels = levels[(levels > self.ratio.min()) & (levels < self.ratio.max())]
        self.lines_ = None
        if levels.size:
            # Lines that stand out from the colour under them.
            ink = ["white" if level < 0.5 * (1.0 + least) else "black" for level in levels]
            self.lines_ = ax.contour(
                self.mu, self.log10_sigma, self.ratio, levels, colors=ink, linewidths=0.8
            )
            ax.clabel(self.lines_, fmt="%g", fontsize=8)
        self.colorbar_ = None
        if bar:
            label = r"$\sigma^*/\sigma_{\mathrm{EP}}$"
            self.colorbar_ = ax.figure.colorbar(self.surface_, ax=ax, label=label)
        ax.set(
            xlabel=r"cavity mean $\mu$",
            ylabel=r"$\log_{10}$ cavity standard deviation $\sigma$",
            title=f"{self.likelihood}, y = {self.outcome:g}",
        )
        return self.keep(ax)


# --- Slabs and ranges for plots


def outcome_of(table: Table, outcome: float | None) -> float:
    """Return the observation for a plot, by default 1 or the first one of the table.

    Raises
    ------
    InputError
        If the likelihood does not allow it, or a grid does not have it.
    """
    known = table.metadata.outcomes
    if outcome is None:
        outcome = 1.0 if known[0] <= 1.0 <= known[-1] else known[0]
    y = float(table.likelihood.validate([outcome])[0])
    grid = table.metadata.kind == "grid" and not table.likelihood.mirror
    if grid and not known[0] <= y <= known[-1]:
        raise InputError(f"the table holds y = {known[0]:g} to {known[-1]:g}, got {y:g}")
    return y


def domain(table: Table, y: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of mu and log10 sigma of a table, or default ends."""
    if table.metadata.kind == "compact":
        return (-10.0, 10.0), (-2.0, 2.0)
    mu, log10_sigma = table.metadata.axes[:2]
    low, high = mu.start, mu.stop
    if table.metadata.kind == "surfaces":
        mode = table.metadata.traits["mode"]
        if mode == "location":
            low, high = low + y, high + y
        elif mode == "mirror" and y < 0.0:
            low, high = -high, -low
        # The inverse of 10^x need not be exact.
        slack = 1e-9
        return (low + slack * abs(low), high - slack * abs(high)), (
            log10_sigma.start + slack,
            log10_sigma.stop - slack,
        )
    return (low, high), (log10_sigma.start, log10_sigma.stop)
