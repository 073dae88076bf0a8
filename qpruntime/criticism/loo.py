"""Several models of the same rows: leave-one-out densities with paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.criticism.leave_one_out import leave_one_out, processes_of, standard_error
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.by_likelihood import Predicted
from qpruntime.estimators.process import all_of
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.validation import flag, shown

__all__ = ["compare"]

#: Below so many nats of difference, and so many rows, a normal error of it is not to be relied on.
_CLOSE, _FEW = 4.0, 100
#: Outcomes agree if they differ by so little, in units of their spread: they were scaled.
_SAME = 1e-9


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    y: ArrayLike | None = None,
    *,
    rows: ArrayLike | None = None,
    evidence: bool = False,
) -> Any:
    """Compare models of the same rows by leave-one-out log predictive densities.

    The best is first. Differences are of the same rows, so their standard error is that of the
    paired terms, mostly far below those of the sums.

    Parameters
    ----------
    models : mapping of name to model, or sequence of models
        Fitted estimators or posteriors; see `leave_one_out`. In a sequence they are called by
        their class and place.
    y : array-like, shape (N,), optional
        Labels of the fits, where several classes are one against the rest.
    rows : array-like of int, shape (n,), optional
        Only of these rows.
    evidence : bool
        Whether to add log evidences: EP's, and corrected by pairs of cumulants with the spread of
        terms of fourth order, about its error. nan where an engine has no corrections, and for
        classes one against the rest, whose evidences are of other questions.

    Returns
    -------
    pandas.DataFrame
        A row a model: ``elpd`` and ``se``, the sum in nats with its standard error; ``difference``
        to the best and ``difference_se``; ``words``, what is to be known of it: a difference of
        less than 4 nats, or less than 100 rows, have standard errors that are too small (Sivula,
        Magnusson, Matamoros & Vehtari 2025).

    Raises
    ------
    InputError
        If the models are of other rows, some have densities of numbers and others probabilities,
        or pandas is missing.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("a comparison is a data frame: pip install pandas") from error
    wanted = flag(evidence, "evidence")
    named = _named(models)
    _same_data(named)
    found = {name: leave_one_out(model, y, rows=rows).log_density for name, model in named.items()}
    sizes = {name: one.size for name, one in found.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the models are of other rows, and cannot be compared: {sizes}")
    order = sorted(found, key=lambda name: -found[name].sum())
    table = []
    for name in order:
        own, short = found[name], found[name] - found[order[0]]
        line = {
            "elpd": float(own.sum()),
            "se": standard_error(own),
            "difference": float(short.sum()),
            "difference_se": standard_error(short) if name != order[0] else 0.0,
        }
        if wanted:
            line |= _evidences(named[name])
        table.append({**line, "words": "" if name == order[0] else _words(short)})
    return pandas.DataFrame(table, index=pandas.Index(order, name="model"))


def _named(models: Any) -> dict[str, Any]:
    """Return models by name, at least one."""
    if isinstance(models, Mapping):
        named = {str(name): model for name, model in models.items()}
    elif isinstance(models, Sequence) and not isinstance(models, str):
        named = {f"{type(model).__name__} {i}": model for i, model in enumerate(models)}
    else:
        raise InputError(f"models must be a mapping or a sequence of models, got {shown(models)}")
    if not named:
        raise InputError("there are no models to compare")
    return named


def _words(short: Array) -> str:
    """What a difference of rows is worth."""
    if not short.any():
        return "the same predictions"
    said = []
    if abs(short.sum()) < _CLOSE:
        said.append(f"less than {_CLOSE:g} nats: not told apart")
    if short.size < _FEW:
        said.append(f"less than {_FEW} rows: the standard error is too small")
    return "; ".join(said)


def _same_data(named: Mapping[str, Any]) -> None:
    """Raise `InputError` if models are of data that do not compare, where that can be seen."""
    kinds, outcomes = {}, {}
    for name, model in named.items():
        if isinstance(model, ClassPosterior | Posterior):
            continue
        posts = processes_of(model)
        own = getattr(model, "likelihood_", None)
        numbers = own is not None and not Predicted.discrete(own)
        kinds[name] = "densities" if numbers else "probabilities"
        one = solution_of(posts[0])
        if isinstance(posts[0], Posterior) and len(posts) == 1 and one.name == "dense":
            centre, unit = model._units()
            outcomes[name] = (centre + unit * one.observed().y)[: len(model.X_train_)]
    if len(set(kinds.values())) > 1:
        raise InputError(
            f"densities of numbers do not compare with probabilities of counts or labels: {kinds}"
        )
    first = next(iter(outcomes), None)
    for name, y in outcomes.items():
        known = outcomes[first] if first is not None else y
        spread = float(np.abs(known).max(initial=0.0))
        if y.shape != known.shape or not (np.abs(y - known) <= _SAME * spread).all():
            raise InputError(f"{first!r} and {name!r} were fitted to other outcomes")


def _evidences(model: Any) -> dict[str, float]:
    """Log evidence in units of the data, corrected, with its spread; nan where there is none."""
    bare = isinstance(model, ClassPosterior | Posterior)
    posts = all_of(model) if bare else processes_of(model)
    nothing = {"log_evidence": math.nan, "corrected": math.nan, "spread": math.nan}
    if len(posts) > 1:
        return nothing
    post = posts[0]
    scaled = 0.0 if bare else post.n * math.log(model._units()[1])
    found = {**nothing, "log_evidence": post.log_evidence - scaled}
    if not solution_of(post).corrects:
        return found
    if not bare and not post.knows_covariance:
        return found
    try:
        corrected = post.corrected_evidence()
    except InputError:
        return found
    return {**found, "corrected": corrected.value - scaled, "spread": corrected.spread}
