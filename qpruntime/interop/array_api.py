"""Likelihood functions in operations of an array library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from qpruntime._typing import ArrayLike
from qpruntime._validation import flag
from qpruntime.errors import InputError
from qpruntime.interop.arguments import is_own
from qpruntime.interop.array_formulas import FORMS, Spline
from qpruntime.interop.array_operations import ArrayLibrary, Tensor
from qpruntime.interop.functions import Derivatives, Moments
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector
from qpruntime.projection.table import Table

__all__ = ["PortableFunctions"]

#: Result of a formula: an array, or a tuple of them.
T = TypeVar("T")


class PortableFunctions:
    """Functions of one likelihood of the package in plain operations of an array library.

    Methods take ``mu``, ``sigma`` and ``y``, which broadcast; sigma is a standard deviation.
    Arguments are not checked, for they may be traced: y have to be observations, and what follows
    from a sigma that is not positive is NaN. If ``derivatives=True``, they return `Derivatives` in
    mu and sigma. The library's automatic differentiation gives the same derivatives, to any order.

    Parameters
    ----------
    ops : ArrayLibrary
    likelihood : str or Likelihood
    table : None, path, name or Table
        A compact table.

    See Also
    --------
    qpruntime.functions

    Examples
    --------
    >>> from qpruntime.torch import functions  # doctest: +SKIP
    >>> probit = functions("probit")  # doctest: +SKIP
    >>> round(float(probit.log_partition(0.0, 1.0, 1.0)), 4)  # doctest: +SKIP
    -0.6931
    """

    def __init__(
        self,
        ops: ArrayLibrary[Any],
        likelihood: str | Likelihood | None = None,
        table: Table | str | os.PathLike[str] | None = None,
    ) -> None:
        projector = Projector(likelihood, "qp", table)
        self.likelihood, self.table = projector.likelihood, projector.table
        if not is_own(self.likelihood) or self.likelihood.name not in FORMS:
            raise InputError(
                f"{self.likelihood.name!r} has no formulas in plain operations; there are "
                f"{', '.join(sorted(FORMS))}; qpruntime.functions takes any likelihood"
            )
        if self.table is not None and self.table.metadata.kind != "compact":
            raise InputError(
                f"{self.table.path} holds {self.table.metadata.kind}: plain operations look up in "
                "compact tables; leave it out"
            )
        self._ops, self._form = ops, FORMS[self.likelihood.name](ops, self.likelihood)
        self._spline = Spline(ops, self.table) if self.table is not None else None

    def __repr__(self) -> str:
        return f"<functions of {self.likelihood.spelt}>"

    def log_partition(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, derivatives: bool = False
    ) -> Tensor | Derivatives[Tensor]:
        """Log Z, Z = int p(y|f) N(f | mu, sigma^2) df."""
        return self._given(lambda *a: self._form.sums(*a).log_z, mu, sigma, y, derivatives)

    #: Log density of an observation whose f ~ N(mu, sigma^2), which is log Z.
    log_predictive = log_partition

    def moments(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, derivatives: bool = False
    ) -> Moments[Tensor] | Derivatives[Moments[Tensor]]:
        """Mean and standard deviation of the tilted density, as `Moments`."""
        return self._given(self._moments, mu, sigma, y, derivatives)

    def sigma_star(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, derivatives: bool = False
    ) -> Tensor | Derivatives[Tensor]:
        """Return the standard deviation of QP's projection, from the compact table.

        Raises
        ------
        InputError
            If the likelihood has no such table.
        """
        if self._spline is None:
            raise InputError(
                f"{self.likelihood.spelt!r} has no compact table, from which sigma* comes here; "
                "heaviside, poisson and probit have; qpruntime.functions integrates it"
            )
        return self._given(self._star, mu, sigma, y, derivatives)

    def expected_log_prob(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike, derivatives: bool = False
    ) -> Tensor | Derivatives[Tensor]:
        """E log p(y|f) for f ~ N(mu, sigma^2)."""
        return self._given(self._form.expected, mu, sigma, y, derivatives)

    def _moments(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Moments[Tensor]:
        sums = self._form.sums(mu, sigma, y)
        return Moments(sums.mean, self._ops.sqrt(sums.variance))

    def _star(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        assert self._spline is not None
        std = self._ops.sqrt(self._form.sums(mu, sigma, y).variance)
        ratio = self._form.ratio(self._spline, mu, sigma, y)
        return cast("Tensor", std * self._ops.minimum(ratio, 1.0))

    def _given(
        self,
        function: Callable[..., T],
        mu: ArrayLike,
        sigma: ArrayLike,
        y: ArrayLike,
        derivatives: bool,
    ) -> T | Derivatives[T]:
        """Call with arrays of one shape and type."""
        columns = self.likelihood.columns
        parts: list[ArrayLike] = [y]
        if columns > 1:
            [rows] = self._ops.arrays(y)
            parts = [rows[..., k] for k in range(columns)]
        m, s, *parts = self._ops.arrays(mu, sigma, *parts)
        # A width that is not positive makes everything NaN, derivatives too.
        s = s * self._ops.where(s > 0.0, 1.0 + 0.0 * m, math.nan + 0.0 * m)
        label = parts[0] if columns == 1 else tuple(parts)
        if not flag(derivatives, "derivatives"):
            return function(m, s, label)
        value, d_mu = self._ops.along(lambda a: function(a, s, label), m)
        _, d_sigma = self._ops.along(lambda a: function(m, a, label), s)
        return Derivatives(value, d_mu, d_sigma)
