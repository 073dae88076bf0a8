"""Functions drawn from a prior, whole: random cosines and sines of the spectra of its kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.spectrum import stationary_terms

__all__ = ["Waves"]


class Waves:
    """M functions of a prior of mean 0, without its white noise.

    Their frequencies are the same, their amplitudes independent: that their covariance is only
    about that of the kernel is the same for all of them.

    Parameters
    ----------
    kernel : scikit-learn kernel
        A sum of terms whose spectra are known; see `stationary_terms`.
    d : int
        Columns.
    M : int
    rng : Generator
    features : int
        Pairs of cosine and sine, shared by the terms of the kernel.

    Attributes
    ----------
    terms : list of Stationary
    W : ndarray, shape (d, J)
        Frequencies.
    a, b : ndarray, shape (J, M)
        Amplitudes of cosines and of sines.
    constant : ndarray, shape (M,)
        Of constant terms.
    """

    def __init__(
        self, kernel: Any, d: int, M: int, rng: np.random.Generator, features: int
    ) -> None:
        self.terms = stationary_terms(kernel)
        smooth = [t for t in self.terms if t.leaf is not None]
        frequencies, scales, self.constant = [], [], np.zeros(M)
        for term in smooth:
            J = max(1, features // len(smooth))
            frequencies.append(term.frequencies(J, d, rng))
            scales.append(np.full(J, math.sqrt(term.variance / J)))
        for term in self.terms:
            if term.leaf is None:
                self.constant = self.constant + math.sqrt(term.variance) * rng.standard_normal(M)
        self.W = np.vstack(frequencies).T if smooth else np.zeros((d, 0))
        amplitude = np.concatenate(scales) if smooth else np.zeros(0)
        self.a = amplitude[:, None] * rng.standard_normal((amplitude.size, M))
        self.b = amplitude[:, None] * rng.standard_normal((amplitude.size, M))

    @property
    def variance(self) -> float:
        """Of the functions, at every point."""
        return sum(term.variance for term in self.terms)

    def __call__(self, X: Array) -> Array:
        """All functions at X, shape (T, M)."""
        phase = X @ self.W
        found: Array = np.cos(phase) @ self.a + np.sin(phase) @ self.b + self.constant
        return found
