"""`functions`: what authors of inference code take of a likelihood, with first derivatives.

Values come from `qpruntime.projection`, by table, closed form or quadrature; derivatives from
covariances under the tilted density, in `qpruntime.interop.derivative_kernels`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._numba import plain
from qpruntime._typing import Array
from qpruntime._validation import flag
from qpruntime.interop.arguments import (
    CLOSED_SLOPES,
    KernelArguments,
    checked,
    is_own,
    refuse,
    refuse_overflow,
)
from qpruntime.interop.compiled import compiled
from qpruntime.interop.derivative_kernels import (
    BANDS,
    closed_many,
    derive_many,
    expected_many,
)
from qpruntime.interop.slopes import NO_SLOPE, expected_of, slope_of
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import ABSENT_LANDMARK, NO_RULE
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import Projections, check_range, project_many
from qpruntime.projection.table import Table

__all__ = ["Derivatives", "LikelihoodFunctions", "Moments", "functions"]

#: Values of one array library.
T = TypeVar("T")

#: Derivatives come from moments where these parts of what is subtracted are left: moments are good
#: to 1e-12, and the mean is rounded.
_KEPT, _KEPT_MEAN = 2e-2, 1e-6


class Moments(NamedTuple, Generic[T]):
    """Mean and standard deviation of a tilted density, of the broadcast shape."""

    mean: T
    std: T


class Derivatives(NamedTuple, Generic[T]):
    """Values of a function, and its derivatives, which look alike.

    `d_mu` is that by the mean of the normal, `d_sigma` that by its standard deviation.
    """

    value: T
    d_mu: T
    d_sigma: T


class LikelihoodFunctions:
    """Certified functions of one likelihood; made by `functions`.

    Every method takes ``mu``, ``sigma``, ``y`` and mostly ``power``, which broadcast.
    N(mu, sigma^2) is the normal distribution of f, a cavity or a marginal, sigma a standard
    deviation. An observation of several numbers, as the binomial's, has a last axis of its own.
    The tilted density is p(y|f)^power N(f | mu, sigma^2) over Z, power > 0.

    If ``derivatives=True``, a method returns `Derivatives`: its usual result, then the derivatives
    by mu and by sigma.

    See Also
    --------
    qpruntime.functions, qpruntime.project

    Notes
    -----
    Values are right to 1e-9, relative; log Z to 1e-12 where it is smaller than 1e-3, and a mean
    where it is rounded as mu is. Derivatives are right to 1e-9 of their value or to 1e-12 of their
    own unit, which is 1/sigma for those of log Z and of E log p, and 1 for those of means and of
    standard deviations, for sigma from 1e-6 to 1e6; beyond to 1e-8. All of it was compared with
    mpmath (tests/interop). A log density that is large, or is a user's own, is used as it
    is rounded: where the cavity moves, derivatives of moments and of sigma* keep four digits at a
    log p of 3e7 in size, and beyond 1e8 there is a `NumericalError`.

    Examples
    --------
    >>> from qpruntime import functions
    >>> probit = functions("probit")
    >>> mean, std = probit.moments(0.0, 1.0, 1)
    >>> round(float(mean), 4), round(float(std), 4), round(float(probit.sigma_star(0.0, 1.0, 1)), 4)
    (0.5642, 0.8256, 0.8252)
    """

    def __init__(
        self,
        likelihood: str | Likelihood | None,
        table: Table | str | os.PathLike[str] | None = None,
    ) -> None:
        self._qp = Projector(likelihood, "qp", table)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood whose functions these are."""
        return self._qp.likelihood

    @property
    def table(self) -> Table | None:
        """The table that sigma* is looked up in; None if it is integrated."""
        return self._qp.table

    def __repr__(self) -> str:
        return f"<functions of {self.likelihood.spelt}>"

    def log_partition(
        self,
        mu: ArrayLike,
        sigma: ArrayLike,
        y: ArrayLike,
        power: ArrayLike = 1.0,
        derivatives: bool = False,
    ) -> Array | Derivatives[Array]:
        """Log Z, Z = int p(y|f)^power N(f | mu, sigma^2) df.

        Returns
        -------
        ndarray or Derivatives

        Raises
        ------
        InputError
            If an argument is not usable.
        NumericalError
            If a tilted density cannot be integrated.

        Examples
        --------
        >>> from qpruntime import functions
        >>> value, d_mu, d_sigma = functions("probit").log_partition(0.0, 1.0, 1, derivatives=True)
        >>> round(float(value), 12), round(float(d_mu), 12)
        (-0.69314718056, 0.564189583548)
        """
        if not flag(derivatives, "derivatives"):
            inputs = checked(self.likelihood, mu, sigma, y, power)
            log_z = self._projected(self._qp.without_table, inputs).log_z
            refuse_overflow(inputs, log_z.reshape(-1))
            return log_z
        inputs = self._checked(mu, sigma, y, power)
        values = np.empty((inputs.mu.size, 3))
        closed = CLOSED_SLOPES.get(self.likelihood.name) if is_own(self.likelihood) else None
        if closed is not None and (inputs.power == 1.0).all():
            cavities = inputs.mu, inputs.sigma
            closed_many(closed.handle, inputs.likelihood.theta, cavities, inputs.y, values)
            refuse_overflow(inputs, values[:, 0], values[:, 1:])
            return three(inputs, values)
        exact = self._projected(self._qp.without_table, inputs)
        values[:, 0] = exact.log_z.reshape(-1)
        mean, std = exact.mean.reshape(-1), exact.std.reshape(-1)
        values[:, 1:], kept = from_moments(inputs, mean, std)
        if not kept.all():
            values[~kept, 1:] = self._bands(inputs.where(~kept))[:, 1:3]
        refuse_overflow(inputs, values[:, 0], values[:, 1:])
        return three(inputs, values)

    def log_predictive(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, derivatives: bool = False
    ) -> Array | Derivatives[Array]:
        """Log density of an observation whose f ~ N(mu, sigma^2): `log_partition` of power 1.

        Returns
        -------
        ndarray or Derivatives
        """
        return self.log_partition(mu, sigma, y, 1.0, derivatives)

    def moments(
        self,
        mu: ArrayLike,
        sigma: ArrayLike,
        y: ArrayLike,
        power: ArrayLike = 1.0,
        derivatives: bool = False,
    ) -> Moments[Array] | Derivatives[Moments[Array]]:
        """Mean and standard deviation of the tilted density, which EP matches.

        Returns
        -------
        Moments or Derivatives of Moments

        Raises
        ------
        InputError, NumericalError
            As of `log_partition`.
        """
        wanted = flag(derivatives, "derivatives")
        check = self._checked if wanted else partial(checked, self.likelihood)
        inputs = check(mu, sigma, y, power)
        exact = self._projected(self._qp.without_table, inputs)
        value = Moments(exact.mean, exact.std)
        if not wanted:
            return value
        bands = self._bands(inputs).reshape(*inputs.shape, BANDS)
        return Derivatives(value, *(Moments(bands[..., 3 + k], bands[..., 6 + k]) for k in (1, 2)))

    def sigma_star(
        self,
        mu: ArrayLike,
        sigma: ArrayLike,
        y: ArrayLike,
        power: ArrayLike = 1.0,
        derivatives: bool = False,
    ) -> Array | Derivatives[Array]:
        """Return the standard deviation of QP's projection (paper, Eqs. 5 and 8).

        Values come from the table if there is one. Derivatives are integrated.

        Returns
        -------
        ndarray or Derivatives

        Raises
        ------
        InputError, NumericalError
            As of `log_partition`.
        TableError
            If what a table holds is damaged.
        """
        wanted = flag(derivatives, "derivatives")
        check = self._checked if wanted else partial(checked, self.likelihood)
        inputs = check(mu, sigma, y, power)
        self._qp.check_outcomes(inputs.y)
        value = self._projected(self._qp.source, inputs, self.table).std
        if not wanted:
            return value
        bands = self._bands(inputs).reshape(*inputs.shape, BANDS)
        return Derivatives(value, bands[..., 10], bands[..., 11])

    def expected_log_prob(
        self,
        mu: ArrayLike,
        sigma: ArrayLike,
        y: ArrayLike,
        power: ArrayLike = 1.0,
        derivatives: bool = False,
    ) -> Array | Derivatives[Array]:
        """``power`` times E log p(y|f) for f ~ N(mu, sigma^2), the term of a variational bound.

        If p(y|f) is 0 for some f, or the expectation is below -1.8e308, it is -inf and its
        derivatives are NaN.

        Returns
        -------
        ndarray or Derivatives

        Raises
        ------
        InputError, NumericalError
            As of `log_partition`.
        """
        flag(derivatives, "derivatives")
        inputs = self._checked(mu, sigma, y, power, absorbed=False)
        likelihood = inputs.likelihood
        likelihood.split.reset()
        expected = expected_of(self.likelihood)
        values = np.empty((inputs.mu.size, 3))
        status, i = expected_many(
            likelihood.split.handle,
            (likelihood.landmarks or ABSENT_LANDMARK).handle,
            likelihood.theta,
            expected.handle if expected else NO_RULE,
            expected is not None,
            (inputs.mu, inputs.sigma),
            inputs.y,
            values,
        )
        values *= inputs.power[:, None]
        refuse(inputs, status, i)
        refuse_overflow(inputs, values[:, 0], values[:, 1:] if derivatives else None)
        result = three(inputs, values)
        return result if derivatives else result.value

    def kernel(self, name: str) -> Callable[..., Any]:
        """Return a function compiled by numba, for loops of your own that numba compiles.

        Parameters
        ----------
        name : {"log_partition", "moments", "sigma_star", "expected_log_prob", "log_predictive"}

        Returns
        -------
        callable
            ``f(mu, sigma, y)`` of three floats: what the method of that name returns for power 1,
            one float, or two for "moments". Arguments are not checked: sigma has to be positive, y
            an observation. NaN where the method would raise.

        Raises
        ------
        InputError
            If there is no such function, or an observation has several numbers.

        Examples
        --------
        >>> from qpruntime import functions
        >>> star = functions("probit").kernel("sigma_star")
        >>> round(star(0.0, 1.0, 1.0), 9)
        0.825215532
        """
        return compiled(name, self._qp)

    def _checked(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, power: ArrayLike, absorbed: bool = True
    ) -> KernelArguments:
        """Arguments of what is integrated here."""
        self._qp.need_density("derivatives and expectations are integrated")
        return checked(self.likelihood, mu, sigma, y, power, absorbed)

    def _projected(
        self, source: tuple[Any, ...], given: KernelArguments, table: Table | None = None
    ) -> Projections:
        """Projections of all cavities, of the shape of the answer."""
        flat = project_many(
            given.likelihood, source, given.mu, given.sigma, given.y, table, given.powers
        )
        check_range(flat, given.mu, given.sigma)
        shape = given.shape
        return Projections(
            flat.log_z.reshape(shape),
            flat.mean.reshape(shape),
            flat.std.reshape(shape),
            flat.inside.reshape(shape),
        )

    def _bands(self, given: KernelArguments) -> Array:
        """All that `qpruntime.interop.derivative_kernels.derive` finds, shape (N, BANDS)."""
        likelihood = given.likelihood
        slope = slope_of(self.likelihood)
        bands = np.empty((given.mu.size, BANDS))
        status, i = derive_many(
            plain(likelihood.functions(powers=True)),
            slope.handle,
            slope is not NO_SLOPE,
            likelihood.moves,
            given.power,
            (given.mu, given.sigma),
            given.y,
            bands,
        )
        refuse(given, status, i)
        refuse_overflow(given, bands[:, 6], bands[:, 3:])
        return bands


