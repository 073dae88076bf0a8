"""Deep models need JAX: without it nothing here is collected, which is said."""

import os

import numpy as np
import pytest

# Read when JAX starts: most of the time goes into compiling, which the first halves; the second
# makes two devices of one processor.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2"
)


@pytest.fixture
def double():
    """Switch JAX's double precision on, which estimators do for themselves."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def data():
    """Return 40 rows of a step at 0, with noise."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-1.0, 1.0, 40)
    return x[:, None], np.sign(x) + 0.1 * rng.standard_normal(40)


@pytest.fixture(scope="session")
def fitted(data):
    """Return a small regressor of these rows."""
    from qpruntime.deep import DeepGPRegressor

    options = {"inducing": 6, "max_iter": 60, "batch_size": 16, "random_state": 0}
    return DeepGPRegressor((2,), **options).fit(*data)
