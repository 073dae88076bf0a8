"""What pytest leaves out when it looks for examples in the sources."""

from importlib.util import find_spec

# Examples are found by importing a module; these cannot be without their extras.
_EXTRAS = {
    "qpruntime/bayesopt/optuna_sampler.py": "optuna",
    "qpruntime/deep": "optax",
    "qpruntime/gpy.py": "GPy",
    "qpruntime/jax": "jax",
    "qpruntime/onnx": "onnx",
    "qpruntime/torch": "torch",
    "qpruntime/torch/gpytorch.py": "gpytorch",
}
collect_ignore = [path for path, needs in _EXTRAS.items() if not find_spec(needs)]
