"""`Joint`: how classes are fitted jointly, as one value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qpruntime.learning.options import Options
from qpruntime.validation import choice, flag

__all__ = ["Joint", "joint_of"]


@dataclass(frozen=True, eq=False, repr=False)
class Joint(Options):
    """How K > 2 classes are fitted by one model: ``multi_class="joint"`` is `Joint` as by default.

    Parameters
    ----------
    kernel_per_class : bool
        A kernel for each class, learnt from the one for all. More often worse than better.

    Raises
    ------
    InputError
        If an option is not usable.

    Examples
    --------
    >>> from qpruntime import Joint
    >>> Joint(kernel_per_class=True)
    Joint(True)
    """

    kernel_per_class: bool = False

    def __post_init__(self) -> None:
        self._set(kernel_per_class=flag(self.kernel_per_class, "kernel_per_class"))


def joint_of(given: Any) -> Joint | None:
    """Return what a classifier was given as ``multi_class=``; None is each class by itself."""
    if isinstance(given, Joint):
        return given
    return Joint() if choice(given, "multi_class", ("one_vs_rest", "joint")) == "joint" else None
