"""What a problem is, in words that differ where its results do, in whatever digit.

A checkpoint is compared by them before anything in it is used.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.inference.sparse.rows import Held, Rows
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = ["FORMAT", "digest", "kernel_words", "projector_words"]

#: Of checkpoints; those of another one are refused.
FORMAT = "2"
# Inputs that are read in parts are compared in so many chunks, from the first to the last.
_COMPARED = 4
# Where a density of the user's own is compared, and to how many digits: other machines round
# otherwise. Its observations are the first ones.
_PLACES, _DIGITS, _OBSERVATIONS = (-3.0, -1.1, -0.2, 0.0, 0.7, 2.3), 10, 5


def kernel_words(kernel: Any, bounds: bool) -> str:
    """Return a kernel with every digit, and with the bounds of what is learnt if asked for."""
    if not isinstance(kernel, Kernel):
        return repr(kernel)
    kind = type(kernel)
    parts = [
        f"{name}={_value(value, bounds)}"
        for name, value in sorted(kernel.get_params(deep=False).items())
        if bounds or not name.endswith("_bounds")
    ]
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(parts)})"


def _value(value: Any, bounds: bool) -> str:
    if isinstance(value, Kernel):
        return kernel_words(value, bounds)
    if isinstance(value, (list, tuple)) and any(isinstance(one, Kernel) for one in value):
        return f"[{', '.join(_value(one, bounds) for one in value)}]"
    if isinstance(value, (int, float, np.number, np.ndarray, list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "iuf":
            return repr(array.astype(float).tolist())
    # An object's address is another one in every process.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def projector_words(projector: Projector, y: Any) -> dict[str, str]:
    """Return likelihood, method, order and table; `y` are encoded observations."""
    table = projector.table
    return {
        "likelihood": _likelihood_words(projector.likelihood, y),
        "method": projector.method,
        "p": repr(projector.p),
        "table": "none" if table is None else table.sha256,
    }


def _likelihood_words(likelihood: Likelihood, y: Any) -> str:
    """Name and parameters; of a density that is not ours its values too."""
    if likelihood.recipe is None or not likelihood.has_density:
        return likelihood.spelt
    some = np.unique(np.asarray(y, dtype=float).ravel()[:_OBSERVATIONS])
    values = [
        f"{likelihood.split(f, float(one), likelihood.theta)[0]:.{_DIGITS}g}"
        for one in some
        for f in _PLACES
    ]
    return f"{likelihood.spelt} {hashlib.sha256(' '.join(values).encode()).hexdigest()[:16]}"


def digest(rows: Rows, *arrays: Any) -> str:
    """Return a hash of these arrays and of rows.

    All of them, but of inputs that are read in parts only some chunks: reading takes longer than
    computing can.
    """
    found = hashlib.sha256()

    def add(values: Any) -> None:
        if values is None:
            found.update(b"-")
            return
        found.update(f"{values.dtype.str} {values.shape} ".encode())
        found.update(np.ascontiguousarray(values).tobytes())

    for array in arrays:
        add(np.asarray(array))
    last = rows.chunks - 1
    some = range(rows.chunks) if isinstance(rows, Held) else range(min(_COMPARED, rows.chunks))
    read = {last * k // max(len(some) - 1, 1) for k in some}
    for number in range(rows.chunks):
        for values in rows.others(rows.slice(number)):
            add(values)
        if number in read:
            add(rows.read(number).X)
    return found.hexdigest()
