"""`partial_fit` of the estimators: rows that come in parts, each seen once, with inducing points.

Kernel, noise and inducing points are those of the first part; every later one adds its sites
(`SparsePosterior.extend`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.over_nodes import only_mode
from qpruntime.estimators.process import all_of, one_or_all
from qpruntime.inference.nearest.posterior import LocalPosterior
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.learning.settings import left_open

__all__ = ["NoParts", "begun", "extended", "with_inducing"]


class NoParts(InputError, AttributeError):
    """`partial_fit` of an estimator without inducing points; for `hasattr` it is not there."""


class with_inducing:
    """A method that is there if there are inducing points.

    As `sklearn.utils.metaestimators.available_if`, which would say no more than that it is not.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is None:
            return self._method
        given = model.inducing
        if given is None or left_open(given):
            name = type(model).__name__
            raise NoParts(
                f"partial_fit takes inducing points: {name}(inducing=200); without them fit takes "
                "all rows at once"
            )
        return self._method.__get__(model, owner)


def begun(model: Any) -> bool:
    """Whether there is a posterior that rows can be added to.

    Raises
    ------
    InputError
        If there is one without inducing points.
    """
    if not hasattr(model, "posterior_"):
        return False
    if not all(
        isinstance(post, SparsePosterior | LocalPosterior) for post in all_of(model.posterior_)
    ):
        raise InputError(
            "the model was fitted without inducing points, and no rows can be added to it: call "
            "partial_fit of a sklearn.base.clone"
        )
    return True


def extended(
    model: Any,
    points: Any,
    targets: Sequence[Array],
    weights: Array | None,
    means: Sequence[ArrayLike],
    scale: Array | None = None,
) -> dict[str, Any]:
    """Return what changes of a fitted model when every process sees these rows as well.

    Parameters
    ----------
    points : array-like, shape (n, d)
    targets : sequence of ndarray, shape (n,)
        Of each process, as it observes them.
    weights : ndarray, shape (n,), or None
    means : sequence of float or ndarray, shape (n,)
        Prior mean of each latent function.
    scale : ndarray, shape (n,), or None
        What is observed is the latent function times this.
    """
    only_mode(model, "posteriors that rows can be added to are")
    later = [
        post.extend(points, y, weights=weights, mean=mean, scale=scale)
        for post, y, mean in zip(all_of(model.posterior_), targets, means, strict=True)
    ]
    return {
        "posterior_": one_or_all(later),
        "log_marginal_likelihood_value_": float(np.mean([post.log_evidence for post in later])),
    }
