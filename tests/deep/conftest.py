"""Deep models need JAX: without it nothing here is collected, which is said."""

import os

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
