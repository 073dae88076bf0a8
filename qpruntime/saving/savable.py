"""What can be saved has the same two methods."""

from __future__ import annotations

import os
from typing import Self

from qpruntime.errors import InputError
from qpruntime.saving.file import load, save

__all__ = ["Savable"]


class Savable:
    """An estimator or a posterior, to one file without code and back."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this to one file that `load` opens on another machine, and that holds no code.

        Predictions are the same to the bit where arithmetic is. What pickles leave out is left
        out: prior covariances, and tables, which are found again by their hash.

        Parameters
        ----------
        path : path
            Whole or absent; what was there is replaced.

        Raises
        ------
        InputError
            If the file cannot be written, or if this holds what no file without code can: a prior
            mean of another package, a likelihood or a kernel of your own. Pickle these.
        """
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` has written; no code of the file is run, whoever wrote it.

        Raises
        ------
        TableError
            If it is no such file, was changed or cut short, is of a newer format, or its table is
            missing.
        InputError
            If it cannot be read, or is something else; `qpruntime.load` reads any.
        """
        found = load(path)
        if not isinstance(found, cls):
            raise InputError(
                f"{os.fspath(path)} holds a {type(found).__name__}, not a {cls.__name__}; "
                "qpruntime.load reads any"
            )
        return found
