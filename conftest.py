"""What pytest leaves out when it looks for examples in the sources."""

from importlib.util import find_spec

# Examples are found by importing a module; this one cannot be without the extra.
collect_ignore = [] if find_spec("optuna") else ["qpruntime/bayesopt/optuna_sampler.py"]
