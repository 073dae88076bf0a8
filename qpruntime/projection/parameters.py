"""Parameters of likelihoods moved a little, and the derivative from what is found there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qpruntime.arrays import Array
from qpruntime.projection.projector import Projector

__all__ = ["PLACES", "STEP", "derivative", "moved"]

#: Step of the differences in the logarithm of a parameter: fourth order leaves 1e-12 of truncation
#: and as much of rounding.
STEP = 3e-3
#: Steps at which something is asked for.
PLACES = (-2, -1, 1, 2)
# Two steps, and room for rounding.
_INSIDE = float(np.exp(2.0 * STEP)) * (1.0 + 1e-12)


def moved(projector: Projector, name: str) -> dict[int, Projector]:
    """Return projectors with a parameter of the likelihood moved by `PLACES` steps of its log.

    At a limit of the parameter they are about a point two steps inside.
    """
    likelihood = projector.likelihood
    low, high = likelihood.limits.get(name, (0.0, np.inf))
    centre = min(max(likelihood.parameters[name], low * _INSIDE), high / _INSIDE)
    return {
        k: projector.for_parameters(
            likelihood.with_parameters(**{name: centre * float(np.exp(k * STEP))})
        )
        for k in PLACES
    }


def derivative(at: Mapping[int, Array], step: float | Array = STEP) -> Array:
    """Fourth-order difference quotient from what there is at `PLACES` steps."""
    return (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step)
