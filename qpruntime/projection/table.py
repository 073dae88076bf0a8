"""An opened table: its data for lookups, its likelihoods, and its refusals.

`qpruntime.projection.open` finds and opens tables, and says how they pickle.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import _cli_hints, likelihoods
from qpruntime.errors import InputError, TableError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation, tabulated_likelihood as standin
from qpruntime.projection.site_kernel import (
    COMPACT,
    COMPACT_RATIO,
    GRID,
    SURFACES_QP,
    SURFACES_WP,
    Source,
    check_range,
    project_many,
)
from qpruntime.table_format.metadata import Axis, Metadata

__all__ = ["OUTSIDE", "Outside", "Table"]

#: Result of a lookup outside the grid: sigma_EP as in the paper, the quadrature's sigma*, or an
#: error if the likelihood of a table of surfaces has no code.
Outside = Literal["ep", "exact", "error"]
OUTSIDE = get_args(Outside)


@dataclass(frozen=True, eq=False)
class Table:
    """Opened table of sigma* (a standard deviation), or of surfaces, for one likelihood.

    Attributes
    ----------
    path : Path
    metadata : Metadata
    likelihood : Likelihood
        Likelihood; a table of surfaces whose code is not available has a stand-in without a
        density.
    values : ndarray, shape ``metadata.shape``
        Read-only data: the memory map of a grid, or spline coefficients.
    outside : {"ep", "exact", "error"}
        Result of a lookup outside a grid. A compact table has no outside, and L_p projections
        outside their table are an error.

    See Also
    --------
    qpruntime.open_table, qpruntime.project

    Examples
    --------
    >>> from qpruntime import open_table
    >>> table = open_table("probit-compact")
    >>> table.likelihood.name, table.metadata.kind, table.outside
    ('probit', 'compact', 'ep')
    >>> std, inside = table.lookup(0.0, 1.0, 1)
    >>> round(float(std), 9), bool(inside)
    (0.825215532, True)
    """

    path: Path
    metadata: Metadata
    likelihood: Likelihood
    values: NDArray[Any]
    outside: str = "ep"

    @property
    def sha256(self) -> str:
        """Hash of the data according to the file."""
        return self.metadata.sha256

    def axes(self) -> NDArray[np.float64]:
        """Return start, stop and cells per unit of both axes, then the first outcome.

        This is the form for `qpruntime.projection.interpolation`. The first three are not used for
        a table with one axis.
        """
        numbers = []
        for axis in (self.metadata.axes[0], self.metadata.axes[-1]):
            numbers += _numbers(axis)
        return np.array([*numbers, self.metadata.outcomes[0]])

    def source(self, kind: int | None = None) -> Source:
        """Return the source for `qpruntime.projection.site_kernel.project_site`.

        `kind` selects the standard deviation of a table of surfaces, by default sigma*. A table of
        L_p projections has only one, and answers inside its domain only.
        """
        exact = self.outside == "exact" and self.likelihood.has_density
        if self.metadata.kind == "surfaces":
            axes, lookup = self._surface_axes(), interpolation.lookup.handle
            if self.metadata.projection is not None:
                return SURFACES_WP, False, False, self.values, axes, lookup, 0
            return SURFACES_QP if kind is None else kind, False, exact, self.values, axes, lookup, 0
        axes = self.axes()
        axes.flags.writeable = False
        if self.metadata.kind == "grid":
            return GRID, self.likelihood.mirror, exact, self.values, axes, 0, 0
        ratio, coordinates = COMPACT_RATIO.handle, self.likelihood.coordinates().handle
        return COMPACT, self.likelihood.mirror, exact, self.values, axes, ratio, coordinates

    def _surface_axes(self) -> NDArray[np.float64]:
        """Return the axes in the form for `qpruntime.projection.interpolation.lookup`."""
        mu, log10_sigma, *third = self.metadata.axes
        outcomes = self.metadata.outcomes
        axes = interpolation.pack(
            [*_numbers(mu), *_numbers(log10_sigma), outcomes[0]],
            standin.MODES[self.metadata.traits["mode"]],
            outcomes,
            _numbers(third[0]) if third else None,
        )
        axes.flags.writeable = False
        return axes

    def serving(self, likelihood: str | Likelihood | None) -> Table:
        """Return the table for use with a likelihood, None being its own.

        If the likelihood's code was missing when the table was opened, it now answers outside the
        domain.

        Raises
        ------
        InputError
            If the table was made for another likelihood.
        """
        own_likelihood = self.likelihood
        if likelihood is None or likelihood is own_likelihood:
            return self
        mine = self.metadata.kind == "surfaces"
        if (
            mine
            and likelihood == own_likelihood.name
            and own_likelihood.name not in likelihoods.names()
        ):
            return self
        requested = likelihoods.get(likelihood)
        if requested is own_likelihood:
            return self
        reason = f"not {requested.spelt!r}"
        if mine:
            reason = standin.difference(requested, self.metadata)
            if not reason:
                return replace(self, likelihood=requested)
        raise InputError(
            f"the table {self.path} is for the likelihood {own_likelihood.spelt!r}, {reason}; "
            "build one: "
            + _cli_hints.build(
                _cli_hints.Wanted(requested, self.metadata.kind, self.metadata.order)
            )
        )

    def beyond(self, mu: float, sigma: float, y: float) -> str:
        """Return a message about a cavity outside a table of surfaces, and what to do."""
        (m, s), traits = self.metadata.axes[:2], self.metadata.traits
        location = traits["mode"] == "location"
        where, place, ell = "mu - y" if location else "mu", mu - y * location, math.log10(sigma)
        ends = (float(min(m.start, math.floor(place))), float(max(m.stop, math.ceil(place))))
        narrow = min(s.start, 0.5 * math.floor(2.0 * ell))
        wide = max(s.stop, 0.5 * math.ceil(2.0 * ell))
        remedy = (
            f"and the code of {self.likelihood.name!r} is not at hand: hand it over as "
            "likelihood=..."
        )
        if self.metadata.projection is not None:
            remedy = "and L_p projections are not integrated beside a table: leave it out"
        if -8.0 <= narrow < wide <= 8.0:
            made = _cli_hints.Wanted(
                self.likelihood, "surfaces", self.metadata.order, traits["source"]
            )
            remedy += ", or build a wider table: " + _cli_hints.build(
                made,
                **_cli_hints.observations(self.metadata),
                mu_range=ends,
                log10_sigma_range=(narrow, wide),
            )
        return (
            f"the cavity N({mu:g}, {sigma:g}^2) of y = {y:g} is outside the table {self.path}, "
            f"which holds {where} {m.start:g} to {m.stop:g} and log10 sigma {s.start:g} to "
            f"{s.stop:g}, {remedy}"
        )

    def other_projection(self, method: str, p: float | None = None) -> str:
        """Return a message that the table does not serve this method, and what to build."""
        served = "EP and QP" if self.metadata.kind == "surfaces" else "QP"
        if self.metadata.order is not None:
            served = f'method "wp" with p={self.metadata.order:g}'
        requested = f'method "{method}"' + ("" if p is None else f" with p={p:g}")
        source = str(self.metadata.traits.get("source") or "")
        wanted = _cli_hints.Wanted(self.likelihood, "surfaces", p, source)
        surfaces = self.metadata.kind == "surfaces"
        options = _cli_hints.observations(self.metadata) if surfaces else {}
        return (
            f"the table {self.path} serves {served}, not {requested}: leave it out, or build one: "
            + _cli_hints.build(wanted, **options)
        )

    def lookup(
        self, mu: ArrayLike, sigma: ArrayLike, y: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Look up sigma* for cavities N(mu, sigma^2) and observations y.

        Parameters
        ----------
        mu, sigma, y : array-like
            Cavities and observations, which broadcast; `sigma` is a standard deviation.

        Returns
        -------
        sigma_star : ndarray
            Standard deviations, never above sigma_EP; outside a grid they follow `outside`. A table
            of L_p projections has their standard deviations.
        inside : ndarray of bool
            True everywhere for a compact table.

        Raises
        ------
        InputError
            If an argument is not usable.
        NumericalError
            If a projection is not possible in double precision.
        TableError
            If a value cannot be a standard deviation because the file is damaged, or if a cavity is
            outside a table of surfaces whose likelihood has no code.
        """
        result = project_many(self.likelihood, self.source(), mu, sigma, y, self)
        check_range(result, mu, sigma)
        return result.std, result.inside

    def reference(self) -> tuple[str, str, str, str, str]:
        """Return the strings by which `reopen` finds this table."""
        command = _cli_hints.again(self.metadata, self.likelihood)
        return str(self.path), self.sha256, self.metadata.spelt, self.outside, command

    def verify_hash(self) -> None:
        """Read all data once; raise `TableError` if they differ from the written ones."""
        digest = hashlib.sha256()
        flat = self.values.reshape(-1)
        for start in range(0, flat.size, 1 << 20):
            digest.update(flat[start : start + (1 << 20)].data)
        if digest.hexdigest() != self.sha256:
            raise TableError(
                f"{self.path}: data hash is {digest.hexdigest()[:16]}..., metadata says "
                f"{self.sha256[:16]}...; the file is damaged, build it again: "
                + _cli_hints.output(
                    _cli_hints.again(self.metadata, self.likelihood), self.path, force=True
                )
            )


def _numbers(axis: Axis) -> list[float]:
    """Return start, stop and cells per unit."""
    return [axis.start, axis.stop, (axis.size - 1) / (axis.stop - axis.start)]
