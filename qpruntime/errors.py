"""Every exception and warning this project raises on purpose."""

from __future__ import annotations

__all__ = [
    "ConvergenceWarning",
    "InputError",
    "NumericalError",
    "QPError",
    "SamplingWarning",
    "TableError",
]


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


class SamplingWarning(UserWarning):
    """A projection rests on too few effective samples."""
