"""Joint posterior of the latent values of C classes at N rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, generator, whole
from qpruntime.errors import InputError
from qpruntime.execution.threads import sized
from qpruntime.inference.corrections.corrected import (
    CORRECTIONS,
    CorrectedEvidence,
    Correction,
)
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import log_evidence, settle
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from qpruntime.inference.multiclass.solution import CORRECTED, ClassSolution
from qpruntime.inference.posterior import Correcting, EnginePosterior, InferenceReport
from qpruntime.inference.problem import Observed, Problem
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector

__all__ = [
    "RATIO",
    "ClassPosterior",
    "left_out_log_proba",
    "log_ratios",
]

# --- Leave-one-out probabilities
#
# `ClassPosterior.loo` has only the probability of the row's own class. A label contributes to the
# row's latent values a precision of rank C - 1, diag D - D D'/sum D, where D are its precisions
# along z, with 1 at its own class. This is subtracted from their posterior.

# Condition number above which a posterior without the row has lost too many digits.
_LOST = 1e10


def left_out_log_proba(
    posterior: ClassPosterior, rows: NDArray[np.intp], groups: NDArray[np.intp] | None = None
) -> Array:
    """Return log probabilities (n, C) of all classes of chosen rows, each without its own label.

    If `groups` (N,) are given, numbers of rows with equal features, all labels of the row's group
    are left out. Rows without such a posterior in double precision have NaN.
    """
    V, m = posterior._solution.covariance_of(rows), posterior.mean[rows]
    if groups is None:
        precision, pseudo_mean = _said(posterior, rows)
    else:
        wanted, place = np.unique(groups[rows], return_inverse=True)
        members = np.flatnonzero(np.isin(groups, wanted))
        at, messages = np.searchsorted(wanted, groups[members]), _said(posterior, members)
        sums = [np.zeros((wanted.size, *part.shape[1:])) for part in messages]
        for total, part in zip(sums, messages, strict=True):
            np.add.at(total, at, part)
        precision, pseudo_mean = (total[place] for total in sums)
    log_proba = np.full(m.shape, np.nan)
    reduced = np.eye(m.shape[1]) - V @ precision
    sound = np.linalg.cond(reduced) < _LOST
    reduced, V = reduced[sound], V[sound]
    covariance = np.linalg.solve(reduced, V)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    gap = m[sound] - np.einsum("ncd,nd->nc", V, pseudo_mean[sound])
    mean = np.linalg.solve(reduced, gap[:, :, None])[:, :, 0]
    least, scale = np.linalg.eigvalsh(covariance)[:, 0], np.abs(covariance).max(axis=(1, 2))
    proper = least > -1e-9 * scale
    proper_rows = np.flatnonzero(sound)[proper]
    log_proba[proper_rows] = log_probabilities(mean[proper], covariance[proper])
    return log_proba


def _said(posterior: ClassPosterior, rows: NDArray[np.intp]) -> tuple[Array, Array]:
    """Return precisions (n, C, C) of labels about f, and their products with means (n, C)."""
    tau, nu = (part[rows] for part in posterior.sites)
    is_own = np.isnan(tau)
    D, pulls = np.where(is_own, 1.0, tau), np.where(is_own, 0.0, -nu)
    share = D / D.sum(axis=1, keepdims=True)
    precision = np.eye(D.shape[1]) * D[:, :, None] - D[:, :, None] * share[:, None, :]
    return precision, pulls - share * pulls.sum(axis=1, keepdims=True)


# --- `ClassPosterior`


def _rows(post: ClassPosterior, *_: object, **__: object) -> int:
    return int(post.n)


@restorable("class-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class ClassPosterior(EnginePosterior):
    """Gaussian approximation of the joint posterior of C latent functions at N rows.

    The label of a row is the class whose latent value with unit normal noise is the largest, the
    multinomial probit. Sites are along u + f_own - f_j for all other classes j, with u ~ N(0, 1).

    Attributes
    ----------
    sites : Sites
        Named tuple (tau, nu), each of shape (N, C), NaN at the own class of a row.
    mean : ndarray, shape (N, C)
    covariance : ndarray, shape (N, C, C)
        Posterior moments of the latent values of a row, computed when first asked for.
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
        Row that changed most in the last sweep.
    method, likelihood : str
    lookups : Lookups
        Table lookups inside and outside the grid.
    skipped, damped : int
        Site updates skipped because there was no proper cavity, and shortened ones.
    jitter : float
        Jitter added to the diagonal of K, as in `qpruntime.infer`.

    See Also
    --------
    qpruntime.infer_classes, qpruntime.SparseClassPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer_classes
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> post = infer_classes(K, [0, 0, 1, 1, 2, 2], method="ep")
    >>> post.classes, post.mean.shape, post.covariance.shape
    (3, (6, 3), (6, 3, 3))
    >>> post.predict_log_proba(K[[0, 5]], [4.0, 4.0]).argmax(axis=1).tolist()
    [0, 2]
    """

    _solution: ClassSolution = field(kw_only=True)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self._solution.layout.classes

    @property
    def labels(self) -> NDArray[np.intp]:
        """Class of each row, shape (N,)."""
        return self._solution.layout.own

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
        """True if the prior covariance, which pickles leave out, is available."""
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
        """Return latent means and covariances at T new points.

        Parameters
        ----------
        K_star : array-like, shape (T, N) or (C, T, N)
            Prior covariance between new and training points, one for all classes or one for each.
        k_star_diag : array-like, shape (T,) or (C, T)
            Prior variance at the new points.

        Returns
        -------
        mean : ndarray, shape (T, C)
        covariance : ndarray, shape (T, C, C)
            Moments of the latent values of all classes at a point.

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
        """Return log probabilities of all classes at T new points, shape (T, C).

        They use the whole covariance of a point. They are exact for two and three classes. If there
        are more, EP is corrected by pairs of cumulants, with errors of about 1e-4 of the
        probability.

        Parameters
        ----------
        K_star, k_star_diag
            As for `predict`.
        correction : None or "ratio"
            "ratio" is for few points. It computes ratios of corrected evidences with one row more,
            which has each class in turn. They are more accurate than any normal posterior, take one
            dense EP run for each class and point, and allow 2000 sites at most.

        Raises
        ------
        InputError
            If an argument is not usable, or "ratio" has too many sites or no prior covariance.
        """
        if correction is not None:
            choice(correction, "correction", (RATIO,))
            solution, crossed = self._solution, self._solution.at(K_star, k_star_diag)
            return log_ratios(
                solution.layout, solution.covariances(), solution.sites_held, self.but(), *crossed
            )
        return log_probabilities(*self.predict(K_star, k_star_diag))

    def _predict_once(self) -> tuple[Array, ...]:
        return (self.predict_log_proba(np.zeros((2, len(self.mean))), np.ones(2)),)

    def loo(self) -> Array:
        """Return leave-one-out log probabilities ``log p(y_i | y_-i)`` of the labels, shape (N,).

        They use the posterior without all sites of the row; their sum is not the log evidence.
        """
        return self._solution.loo().copy()

    @sized(_rows)
    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Return the gradient of the log evidence, which is exact at an EP fixed point only.

        Parameters
        ----------
        dK : array-like, shape (N, N) or (N, N, p)
            Derivative of K by one or p parameters; if each class has its own covariance, shape (C,
            N, N) or (C, N, N, p).

        Returns
        -------
        float or ndarray of shape (p,)
        """
        return self._solution.gradient(dK)

    @sized(_rows)
    def corrected_evidence(self) -> CorrectedEvidence:
        """Return the log evidence corrected by pairs; see `Posterior.corrected_evidence`.

        Raises
        ------
        InputError
            If there are more than 2000 sites, N (C - 1), or no prior covariance.
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
    ) -> tuple[CorrectedMarginals, ...]:
        """Return corrected marginal densities of the latent values of each class; see `Posterior`.

        Do not compute class probabilities from them: a normal with their means and variances gives
        worse ones than EP's own.

        Parameters
        ----------
        K_star, k_star_diag
            As for `predict`; without them the marginals are those at the N rows.
        correction, steps, random_state
            As for `Posterior.marginals`.

        Returns
        -------
        tuple of C CorrectedMarginals
        """
        choice(correction, "correction", CORRECTIONS)
        steps = whole(steps, "steps", 1000)
        if (K_star is None) != (k_star_diag is None):
            raise InputError("K_star and k_star_diag go together: hand over both")
        solution, correcting = self._solution, self._correcting
        if K_star is None or k_star_diag is None:
            crossed = solution.covariances()
            diagonal = np.array([point_set.diagonal() for point_set in crossed])
        else:
            crossed, diagonal = solution.at(K_star, k_star_diag)
        rng = generator(random_state)
        points = [solution.points(c, crossed, diagonal) for c in range(self.classes)]
        return tuple(
            correcting.marginals(point_set, correction, steps, rng) for point_set in points
        )

    @cached_property
    def _correcting(self) -> Correcting:
        solution = self._solution
        return Correcting(
            solution.observed(), solution.sites_held, self.but(n=solution.layout.sites)
        )

    def summary(self) -> dict[str, str | int | float | bool]:
        """Return the printed values as a dictionary; see `Posterior.summary`."""
        summary = {**super().summary(), "likelihood": "multinomial probit"}
        del summary["held"], summary["fixed_points"]
        return summary

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.n} rows of {self.classes} classes, {self.method}, "
            f"log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        settled = self.status if self.converged else self.status.upper()
        return (
            f"{type(self).__name__} of {{n}} rows of {{classes}} classes: {{likelihood}}, method "
            f"{{method}}\nsites      {settled} after {{n_sweeps}} sweeps, last change "
            "{last_change:.2g}, most at row {worst}\n"
            "evidence   log evidence {log_evidence:.6f}; least expected is row {least_expected}, "
            "log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {skipped} skipped, {damped} damped\n"
            "lookups    {inside} inside the grid, {outside} outside"
        ).format(**self.summary())


