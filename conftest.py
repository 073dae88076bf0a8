"""What pytest leaves out when it looks for examples in the sources."""

from importlib.util import find_spec

# Examples are found by importing a module; these cannot be without their extras.
_EXTRAS = {"optuna": "qpruntime/bayesopt/optuna_sampler.py", "jax": "qpruntime/deep"}
collect_ignore = [path for needs, path in _EXTRAS.items() if not find_spec(needs)]
