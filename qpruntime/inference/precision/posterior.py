"""The result of inference on a sparse precision: a `Posterior` that knows its latent values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.correcting import Correcting
from qpruntime.inference.corrections.corrected import CorrectedEvidence
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.corrections.words import on_evidence
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.precision.evidence import corrected_by_pairs
from qpruntime.inference.precision.gradient import Slope, slope_of
from qpruntime.inference.precision.left_out import left_out_groups
from qpruntime.inference.precision.profile import Profile, profile
from qpruntime.validation import flag, whole

__all__ = ["PrecisionPosterior"]


@dataclass(frozen=True, eq=False, repr=False)
class PrecisionPosterior(Posterior):
    """Gaussian approximation of x ~ N(0, Q^-1) and of eta = offset + A x, seen at N rows.

    Attributes and methods are those of `qpruntime.Posterior`; `mean` and `variance` are those of
    eta at the rows. ``latent()`` has means and variances of x, ``sample()`` without points draws x,
    and `predict` and `sample` take rows of A, with ``mean=`` for their offsets.
    ``evidence_gradient(dQ)`` takes a sparse change of Q, or a list of them.
    """

    @property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,), at EP's fixed point."""
        found: Array = self._solution.weights
        return found

    def slope(self) -> Slope:
        """What a change of Q is multiplied by: posterior covariance on Q's pattern, mean of x.

        For dQ on that pattern the log evidence changes by ``(tr(S0 dQ) - slope.against(dQ)) / 2``,
        where tr(S0 dQ), with the prior covariance S0, is the change of ``log |Q|``, or with a
        constraint that of ``log_det`` of `infer_precision`.
        """
        return slope_of(self._solution.solved)

    def corrected_evidence(self) -> CorrectedEvidence:
        """Log evidence corrected by pairs of cumulants (after Opper, Paquet & Winther, 2013).

        Over all pairs of up to 2000 rows, equal ones counted once; of more, over pairs that share a
        level, that is a column of at most 30 of them. It starts from EP's fixed point only.

        Returns
        -------
        CorrectedEvidence
            Named tuple ``value`` and ``spread``: the size of all terms of fourth order, of which
            half are in the value.

        Raises
        ------
        InputError
            Of a posterior by another method than EP.
        """
        found = corrected_by_pairs(self.log_evidence, self._solution.sums)
        return found

    def coefficient(self, column: int, *, corrected: bool = True, nodes: int = 11) -> Profile:
        """Marginal density of x at one column, by profiling the evidence.

        The column is moved into the offset, at `nodes` values over 5 of EP's standard deviations on
        either side, and the sites settle anew at each: truer than EP's normal where many rows that
        are not normal see the column. For columns whose prior knows no other column, as those of
        fixed effects.

        Parameters
        ----------
        column : int
        corrected : bool
            Whether evidences are corrected by pairs of rows.
        nodes : int
            At least 5; 9 to 13 do.

        Returns
        -------
        Profile
            With ``mean``, ``std``, ``quantile(q)`` and ``density(at)``.

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

    def loo_groups(self, labels: ArrayLike) -> tuple[Any, Array]:
        """Leave-one-group-out log densities ``log p(y_G | all other rows)``.

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
            If labels have another shape or are NaN, or equal rows have several of them.
        """
        return left_out_groups(self._solution, labels)

    def marginals(self, *at: ArrayLike, **options: Any) -> Marginals:
        """Marginal posterior densities of eta, corrected, of up to 3000 rows; see `Posterior`.

        Points are rows of A; without any the marginals are those of the rows.
        """
        solution = self._solution
        if not at and not solution.seen.collapsed.trivial:
            rows, options["mean"] = solution.all_rows()
            return super().marginals(rows, **options)
        return super().marginals(*at, **options)

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        own = self.but(n=solution.here.mean.size)
        return Correcting(solution.observed(), solution.sites_held, own)

    def check(self) -> tuple[str, ...]:
        """Say in plain words what is known to be off in this posterior, and what to do.

        By the sums over pairs of `corrected_evidence`, at their cost.
        """
        said = []
        if not self.converged:
            said.append(f"the sites are {self.status}: the evidence may be anything")
        try:
            found = self.corrected_evidence()
        except (InputError, NumericalError) as error:
            return (*said, f"corrections were not looked at: {error}")
        word = on_evidence(found.value - self.log_evidence, found.spread)
        return (*said, word) if word else tuple(said)
