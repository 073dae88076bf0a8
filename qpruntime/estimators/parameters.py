"""Parameters that all estimators have, with their defaults; what they mean stands with each.

A dataclass makes `__init__`, which stores and does nothing else. Types are no strings here: they
are looked up from subclasses, where these names are not imported.
"""

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import ArrayLike
from qpruntime.inference.corrections.corrected import Correction
from qpruntime.inference.sparse.keeper import MEMORY
from qpruntime.learning.settings import Callback, ObjectiveName
from qpruntime.projection.table import Table

__all__ = ["Parameters"]


# Estimators are told apart by identity, and shown as scikit-learn shows them.
@dataclass(eq=False, repr=False, match_args=False)
class Parameters(BaseEstimator):
    """The first may be given by position, all others by name."""

    kernel: Kernel | Literal["auto"] | None = None
    _: KW_ONLY
    table: Table | str | os.PathLike[str] | None = None
    objective: ObjectiveName = "evidence"
    optimize: bool = True
    n_restarts: int = 0
    max_iter: int = 1000
    ftol: float = 1e-9
    tol: float = 1e-6
    max_sweeps: int = 100
    n_jobs: int | None = None
    verbose: int = 0
    callback: Callback | None = None
    solver: Literal["auto", "dense", "markov"] = "auto"
    scheduler: str | None = None
    approximate: float | None = None
    random_state: int | np.random.RandomState | None = None
    correction: Correction | None = None
    inducing: int | str | ArrayLike | None = "auto"
    nearest: int | Literal["auto"] = "auto"
    budget: float | None = None
    prior_mean: Any = None
    power: float = 0.5
    optimize_inducing: bool = True
    subsample: int = 10_000
    dtype: Literal["mixed", "float64"] = "mixed"
    memory: float = MEMORY
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
