from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Array = NDArray[np.float64]

def cho_solve(
    c_and_lower: tuple[_Array, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> _Array: ...
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> _Array: ...
def __getattr__(name: str) -> Any: ...
