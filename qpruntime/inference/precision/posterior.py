"""Result of inference on a sparse precision: a `Posterior` that also has the latent values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import flag, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.corrections.corrected import CorrectedEvidence, on_evidence
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point import iterate as fixed_point
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.posterior import Correcting, Posterior
from qpruntime.inference.precision.corrections import corrected_by_pairs
from qpruntime.inference.precision.profile import VALUES, Profile, profile
from qpruntime.inference.precision.restored import check_indices
from qpruntime.inference.precision.solution import (
    PrecisionSolution,
    Slope,
    slope_of,
)
from qpruntime.inference.sites import Sites

__all__ = ["PrecisionPosterior"]

# --- `PrecisionPosterior`


@restorable("precision-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class PrecisionPosterior(Posterior):
    """Gaussian approximation of x ~ N(0, Q^-1) and of eta = offset + A x, seen at N rows.

    Attributes and methods are those of `qpruntime.Posterior`; `mean` and `variance` are those of
    eta at the rows. ``latent()`` has means and variances of x, ``sample()`` without points draws x,
    and `predict` and `sample` take rows of A, with ``mean=`` for their offsets.
    ``evidence_gradient(dQ)`` takes a sparse change of Q, or a list of them.

    See Also
    --------
    qpruntime.infer_precision, qpruntime.Posterior,
    qpruntime.inference.precision.profile.Profile,
    qpruntime.inference.precision.solution.Slope

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> A = sparse.csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + np.arange(20) // 5 % 2, 1, -1)
    >>> post = infer_precision(A, Q, y, "logistic")
    >>> mean, variance = post.latent()
    >>> mean.round(2).tolist()
    [-0.38, 0.38, -1.24, -0.38]
    >>> post.predict(A[:1])[0].round(2).tolist()
    [-0.38]
    """

    _solution: PrecisionSolution = field(kw_only=True)

    def _predict_once(self) -> tuple[Array, ...]:
        check_indices(self._solution)
        return super()._predict_once()

    @property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,), at EP's fixed point."""
        return self._solution.weights

    def slope(self) -> Slope:
        """Return the slope by Q: the posterior covariance on its pattern, and the mean of x.

        A change dQ on that pattern changes the log evidence by ``(tr(S0 dQ) - slope.against(dQ)) /
        2``. The term tr(S0 dQ), with the prior covariance S0, is the change of ``log |Q|``, or with
        a constraint that of ``log_det`` of `infer_precision`.
        """
        return slope_of(self._solution.solved)

    def corrected_evidence(self) -> CorrectedEvidence:
        """Return the log evidence corrected by pairs of cumulants.

        The correction is after Opper, Paquet & Winther (2013).

        Up to 2000 rows the sum is over all pairs, with equal rows counted once. It is over
        pairs that share a level, that is a column of at most 30 rows, if there are more rows.
        It starts from EP's fixed point only.

        Returns
        -------
        CorrectedEvidence
            Named tuple of ``value`` and ``spread``. The spread is the size of all fourth-order
            terms, of which half are in the value.

        Raises
        ------
        InputError
            If the posterior is of another method than EP.
        """
        return corrected_by_pairs(self.log_evidence, self._solution.sums)

    def coefficient(self, column: int, *, corrected: bool = True, nodes: int = VALUES) -> Profile:
        """Return the marginal density of x at one column, by profiling the evidence.

        The column is moved into the offset, at values over 5 of EP's standard deviations on either
        side and as far as the density reaches, and the sites settle anew at each value. This is
        more accurate than EP's normal if many rows with non-normal likelihoods see the column. It
        works for columns whose prior is independent of other columns, as for fixed effects.

        Parameters
        ----------
        column : int
        corrected : bool
            Whether evidences are corrected by pairs of rows.
        nodes : int
            Number of values to begin with, at least 5; 9 to 13 suffice. More follow where the
            density changes.

        Returns
        -------
        Profile
            Density with ``mean``, ``std``, ``quantile(q)`` and ``density(at)``.

        Raises
        ------
        InputError
            If the column is coupled to others in Q or by a constraint, or EP was not the method.
        """
        known = whole(column, "column", 0)
        if known >= self._solution.latent_size:
            raise InputError(f"column must be below {self._solution.latent_size}, got {known}")
        flag(corrected, "corrected")
        return profile(self._solution, known, corrected, whole(nodes, "nodes", 5))

    def loo_groups(self, labels: ArrayLike) -> tuple[NDArray[np.generic], Array]:
        """Return leave-one-group-out log densities ``log p(y_G | all other rows)``.

        The cavity of a group is the normal posterior of its rows without their own sites. The
        density of the group's observations is their evidence by EP with that cavity as prior.

        Parameters
        ----------
        labels : array-like, shape (N,)
            Groups of the rows.

        Returns
        -------
        groups, densities : ndarray, shape (G,)
            Groups in ascending order, and the log density of the observations of each.

        Raises
        ------
        InputError
            If labels have another shape or are NaN, or equal rows have several of them:
            `collapse=False` keeps them apart.
        """
        solution = self._solution
        observed = solution.seen
        group_labels = np.asarray(labels)
        if group_labels.shape != (observed.n,):
            raise InputError(
                f"labels must have shape ({observed.n},), one for each row; got "
                f"{group_labels.shape}"
            )
        if group_labels.dtype.kind == "f" and np.isnan(group_labels).any():
            raise InputError("labels must not be NaN: give rows without a group one of their own")
        names, codes = np.unique(group_labels, return_inverse=True)
        kept = codes if observed.kept is None else codes[observed.kept]
        site = observed.collapsed.rows.site
        site_groups = kept[observed.collapsed.rows.first]
        if (site_groups[site] != kept).any():
            row = int(np.argmax(site_groups[site] != kept))
            raise InputError(
                f"row {row} equals another one of another group, with which it is one site: infer "
                "with collapse=False to leave them out apart"
            )
        order = np.argsort(site_groups, kind="stable")
        ends = np.searchsorted(site_groups[order], np.arange(names.size + 1))
        log_densities = np.zeros(names.size)
        for g in range(names.size):
            members = order[ends[g] : ends[g + 1]]
            if members.size:
                log_densities[g] = _left_out(solution, members)
        return names, log_densities

    def marginals(self, *at: ArrayLike, **options: Any) -> CorrectedMarginals:
        """Return corrected marginal densities of eta for up to 3000 rows; see `Posterior`.

        Points are rows of A; without points the marginals are those of the data's rows.
        """
        solution = self._solution
        if not at and not solution.seen.collapsed.trivial:
            rows, options["mean"] = solution.all_rows()
            return super().marginals(rows, **options)
        return super().marginals(*at, **options)

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        report = self.but(n=solution.here.mean.size)
        return Correcting(solution.observed(), solution.sites_held, report)

    def check(self) -> tuple[str, ...]:
        """Return messages about known inaccuracies of this posterior, and what to do about them.

        They use the sums over pairs of `corrected_evidence`, at the same cost.
        """
        warnings = []
        if not self.converged:
            warnings.append(f"the sites are {self.status}: the evidence may be anything")
        try:
            corrected = self.corrected_evidence()
        except (InputError, NumericalError) as error:
            return (*warnings, f"corrections were not looked at: {error}")
        word = on_evidence(corrected.value - self.log_evidence, corrected.spread)
        return (*warnings, word) if word else tuple(warnings)


