"""Forest plots and maps of effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, number, shown
from qpruntime.errors import InputError
from qpruntime.plotting._style import BLUE, GREY, Display, axes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colorbar import Colorbar

    from qpruntime.effects import Mesh

__all__ = ["CaterpillarDisplay", "EffectMapDisplay"]

# --- Maps of effects: of fields on their triangles, of areas on shapes that are given.


@dataclass(eq=False, kw_only=True)
class EffectMapDisplay(Display):
    """A map of one term of `qpruntime.effects.EffectsModel`.

    Made by `from_estimator`.

    Attributes
    ----------
    names : tuple of str
        Areas, or numbers of nodes.
    values : ndarray, shape (R,)
        What is drawn.
    what : str
    mesh : Mesh or None
        Of a field in the plane.
    shapes : dict or None
        Corners (B, 2) by area.
    ax_, figure_, surface_, colorbar_
        What `plot` has drawn.

    See Also
    --------
    qpruntime.effects.Plane, qpruntime.plotting.CaterpillarDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Plane
    >>> from qpruntime.plotting import EffectMapDisplay
    >>> rng = np.random.default_rng(0)
    >>> data = {"east": rng.uniform(0.0, 1.0, 80), "north": rng.uniform(0.0, 1.0, 80)}
    >>> y = rng.poisson(np.exp(1.0 + np.sin(6.0 * data["east"])))
    >>> model = EffectsModel([Plane("east", "north", spacing=0.15)], "poisson").fit(data, y)
    >>> display = EffectMapDisplay.from_estimator(model, "plane(east, north)", clim=(-1.0, 1.0))
    >>> display.ax_.get_title()
    ''
    """

    names: tuple[str, ...]
    values: Array
    what: str
    mesh: Mesh | None = None
    shapes: Mapping[str, ArrayLike] | None = None
    surface_: ScalarMappable | None = field(init=False, default=None)
    colorbar_: Colorbar | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        model: BaseEstimator,
        term: str,
        *,
        what: str = "mean",
        above: float = 0.0,
        shapes: Mapping[str, ArrayLike] | None = None,
        ax: Axes | None = None,
        **options: Any,
    ) -> EffectMapDisplay:
        """Ask a fitted model for the effects of a term and draw them.

        Parameters
        ----------
        model : EffectsModel
        term : str
            A `Plane`, or `Areas` with `shapes`.
        what : {"mean", "sd", "exceedance"}
            Posterior mean, standard deviation, or the probability of an effect above `above`.
        shapes : mapping, optional
            Corners, shape (B, 2), by area.
        ax : Axes, optional
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If the term has no mesh and areas have no shapes, or matplotlib is missing.
        """
        choice(what, "what", ("mean", "sd", "exceedance"))
        if not hasattr(model, "effects"):
            raise InputError(f"a map is of a fitted EffectsModel, got {model!r:.80}")
        table = model.effects(term, above=number(above, "above"))
        block = model.term(term)
        mesh = getattr(block, "mesh", None)
        polygons = (
            None if shapes is None else {str(name): corners for name, corners in shapes.items()}
        )
        if mesh is None:
            missing = [name for name in table.names if polygons is None or name not in polygons]
            if missing:
                raise InputError(
                    f"a map of {term!r} takes shapes=, the corners of every area; "
                    f"{shown(missing[0])} has none"
                )
        column = {"exceedance": table.columns[-1]}.get(what, what)
        display = cls(
            names=table.names, values=table.column(column), what=what, mesh=mesh, shapes=polygons
        )
        return display.plot(ax=ax, **options)

    def plot(
        self, *, ax: Axes | None = None, colorbar: bool = True, **options: Any
    ) -> EffectMapDisplay:
        """Draw; further options are those of matplotlib's collections, such as ``cmap``."""
        ax = axes_of(ax)
        options = {"cmap": "viridis"} | options
        if self.mesh is not None:
            x, y = self.mesh.nodes.T
            shading = {"shading": "gouraud"} | options
            self.surface_ = ax.tripcolor(
                x, y, self.values, triangles=self.mesh.triangles, **shading
            )
        else:
            from matplotlib.collections import PolyCollection

            assert self.shapes is not None
            corners = [np.asarray(self.shapes[name], dtype=float) for name in self.names]
            self.surface_ = PolyCollection(corners, array=self.values, edgecolor="white", **options)
            ax.add_collection(self.surface_)
            ax.autoscale_view()
        ax.set_aspect("equal")
        if colorbar:
            self.colorbar_ = ax.figure.colorbar(self.surface_, ax=ax, label=self.what)
        return self.keep(ax)


