"""Inference problem: a prior, observations, and the rules that propose sites."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh

from qpruntime._numba import plain
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, number, real
from qpruntime.errors import InputError
from qpruntime.inference.dense import blas
from qpruntime.inference.site_kernels import PlainRules, Rules
from qpruntime.inference.sites import Sites
from qpruntime.inference.solver_protocol import Prior
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import Source, raise_status
from qpruntime.quadrature.sigma_star_kernels import OK, PlainFunctions

__all__ = [
    "MEAN_TOLERANCE",
    "Observed",
    "Problem",
    "check_mean",
    "check_powers",
    "check_prior",
    "check_sites",
    "covariance",
]


@restorable("problem/1")
@dataclass(frozen=True)
class Problem:
    """Prior of N latent values and their observations y (N,), checked and encoded.

    `bounded` holds site precisions at zero or above even if the likelihood is not log-concave.
    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods.
    """

    prior: Prior
    y: Array
    projector: Projector
    bounded: bool = False
    power: float = 1.0
    weights: Array | None = None

    @property
    def n(self) -> int:
        """Number of sites."""
        return len(self.y)

    @property
    def exponents(self) -> Array:
        """Weight of every site, shape (N,)."""
        return np.ones(self.n) if self.weights is None else self.weights

    @property
    def functions(self) -> PlainFunctions:
        """Functions of the likelihood for kernels; powers other than 1 need the adaptive rule."""
        return self.projector.functions_of(self.power == 1.0 and self.weights is None)

    @property
    def nonnegative(self) -> bool:
        """True if no site precision can be negative."""
        return self.bounded or self.projector.nonnegative

    @cached_property
    def observations(self) -> tuple[Array, Array]:
        """Observations and their weights, as kernels take `Observations`.

        The arrays are contiguous and writeable, because kernels would compile again for slices and
        for read-only arrays.
        """
        return _kernel_array(self.y), _kernel_array(self.exponents)

    def rules(self) -> PlainRules:
        """Return the rules that propose sites."""
        return self._rules

    def matching(self) -> PlainRules:
        """Return the cheapest rules that give the means of sites."""
        return self._with(self._raised.means)

    def judging(self) -> PlainRules:
        """Return the rules of the evidence, which needs no table."""
        return self._with(self._raised.without_table)

    @cached_property
    def _raised(self) -> Projector:
        return self.projector.to_power(self.power)

    @cached_property
    def _rules(self) -> PlainRules:
        return plain(Rules(self.functions, self._raised.source, self.power, self.nonnegative))

    def _with(self, source: Source) -> PlainRules:
        functions, _, power, nonnegative = self._rules
        return functions, source, power, nonnegative

    def check(self, status: int, site: int, failure: Array | tuple[float, float]) -> None:
        """Raise the error that a kernel's status means; `failure` holds the cavity (mean, std)."""
        if status != OK:
            likelihood, table = self.projector.likelihood, self.projector.table
            raise_status(status, likelihood, failure[0], failure[1], self.y[site], table)


def _kernel_array(values: Array) -> Array:
    """Return the array, or a copy if it is not contiguous or not writeable."""
    flags = values.flags
    return values if flags.c_contiguous and flags.writeable else np.array(values)


# --- Observed data

#: Relative tolerance between posterior means by which two covariances count as equal.
MEAN_TOLERANCE = 1e-6


def check_prior(with_K: Array, mean: Array, std: Array, site: str) -> None:
    """Raise `InputError` if the posterior mean with a covariance K is not that of the inference.

    The means and standard deviations have one shape; `site` names one of them in the message.
    """
    gap = np.abs(with_K - mean)
    if not (gap <= MEAN_TOLERANCE * (np.abs(mean) + std)).all():
        raise InputError(
            f"K is not the prior covariance of this posterior: with it the posterior mean of "
            f"{site} {int(np.argmax(gap))} would be off by {gap.max():.3g}"
        )