def from_moments(
    given: KernelArguments, mean: Array, std: Array
) -> tuple[Array, NDArray[np.bool_]]:
    """Return slopes of log Z in mu and sigma from moments, and where nothing much cancels."""
    gap, variance = mean - given.mu, given.sigma**2
    change = std**2 - variance + gap**2
    with np.errstate(over="ignore"):
        derivatives = np.stack([gap / variance, change / (variance * given.sigma)], axis=-1)
    places = np.maximum(np.abs(given.mu), np.abs(mean))
    kept = np.abs(gap) > np.maximum(_KEPT * std, _KEPT_MEAN * places)
    return derivatives, kept & (np.abs(change) > _KEPT * (std**2 + variance + gap**2))


def three(given: KernelArguments, found: Array) -> Derivatives[Array]:
    """Rows of a value and its derivatives as what methods return."""
    return Derivatives(*(found[:, k].reshape(given.shape) for k in range(3)))


def functions(
    likelihood: str | Likelihood | None = None, table: Table | str | os.PathLike[str] | None = None
) -> LikelihoodFunctions:
    """Certified functions of a likelihood, for inference code of your own.

    Parameters
    ----------
    likelihood : str, Likelihood or None
        For example ``"student-t(nu=4, scale=0.1)"``, or one of your own by
        `Likelihood.from_log_prob`; None is the likelihood of the table, probit without a table.
    table : None, "exact", path, name or Table
        Where `LikelihoodFunctions.sigma_star` is found, as in `project`.

    Returns
    -------
    LikelihoodFunctions
        With the methods ``log_partition``, ``moments``, ``sigma_star``, ``expected_log_prob``,
        ``log_predictive`` and ``kernel``.

    Raises
    ------
    InputError
        If there is no such likelihood, or the table is of another.
    TableError
        If the table cannot be opened.

    See Also
    --------
    qpruntime.project, qpruntime.Likelihood

    Examples
    --------
    >>> from qpruntime import functions
    >>> own = functions("student-t(nu=4, scale=0.1)")
    >>> mean, std = own.moments([0.5, 2.0], 1.0, 0.0)
    >>> std.round(4)
    array([0.136 , 0.1522])
    """
    return LikelihoodFunctions(likelihood, table)
