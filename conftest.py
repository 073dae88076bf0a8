"""What pytest leaves out when it looks for examples, its garbage collector, and Ctrl-C."""

import gc
import signal
from importlib.util import find_spec

# Examples are found by importing a module; these cannot be without their extras.
_EXTRAS = {
    "qpruntime/bayesopt/optuna_sampler.py": "optuna",
    "qpruntime/deep": "optax",
    "qpruntime/forecasting/sktime.py": "sktime",
    "qpruntime/interop/gpy.py": "GPy",
    "qpruntime/jax": "jax",
    "qpruntime/jax/gpjax.py": "gpjax",
    "qpruntime/onnx": "onnx",
    "qpruntime/torch": "torch",
    "qpruntime/torch/gpytorch.py": "gpytorch",
}
collect_ignore = [path for path, needs in _EXTRAS.items() if not find_spec(needs)]


def pytest_configure(config):
    """Let tests interrupt what they start, also where a shell runs them in the background.

    What a shell puts there ignores Ctrl-C, and so does all that is started from it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session):
    """Look for garbage less often, and not among what is imported by now.

    Compilation makes many small objects: a fifth of its time went into walks over all of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