@restorable("observed/1")
@dataclass(frozen=True, eq=False)
class Observed:
    """Prior and data of N sites.

    Attributes
    ----------
    K : ndarray, shape (N, N), or None
        Prior covariance, the same array object that inference used; pickles leave it out.
    y, prior : ndarray, shape (N,)
        Encoded observations and the prior mean.
    likelihood : Likelihood or None
        Likelihood; None if its code could not be pickled.
    power : float
    weights : ndarray, shape (N,), or None
    """

    K: Array | None
    y: Array
    prior: Array
    likelihood: Likelihood | None
    power: float = 1.0
    weights: Array | None = None

    def __getstate__(self) -> dict[str, object]:
        state = {**vars(self), "K": None}
        try:
            pickle.dumps(self.likelihood)
        except Exception:  # a user's function may raise anything
            state["likelihood"] = None
        return state

    def with_covariance(self, K: ArrayLike, weights: Array, mean: Array) -> Observed:
        """Return a copy with a prior covariance, after checking that the inference used it.

        `weights` and `mean` are K^-1 (mean - prior mean) and the posterior mean.

        Raises
        ------
        InputError
            If the inference used another covariance.
        """
        matrix, _ = covariance(K)
        if matrix.shape != (mean.size, mean.size):
            raise InputError(f"K must have shape {(mean.size, mean.size)}, got {matrix.shape}")
        std = np.sqrt(matrix.diagonal())
        check_prior(self.prior + matrix @ weights, mean, std, "site")
        return replace(self, K=matrix)


# --- Covariances from any library

# Most negative eigenvalue of K that is accepted, relative to the largest entry: a Gram matrix of
# coinciding points has such eigenvalues from rounding alone (about N times 2e-16).
_EIGENVALUE_TOLERANCE = 1e-8
# Largest asymmetry of a float64 matrix that is accepted, relative to the largest entry.
_ASYMMETRY_TOLERANCE = 1e-10
# Error of entries computed in a narrower format, in units of its rounding, because exponents of
# squared distances cancel. It moves the eigenvalues of an N x N matrix by at most N times as much;
# the two triangles differ by more at the worst entry.
_ROUNDINGS = 4.0
_ASYMMETRIES = 16.0 * _ROUNDINGS
_FLOAT32 = float(np.finfo(np.float32).eps)


def covariance(K: ArrayLike) -> tuple[Array, float]:
    """Return a prior covariance as a C-ordered float array, and the jitter on its diagonal.

    A float64 matrix is accepted unchanged or refused: the jitter is 0. Matrices of narrower formats
    are made symmetric, and get the jitter that they need if rounding has left them indefinite.

    Raises
    ------
    InputError
        If K is not a covariance to the precision of its dtype.
    """
    K, eps = _as_float64(K)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or K.shape[0] == 0:
        raise InputError(f"K must be a square matrix, got shape {K.shape}")
    finite(K, "K")
    scale = float(np.abs(K).max())
    gap = K - K.T
    np.abs(gap, out=gap)
    widest = float(gap.max())
    if widest > max(_ASYMMETRY_TOLERANCE, _ASYMMETRIES * eps) * scale:
        i, j = divmod(int(np.argmax(gap)), len(K))
        remedy = "pass (K + K.T) / 2"
        if widest < _ASYMMETRIES * _FLOAT32 * scale:
            remedy += ", or K in the float32 that it was computed in, which is taken as symmetric"
        raise InputError(
            f"K is not symmetric: K[{i}, {j}] = {K[i, j]:.17g} but K[{j}, {i}] = {K[j, i]:.17g}; "
            f"{remedy}"
        )
    del gap
    if eps and widest:
        K = 0.5 * (K + K.T)
    if K.diagonal().min() <= 0.0:
        i = int(np.argmin(K.diagonal()))
        raise InputError(f"K[{i}, {i}] = {K[i, i]:g}: prior variances must be positive")
    if _is_semi_definite(K, scale):
        return K, 0.0
    return _add_jitter(K, scale, eps)


