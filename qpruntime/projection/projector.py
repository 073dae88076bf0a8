"""Choice of the way to project for a method and a table: `project` for arrays, `Projector`.

This is the only place that decides which table ``table=None`` means. The kernel is in
`qpruntime.projection.site_kernel`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import _cli_hints, likelihoods
from qpruntime._numba import plain
from qpruntime._restorable import restorable_call
from qpruntime._typing import Array
from qpruntime._validation import choice, number, shown
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection import interpolation
from qpruntime.projection.open import open_table, shipped, shipped_power, shipped_scaled
from qpruntime.projection.site_kernel import (
    EP,
    EXACT,
    NO_AXES,
    NO_VALUES,
    RAISED_EP,
    RAISED_QP,
    SURFACES_EP,
    SURFACES_QP,
    WP,
    Projections,
    check_range,
    project_many,
)
from qpruntime.projection.table import Table
from qpruntime.quadrature.sigma_star_kernels import PlainFunctions
from qpruntime.table_format.metadata import LARGEST, MOST_OUTCOMES, SMALLEST

__all__ = [
    "INFERENCE",
    "METHODS",
    "PLACES",
    "STEP",
    "Inference",
    "Method",
    "Projector",
    "derivative",
    "moved",
    "project",
    "project_arrays",
]

Method = Literal["ep", "qp", "wp"]
METHODS = get_args(Method)
#: Methods of inference; the variational one projects nothing, and its cavities are those of EP.
Inference = Literal["ep", "qp", "wp", "vb"]
INFERENCE = get_args(Inference)


def order(method: str, p: float | None, of_table: float | None = None) -> float | None:
    """Return p for method "wp", which needs it, and None for the others, which have none.

    `of_table` is the order of the table, if it has one.
    """
    if method != "wp":
        if p is not None:
            raise InputError(f'p is the order of method "wp"; method {method!r} takes none')
        return None
    if p is None and of_table is not None:
        return of_table
    if p is None:
        raise InputError(f'method "wp" needs p from {SMALLEST:g} to {LARGEST:g}; p=2 is "qp"')
    p_order = number(p, "p")
    if not SMALLEST <= p_order <= LARGEST:
        raise InputError(
            f"p must be from {SMALLEST:g}, below which W_p is not convex, to {LARGEST:g}, beyond "
            f"which tails too far out for double precision decide; got {p_order:g}"
        )
    return p_order


@restorable_call("projector/1")
class Projector:
    """Likelihood, method and table, resolved once and passed to the kernels as plain values.

    Parameters
    ----------
    likelihood : str, Likelihood or None
        Likelihood; None is that of the table, or the probit without a table.
    method : {"qp", "ep", "wp", "vb"}
    table : None, "exact", path, name or Table
        None is the table that ships with the likelihood, or quadrature if it has no `Reduction`;
        "exact" integrates. Only QP uses grids and compact tables; EP also uses tables of surfaces.
        Method "wp" integrates, or uses a table built for its order.
    p : float, optional
        Order of method "wp"; by default that of the table.

    Attributes
    ----------
    table : Table or None
        Table of the lookups.
    functions, source : tuple
        Arguments of `qpruntime.projection.site_kernel.project_site`.
    without_table : tuple
        Source for log Z and the tilted mean alone, without lookups of sigma*.
    means : tuple
        Cheapest source with the mean of the method.
    """

    def __init__(
        self,
        likelihood: str | Likelihood | None,
        method: str = "qp",
        table: Table | str | os.PathLike[str] | None = None,
        p: float | None = None,
    ) -> None:
        choice(method, "method", INFERENCE)
        self.method = method
        self._automatic = table is None
        exact = isinstance(table, str) and table == "exact"
        if isinstance(table, (str, os.PathLike)) and not exact:
            table = open_table(table)
        if not (isinstance(table, Table) or table is None or exact):
            raise InputError(f"table must be None, 'exact', a path or a Table, got {shown(table)}")
        of_table = table.metadata.order if isinstance(table, Table) else None
        self.p = order(method, p, of_table)
        if isinstance(table, Table):
            table = table.serving(likelihood)
            if self.p != of_table:
                raise InputError(table.other_projection(method, self.p))
            self.likelihood = table.likelihood
        else:
            self.likelihood = likelihoods.get("probit" if likelihood is None else likelihood)
            if table is None and method == "qp":
                table = shipped(self.likelihood)
        self.table = table if isinstance(table, Table) else None
        self.functions = plain(self.likelihood.functions())
        self.without_table = (EP, False, False, NO_VALUES, NO_AXES, 0, 0)
        self.means = self.without_table
        if method == "wp":
            if self.table is not None:
                self.source = self.without_table = self.table.source()
            else:
                from qpruntime.quadrature.wasserstein_kernels import (
                    location_wp_rule,
                    parameters,
                    wp_rule,
                )

                self.need_density('method "wp" integrates without a table')
                rule = location_wp_rule if self.likelihood.moves else wp_rule
                assert self.p is not None, "`order` has seen to it"
                rules = parameters(self.p)
                self.source = (WP, False, True, NO_VALUES, rules, rule.handle, 0)
            self.means = self.source
            return
        surfaces = self.table is not None and self.table.metadata.kind == "surfaces"
        if surfaces and method != "vb":
            assert self.table is not None
            self.means = self.without_table = self.table.source(SURFACES_EP)
            self.source = self.table.source(SURFACES_QP if method == "qp" else SURFACES_EP)
            return
        self.need_density('only tables of surfaces do without it, and not for method "vb"')
        # The tilted density under normal noise is normal: sigma* is its standard deviation.
        if method in ("ep", "vb") or (self.likelihood.is_normal and not self.table):
            self.source = self.without_table
        elif self.table:
            self.source = self.table.source()
        else:
            self.source = (EXACT, False, True, NO_VALUES, NO_AXES, 0, 0)

    def __reduce__(self) -> tuple[object, ...]:
        # Addresses of compiled functions mean nothing in another process.
        table = self.table or "exact"
        return Projector, (self.likelihood, self.method, None if self._automatic else table, self.p)

    @property
    def nonnegative(self) -> bool:
        """True if no site precision can be negative."""
        return bool(self.likelihood.log_concave and self.method != "wp")

    def functions_of(self, unraised: bool) -> PlainFunctions:
        """Return the likelihood's functions for kernels, for powers of 1 only if `unraised`."""
        return self.functions if unraised else self.likelihood.functions(powers=True)

    def observing(self, y: ArrayLike) -> tuple[Projector, NDArray[np.float64]]:
        """Return the projector and encoded observations, as `Likelihood.observing` does."""
        likelihood, numbers = self.likelihood.observing(y)
        if likelihood is self.likelihood:
            return self, numbers
        holding = copy.copy(self)
        holding.likelihood, holding.functions = likelihood, likelihood.functions()
        return holding, numbers

    def to_power(self, power: float) -> Projector:
        """Return the projector of likelihoods to a power, with a table if there is one.

        If no table was asked for, and one of this power ships, it serves EP and QP for cavities
        whose observation has weight 1. The others are integrated, as without it.
        """
        if not self._automatic or self.method not in ("ep", "qp"):
            return self
        table = shipped_power(self.likelihood, power)
        if table is not None:
            _, mirror, exact, values, axes, lookup, _ = table.source(RAISED_EP)
        elif (scaled := self._scaled(power)) is not None:
            mirror, exact, (values, axes, lookup) = False, True, scaled
        else:
            return self
        axes = np.append(axes, power)
        axes.flags.writeable = False  # as those of other sources: kernels compile once for all
        lookup_source = mirror, exact, values, axes, lookup, 0
        raised = copy.copy(self)
        raised.means = raised.without_table = (RAISED_EP, *lookup_source)
        raised.source = (RAISED_QP if self.method == "qp" else RAISED_EP, *lookup_source)
        return raised

    def _scaled(self, power: float) -> tuple[Array, Array, int] | None:
        """Return values, axes and lookup of a table at unit scale, if the likelihood has one."""
        likelihood = self.likelihood
        member = likelihood.powers.member if likelihood.powers else None
        known = likelihood.name in likelihoods.names() and likelihood.recipe is None
        if member is None or not known or power == 1.0:
            return None
        shape_and_scale = member(likelihood.parameters, power)
        table = (
            None if shape_and_scale is None else shipped_scaled(likelihood.name, shape_and_scale[0])
        )
        if shape_and_scale is None or table is None:
            return None
        x, e = table.metadata.axes
        shape, scale, constant = shape_and_scale
        return (
            table.values,
            interpolation.pack_scaled(x, e, scale, shape, constant),
            interpolation.lookup_scaled.handle,
        )

    def for_parameters(self, likelihood: Likelihood) -> Projector:
        """Return the projector of other parameters, with a table only if it covers them.

        Tables have the parameters that they were built with; one at unit scale covers more.
        """
        automatic = self._automatic and self.method == "ep"
        return Projector(likelihood, self.method, None if automatic else "exact")

    def need_density(self, reason: str) -> None:
        """Raise `InputError` if log p(y|f) is not available."""
        if not self.likelihood.has_density:
            raise InputError(
                f"the density of {self.likelihood.name!r} is needed: {reason}; hand over the "
                "Likelihood the table was built from as well, as likelihood=..."
            )

    def for_evidence(self) -> Projector:
        """Return the EP projector of the evidence, by which hyper-parameters are selected."""
        moments = (
            self.table is not None
            and self.table.metadata.kind == "surfaces"
            and self.table.metadata.projection is None
        )
        return Projector(self.likelihood, "ep", self.table if moments else None)

    def check_outcomes(self, y: NDArray[np.float64]) -> None:
        """Raise `InputError` if a grid has no slab for one of these observations."""
        if self.table is None or self.table.metadata.kind != "grid" or self.likelihood.mirror:
            return
        outcomes = self.table.metadata.outcomes
        beyond = (y < outcomes[0]) | (y > outcomes[-1])
        if beyond.any():
            raise InputError(
                f"y has the value {y[beyond].max():g}, but the table {self.table.path} holds "
                f"{outcomes[0]:g} to {outcomes[-1]:g}; use table=None, which holds every value"
                + self._wider(min(y.min(), outcomes[0]), max(y.max(), outcomes[-1]))
            )

    def _wider(self, first: float, last: float) -> str:
        """Return the command that builds a grid of these counts, if there is one."""
        if last - first >= MOST_OUTCOMES:
            return ""
        wanted = _cli_hints.Wanted(self.likelihood)
        return ", or build one: " + _cli_hints.build(wanted, counts=(first, last))


