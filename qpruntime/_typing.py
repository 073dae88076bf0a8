"""Types of arrays, and of bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
else:

    class ArrayLike:
        """Values that NumPy converts to an array; NumPy's own alias fills a page when printed."""


__all__ = ["Array", "ArrayLike", "Arrays", "Bounds", "Floats", "IntArray"]

#: Double precision, of any shape.
Array = NDArray[np.float64]
#: Whole numbers of 64 bits, of any shape.
IntArray = NDArray[np.int64]
#: Several arrays, or several numbers, as kernels take and return them.
Arrays = tuple[Array, ...]
Floats = tuple[float, ...]
#: Bounds of a parameter of a likelihood, or "fixed".
Bounds = tuple[float, float] | str
