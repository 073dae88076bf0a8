"""`Inducing`: how to fit by inducing points, as one value, checked when it is made."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from qpruntime.arrays import ArrayLike
from qpruntime.errors import InputError
from qpruntime.inference.sparse.kept_features import MEMORY
from qpruntime.learning.options import Options
from qpruntime.validation import choice, finite, flag, number, path_of, shown, whole

__all__ = ["OPEN", "Inducing"]

#: What leaves the number of inducing points, and whether there are any, to the rows.
OPEN = ("auto", "judged")
#: Options that only act with points of a number of their own, and only where that is left open.
_NUMBERED = ("checkpoint", "learn", "subsample")
_CHOSEN = ("budget", "nearest")
#: More are a slip of the keyboard.
_MOST_NEAREST = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Inducing(Options):
    """How to fit by inducing points.

    Parameters
    ----------
    points : int, "auto", "judged", "variance" or array-like, shape (M, d)
        How many, or which. "auto" and "judged" leave to the rows whether there are any:
        ``docs/defaults.md``. "variance" takes as many as the prior variance needs:
        ``docs/million-rows.md``.
    power : float in (0, 1]
        Of power EP: 1 is FITC, which overfits where inducing points are learnt, 0 would be the
        variational bound.
    learn : bool
        Whether inducing points are learnt too, where the kernel's slopes in its inputs are known:
        RBF, Matern, RationalQuadratic, ExpSineSquared, constants, white noise, what
        `qpruntime.kernels.register` was told of, sums and products. "auto" and "judged" have
        clusters of rows.
    subsample : int
        Rows at most on which a fit begins; not with "auto" and "judged".
    dtype : {"mixed", "float64"}
        Precision of the search for parameters; the posterior is always of double precision.
    memory : float
        Bytes for what inducing points make of rows, M numbers a row; see `qpruntime.infer_sparse`.
        Lazy rows that take more, and whose nearest correct predictions, are held on the disk.
    nearest : int or "auto"
        With "auto" and "judged", how many nearest rows correct each prediction: "auto" takes 30
        where rows left out say that it pays, 0 never holds rows.
    budget : float, optional
        Of "auto" and "judged", in seconds of one core, counted as 2e10 operations each and by no
        clock; by default 30 up to 10 000 rows, and four times as many for ten times as many rows.
        With 120 or more up to 6000 rows are fitted densely.
    checkpoint : path, optional
        File that a fit goes on from: written after stages on samples, then twice a minute, with
        two numbers a row; removed when the fit has ended. K > 2 classes have one each, numbered.
        Needs a whole number as ``random_state``. Not with "auto" and "judged".
    resume : bool
        Go on from `checkpoint`, if that is there, with the same data and parameters; else begin.
    scheduler : str, optional
        Address of a dask scheduler whose workers compute chunks of rows, to the same bits on
        processors of one kind: ``docs/rows-on-a-cluster.md``.

    Raises
    ------
    InputError
        If an option is not usable, or cannot act with these points.

    Examples
    --------
    >>> from qpruntime import Inducing
    >>> Inducing(200, power=1.0, learn=False)
    Inducing(200, power=1.0, learn=False)
    """

    points: int | str | ArrayLike = "auto"
    _: KW_ONLY
    power: float = 0.5
    learn: bool = True
    subsample: int = 10_000
    dtype: Literal["mixed", "float64"] = "mixed"
    memory: float = MEMORY
    nearest: int | Literal["auto"] = "auto"
    budget: float | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    scheduler: str | None = None

    def __post_init__(self) -> None:
        self._set(
            points=_points(self.points),
            power=number(self.power, "power", above=0.0, most=1.0),
            learn=flag(self.learn, "learn"),
            subsample=whole(self.subsample, "subsample", 1),
            dtype=choice(self.dtype, "dtype", ("mixed", "float64")),
            memory=number(self.memory, "memory", above=-1.0),
            resume=flag(self.resume, "resume"),
        )
        if not (isinstance(self.nearest, str) and self.nearest == "auto"):
            nearest = whole(self.nearest, "nearest", 0)
            if nearest > _MOST_NEAREST:
                raise InputError(f"nearest must be at most {_MOST_NEAREST} rows, got {nearest}")
        if self.budget is not None:
            self._set(budget=number(self.budget, "budget", above=0.0))
        if self.checkpoint is not None:
            path_of(self.checkpoint, "checkpoint")
        elif self.resume:
            raise InputError("resume=True needs checkpoint=, the file to go on from")
        if not (self.scheduler is None or isinstance(self.scheduler, str)):
            raise InputError(f"scheduler must be None or an address, got {shown(self.scheduler)}")
        remedy = "inducing=200" if self.open else "inducing='auto'"
        for name in _NUMBERED if self.open else _CHOSEN:
            if name in self.changed():
                raise InputError(
                    f"{name}={shown(getattr(self, name))} cannot act with inducing="
                    f"{shown(self.points)}: give {remedy}, or leave it out"
                )

    @property
    def open(self) -> bool:
        """Whether the number of inducing points, and whether there are any, is left to the rows."""
        return isinstance(self.points, str) and self.points in OPEN


def _points(given: Any) -> Any:
    """Check which inducing points, or how many, are asked for."""
    kinds = "inducing must be None, a number, 'auto', 'judged', 'variance' or inputs (M, d), got"
    if isinstance(given, str):
        if given not in (*OPEN, "variance"):
            raise InputError(f"{kinds} {given!r}")
        return given
    if given is None:
        raise InputError("inducing=None is the dense engine, which has no such options")
    if np.ndim(given) == 0:
        return whole(given, "inducing", 1)
    array = np.array(finite(given, "inducing"))
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{kinds} shape {array.shape}")
    array.flags.writeable = False
    return array