# --- Effects of a term as intervals: of groups by size, along time and age as bands.

# Levels whose names are written.
_NAMED = 60


@dataclass(eq=False, kw_only=True)
class CaterpillarDisplay(Display):
    """Posterior means and intervals of the effects of one term of `qpruntime.effects.EffectsModel`.

    Made by `from_estimator`.

    Attributes
    ----------
    names : tuple of str
        Of the effects.
    mean, lower, upper : ndarray, shape (R,)
    level : float
        Posterior probability of each interval.
    term : str
    ax_, figure_, intervals_
        What `plot` has drawn: axes, figure, and the lines or the band.

    See Also
    --------
    qpruntime.effects.EffectsModel, qpruntime.plotting.EffectMapDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Groups
    >>> from qpruntime.plotting import CaterpillarDisplay
    >>> data = {"clinic": np.repeat(np.arange(8), 6)}
    >>> y = np.random.default_rng(0).poisson(np.repeat(np.linspace(1.0, 6.0, 8), 6))
    >>> model = EffectsModel([Groups("clinic")], "poisson").fit(data, y)
    >>> display = CaterpillarDisplay.from_estimator(model, "clinic")
    >>> display.ax_.get_xlabel()
    'effect, 95 %'
    """

    names: tuple[str, ...]
    mean: Array
    lower: Array
    upper: Array
    level: float
    term: str
    intervals_: PolyCollection | LineCollection | None = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        model: BaseEstimator,
        term: str,
        *,
        level: float = 0.95,
        ax: Axes | None = None,
        **options: Any,
    ) -> CaterpillarDisplay:
        """Ask a fitted model for the effects of a term and draw them.

        Parameters
        ----------
        model : EffectsModel
        term : str
            As of `EffectsModel.effects`.
        level : float
            Posterior probability of the intervals.
        ax : Axes, optional
            By default those of a new figure.
        **options
            Of `plot`.

        Raises
        ------
        InputError
            If there is no such term, or matplotlib is missing (extra ``plot``).
        """
        inside = number(level, "level", above=0.0, most=0.999999)
        if not hasattr(model, "effects"):
            raise InputError(f"a caterpillar is of a fitted EffectsModel, got {model!r:.80}")
        table = model.effects(term, central_levels(inside))
        lower, upper = table.values[:, 2], table.values[:, 3]
        mean = table.column("mean")
        display = cls(
            names=table.names, mean=mean, lower=lower, upper=upper, level=inside, term=term
        )
        return display.plot(ax=ax, **options)

    def plot(
        self, *, ax: Axes | None = None, sort: bool = True, band: bool = False
    ) -> CaterpillarDisplay:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
        sort : bool
            Whether effects are drawn from the least to the largest.
        band : bool
            Whether names are numbers, and a band is drawn along them instead.
        """
        ax = axes_of(ax)
        if band:
            try:
                at = np.array([float(name) for name in self.names])
            except ValueError as error:
                raise InputError("band=True is for terms along a number, as Walk") from error
            self.intervals_ = ax.fill_between(at, self.lower, self.upper, color=BLUE, alpha=0.25)
            ax.plot(at, self.mean, color=BLUE)
            ax.set(ylabel=f"effect, {100 * self.level:g} %", xlabel=self.term)
        else:
            order = np.argsort(self.mean) if sort else np.arange(len(self.mean))
            place = np.arange(len(order))
            self.intervals_ = ax.hlines(place, self.lower[order], self.upper[order], color=BLUE)
            ax.plot(self.mean[order], place, "o", color=BLUE, markersize=3)
            ax.axvline(0.0, color=GREY, linewidth=0.8)
            if len(order) <= _NAMED:
                size = min(10.0, 260.0 / max(1, len(order)))
                ax.set_yticks(place, [self.names[k] for k in order], fontsize=size)
            else:
                ax.set_yticks([])
            ax.set(xlabel=f"effect, {100 * self.level:g} %", ylabel=self.term)
        return self.keep(ax)
