from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

def cdist(
    XA: ArrayLike, XB: ArrayLike, metric: str = "euclidean", **given: Any
) -> NDArray[np.float64]: ...
def __getattr__(name: str) -> Any: ...
