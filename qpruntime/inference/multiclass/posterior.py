"""The joint posterior of the latent values of C classes at N rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import sized
from qpruntime.inference.classes.probabilities import log_probabilities
from qpruntime.inference.classes.ratio import RATIO, log_ratios
from qpruntime.inference.classes.solution import ClassSolution
from qpruntime.inference.correcting import Correcting
from qpruntime.inference.corrections.corrected import CORRECTIONS, CorrectedEvidence, Correction
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.outcome import Outcome
from qpruntime.inference.sites import Sites
from qpruntime.saving.savable import Savable
from qpruntime.validation import choice, generator, whole

__all__ = ["ClassPosterior"]


def _rows(post: Any, *_: Any, **__: Any) -> int:
    return int(post.n)


@dataclass(frozen=True, eq=False, repr=False)
class ClassPosterior(Outcome, Savable):
    """Gaussian approximation of the posterior of C latent functions at N rows, of all jointly.

    The label of a row is the class whose latent value with unit normal noise is the largest, the
    multinomial probit. Sites are along u + f_own - f_j for all other classes j, u ~ N(0, 1).

    Attributes
    ----------
    sites : Sites
        Named tuple (tau, nu), each of shape (N, C), not a number at the own class of a row.
    mean : ndarray, shape (N, C)
    covariance : ndarray, shape (N, C, C)
        Of the latent values of a row; computed when first asked for.
    log_evidence : float
        log Z_EP, paper Eq. 2.
    status : {"converged", "not converged"}
    converged : bool
    classes, n : int
        Number of classes and of rows.
    n_sweeps : int
    history : tuple of float
        Change per sweep, the quantity compared with `tol`.
    worst : int
        The row that changed most in the last sweep.
    method, likelihood : str
    lookups : Lookups
        Table lookups inside and outside the grid.
    skipped, damped : int
        Site updates skipped for want of a proper cavity, and shortened.
    jitter : float
        Added to the diagonal of K, as of `qpruntime.infer`.
    """

    _solution: ClassSolution = field(kw_only=True)

    @classmethod
    def _of(cls, outcome: Outcome, solution: Any) -> Self:
        """Return the posterior of an outcome and what the algebra has left."""
        reported = {one.name: getattr(outcome, one.name) for one in fields(Outcome)}
        return cls(**reported, _solution=solution)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_correcting"}

    @property
    def converged(self) -> bool:
        """Whether the sites settled at a fixed point."""
        return self.status == "converged"

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self._solution.layout.classes

    @property
    def labels(self) -> NDArray[np.intp]:
        """The class of each row, shape (N,)."""
        return self._solution.layout.own

    @property
    def sites(self) -> Sites:
        """Named tuple (tau, nu), each of shape (N, C)."""
        return self._solution.sites()

    @property
    def mean(self) -> Array:
        """Posterior means of the latent values at the rows, shape (N, C)."""
        return self._solution.mean

    @property
    def covariance(self) -> Array:
        """Posterior covariances of the latent values of each row, shape (N, C, C)."""
        return self._solution.covariance()

    @property
    def knows_covariance(self) -> bool:
        """Whether the prior covariance is at hand, which corrections take and pickles leave out."""
        return self._solution.K is not None

    def with_covariance(self, K: ArrayLike) -> Self:
        """Return this posterior with its prior covariance, which pickles leave out.

        Raises
        ------
        InputError
            If `K` is not the covariance that the posterior was computed with.
        """
        return replace(self, _solution=self._solution.with_covariance(K))

    @sized(_rows)
    def predict(self, K_star: ArrayLike, k_star_diag: ArrayLike) -> tuple[Array, Array]:
        """Latent means and covariances at T new points.

        Parameters
        ----------
        K_star : array-like, shape (T, N) or (C, T, N)
            Prior covariance between new and training points, one for all classes or of each.
        k_star_diag : array-like, shape (T,) or (C, T)
            Prior variance at the new points.

        Returns
        -------
        mean : ndarray, shape (T, C)
        covariance : ndarray, shape (T, C, C)
            Of the latent values of all classes at a point.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        return self._solution.kept.predict(*self._solution.at(K_star, k_star_diag))

    @sized(_rows)
    def predict_log_proba(
        self,
        K_star: ArrayLike,
        k_star_diag: ArrayLike,
        *,
        correction: Literal["ratio"] | None = None,
    ) -> Array:
        """Log probabilities of all classes at T new points, shape (T, C).

        By the whole covariance of a point: exact for two and three classes, by EP corrected by
        pairs of cumulants for more, about 1e-4 of the probability.

        Parameters
        ----------
        K_star, k_star_diag
            As of `predict`.
        correction : None or "ratio"
            "ratio" is for few points: ratios of corrected evidences with one row more, of each
            class in turn. They are truer than what any normal posterior gives, for one dense EP run
            for each class and point, and for 2000 sites at most.

        Raises
        ------
        InputError
            If an argument is not usable, or "ratio" has too many sites or no prior covariance.
        """
        if correction is not None:
            choice(correction, "correction", (RATIO,))
            own, crossed = self._solution, self._solution.at(K_star, k_star_diag)
            return log_ratios(own.layout, own.covariances(), own.own, self.but(), *crossed)
        return log_probabilities(*self.predict(K_star, k_star_diag))

    def loo(self) -> Array:
        """Leave-one-out log probabilities ``log p(y_i | y_-i)`` of the labels, shape (N,).

        By the posterior without all sites of the row; their sum is not the log evidence.
        """
        return self._solution.loo().copy()

    @sized(_rows)
    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Gradient of the log evidence; exact at an EP fixed point only.

        Parameters
        ----------
        dK : array-like, shape (N, N) or (N, N, p)
            Derivative of K by one or p parameters; where each class has a covariance of its own
            (C, N, N) or (C, N, N, p).

        Returns
        -------
        float or ndarray of shape (p,)
        """
        return self._solution.gradient(dK)

    @sized(_rows)
    def corrected_evidence(self) -> CorrectedEvidence:
        """Log evidence corrected by pairs of cumulants; see `Posterior.corrected_evidence`.

        Raises
        ------
        InputError
            With more than 2000 sites, N (C - 1), or without the prior covariance.
        """
        return self._correcting.corrected.evidence

    @sized(_rows)
    def marginals(
        self,
        K_star: ArrayLike | None = None,
        k_star_diag: ArrayLike | None = None,
        *,
        correction: Correction = "blend",
        steps: int = 10_000,
        random_state: int | np.random.Generator | None = None,
    ) -> tuple[Marginals, ...]:
        """Marginal densities of the latent values, corrected, of each class; see `Posterior`.

        Class probabilities do not follow from them: put into a normal, their means and variances
        give worse ones than EP's own.

        Parameters
        ----------
        K_star, k_star_diag
            As of `predict`; without them the marginals are those at the N rows.
        correction, steps, random_state
            As of `Posterior.marginals`.

        Returns
        -------
        tuple of C Marginals
        """
        choice(correction, "correction", CORRECTIONS)
        steps = whole(steps, "steps", 1000)
        if (K_star is None) != (k_star_diag is None):
            raise InputError("K_star and k_star_diag go together: hand over both")
        solution, correcting = self._solution, self._correcting
        if K_star is None or k_star_diag is None:
            crossed = solution.covariances()
            diagonal = np.array([one.diagonal() for one in crossed])
        else:
            crossed, diagonal = solution.at(K_star, k_star_diag)
        rng = generator(random_state)
        points = [solution.points(c, crossed, diagonal) for c in range(self.classes)]
        return tuple(correcting.marginals(one, correction, steps, rng) for one in points)

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        return Correcting(solution.observed(), solution.own, self.but(n=solution.layout.sites))

    def but(self, **changes: Any) -> Outcome:
        """Return what is reported of the inference, with other values."""
        reported = {one.name: getattr(self, one.name) for one in fields(Outcome)}
        return Outcome(**reported | changes)

    def summary(self) -> dict[str, str | int | float | bool]:
        """What `print` shows, as plain values; see `Posterior.summary`."""
        log_z = self._solution.loo()
        row = int(np.argmin(log_z))
        return {
            "likelihood": "multinomial probit",
            "method": self.method,
            "n": self.n,
            "classes": self.classes,
            "status": self.status,
            "n_sweeps": self.n_sweeps,
            "last_change": float(self.history[-1]) if self.history else 0.0,
            "worst": self.worst,
            "log_evidence": self.log_evidence,
            "jitter": self.jitter,
            "skipped": self.skipped,
            "damped": self.damped,
            "inside": self.lookups.inside,
            "outside": self.lookups.outside,
            "least_expected": row,
            "least_log_density": float(log_z[row]),
        }

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.n} rows of {self.classes} classes, {self.method}, "
            f"log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        found: Any = self.summary()
        settled = self.status if self.converged else self.status.upper()
        return (
            f"{type(self).__name__} of {{n}} rows of {{classes}} classes: {{likelihood}}, method "
            f"{{method}}\nsites      {settled} after {{n_sweeps}} sweeps, last change "
            "{last_change:.2g}, most at row {worst}\n"
            "evidence   log evidence {log_evidence:.6f}; least expected is row {least_expected}, "
            "log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {skipped} skipped, {damped} damped\n"
            "lookups    {inside} inside the grid, {outside} outside"
        ).format(**found)
