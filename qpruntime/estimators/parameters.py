"""Parameters that all estimators have, with their defaults; what they mean stands with each.

A dataclass makes `__init__`, which stores and does nothing else. Types are no strings here: they
are looked up from subclasses, where these names are not imported.
"""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import ArrayLike
from qpruntime._validation import choice, shown
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import Correction
from qpruntime.inference.fixed_point.convergence import DEFAULT_MAX_SWEEPS, DEFAULT_TOL
from qpruntime.learning.options import Inducing, Options, Search, Series, integrate_of
from qpruntime.learning.settings import SOLVERS, inducing_of, search_of
from qpruntime.persistence.file import Savable
from qpruntime.projection.table import Table

__all__ = ["Parameters"]


def _series_of(value: object) -> Series | None:
    if isinstance(value, Series):
        return value
    solver = choice(value, "solver", SOLVERS)
    return None if solver == "dense" else Series(required=solver == "markov")


#: Functions that return the options given by a parameter's value, None if none can act with it.
_OPTIONS_FROM: dict[str, Callable[[Any], Options | None]] = {
    "optimize": search_of,
    "inducing": inducing_of,
    "solver": _series_of,
    "hyperparameters": integrate_of,
}


# Estimators are told apart by identity, and shown as scikit-learn shows them.
@dataclass(eq=False, repr=False, match_args=False)
class Parameters(Savable, BaseEstimator):
    """The first may be given by position, all others by name."""

    kernel: Kernel | Literal["auto"] | None = None
    _: KW_ONLY
    table: Table | str | os.PathLike[str] | None = None
    optimize: bool | Literal["evidence", "loo"] | Search = True
    tol: float = DEFAULT_TOL
    max_sweeps: int = DEFAULT_MAX_SWEEPS
    correction: Correction | None = None
    inducing: int | str | ArrayLike | Inducing | None = "auto"
    solver: Literal["auto", "dense", "markov"] | Series = "auto"
    prior_mean: BaseEstimator | Literal["auto"] | None = "auto"
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    verbose: int = 0

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name; with `deep` also fields of values, as ``inducing__power``."""
        parameters: dict[str, Any] = super().get_params(deep)
        for name in _OPTIONS_FROM if deep else ():
            if isinstance(parameters.get(name), Options):
                fields = vars(parameters[name]).items()
                parameters |= {f"{name}__{field}": value for field, value in fields}
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters, or fields of values: ``inducing__power=1.0`` keeps what else there is.

        Raises
        ------
        InputError
            If a value has no such field, or the field cannot be set where the value is a plain one
            that has none.
        """
        now = self.get_params(deep=False)
        whole = {
            name: v for name, v in params.items() if name.partition("__")[0] not in _OPTIONS_FROM
        }
        whole |= {name: params[name] for name in _OPTIONS_FROM if name in params}
        for parameter in (name for name in _OPTIONS_FROM if name in now):
            start = f"{parameter}__"
            fields = {name[len(start) :]: v for name, v in params.items() if name.startswith(start)}
            if not fields:
                continue
            plain = whole.get(parameter, now[parameter])
            value = _OPTIONS_FROM[parameter](plain)
            if value is None:
                raise InputError(
                    f"{start}{min(fields)} cannot act with {parameter}={shown(plain)}: set "
                    f"{parameter} too"
                )
            whole[parameter] = value.but(**fields)
        super().set_params(**whole)
        return self
