"""Likelihoods p(y|f), one file each, by name; what one has to provide is in `contract`."""

from __future__ import annotations

from qpruntime.likelihoods.contract import Likelihood
from qpruntime.likelihoods.registry import get, is_registered, names, shortest, stem

__all__ = ["Likelihood", "get", "is_registered", "names", "shortest", "stem"]
