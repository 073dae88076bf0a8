"""Draws from the prior by random Fourier features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import DotProduct, Kernel

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, Seen, read

__all__ = ["PriorDraws", "Stationary", "stationary_terms"]

# --- Draws from a prior
#
# E cos(s(x) - s(z)) over random phases s is a kernel. Phases of a radial kernel are w'x with w of
# its spectrum; of levels of which two that differ are alike by c they are 0 with probability c, and
# else one uniform angle for each level. A product of kernels is the sum of independent phases. With
# normal amplitudes a, b the functions a cos s(x) + b sin s(x) then have the kernel for covariance.

#: Terms into which products of sums are multiplied out.
_MOST_TERMS = 64


class PriorDraws:
    """M functions of a prior of mean 0, without its white noise.

    Their phases are the same, their amplitudes independent: that their covariance is only about
    that of the kernel is the same for all of them.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Sums and products of radial kernels, levels, constants, and linear kernels as terms.
    d : int
        Columns.
    M : int
    rng : Generator
    features : int
        Pairs of cosine and sine, shared by the terms of the kernel.

    Raises
    ------
    InputError
        If functions of a part cannot be drawn.
    """

    def __init__(
        self, kernel: Kernel, d: int, M: int, rng: np.random.Generator, features: int
    ) -> None:
        terms = _terms(read(kernel), np.arange(d))
        self.waves = [term for term in terms if term.factors]
        self.flat = [term for term in terms if not term.factors]
        count = max(1, features // max(len(self.waves), 1))
        self.phases = [
            [_phases(factor, count, d, rng) for factor in term.factors] for term in self.waves
        ]
        self.slopes, self.constant = np.zeros((d, M)), np.zeros(M)
        for term in self.flat:
            root = math.sqrt(term.variance)
            self.constant = self.constant + root * term.offset * rng.standard_normal(M)
            if term.columns is not None:
                self.slopes[term.columns] += root * rng.standard_normal((term.columns.size, M))
        scales = [np.full(count, math.sqrt(term.variance / count)) for term in self.waves]
        amplitude = np.concatenate(scales) if scales else np.zeros(0)
        self.a = amplitude[:, None] * rng.standard_normal((amplitude.size, M))
        self.b = amplitude[:, None] * rng.standard_normal((amplitude.size, M))

    @property
    def frequencies(self) -> Array:
        """Frequencies (d, J) of sums of radial kernels: phases are linear in them."""
        linear = [
            phase for of_term in self.phases for phase in of_term if isinstance(phase, _Linear)
        ]
        return np.hstack([phase.W for phase in linear]) if linear else self.slopes[:, :0]

    @property
    def features(self) -> int:
        """Pairs of cosine and sine."""
        return len(self.a)

    def diag(self, X: Array) -> Array:
        """Variances at X (T, d), shape (T,)."""
        variance = np.full(len(X), sum(term.variance for term in self.waves), dtype=float)
        for term in self.flat:
            variance += term.variance * term.offset**2
            if term.columns is not None:
                variance += term.variance * np.square(X[:, term.columns]).sum(axis=1)
        return variance

    def __call__(self, X: Array) -> Array:
        """All functions at X (T, d), shape (T, M)."""
        values: Array = X @ self.slopes + self.constant
        if self.waves:
            phases = [sum(phase(X) for phase in of_term) for of_term in self.phases]
            phase = phases[0] if len(phases) == 1 else np.hstack(phases)
            values += np.cos(phase) @ self.a + np.sin(phase) @ self.b
        return values


class _Factor(NamedTuple):
    """A radial kernel, or levels, of some columns."""

    leaf: Leaf
    columns: NDArray[np.intp]


class _Term(NamedTuple):
    """A variance times factors; without them times offset^2, plus x'z of `columns` if given."""

    variance: float
    factors: tuple[_Factor, ...] = ()
    offset: float = 1.0
    columns: NDArray[np.intp] | None = None


def _terms(node: Node, columns: NDArray[np.intp]) -> list[_Term]:
    """Return a kernel of these columns as a sum; white noise is no term of it."""
    if isinstance(node, Seen):
        return _terms(node.inner, columns[np.asarray(node.kernel.columns)])
    if isinstance(node, Added):
        return _terms(node.first, columns) + _terms(node.second, columns)
    if isinstance(node, Multiplied):
        pairs = [(a, b) for a in _terms(node.first, columns) for b in _terms(node.second, columns)]
        if len(pairs) <= _MOST_TERMS:
            return [_product(a, b, node) for a, b in pairs]
    elif node.parts.constant:
        return [_Term(node.value)]
    elif node.parts.noise:
        return []
    elif node.parts.levels or node.parts.frequencies is not None:
        return [_Term(1.0, (_Factor(node, columns),))]
    elif type(node.kernel) is DotProduct:
        return [_Term(1.0, (), float(node.kernel.sigma_0), columns)]
    raise _unknown(node)


