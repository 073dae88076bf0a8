"""The result of inference, of every engine: predictions, densities left out, evidence, draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, generator, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.blas_threads import sized
from qpruntime.inference.corrections.corrected import (
    CORRECTIONS,
    Corrected,
    CorrectedEvidence,
    Correction,
    MarginalPoints,
    sampled,
)
from qpruntime.inference.corrections.ep_fixed_point import (
    NormalApproximation,
    fixed_point,
    needed,
    normal_of,
    one_sided,
    signless,
)
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.fixed_point.convergence import Status
from qpruntime.inference.problem import Observed
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Solution, row_numbers
from qpruntime.persistence.file import Savable

__all__ = [
    "Correcting",
    "InferenceReport",
    "Lookups",
    "Posterior",
    "Sites",
    "Status",
    "moved_to",
    "solution_of",
]

# --- Cached corrections


class Correcting:
    """What corrections take of a posterior: its data, and the sites they begin at.

    Parameters
    ----------
    observed : Observed
    sites : Sites
    outcome : Outcome

    Raises
    ------
    InputError
        If covariance or likelihood are not at hand, or corrections cannot fit into memory: a
        factor, its inverse and the covariance.
    """

    def __init__(self, observed: Observed, sites: Sites, outcome: InferenceReport) -> None:
        needed(observed)
        what = f"a correction with N = {outcome.n}"
        require(squares(outcome.n, 3.0), what, "leave it out, or infer from fewer rows")
        self._observed, self._sites, self._outcome = observed, sites, outcome

    @cached_property
    def corrected(self) -> Corrected:
        """Corrections from EP's fixed point."""
        known, outcome = self._observed, self._outcome
        own = outcome.method == "ep" and known.power == 1.0 and outcome.status == "converged"
        find = one_sided if self._signless else fixed_point
        return Corrected(find(known, self._sites, outcome.log_evidence, own))

    def marginals(
        self, points: MarginalPoints, correction: Correction, steps: int, rng: np.random.Generator
    ) -> CorrectedMarginals:
        """Corrected marginals at points; chains of so many steps where they are sampled."""
        if correction == "sample":
            return sampled(self._normal(), points, rng, steps, self._signless)
        return self.corrected.marginals(points, correction)

    def _normal(self) -> NormalApproximation:
        """What chains run around: EP's normal, or the posterior's own where EP fails."""
        if self._outcome.method != "ep" or self._signless:
            with contextlib.suppress(NumericalError):
                return NormalApproximation(*self.corrected.found[:6])
        return normal_of(self._observed, self._sites)

    @cached_property
    def _signless(self) -> bool:
        """Whether the posterior is its own mirror image."""
        return signless(self._observed)


def at_sites(mean: Array, variance: Array) -> MarginalPoints:
    """The rows themselves, as points."""
    return MarginalPoints(None, variance, mean)


# --- How an inference ended


@restorable("lookups/1")
class Lookups(NamedTuple):
    """How often a table's grid was hit and missed, over all sweeps."""

    inside: int
    outside: int


@dataclass(frozen=True, eq=False)
class InferenceReport:
    """What every engine reports; `qpruntime.Posterior` says what each of these is."""

    likelihood: str
    method: str
    n: int
    log_evidence: float
    status: Status
    n_sweeps: int
    history: tuple[float, ...]
    lookups: Lookups
    skipped: int
    damped: int
    held: int
    worst: int
    jitter: float = 0.0
    fixed_points: tuple[float, ...] = ()

    def but(self, **changes: Any) -> InferenceReport:
        """Return a copy with other values."""
        return replace(self, **changes)


# --- `Posterior`

_LEAVES = "corrections have no fixed point of EP to start from"


def _algebra(post: Any, *_: Any, **__: Any) -> int:
    return int(post._solution.algebra)


def _rows(post: Any, *_: Any, **__: Any) -> int:
    return int(post.n)


