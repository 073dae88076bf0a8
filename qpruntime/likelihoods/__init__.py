"""Likelihoods p(y|f), one file each, by name; what one has to provide is in `contract`."""

from __future__ import annotations

from qpruntime.likelihoods.base import Likelihood
from qpruntime.likelihoods.registry import get, is_registered, names, shortest, stem

__all__ = [
    "Likelihood",
    "get",
    "is_registered",
    "names",
    "shortest",
    "stem",
]

# --- Kinds of y that estimators learn: likelihoods with parameters, one file each, found by name.