def project_arrays(
    likelihood: str | Likelihood | None,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    method: str = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    p: float | None = None,
) -> Projections:
    """Run `project`, and also return log Z and whether the table answered."""
    choice(method, "method", METHODS)
    projector = Projector(likelihood, method, table, p)
    return project_many(projector.likelihood, projector.source, mu, sigma, y, projector.table)


def project(
    likelihood: str | Likelihood | None,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    method: Method = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    p: float | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of the Gaussian that replaces each tilted density.

    Parameters
    ----------
    likelihood : str, Likelihood or None
        Likelihood, for example ``"probit"``; None is that of the table.
    mu, sigma, y : array-like
        Cavity mean, cavity standard deviation and observation; they broadcast. An observation of
        several numbers, such as the binomial's, has a last axis of its own.
    method : {"qp", "ep", "wp"}
        QP keeps the mean and takes sigma* (paper, Eqs. 5 and 8); EP matches both moments; "wp"
        minimises the L_p Wasserstein distance (Appendix B), of which QP is p = 2.
    table : None, "exact", path, name or Table
        Source of QP's sigma*. None is the small table inside the package, right to 1e-9 everywhere;
        "exact" integrates, 100 times slower; a path or name is a table built by ``tablegen build``.
        A table of surfaces also serves EP, and one built with ``--projection wp`` serves "wp" of
        its order.
    p : float, optional
        Order of method "wp", from 1 to 10; by default that of the table.

    Returns
    -------
    mean, std : ndarray
        Arrays of the broadcast shape; `std` is a standard deviation.

    Raises
    ------
    InputError
        If an argument is not usable.
    NumericalError
        If a tilted density cannot be integrated.
    TableError
        If the table cannot be opened, or its value for a cavity is damaged.

    See Also
    --------
    qpruntime.project_sampled, qpruntime.project_samples, qpruntime.open_table, qpruntime.infer

    Examples
    --------
    >>> from qpruntime import project
    >>> mean, std = project("probit", 0.0, 1.0, 1)
    >>> round(float(mean), 12), round(float(std), 9)
    (0.564189583548, 0.825215532)
    """
    result = project_arrays(likelihood, mu, sigma, y, method, table, p)
    check_range(result, mu, sigma)
    return result.mean, result.std


# --- Derivatives in likelihood parameters

#: Step of the differences in the logarithm of a parameter: fourth order leaves 1e-12 of truncation
#: and about the same of rounding.
STEP = 3e-3
#: Multiples of the step at which functions are evaluated.
PLACES = (-2, -1, 1, 2)
# Factor of two steps, with room for rounding.
_INSIDE = float(np.exp(2.0 * STEP)) * (1.0 + 1e-12)


def moved(projector: Projector, name: str) -> dict[int, Projector]:
    """Return projectors with a parameter of the likelihood moved by `PLACES` steps of its log.

    The differences at a limit of the parameter are about a point two steps inside.
    """
    likelihood = projector.likelihood
    low, high = likelihood.limits.get(name, (0.0, np.inf))
    centre = min(max(likelihood.parameters[name], low * _INSIDE), high / _INSIDE)
    return {
        k: projector.for_parameters(
            likelihood.with_parameters(**{name: centre * float(np.exp(k * STEP))})
        )
        for k in PLACES
    }


def derivative(at: Mapping[int, Array], step: float | Array = STEP) -> Array:
    """Return the fourth-order difference quotient from values at `PLACES` steps."""
    return (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step)
