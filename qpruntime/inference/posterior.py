"""Result of inference by any engine: predictions, samples, evidence and leave-one-out densities."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, generator, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.threads import sized
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
from qpruntime.inference.fixed_point.convergence import Ended, Status
from qpruntime.inference.problem import Observed
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import SettledSites, Solution, row_numbers
from qpruntime.persistence.file import Savable
from qpruntime.projection.projector import Projector

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "Correcting",
    "EnginePosterior",
    "InferenceReport",
    "Lookups",
    "Posterior",
    "Sites",
    "Status",
    "moved_to",
    "report_of",
    "solution_of",
]

# --- Cached corrections


class Correcting:
    """Input of corrections: the data of a posterior, and the sites that they start from.

    Raises
    ------
    InputError
        If covariance or likelihood are missing, or a factor, its inverse and the covariance cannot
        fit into memory.
    """

    def __init__(self, observed: Observed, sites: Sites, outcome: InferenceReport) -> None:
        needed(observed)
        what = f"a correction with N = {outcome.n}"
        require(squares(outcome.n, 3.0), what, "leave it out, or infer from fewer rows")
        self._observed, self._sites, self._outcome = observed, sites, outcome

    @cached_property
    def corrected(self) -> Corrected:
        """Corrections from EP's fixed point."""
        observed, outcome = self._observed, self._outcome
        is_settled_ep = (
            outcome.method == "ep" and observed.power == 1.0 and outcome.status == "converged"
        )
        find_fixed_point = one_sided if self._signless else fixed_point
        return Corrected(
            find_fixed_point(observed, self._sites, outcome.log_evidence, is_settled_ep)
        )

    def marginals(
        self, points: MarginalPoints, correction: Correction, steps: int, rng: np.random.Generator
    ) -> CorrectedMarginals:
        """Return corrected marginals at points; "sample" runs chains of `steps` steps."""
        if correction == "sample":
            return sampled(self._normal(), points, rng, steps, self._signless)
        return self.corrected.marginals(points, correction)

    def _normal(self) -> NormalApproximation:
        """Return the normal that centres the chains: EP's, or the posterior's own if EP fails."""
        if self._outcome.method != "ep" or self._signless:
            with contextlib.suppress(NumericalError):
                return self.corrected.found
        return normal_of(self._observed, self._sites)

    @cached_property
    def _signless(self) -> bool:
        """Symmetry of the posterior under f -> -f."""
        return signless(self._observed)


# --- Report of an inference


@restorable("lookups/1")
class Lookups(NamedTuple):
    """Numbers of lookups inside and outside a table's grid, over all sweeps.

    See Also
    --------
    qpruntime.Posterior, qpruntime.open_table

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> infer(K, np.sign(x), "probit", "qp").lookups.outside
    0
    >>> infer(K, np.sign(x), "probit", "ep").lookups
    Lookups(inside=0, outside=0)
    """

    inside: int
    outside: int


@dataclass(frozen=True, eq=False)
class InferenceReport:
    """Report of any engine; `qpruntime.Posterior` documents the fields."""

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

    @property
    def converged(self) -> bool:
        """True if the sites settled at a fixed point."""
        return self.status == "converged"

    def but(self, **changes: Any) -> InferenceReport:
        """Return the report alone, with other values."""
        reported = {field.name: getattr(self, field.name) for field in fields(InferenceReport)}
        return InferenceReport(**reported | changes)


def report_of(
    projector: Projector, end: Ended, n: int, log_evidence: float, **changes: Any
) -> InferenceReport:
    """Return the report of an iteration over n sites; `changes` has further or other values."""
    trace = end.trace
    report = InferenceReport(
        likelihood=projector.likelihood.spelt,
        method=projector.method,
        n=n,
        log_evidence=log_evidence,
        status=end.status,
        n_sweeps=len(trace.history),
        history=tuple(trace.history),
        lookups=Lookups(int(trace.counts[0]), int(trace.counts[1])),
        skipped=int(trace.counts[2]),
        damped=trace.damped,
        held=end.held,
        worst=int(end.worst),
        fixed_points=end.peaks or ((log_evidence,) if end.status == "converged" else ()),
    )
    return report.but(**changes)