def _as_float64(K: ArrayLike) -> tuple[Array, float]:
    """Return K in float64, and the rounding unit of its dtype if that is narrower, else 0."""
    try:
        dtype = np.asarray(K).dtype
    except Exception:  # a foreign object; `real` explains what is wrong
        dtype = np.dtype(np.float64)
    if dtype.kind == "V":
        raise InputError(f"K has dtype {dtype}: convert it to float32 or float64")
    narrow = dtype.kind == "f" and dtype.itemsize < 8
    return np.ascontiguousarray(real(K, "K")), float(np.finfo(dtype).eps) if narrow else 0.0


def _is_semi_definite(K: Array, scale: float) -> bool:
    """Decide whether K is positive semi-definite up to rounding, by a Cholesky factor."""
    shifted = K.copy()
    shifted.flat[:: len(K) + 1] += _EIGENVALUE_TOLERANCE * scale
    # K is symmetric, so its transpose is K in LAPACK's order without another copy.
    _, info = blas.cholesky(shifted.T)
    return bool(info == 0)


def _add_jitter(K: Array, scale: float, eps: float) -> tuple[Array, float]:
    """Lift the diagonal of an indefinite K by what its rounding explains, or raise `InputError`."""
    smallest = float(eigvalsh(K, subset_by_index=[0, 0])[0])
    if smallest < -_ROUNDINGS * len(K) * eps * scale:
        remedy = f"add at least {-1.1 * smallest:.2g} to its diagonal"
        explained = smallest > -_ROUNDINGS * len(K) * _FLOAT32 * scale
        if not eps and explained and np.array_equal(K, K.astype(np.float32)):
            remedy += ", or pass it as the float32 that its numbers are"
        raise InputError(
            f"K is not positive semi-definite: its smallest eigenvalue is {smallest:.3g}; {remedy}"
        )
    jitter = -1.1 * smallest
    K = K.copy()
    K.flat[:: len(K) + 1] += jitter
    return K, jitter


# --- Means, powers, weights and sites


def check_mean(mean: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a prior mean, a number or an array of this shape, or raise `InputError`."""
    value = finite(mean, "mean")
    if value.shape not in ((), shape):
        raise InputError(f"mean must be a number or have shape {shape}, got {value.shape}")
    return value


def check_powers(
    power: float, weights: ArrayLike | None, projector: Projector, n: int
) -> tuple[float, Array | None]:
    """Return power and weights, None for weights of 1, or raise `InputError`."""
    power = number(power, "power", above=0.0, most=1.0)
    checked = None if weights is None else finite(weights, "weights", (n,))
    if checked is not None and (checked < 0.0).any():
        raise InputError(f"weights must not be negative, got {checked.min():g}")
    if checked is not None and (checked == 1.0).all():
        checked = None
    if power != 1.0 or checked is not None:
        if projector.method == "wp" and projector.table is not None:
            raise InputError(
                f"weights and powers are integrated, which the table {projector.table.path} of L_p "
                "projections does not do: leave it out"
            )
        projector.need_density("weights and powers are integrated")
        if projector.method == "vb":
            raise InputError('method "vb" takes neither weights nor a power; use "ep" or "qp"')
    return power, checked


def check_sites(
    sites: Sites | Sequence[ArrayLike] | None, n: int, log_concave: bool = True
) -> Sites | None:
    """Return starting sites as float arrays, or raise `InputError`."""
    if sites is None:
        return None
    try:
        first, second = sites
    except (TypeError, ValueError) as error:
        raise InputError(f"sites must be a pair (tau, nu) of arrays of shape ({n},)") from error
    tau, nu = finite(first, "tau", (n,)), finite(second, "nu", (n,))
    if log_concave and (tau < 0.0).any():
        raise InputError(f"site precisions must not be negative, got {tau.min():g}")
    return Sites(tau, nu)
