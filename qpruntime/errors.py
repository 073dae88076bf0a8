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
    """Base of all exceptions of ``qpruntime`` and ``tablegen``.

    See Also
    --------
    qpruntime.InputError, qpruntime.TableError, qpruntime.NumericalError

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import QPError, infer
    >>> try:
    ...     infer(np.eye(2), [1, 2])
    ... except QPError as error:
    ...     print(type(error).__name__)
    ...
    InputError
    """


class InputError(QPError, ValueError):
    """An argument is not usable; the message names the value, the limit and the remedy.

    See Also
    --------
    qpruntime.QPError

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import InputError, infer
    >>> try:
    ...     infer(np.eye(2), [1, -1], method="qpp")
    ... except InputError as error:
    ...     print(error)
    ...
    method must be one of ('ep', 'qp', 'wp', 'vb'), got 'qpp'
    """


class TableError(QPError, ValueError):
    """A table is missing, damaged or made for something else.

    See Also
    --------
    qpruntime.QPError, qpruntime.open_table

    Examples
    --------
    >>> from qpruntime import TableError, open_table
    >>> try:
    ...     open_table("absent.h5")
    ... except TableError as error:
    ...     print(str(error)[:14])
    ...
    no table at ab
    """


class NumericalError(QPError, ArithmeticError):
    """A computation cannot be carried out in double precision; the message says where and why.

    If a user's own function raised an exception, that is its ``__cause__``.

    See Also
    --------
    qpruntime.QPError, qpruntime.Likelihood

    Examples
    --------
    >>> from qpruntime import NumericalError, project
    >>> try:
    ...     project("probit", 0.0, 1e200, 1.0)
    ... except NumericalError as error:
    ...     print(str(error)[:67])
    the projection of the cavity N(0, 1e+200^2) leaves double precision
    """


class ConvergenceWarning(UserWarning):
    """Inference stopped at its sweep limit before the sites settled.

    See Also
    --------
    qpruntime.infer, qpruntime.Posterior.check

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = infer(np.eye(2) + 0.5, [1, -1], max_sweeps=1)
    >>> caught[0].category.__name__
    'ConvergenceWarning'
    """


class CorrectionWarning(UserWarning):
    """Corrections disagree among themselves, or are more than a call computes; see the message.

    See Also
    --------
    qpruntime.Posterior.marginals, qpruntime.Posterior.check

    Examples
    --------
    >>> import warnings
    >>> from qpruntime import CorrectionWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", CorrectionWarning)  # corrections must agree
    """


class SamplingWarning(UserWarning):
    """A projection, or hyper-parameters, rest on too few effective samples.

    See Also
    --------
    qpruntime.project_samples, qpruntime.Integrate

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from qpruntime import project_samples
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = project_samples(np.linspace(-1.0, 1.0, 20))
    >>> caught[0].category.__name__
    'SamplingWarning'
    """


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