def _product(one: _Term, other: _Term, node: Node) -> _Term:
    for a, b in ((one, other), (other, one)):
        if not a.factors and a.columns is None:
            return b._replace(variance=b.variance * a.variance * a.offset**2)
    if one.columns is not None or other.columns is not None:
        raise _unknown(node)
    return _Term(one.variance * other.variance, one.factors + other.factors)


def _unknown(node: Node) -> InputError:
    return InputError(
        f"functions cannot be drawn with the kernel {node.kernel}; use RBF, Matern, "
        "RationalQuadratic, Categories and constants, their sums and products, On of them, and "
        "DotProduct as a term of a sum"
    )


def _phases(
    factor: _Factor, count: int, d: int, rng: np.random.Generator
) -> Callable[[Array], Array]:
    kernel, columns = factor.leaf.kernel, factor.columns
    if factor.leaf.parts.levels:
        similarities = zip(kernel.columns, kernel.similarity, strict=True)
        return _OfLevels([_Column(int(columns[j]), rho, count, rng) for j, rho in similarities])
    W = np.zeros((d, count))
    W[columns] = Stationary(1.0, factor.leaf).frequencies(count, columns.size, rng).T
    return _Linear(W)


@dataclass(frozen=True)
class _Linear:
    W: Array

    def __call__(self, X: Array) -> Array:
        return X @ self.W


@dataclass(frozen=True)
class _OfLevels:
    columns: list[_Column]

    def __call__(self, X: Array) -> Array:
        return reduce(np.add, (column(X) for column in self.columns))


@dataclass
class _Column:
    """Phases of the levels of a column, drawn when a level is first met, from its own seed."""

    number: int
    similarity: float
    count: int
    rng: np.random.Generator
    known: dict[float, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.apart = self.rng.random(self.count) >= self.similarity
        self.seed = int(self.rng.integers(2**63))
        del self.rng

    def __call__(self, X: Array) -> Array:
        levels, which = np.unique(X[:, self.number] + 0.0, return_inverse=True)
        return np.stack([self._of(float(level)) for level in levels])[which]

    def _of(self, level: float) -> Array:
        if level not in self.known:
            level_rng = np.random.default_rng([self.seed, int(np.float64(level).view(np.uint64))])
            self.known[level] = self.apart * level_rng.uniform(0.0, 2.0 * math.pi, self.count)
        return self.known[level]


# --- Stationary terms with known spectra


class Stationary(NamedTuple):
    """A variance times a radial kernel; times 1 if there is none."""

    variance: float
    leaf: Leaf | None

    @property
    def length(self) -> Array:
        """Length-scales."""
        return np.atleast_1d(self.kernel.length_scale)

    @property
    def kernel(self) -> Kernel:
        """The radial kernel."""
        assert self.leaf is not None
        return self.leaf.kernel

    def frequencies(self, count: int, d: int, rng: np.random.Generator) -> Array:
        """Draws (count, d) from the spectrum."""
        assert self.leaf is not None
        assert self.leaf.parts.frequencies is not None
        frequencies: Array = rng.standard_normal((count, d)) / self.length
        frequencies *= self.leaf.parts.frequencies(self.kernel, count, rng)[:, None]
        return frequencies

    def slope(self, x: Array, X: Array) -> tuple[Array, Array]:
        """k(x, X), shape (n,), and its gradient in x, shape (n, d)."""
        if self.leaf is None:
            return np.full(len(X), self.variance), np.zeros(X.shape)
        assert self.leaf.parts.shape is not None
        u = (x - X) / self.length
        value, g = self.leaf.parts.shape(self.kernel, np.einsum("nd,nd->n", u, u), True)
        return self.variance * value, -self.variance * g[:, None] * u / self.length


def stationary_terms(kernel: Kernel) -> list[Stationary]:
    """Return the terms of a kernel; white noise is none.

    Raises
    ------
    InputError
        If the spectrum of a part is not known.
    """
    return _spectral_terms(read(kernel), 1.0)


def _spectral_terms(node: Node, variance: float) -> list[Stationary]:
    if isinstance(node, Added):
        return _spectral_terms(node.first, variance) + _spectral_terms(node.second, variance)
    if isinstance(node, Multiplied):
        for constant, other_factor in ((node.first, node.second), (node.second, node.first)):
            if isinstance(constant, Leaf) and constant.parts.constant:
                return _spectral_terms(other_factor, variance * constant.value)
    elif node.parts.constant:
        return [Stationary(variance * node.value, None)]
    elif node.parts.noise:
        return []
    elif node.parts.frequencies is not None and node.parts.shape is not None:
        return [Stationary(variance, node)]
    raise InputError(
        f"functions cannot be drawn with the kernel {node.kernel}: its spectrum is not known; use "
        "RBF, Matern, RationalQuadratic and WhiteKernel, their sums, and products with constants"
    )