# --- Leave-group-out densities

_GROUP_LIMITS = Limits(1e-9, 200)


def _left_out(solution: PrecisionSolution, members: NDArray[np.intp]) -> float:
    """Return the log density of these sites' observations given all others."""
    marginals, sites = solution.here, solution.sites_held
    merged = solution.seen.collapsed.merged
    constant = float(merged.constant[members].sum())
    if members.size == 1 and merged.weights is None:
        return float(solution.log_z[members[0]]) + constant
    m = members.size
    require(squares(m, 5.0), f"leaving out {m} rows together", "leave out fewer rows")
    prior = solution.solved.prior
    right = prior.dense_rows(members)
    V = right.T @ solution.solved.covariances(right)
    tau, pull = sites.tau[members], marginals.pull[members]
    # The cavity covariance is (V^-1 - diag(tau))^-1, with the mean that goes with it.
    cavity = np.linalg.solve(np.eye(m) - V * tau, V)
    cavity = 0.5 * (cavity + cavity.T)
    if not (cavity.diagonal() > 0.0).all():
        raise NumericalError(
            f"row {solution.seen.row_of(int(members[np.argmin(cavity.diagonal())]))} and the rows "
            "left out with it have no proper cavity: they alone tell a part of the latent values"
        )
    mean = marginals.mean[members] - cavity @ pull
    whole = solution.problem
    weights = None if whole.weights is None else whole.weights[members]
    problem = replace(whole, prior=DensePrior(cavity, mean), y=whole.y[members], weights=weights)
    start = Sites(tau.copy(), sites.nu[members].copy())
    end = fixed_point.settle(problem, _GROUP_LIMITS, order="parallel", sites=start)
    return fixed_point.log_evidence(problem, end)[0] + constant
