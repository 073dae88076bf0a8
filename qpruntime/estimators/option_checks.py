"""Refusal of options that cannot act in a fit, with a message that says what to do instead.

Default options are never refused. Neither are options that act from some number of rows on, nor
numbers of threads, seeds and `verbose`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.gaussian_process.kernels import Kernel

from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.estimators.parameters import Parameters
from qpruntime.kernels.state_space import approximates
from qpruntime.learning.model_selection.budget import selection_blocker
from qpruntime.learning.options import Inducing, Options, Search, Series
from qpruntime.learning.settings import Data, Settings
from qpruntime.projection.table import Table

__all__ = ["refuse_idle"]


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
    _search(model.optimize, settings, data)
    _inducing(model.inducing, settings, data)
    _solver(model, settings, data)
    _table(model, settings, data)


def _refuse(parameter: str, value: object, why: str, remedy: str) -> None:
    what = shown(value)
    if isinstance(value, Options):
        what = ", ".join(f"{name}={shown(v)}" for name, v in value.changed().items()) or what
        what = f"{what} of {parameter}={type(value).__name__}(...)"
    else:
        what = f"{parameter}={what}"
    raise InputError(f"{what} cannot act: {why}; {remedy}")


def _search(option: object, settings: Settings, data: Data) -> None:
    changed = option == "loo" or (isinstance(option, Search) and option.changed())
    kernel = settings.kernel
    fixed = isinstance(kernel, Kernel) and not kernel.n_dims and not data.learn
    if changed and fixed:
        why = "nothing is learnt, for the kernel's parameters are all fixed"
        _refuse("optimize", option, why, "use optimize=False, or give them bounds")


def _inducing(option: object, settings: Settings, data: Data) -> None:
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


def _solver(model: Parameters, settings: Settings, data: Data) -> None:
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


def _table(model: Parameters, settings: Settings, data: Data) -> None:
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
