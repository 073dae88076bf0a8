"""Likelihoods p(y|f), one file each, by name; `base` defines what one has to provide."""

from __future__ import annotations

from qpruntime.likelihoods.base import Likelihood
from qpruntime.likelihoods.registry import get, is_registered, names, shortest, stem

__all__ = ["Likelihood", "get", "is_registered", "names", "shortest", "stem"]