@dataclass(frozen=True, eq=False, repr=False)
class EnginePosterior(InferenceReport, Savable):
    """Report of an inference, with the solution of its engine."""

    _solution: SettledSites = field(kw_only=True)

    @classmethod
    def _of(cls, outcome: InferenceReport, solution: SettledSites, **more: Any) -> Self:
        """Return the posterior of a report and the engine's solution."""
        return cls(**vars(outcome.but()), _solution=solution, **more)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_correcting"}

    @property
    def sites(self) -> Sites:
        """Named tuple (tau, nu) of arrays: a site for each row, or for each row and class."""
        return self._solution.sites()

    def summary(self) -> dict[str, str | int | float | bool]:
        """Return what `print` shows as plain values: one row of a log, or of a data frame.

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


# --- `Posterior`

_NO_FIXED_POINT = "corrections have no fixed point of EP to start from"


def _algebra(post: Posterior, *_: object, **__: object) -> int:
    return post._solution.algebra


def _rows(post: Posterior, *_: object, **__: object) -> int:
    return int(post.n)


@restorable("posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class Posterior(EnginePosterior):
    """Gaussian approximation of the posterior of a latent function, and its values at N rows.

    All engines have these methods, with the same arguments. The arguments `at` give the points:
    prior covariances with the rows (T, N) and prior variances (T,) for `qpruntime.infer`, times for
    `qpruntime.infer_series`, points (T, d) for `qpruntime.infer_sparse`. A method that an engine
    does not support raises `InputError`, which names an engine that does.

    Attributes
    ----------
    sites : Sites
        Named tuple (tau, nu), each of shape (N,).
    mean, variance : ndarray, shape (N,)
        Posterior mean and variance of the latent function at the rows.
    log_evidence : float
        log Z_EP, paper Eq. 2, in the form of Rasmussen & Williams (3.65); for method "vb" its lower
        bound.
    status : {"converged", "held", "not converged"}
        State of the sites: at a fixed point; settled only with some precisions held at zero, which
        is not a fixed point; or not settled.
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
        Jitter added to the diagonal of K, because rounding in a format narrower than float64 had
        left it indefinite; with inducing inputs that of k(Z, Z), relative to its mean; otherwise 0.
    fixed_points : tuple of float
        Log evidences of all fixed points that were found, the highest first. Only likelihoods that
        are not log-concave have several. The search for them starts when an iteration fails, or
        with restarts. The posterior is that of the highest; held sites are reported instead if
        they have more than twice its evidence.
    worst : int
        Site that changed most in the last sweep.
    likelihood, method : str
        Likelihood with its parameters, and method of inference.

    See Also
    --------
    qpruntime.infer, qpruntime.inference.sites.Sites, qpruntime.SeriesPosterior,
    qpruntime.SparsePosterior, qpruntime.PrecisionPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> post = infer(K, np.sign(x), "probit", "ep")
    >>> post.converged, round(post.log_evidence, 3)
    (True, -3.265)
    >>> mean, variance = post.predict(K[:1], [4.0])
    >>> mean.round(2).tolist(), post.mean[:1].round(2).tolist()
    ([-1.84], [-1.84])
    """

    _solution: Solution = field(kw_only=True)

    @property
    def mean(self) -> Array:
        """Posterior mean of the latent function at the rows, shape (N,)."""
        return self._solution.moments()[0]

    @property
    def variance(self) -> Array:
        """Posterior variance of the latent function at the rows, shape (N,)."""
        return self._solution.moments()[1]

    def latent(self) -> tuple[Array, Array]:
        """Return posterior mean and variance of the latent values, each of shape (n,).

        They are moments of f if `qpruntime.infer` had an operator, whose functionals of f are
        observed; otherwise they equal `mean` and `variance`. `sample` without points draws f.

        Raises
        ------
        InputError
            If a loaded pickle has no latent values; call `with_covariance` first.
        """
        return self._solution.latent()

    @property
    def n_negative(self) -> int:
        """Number of sites of negative precision, whose observations widen the posterior.

        Only likelihoods that are not log-concave have them, at rows with two peaks.
        """
        return int((self.sites.tau < 0.0).sum())

    @property
    def knows_covariance(self) -> bool:
        """True if the prior covariance is held; corrections need it, and pickles leave it out."""
        return self._solution.knows_covariance

    def with_covariance(self, K: ArrayLike) -> Self:
        """Return this posterior with its prior covariance, which pickles leave out.

        Raises
        ------
        InputError
            If `K` is not the covariance that the posterior was computed with, or is not needed.
        """
        solution = self._solution.with_covariance(K)
        if solution is self._solution:
            raise InputError(f"a {type(self).__name__} knows its kernel: it needs no covariance")
        return replace(self, _solution=solution)

    def without_covariance(self) -> Self:
        """Return this posterior without its prior covariance, as a pickle has it, to save memory.

        A posterior that holds no covariance is returned unchanged.
        """
        solution = self._solution.without_covariance()
        return self if solution is self._solution else replace(self, _solution=solution)

    @sized(_algebra)
    def predict(
        self, *at: ArrayLike, mean: ArrayLike | None = None, **named: ArrayLike
    ) -> tuple[Array, Array]:
        """Return the latent mean and variance at T new points.

        Parameters
        ----------
        *at
            After `infer`: ``K_star``, shape (T, N), prior covariance between new and training
            points, and ``k_star_diag``, shape (T,), prior variance at the new points. After
            `infer_series`: ``t``, shape (T,), times of the same kind as the data's, in any order.
            After `infer_sparse`: ``X``, shape (T, d).
        mean : float or array-like, shape (T,), optional
            Prior mean at the new points; by default that of the inference, if it was one number.

        Returns
        -------
        mean, variance : ndarray, shape (T,)
            Moments of the latent function, not of an observation (Rasmussen & Williams, 3.60 and
            3.61). The variance includes white noise of a kernel.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        at = _arguments_at(self._solution.where, at, named)
        return self._solution.predict(at, mean)

    def _predict_once(self) -> tuple[Array, ...]:
        at = np.zeros((2, len(self.latent()[0]))), np.ones(2)
        return self.predict(*at[: len(self._solution.where)])

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
            As for `predict`, but after `infer` the second argument is the prior covariance of the
            new points, shape (T, T). Without points the samples are at the rows.
        n_samples : int
        random_state : int, Generator or None

        Returns
        -------
        ndarray, shape (n_samples, T)
        """
        at = _arguments_at(self._solution.where, at, named, optional=True)
        count = whole(n_samples, "n_samples", 1)
        rng = generator(random_state)
        return self._solution.draw(at, mean, count, rng)

    @sized(_algebra)
    def joint(self, *at: ArrayLike, mean: ArrayLike | None = None) -> tuple[Array, Array]:
        """Return the joint latent mean and covariance at T new points, from which `sample` draws.

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
        return self._solution.joint(at, mean)

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
        """Return corrected marginal densities, more accurate than normals of EP, QP or VB.

        All corrections start from EP's fixed point. If the posterior is from another method or
        from power EP, EP is run as well, and `CorrectedMarginals.notes` says so. The first call
        costs about one more inference, N^3 operations, and each new point N operations per node of
        its density. If the likelihood does not depend on the sign of f and the prior mean is 0, the
        marginals are those of ``|f|``.

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
            Length of each of the four chains of "sample", rounded up to thousands.
        random_state : int, Generator or None
            Seed of "sample".

        Returns
        -------
        CorrectedMarginals

        Raises
        ------
        InputError
            If an argument is not usable, or covariance or likelihood are not available.
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
        """Return the log evidence corrected by pairs of cumulants (Opper, Paquet & Winther, 2013).

        Returns
        -------
        CorrectedEvidence
            Named tuple of ``value`` and ``spread``. The spread is the size of all fourth-order
            terms, of which half are in the value; a large spread is about the error of the value.
        """
        return self._correcting.corrected.evidence

    @sized(_rows)
    def check(self) -> tuple[str, ...]:
        """List known defects of this posterior in plain words, and what to do about them.

        The cost is that of `marginals` at the sites. The method compares corrected means and
        variances with those of a second correction. If the likelihood is not log-concave and there
        are at most 100 sites, it also runs short chains of the exact posterior. An empty result
        means that all agree with EP's. Peaks so far apart that chains do not find them remain
        undetected. If corrections are not available, a sentence says so, and the other checks are
        still made.

        Returns
        -------
        tuple of str
            Sentences; empty if there is nothing to report.
        """
        sentences = []
        if not self.converged:
            sentences.append(f"the sites are {self.status}: the evidence may be anything")
        if len(self.fixed_points) > 1:
            sentences.append(
                f"{len(self.fixed_points)} fixed points were found: the posterior has several "
                'peaks; sample it, marginals(correction="sample")'
            )
        try:
            correcting = self._correcting
        except InputError as error:
            if self._solution.corrects:
                raise
            sentences.append(f"corrections were not looked at: {error}")
            return tuple(sentences)
        try:
            sentences.extend(correcting.corrected.words())
        except NumericalError as error:
            sentences.append(f"{_NO_FIXED_POINT}: {error}")
        return tuple(sentences)

    @cached_property
    def _correcting(self) -> Correcting:
        return Correcting(self._solution.observed(), self.sites, self)

    @sized(_algebra)
    def loo(self, rows: ArrayLike | None = None) -> Array:
        """Return leave-one-out log predictive densities ``log p(y_i | y_-i)``, shape (N,).

        They are the log normalisers of the tilted densities at the final cavities. The whole site
        is left out, whatever the power, and the observation counts once.

        Parameters
        ----------
        rows : array-like of int, shape (n,), optional
            Rows to return, in any order; the cost is that of predicting them.
        """
        numbers = None if rows is None else row_numbers(rows, self._solution.held_rows)
        return self._solution.loo(numbers)

    @sized(_algebra)
    def evidence_gradient(self, dK: ArrayLike | None = None) -> Array | float:
        """Return the gradient of the log evidence.

        The gradient is with respect to the free log parameters of the kernel, ``kernel.theta``.
        After `infer`, which knows no kernel, pass derivatives of K: each call inverts the factor
        again, N^3 operations, so pass all of them at once. The gradient is exact at an EP fixed
        point only (Rasmussen & Williams, 5.27), because the evidence is stationary in EP's sites,
        but not in those of QP.

        Parameters
        ----------
        dK : array-like, shape (N, N) or (N, N, p)
            Derivative of K with respect to one or p parameters; after `infer` only.

        Returns
        -------
        float or ndarray of shape (p,)
        """
        return self._solution.gradient(dK)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.n} sites{self._solution.words}, {self.likelihood}, "
            f"{self.method}, log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        summary = {"n_negative": 0, **self.summary()}
        status = self.status if self.converged else self.status.upper()
        evidence = "bound of the log evidence" if self.method == "vb" else "log evidence"
        lookups = "{inside} inside the grid, {outside} outside" if any(self.lookups) else "none"
        fixed_points = "; {fixed_points} fixed points found" if len(self.fixed_points) > 1 else ""
        jitter = "; jitter {jitter:.2g} on the diagonal" if self.jitter else ""
        text = (
            f"{type(self).__name__} of {{n}} sites{self._solution.words}: {{likelihood}}, method "
            "{method}" + jitter + "\n"
            f"sites      {status} after {{n_sweeps}} sweeps, last change {{last_change:.2g}}, "
            "most at site {worst}" + fixed_points + "\n"
            f"evidence   {evidence} {{log_evidence:.6f}}; least expected is observation "
            "{least_expected}, log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {n_negative} negative precisions, {held} held at zero, {skipped} updates "
            "skipped, {damped} damped\n"
            f"lookups    {lookups}"
        ).format(**summary)
        return "\n".join([text, *self._solution.lines])

    def plot_history(self, axes: Axes | None = None) -> Axes:
        """Plot the change per sweep on a log scale with matplotlib, and return the axes."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.subplots(layout="constrained")[1]
        axes.semilogy(np.arange(1, len(self.history) + 1), self.history, marker="o")
        axes.set(xlabel="sweep", ylabel="change of the sites", title=f"converged: {self.converged}")
        return axes


