"""
An EP loop of your own in JAX
=============================

Authors of packages need moments, not a package. This is EP and QP in forty lines of JAX, compiled
by ``jit``: probit moments in closed form, and for QP sigma* from the compact table that ships, as
an array of spline coefficients. The results equal those of `infer`.

JAX is an extra: ``pip install "qpruntime[deep]"``. Without it the example ends with a sentence.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime import infer, open_table

try:
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import log_ndtr
except ImportError:
    jax = None
    print("JAX is not installed: there is nothing to run here")
