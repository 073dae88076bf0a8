"""Parameters that all estimators have, with their defaults; what they mean stands with each.

A dataclass makes `__init__`, which stores and does nothing else. Types are no strings here: they
are looked up from subclasses, where these names are not imported. Options that cannot act in a fit
are refused, with a message that says what to do instead.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import ArrayLike
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import Correction
from qpruntime.inference.fixed_point.convergence import DEFAULT_MAX_SWEEPS, DEFAULT_TOL
from qpruntime.kernels.state_space import approximates
from qpruntime.learning.inputs import Data
from qpruntime.learning.model_selection.budget import selection_blocker
from qpruntime.learning.options import (
    Inducing,
    Options,
    Search,
    Series,
    Settings,
    inducing_of,
    integrate_of,
    search_of,
    series_of,
)
from qpruntime.persistence.file import Savable
from qpruntime.projection.table import Table

__all__ = ["Parameters", "refuse_idle"]


#: Functions that return the options given by a parameter's value, None if none can act with it.
_OPTIONS_FROM: dict[str, Callable[[Any], Options | None]] = {
    "optimize": search_of,
    "inducing": inducing_of,
    "solver": series_of,
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


def refuse_idle(model: Parameters, settings: Settings, processes: Sequence[Data]) -> None:
    """Raise `InputError` for an option of an estimator that cannot act in this fit.

    Parameters
    ----------
    model : estimator
    settings : Settings
        As the user gave them, of the same parameters.
    processes : sequence of Data
        Of which the first is looked at.
    """
    data = processes[0]
    _refuse_search(model.optimize, settings, data)
    _refuse_inducing(model.inducing, settings, data)
    _refuse_solver(model, settings, data)
    _refuse_table(model, settings, data)


def _refuse(parameter: str, value: object, why: str, remedy: str) -> None:
    what = shown(value)
    if isinstance(value, Options):
        what = ", ".join(f"{name}={shown(v)}" for name, v in value.changed().items()) or what
        what = f"{what} of {parameter}={type(value).__name__}(...)"
    else:
        what = f"{parameter}={what}"
    raise InputError(f"{what} cannot act: {why}; {remedy}")


def _refuse_search(option: object, settings: Settings, data: Data) -> None:
    changed = option == "loo" or (isinstance(option, Search) and option.changed())
    kernel = settings.kernel
    fixed = isinstance(kernel, Kernel) and not kernel.n_dims and not data.learn
    if changed and fixed:
        why = "nothing is learnt, for the kernel's parameters are all fixed"
        _refuse("optimize", option, why, "use optimize=False, or give them bounds")


def _refuse_inducing(option: object, settings: Settings, data: Data) -> None:
    changed = option == "judged" if isinstance(option, str) else isinstance(option, Inducing)
    if isinstance(option, Inducing) and option.open and option.points == "auto":
        changed = bool(option.changed())
    if not changed:
        return
    if settings.auto is None and settings.sparse is None:
        why, remedy = "corrections take the dense engine", "use correction=None"
    elif settings.auto is not None and (why := selection_blocker(data, settings)):
        remedy = "give their number, inducing=200, or leave it out"
    else:
        return
    _refuse("inducing", option, why, remedy)


def _refuse_solver(model: Parameters, settings: Settings, data: Data) -> None:
    solver = model.solver
    if settings.sparse is not None:
        if isinstance(solver, Series) or solver == "dense":
            why = f"inducing={shown(settings.sparse.points)} is an engine of its own"
            _refuse("solver", solver, why, "leave one of the two out")
        return
    if not isinstance(solver, Series) or solver.approximate is None:
        return
    kernel, width = settings.kernel, data.inputs.width
    for why, holds in (
        (f"a series has X of one column, this one has {width}", width != 1),
        ("corrections take a covariance matrix", model.correction is not None),
        ('optimize="loo" takes a covariance matrix', settings.search.objective == "loo"),
        ('method "vb" takes a covariance matrix', data.projector.method == "vb"),
        (
            "there is no squared exponential, RBF, in the kernel",
            kernel is None or (isinstance(kernel, Kernel) and not approximates(kernel)),
        ),
    ):
        if holds:
            _refuse("solver", solver, why, 'leave it out, solver="auto"')


def _refuse_table(model: Parameters, settings: Settings, data: Data) -> None:
    table, projector = model.table, data.projector
    if table is None or (isinstance(table, str) and table == "exact"):
        return
    if settings.optimize and data.learn:
        learnt = " and ".join(data.learn)
        why = f"it is of fixed noise, and {learnt} is learnt"
        _refuse("table", _path(table), why, 'fix the noise, or use table=None or "exact"')
    surfaces = projector.table is not None and projector.table.metadata.kind == "surfaces"
    named = getattr(model, "likelihood", "") is not None
    if named and projector.method in ("ep", "vb") and not surfaces:
        why = f'method "{projector.method}" looks nothing up in it, QP does'
        _refuse("table", _path(table), why, 'use table=None, or method="qp"')


def _path(table: object) -> object:
    return table.path if isinstance(table, Table) else table