Moved = TypeVar("Moved", bound=Posterior)


def moved_to(post: Moved, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> Moved:
    """Return a posterior in other units, given kernel and rows in them, and the way back."""
    return replace(post, _solution=post._solution.on(kernel, X, unscaled))


def solution_of(post: EnginePosterior) -> Any:
    """Return the engine's solution, for code that builds on posteriors."""
    return post._solution


def _arguments_at(
    where: tuple[str, ...],
    at: tuple[ArrayLike, ...],
    named: dict[str, ArrayLike],
    *,
    optional: bool = False,
) -> tuple[ArrayLike, ...]:
    """Return the arguments that give new points, in the order of `where`.

    Raises
    ------
    InputError
        If some arguments are missing; with `optional` all of them may be.
    TypeError
        If there are too many, or a name is unknown or given twice.
    """
    if len(at) > len(where):
        raise TypeError(f"at most {len(where)} positional arguments: {', '.join(where)}")
    for name in named:
        if name not in where:
            raise TypeError(f"unexpected argument {name!r}; points are given by {', '.join(where)}")
        if name in where[: len(at)]:
            raise TypeError(f"got multiple values for argument {name!r}")
    values = dict(zip(where, at, strict=False)) | named
    if len(values) < len(where) and (values or not optional):
        raise InputError(f"{' and '.join(where)} go together: hand over {', '.join(where)}")
    return tuple(values[name] for name in where if name in values)