@restorable("posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class Posterior(InferenceReport, Savable):
    """Gaussian approximation of the posterior of a latent function, and its values at N rows.

    All engines have the methods that are here, with the same arguments. Arguments `at` say where:
    prior covariances with the rows (T, N) and prior variances (T,) for `qpruntime.infer`, times for
    `qpruntime.infer_series`, points (T, d) for `qpruntime.infer_sparse`. What an engine cannot do
    raises `InputError` that names what can.

    Attributes
    ----------
    sites : Sites
        Named tuple (tau, nu), each of shape (N,).
    mean, variance : ndarray, shape (N,)
        Of the latent function; `variance` is a variance.
    log_evidence : float
        log Z_EP, paper Eq. 2, in the form of Rasmussen & Williams (3.65); for method "vb" its lower
        bound.
    status : {"converged", "held", "not converged"}
        Whether the sites have settled: at a fixed point; only with precisions held at zero, which
        is none; or not at all.
    converged : bool
        Whether `status` is "converged".
    n : int
        Number of rows.
    n_sweeps : int
    history : tuple of float
        Change per sweep, the quantity compared with `tol`.
    lookups : Lookups
        Table lookups inside and outside the grid; zeros without a table.
    skipped : int
        Site updates skipped because the cavity was improper.
    damped : int
        Site updates shortened because the sites oscillated.
    held : int
        Sites whose precision is held at zero because negative ones left some site no cavity.
    jitter : float
        Added to the diagonal of K, because rounding in a format narrower than float64 had left it
        indefinite; with inducing inputs to that of k(Z, Z), relative to its mean; otherwise 0.
    fixed_points : tuple of float
        Log evidences of all fixed points that were found, the highest first. Only likelihoods that
        are not log-concave have several, and they are looked for where an iteration fails or with
        restarts. The posterior is that of the highest; held sites are reported instead where they
        have more than twice its evidence.
    worst : int
        The site that changed most in the last sweep.
    likelihood, method : str
        Of the inference; the likelihood with its parameters.
    """

    _solution: Any = field(kw_only=True)

    @classmethod
    def _of(cls, outcome: InferenceReport, solution: Solution) -> Self:
        """Return the posterior of an outcome and what the engine has left."""
        reported = {one.name: getattr(outcome, one.name) for one in fields(InferenceReport)}
        return cls(**reported, _solution=solution)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_correcting"}

    @property
    def converged(self) -> bool:
        """Whether the sites settled at a fixed point."""
        return self.status == "converged"

    @property
    def sites(self) -> Sites:
        """Named tuple (tau, nu), each of shape (N,)."""
        found: Sites = self._solution.sites()
        return found

    @property
    def mean(self) -> Array:
        """Posterior mean of the latent function at the rows, shape (N,)."""
        found: Array = self._solution.moments()[0]
        return found

    @property
    def variance(self) -> Array:
        """Posterior variance of the latent function at the rows, shape (N,)."""
        found: Array = self._solution.moments()[1]
        return found

    def latent(self) -> tuple[Array, Array]:
        """Posterior mean and variance of the latent values, each of shape (n,).

        Of `qpruntime.infer` with an operator: those of f, of which observations see functionals;
        of other posteriors `mean` and `variance`. `sample` without points draws them.

        Raises
        ------
        InputError
            Of a pickle whose latent values were never asked for: `with_covariance` first.
        """
        own = getattr(self._solution, "latent", None)
        return (self.mean, self.variance) if own is None else own()

    @property
    def n_negative(self) -> int:
        """Sites of negative precision: there the observation widens the posterior.

        Only likelihoods that are not log-concave have them, where they have two peaks.
        """
        return int((self.sites.tau < 0.0).sum())

    @property
    def knows_covariance(self) -> bool:
        """Whether the prior covariance is at hand, which corrections take and pickles leave out."""
        known = getattr(self._solution, "knows_covariance", None)
        return bool(self._solution.corrects if known is None else known)

    def with_covariance(self, K: ArrayLike) -> Self:
        """Return this posterior with its prior covariance, which pickles leave out.

        Raises
        ------
        InputError
            If `K` is not the covariance that the posterior was computed with, or is not needed.
        """
        take = getattr(self._solution, "with_covariance", None)
        if take is None:
            raise InputError(f"a {type(self).__name__} knows its kernel: it needs no covariance")
        return replace(self, _solution=take(K))

    def without_covariance(self) -> Self:
        """Return this posterior without its prior covariance, as a pickle has it: in less memory.

        The same where none is held.
        """
        leave = getattr(self._solution, "without_covariance", None)
        return self if leave is None else replace(self, _solution=leave())

    @sized(_algebra)
    def predict(
        self, *at: ArrayLike, mean: ArrayLike | None = None, **named: ArrayLike
    ) -> tuple[Array, Array]:
        """Latent mean and variance at T new points.

        Parameters
        ----------
        *at
            Of `infer`: ``K_star``, shape (T, N), prior covariance between new and training points,
            and ``k_star_diag``, shape (T,), prior variance at the new points. Of `infer_series`:
            ``t``, shape (T,), times of the kind of the data's, in any order. Of `infer_sparse`:
            ``X``, shape (T, d).
        mean : float or array-like, shape (T,), optional
            Prior mean at the new points; by default that of the inference, if it was one number.

        Returns
        -------
        mean, variance : ndarray, shape (T,)
            Of the latent function, not of an observation (Rasmussen & Williams, 3.60 and 3.61).
            White noise of a kernel is in the variance.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        at = _arguments_at(self._solution.where, at, named)
        found: tuple[Array, Array] = self._solution.predict(at, mean)
        return found

    @sized(_algebra)
    def sample(
        self,
        *at: ArrayLike,
        n_samples: int = 1,
        random_state: int | np.random.Generator | None = None,
        mean: ArrayLike | None = None,
        **named: ArrayLike,
    ) -> Array:
        """Draw the latent function at T new points jointly.

        Parameters
        ----------
        *at, mean
            As for `predict`; but of `infer` the second is the prior covariance of the new points,
            shape (T, T), and without any the draws are at the rows.
        n_samples : int
        random_state : int, Generator or None

        Returns
        -------
        ndarray, shape (n_samples, T)
        """
        at = _arguments_at(self._solution.where, at, named, optional=True)
        count = whole(n_samples, "n_samples", 1)
        rng = generator(random_state)
        found: Array = self._solution.draw(at, mean, count, rng)
        return found

    @sized(_algebra)
    def joint(self, *at: ArrayLike, mean: ArrayLike | None = None) -> tuple[Array, Array]:
        """Latent means and covariances at T new points, which `sample` draws of.

        Parameters
        ----------
        *at, mean
            As for `sample`.

        Returns
        -------
        mean : ndarray, shape (T,)
        covariance : ndarray, shape (T, T)
        """
        at = _arguments_at(self._solution.where, at, {}, optional=True)
        found: tuple[Array, Array] = self._solution.joint(at, mean)
        return found

    @sized(_rows)
    def marginals(
        self,
        *at: ArrayLike,
        mean: ArrayLike | None = None,
        correction: Correction = "blend",
        steps: int = 10_000,
        random_state: int | np.random.Generator | None = None,
        **named: ArrayLike,
    ) -> CorrectedMarginals:
        """Marginal posterior densities, corrected: truer than EP's, QP's or VB's normals.

        All start from EP's fixed point; of a posterior by another method, or of power EP, EP is
        run as well, and `Marginals.notes` says so. The first call costs about one inference more,
        N^3 operations, and new points N operations each per node of their densities. Where the
        likelihood does not know the sign of f and the prior mean is 0, they are those of ``|f|``.

        Parameters
        ----------
        *at, mean
            As for `predict`; without them the marginals are those of the N sites.
        correction : {"blend", "fact", "tilt", "sample"}
            "fact" conditions all other sites on one (Cseke & Heskes, 2011). "blend" has its shape,
            the mean by the gradient of the corrected evidence, and a variance between its own and
            that of linear response. "tilt" has the second derivative of the corrected evidence for
            a variance, more exact and N^4 operations, for N <= 200. "sample" is elliptical slice
            sampling: exact in the limit, also where the posterior has several peaks.
        steps : int
            Of each of the four chains of "sample", rounded up to thousands.
        random_state : int, Generator or None
            Seed of "sample".

        Returns
        -------
        Marginals

        Raises
        ------
        InputError
            If an argument is not usable, or covariance or likelihood are not at hand.
        NumericalError
            If EP does not settle.
        """
        choice(correction, "correction", CORRECTIONS)
        steps = whole(steps, "steps", 1000)
        correcting = self._correcting
        at = _arguments_at(self._solution.where, at, named, optional=True)
        if not at:
            points = MarginalPoints(None, self.variance, self.mean)
        else:
            points = self._solution.points(at, mean)
        rng = generator(random_state)
        return correcting.marginals(points, correction, steps, rng)

    @sized(_rows)
    def corrected_evidence(self) -> CorrectedEvidence:
        """Log evidence corrected by pairs of cumulants (after Opper, Paquet & Winther, 2013).

        Returns
        -------
        CorrectedEvidence
            Named tuple ``value`` and ``spread``: the size of all terms of fourth order, of which
            half are in the value; about what it may be off by where it is large.
        """
        return self._correcting.corrected.evidence

    @sized(_rows)
    def check(self) -> tuple[str, ...]:
        """Say in plain words what is known to be off in this posterior, and what to do.

        Costs as much as `marginals` at the sites. Corrected means and variances are compared with
        others found another way, and for likelihoods that are not log-concave and 100 sites at most
        with short chains of the exact posterior. Nothing said means that they agree with EP's;
        peaks so far apart that chains do not find them remain unseen. Where corrections cannot be
        had, that is said, and the rest is looked at all the same.

        Returns
        -------
        tuple of str
            Sentences; none if there is nothing to say.
        """
        said = []
        if not self.converged:
            said.append(f"the sites are {self.status}: the evidence may be anything")
        if len(self.fixed_points) > 1:
            said.append(
                f"{len(self.fixed_points)} fixed points were found: the posterior has several "
                'peaks; sample it, marginals(correction="sample")'
            )
        try:
            correcting = self._correcting
        except InputError as error:
            if self._solution.corrects:
                raise
            said.append(f"corrections were not looked at: {error}")
            return tuple(said)
        try:
            said.extend(correcting.corrected.words())
        except NumericalError as error:
            said.append(f"{_LEAVES}: {error}")
        return tuple(said)

    @cached_property
    def _correcting(self) -> Correcting:
        return Correcting(self._solution.observed(), self.sites, self)

    @sized(_algebra)
    def loo(self, rows: ArrayLike | None = None) -> Array:
        """Leave-one-out log predictive densities ``log p(y_i | y_-i)``, shape (N,).

        They are the log normalisers of the tilted densities at the final cavities. The whole site
        is out, whatever the power, and the observation counts once.

        Parameters
        ----------
        rows : array-like of int, shape (n,), optional
            Only of these, in any order: in the time of their predictions.
        """
        some = None if rows is None else row_numbers(rows, self._solution.held_rows)
        found: Array = self._solution.loo(some)
        return found

    @sized(_algebra)
    def evidence_gradient(self, dK: ArrayLike | None = None) -> Array | float:
        """Gradient of the log evidence.

        By the free log parameters of the kernel, ``kernel.theta``, or of `infer`, which knows no
        kernel, given the derivative of K. Exact at an EP fixed point only (Rasmussen & Williams,
        5.27): the evidence is stationary in EP's sites, but not in those of QP. Of `infer` every
        call inverts the factor again, N^3 operations: hand over all derivatives at once.

        Parameters
        ----------
        dK : array-like, shape (N, N) or (N, N, p)
            Derivative of K with respect to one or p parameters; of `infer` only.

        Returns
        -------
        float or ndarray of shape (p,)
        """
        found: Array | float = self._solution.gradient(dK)
        return found

    def summary(self) -> dict[str, str | int | float | bool]:
        """What `print` shows, as plain values: one row of a log, or of a data frame.

        Returns
        -------
        dict
            ``likelihood``, ``method``, ``n`` (sites), ``status``, ``n_sweeps``, ``last_change``
            (of the sites), ``worst`` (the site that changed most), ``log_evidence``, ``held``
            (precisions held at zero), ``fixed_points`` (how many were found), ``jitter``,
            ``skipped`` and ``damped`` (updates), ``inside`` and ``outside`` (table lookups),
            ``least_expected`` and ``least_log_density`` (the observation that the others expect
            least, and its leave-one-out log density), and what the engine adds: ``n_negative``
            (precisions below zero), ``inducing``, ``power``, ``nearest``, ``state_dimension``.
        """
        density, row = self._solution.least()
        return {
            "likelihood": self.likelihood,
            "method": self.method,
            "n": self.n,
            "status": self.status,
            "n_sweeps": self.n_sweeps,
            "last_change": float(self.history[-1]) if self.history else 0.0,
            "worst": self.worst,
            "log_evidence": self.log_evidence,
            "held": self.held,
            "fixed_points": len(self.fixed_points),
            "jitter": self.jitter,
            "skipped": self.skipped,
            "damped": self.damped,
            "inside": self.lookups.inside,
            "outside": self.lookups.outside,
            "least_expected": row,
            "least_log_density": density,
            **self._solution.facts(),
        }

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.n} sites{self._solution.words}, {self.likelihood}, "
            f"{self.method}, log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        found: Any = {"n_negative": 0, **self.summary()}
        settled = self.status if self.converged else self.status.upper()
        evidence = "bound of the log evidence" if self.method == "vb" else "log evidence"
        looked = "{inside} inside the grid, {outside} outside" if any(self.lookups) else "none"
        several = "; {fixed_points} fixed points found" if len(self.fixed_points) > 1 else ""
        added = "; jitter {jitter:.2g} on the diagonal" if self.jitter else ""
        text = (
            f"{type(self).__name__} of {{n}} sites{self._solution.words}: {{likelihood}}, method "
            "{method}" + added + "\n"
            f"sites      {settled} after {{n_sweeps}} sweeps, last change {{last_change:.2g}}, "
            "most at site {worst}" + several + "\n"
            f"evidence   {evidence} {{log_evidence:.6f}}; least expected is observation "
            "{least_expected}, log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {n_negative} negative precisions, {held} held at zero, {skipped} updates "
            "skipped, {damped} damped\n"
            f"lookups    {looked}"
        ).format(**found)
        return "\n".join([text, *self._solution.lines])

    def plot_history(self, axes: Any = None) -> Any:
        """Draw the change per sweep on a log scale; needs matplotlib. Returns the axes."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.subplots(layout="constrained")[1]
        axes.semilogy(np.arange(1, len(self.history) + 1), self.history, marker="o")
        axes.set(xlabel="sweep", ylabel="change of the sites", title=f"converged: {self.converged}")
        return axes


def moved_to(post: Any, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> Any:
    """Return a posterior in other units: with this kernel, rows X and inputs `unscaled`."""
    return replace(post, _solution=post._solution.on(kernel, X, unscaled))


def solution_of(post: Posterior) -> Any:
    """Return what the engine has left: for rooms that build on posteriors."""
    return post._solution


def _arguments_at(
    where: tuple[str, ...],
    at: tuple[Any, ...],
    named: dict[str, Any],
    *,
    optional: bool = False,
) -> tuple[Any, ...]:
    """Return the arguments that give new points, in the order of `where`.

    Raises
    ------
    InputError
        If some are missing; with `optional` all of them may be.
    TypeError
        If there are too many, or a name is unknown or given twice.
    """
    if len(at) > len(where):
        raise TypeError(f"at most {len(where)} positional arguments: {', '.join(where)}")
    for name in named:
        if name not in where:
            raise TypeError(f"unexpected argument {name!r}; places are {', '.join(where)}")
        if name in where[: len(at)]:
            raise TypeError(f"got multiple values for argument {name!r}")
    given = dict(zip(where, at, strict=False)) | named
    if len(given) < len(where) and (given or not optional):
        raise InputError(f"{' and '.join(where)} go together: hand over {', '.join(where)}")
    return tuple(given[name] for name in where if name in given)
