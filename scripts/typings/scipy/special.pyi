from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Array = NDArray[np.float64]

class _Unary:
    """A function of one array of any shape, or of one number."""

    @overload
    def __call__(self, x: float, /) -> np.float64: ...
    @overload
    def __call__(self, x: ArrayLike, /, *, out: _Array | None = None) -> _Array: ...

class _Elementwise:
    """A function of several arrays of any shapes that broadcast."""

    def __call__(self, *x: ArrayLike, out: _Array | None = None) -> _Array: ...

expit: _Unary
gammaln: _Unary
log_ndtr: _Unary
logit: _Unary
ndtr: _Unary
ndtri: _Unary
ndtri_exp: _Unary
bdtr: _Elementwise
betainc: _Elementwise
betaincinv: _Elementwise
eval_jacobi: _Elementwise
gammainc: _Elementwise
gammaincc: _Elementwise
ive: _Elementwise
kv: _Elementwise
pdtr: _Elementwise
pdtrc: _Elementwise

def logsumexp(
    a: ArrayLike, axis: int | None = None, b: ArrayLike | None = None, keepdims: bool = False
) -> _Array: ...
def softmax(x: ArrayLike, axis: int | None = None) -> _Array: ...
def __getattr__(name: str) -> Any: ...
