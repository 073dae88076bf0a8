"""Deep Gaussian processes by approximate EP with tied sites (Bui et al., ICML 2016).

The extra ``deep``, which needs JAX and optax; nothing else of the package imports it. EP alone:
the energy is stationary where moments match, which QP's projection does not do.
"""

from __future__ import annotations

from qpruntime._formatting import install_hint

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"deep Gaussian processes need JAX and optax: {install_hint('deep')} ({error})"
    ) from error

from qpruntime.deep.classifier import DeepGPClassifier
from qpruntime.deep.regressor import DeepGPRegressor

__all__ = ["DeepGPClassifier", "DeepGPRegressor"]
