"""Joint classes of many rows: a kernel that is learnt from some of them, and inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.sparse.infer import settled_by_points
from qpruntime.inference.classes.sparse.posterior import SparseClassPosterior
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.sparse.inducing import Inducing as Points
from qpruntime.learning.inducing import clusters, levels_of, sample, units
from qpruntime.learning.options_inducing import Inducing
from qpruntime.learning.options_joint import joint_of
from qpruntime.learning.policy.acts import DENSE
from qpruntime.learning.settings import Settings
from qpruntime.projection.projector import Projector
from qpruntime.validation import shown

__all__ = ["by_points", "no_parts", "points_asked", "rows_to_learn", "same_columns"]

# Points of each class by default: of all classes together so many, within these bounds.
_TOGETHER, _FEWEST, _MOST = 1000, 50, 200
# A kernel is learnt from so many rows that C N^3 is this: a few seconds for ten classes.
_WORK = 1.25e9


def points_asked(model: Any, settings: Settings, n: int, classes: int) -> int | Array | None:
    """Return how many inducing points a joint fit is to have, or which; None for none.

    Raises
    ------
    InputError
        If they are asked for in a way that a joint fit does not have.
    """
    given = model.inducing
    if isinstance(given, Inducing) and (more := [k for k in given.changed() if k != "points"]):
        raise InputError(
            f'{more[0]} of inducing={shown(given)} cannot act with multi_class="joint", which '
            "takes a number of points or points: use inducing=200"
        )
    if settings.sparse is None:
        few = n <= DENSE or settings.auto is None or model.correction is not None
        return None if few else int(np.clip(_TOGETHER // classes, _FEWEST, _MOST))
    wanted = settings.sparse.inducing
    if isinstance(wanted, str):
        raise InputError(
            f'inducing={shown(given)} is not for multi_class="joint": give a number, inducing=100, '
            "or points"
        )
    if model.correction is not None:
        raise InputError(
            f"correction={model.correction!r} takes a covariance matrix: use inducing=None"
        )
    return wanted


def no_parts(model: Any, y: Any) -> None:
    """Raise `InputError` if rows in parts are asked of more than two classes jointly."""
    if joint_of(model.multi_class) and np.unique(np.asarray(y)).size > 2:
        raise InputError(
            'multi_class="joint" takes all rows at once: use fit, or multi_class="one_vs_rest"'
        )


def same_columns(points: Array, X: Array) -> Array:
    """Return inducing points that have the columns of X, or raise `InputError`."""
    if points.shape[1] != X.shape[1]:
        raise InputError(f"inducing must have {X.shape[1]} columns like X, got {points.shape[1]}")
    return points


def rows_to_learn(n: int, classes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows from which a kernel is learnt."""
    return sample(n, int((_WORK / classes) ** (1.0 / 3.0)), rng)


def by_points(
    X: Array,
    layout: Layout,
    kernels: Sequence[Kernel],
    points: int | Array,
    projector: Projector,
    settings: Settings,
    rng: np.random.Generator,
) -> SparseClassPosterior:
    """Return the posterior of all rows under kernels as they are; X and points in their units."""
    if isinstance(points, np.ndarray):
        Z = same_columns(points, X)
    else:
        measured = units(kernels[0], X.std(axis=0))
        Z = clusters(X, min(points, len(X)), rng, measured, levels_of(kernels[0]))
    inducing = tuple(Points(kernel, Z) for kernel in kernels)
    limits = Limits(settings.tol, settings.max_sweeps, 1.0)
    return settled_by_points(X, layout, inducing, projector, limits, of_estimator=True)