# --- Class probabilities as ratios of evidences
#
# The probability p(c) is the evidence of all rows and a new one of class c, over the sum of these
# for all classes. Corrected by pairs of cumulants, such ratios are more accurate than the normal
# posterior. They take one inference per class and point.

#: Value of `correction` that selects ratios of evidences.
RATIO = "ratio"
# A tight tolerance is needed, because the evidence is stationary in the sites and its correction is
# not.
_TOL = 1e-8


def log_ratios(
    layout: Layout,
    K: Array,
    sites: Sites,
    outcome: InferenceReport,
    crossed: Array,
    diagonal: Array,
) -> Array:
    """Return log probabilities of all classes at T points, shape (T, C).

    Parameters
    ----------
    layout : Layout
    K : ndarray, shape (C, N, N) or (1, N, N)
    sites : Sites
        Flat sites to start from.
    outcome : InferenceReport
        Report of the inference.
    crossed, diagonal : ndarray, shape (C, T, N) and (C, T), or with 1 for C
        Prior covariances of the points with the rows, and prior variances.

    Raises
    ------
    InputError
        If there are more sites than corrections allow.
    """
    C, n, points = layout.classes, layout.n, crossed.shape[1]
    if layout.sites + C - 1 > CORRECTED:
        raise InputError(
            f'correction="ratio" is for {CORRECTED} sites at most, N (C - 1) = {layout.sites} '
            "here: leave it out, or infer from fewer rows"
        )
    kinds = max(len(K), len(crossed))
    wide = np.empty((kinds, n + 1, n + 1))
    out = np.empty((points, C))
    start = Sites(*(np.append(part, np.zeros(C - 1)) for part in sites))
    for t in range(points):
        for c in range(kinds):
            wide[c, :n, :n] = K[c % len(K)]
            wide[c, n, :n] = wide[c, :n, n] = crossed[c % len(crossed), t]
            wide[c, n, n] = diagonal[c % len(diagonal), t]
        for label in range(C):
            longer = Layout(np.append(layout.own, label), C)
            out[t, label], start = _evidence(longer, wide, start, outcome)
        top = out[t].max()
        out[t] -= top + np.log(np.exp(out[t] - top).sum())
    return out


def _evidence(
    layout: Layout, K: Array, start: Sites, outcome: InferenceReport
) -> tuple[float, Sites]:
    """Return the corrected log evidence, and its sites with those of the last row set to 0."""
    covariance, y = layout.contrasts(K), np.ones(layout.sites)
    prior, probit = np.zeros(layout.sites), get("probit")
    problem = Problem(DensePrior(covariance, prior), y, Projector(probit, "ep"))
    end = settle(problem, Limits(_TOL, 100, 1.0), order="parallel", sites=start)
    value, _ = log_evidence(problem, end)
    report = outcome.but(method="ep", n=layout.sites, log_evidence=value, status=end.status)
    correcting = Correcting(Observed(covariance, y, prior, probit), end.sites, report)
    last = slice(layout.sites - layout.classes + 1, None)
    tau, nu = (part.copy() for part in end.sites)
    tau[last] = nu[last] = 0.0
    return correcting.corrected.evidence.value, Sites(tau, nu)
