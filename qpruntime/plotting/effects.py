"""Maps of effects: of fields on their triangles, of areas on shapes that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.plotting.canvas import axes_of
from qpruntime.validation import choice, number

__all__ = ["EffectMapDisplay"]


@dataclass(eq=False, kw_only=True)
class EffectMapDisplay:
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
    """

    names: tuple[str, ...]
    values: Array
    what: str
    mesh: Any = None
    shapes: Mapping[str, ArrayLike] | None = None
    ax_: Any = field(init=False, default=None)
    figure_: Any = field(init=False, default=None)
    surface_: Any = field(init=False, default=None)
    colorbar_: Any = field(init=False, default=None)

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        term: str,
        *,
        what: str = "mean",
        above: float = 0.0,
        shapes: Mapping[Any, ArrayLike] | None = None,
        ax: Any = None,
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
        own = None if shapes is None else {str(name): corners for name, corners in shapes.items()}
        if mesh is None:
            missing = [name for name in table.names if own is None or name not in own]
            if missing:
                raise InputError(
                    f"a map of {term!r} takes shapes=, the corners of every area; {missing[0]!r} "
                    "has none"
                )
        column = {"exceedance": table.columns[-1]}.get(what, what)
        found = cls(
            names=table.names, values=table.column(column), what=what, mesh=mesh, shapes=own
        )
        return found.plot(ax=ax, **options)

    def plot(self, *, ax: Any = None, colorbar: bool = True, **options: Any) -> EffectMapDisplay:
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
        self.ax_, self.figure_ = ax, ax.figure
        return self
