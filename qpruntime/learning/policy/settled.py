"""Sites of all rows that have been settled, and what rows left out say of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.sparse.engine import Engine

__all__ = ["Settled"]

# What nearest rows have to gain, in log density a row.
_NEAR = 2e-4


@dataclass(frozen=True, eq=False)
class Settled:
    """Sites of all rows under a kernel, and log densities of the judges, left out.

    `near` are those by their nearest rows, None where these are not looked at.
    """

    engine: Engine
    alone: Array
    near: Array | None

    @property
    def m(self) -> int:
        """Inducing points."""
        return len(self.engine.Z)

    @cached_property
    def uses_near(self) -> bool:
        """Whether the nearest rows predict better, beyond doubt and more than a little."""
        if self.near is None:
            return False
        gain = self.near - self.alone
        doubt = 0.5 * float(np.std(gain)) / math.sqrt(gain.size)
        return bool(float(np.mean(gain)) > max(_NEAR, doubt))

    @property
    def densities(self) -> Array:
        """Densities by the better of the two predictions."""
        return self.near if self.uses_near and self.near is not None else self.alone

    @property
    def score(self) -> float:
        """Mean of the densities of rows left out."""
        return float(np.mean(self.densities))
