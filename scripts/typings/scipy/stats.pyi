from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime.likelihoods.base import ResponseDistribution

class _Frozen(ResponseDistribution, Protocol):
    def isf(self, q: ArrayLike, /) -> Array: ...

class _Family:
    """A family of distributions, whose parameters are numbers or arrays."""

    def __call__(self, *parameters: ArrayLike, scale: ArrayLike = 1.0) -> _Frozen: ...
    def __getattr__(self, name: str) -> Callable[..., Any]: ...

beta: _Family
binom: _Family
gamma: _Family
laplace: _Family
lognorm: _Family
nbinom: _Family
norm: _Family
poisson: _Family
t: _Family

def __getattr__(name: str) -> Any: ...
