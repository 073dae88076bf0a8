"""The type of arrays of numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array"]

#: Double precision, of any shape.
Array = NDArray[np.float64]
