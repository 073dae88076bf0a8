"""Every exception and warning this project raises on purpose."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

__all__ = [
    "ConvergenceWarning",
    "CorrectionWarning",
    "InputError",
    "NumericalError",
    "QPError",
    "SamplingWarning",
    "TableError",
    "warn",
]

_PACKAGE = str(Path(__file__).parent) + os.sep


class QPError(Exception):
    """Base of all exceptions of ``qpruntime`` and ``tablegen``."""


class InputError(QPError, ValueError):
    """An argument is not usable; the message names the value, the limit and the remedy."""


class TableError(QPError, ValueError):
    """A table is missing, damaged or made for something else."""


class NumericalError(QPError, ArithmeticError):
    """A computation cannot be carried out in double precision; the message says where and why."""


class ConvergenceWarning(UserWarning):
    """Inference stopped at its sweep limit before the sites settled."""


class CorrectionWarning(UserWarning):
    """Corrections disagree among themselves, or are more than a call computes; see the message."""


class SamplingWarning(UserWarning):
    """A projection, or hyper-parameters, rest on too few effective samples."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user that led here, however many of our own calls are between.

    The frames are counted, for their number is not fixed: a fit is reached from each estimator by
    its own way, a table is opened by its user, by `project` or deep inside `infer`. Python 3.12 has
    ``skip_file_prefixes`` for this.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
