"""The result of inference: prediction, leave-one-out densities, evidence and its gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.blas_threads import sized
from qpruntime.inference.corrections.corrected import (
    CORRECTIONS,
    Corrected,
    CorrectedEvidence,
    Correction,
    Points,
    sampled,
)
from qpruntime.inference.corrections.fixed_point import Normal, fixed_point, needed, normal_of
from qpruntime.inference.corrections.fold import one_sided, signless
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.observed import Observed
from qpruntime.inference.schedules import Status
from qpruntime.inference.sites import Sites
from qpruntime.inference.solver import Kept
from qpruntime.memory import require, squares
from qpruntime.validation import choice, generator, real, whole

__all__ = ["Lookups", "Posterior", "Sites", "Status"]


#: What is computed when asked for, and left out of pickles.
_DERIVED = ("_corrected", "_signless")


class Lookups(NamedTuple):
    """How often a table's grid was hit and missed, over all sweeps."""

    inside: int
    outside: int


def _check_memory(n: int) -> None:
    """Raise `InputError` if corrections cannot fit: a factor, its inverse and the covariance."""
    require(
        squares(n, 3.0),
        f"a correction with N = {n}",
        "leave it out, or infer from fewer rows",
    )


def _rows(post: Any, *_: Any, **__: Any) -> int:
    return int(post.mean.size)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Gaussian approximation of the latent posterior at the N training points.

    Attributes
    ----------
    sites : Sites
        Named tuple (tau, nu).
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
        indefinite; otherwise 0.
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

    sites: Sites
    mean: Array
    variance: Array
    log_evidence: float
    status: Status
    n_sweeps: int
    history: tuple[float, ...]
    lookups: Lookups
    skipped: int
    damped: int
    held: int
    fixed_points: tuple[float, ...]
    worst: int
    likelihood: str
    method: str
    log_z: Array = field(repr=False)
    factor: Kept = field(repr=False)
    jitter: float = 0.0
    observed: Observed | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @property
    def converged(self) -> bool:
        """Whether the sites settled at a fixed point."""
        return self.status == "converged"

    @property
    def n_negative(self) -> int:
        """Sites of negative precision: there the observation widens the posterior.

        Only likelihoods that are not log-concave have them, where they have two peaks.
        """
        return int((self.sites.tau < 0.0).sum())

    def summary(self) -> dict[str, str | int | float | bool]:
        """What `print` shows, as plain values: one row of a log, or of a data frame.

        Returns
        -------
        dict
            ``likelihood``, ``method``, ``n`` (sites), ``status``, ``n_sweeps``, ``last_change``
            (of the sites), ``worst`` (the site that changed
            most), ``log_evidence``, ``n_negative`` and ``held`` (precisions below and held at
            zero), ``fixed_points`` (how many were found), ``jitter`` (added to the diagonal of K),
            ``skipped`` and ``damped`` (updates), ``inside`` and ``outside`` (table lookups),
            ``least_expected`` and ``least_log_density`` (the observation that the others expect
            least, and its leave-one-out log density).
        """
        least = int(np.argmin(self.log_z))
        return {
            "likelihood": self.likelihood,
            "method": self.method,
            "n": self.mean.size,
            "status": self.status,
            "n_sweeps": self.n_sweeps,
            "last_change": float(self.history[-1]) if self.history else 0.0,
            "worst": self.worst,
            "log_evidence": self.log_evidence,
            "n_negative": self.n_negative,
            "held": self.held,
            "fixed_points": len(self.fixed_points),
            "jitter": self.jitter,
            "skipped": self.skipped,
            "damped": self.damped,
            "inside": self.lookups.inside,
            "outside": self.lookups.outside,
            "least_expected": least,
            "least_log_density": float(self.log_z[least]),
        }

    def __repr__(self) -> str:
        return (
            f"<Posterior of {self.mean.size} sites, {self.likelihood}, {self.method}, "
            f"log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        found = self.summary()
        settled = self.status if self.converged else self.status.upper()
        evidence = "bound of the log evidence" if self.method == "vb" else "log evidence"
        looked = "{inside} inside the grid, {outside} outside" if any(self.lookups) else "none"
        several = "; {fixed_points} fixed points found" if len(self.fixed_points) > 1 else ""
        added = "; K has jitter {jitter:.2g}" if self.jitter else ""
        return (
            "Posterior of {n} sites: {likelihood}, method {method}" + added + "\n"
            f"sites      {settled} after {{n_sweeps}} sweeps, last change {{last_change:.2g}}, "
            "most at site {worst}" + several + "\n"
            f"evidence   {evidence} {{log_evidence:.6f}}; least expected is observation "
            "{least_expected}, log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {n_negative} negative precisions, {held} held at zero, {skipped} updates "
            "skipped, {damped} damped\n"
            f"lookups    {looked}"
        ).format(**found)

    @sized(_rows)
    def predict(
        self, K_star: ArrayLike, k_star_diag: ArrayLike, mean_star: ArrayLike = 0.0
    ) -> tuple[Array, Array]:
        """Latent mean and variance at T new points.

        Parameters
        ----------
        K_star : array-like, shape (T, N)
            Prior covariance between new and training points.
        k_star_diag : array-like, shape (T,)
            Prior variance at the new points.
        mean_star : float or array-like, shape (T,)
            Prior mean at the new points.

        Returns
        -------
        mean, variance : ndarray, shape (T,)
            Of the latent function, not of an observation (Rasmussen & Williams, 3.60 and 3.61).
        """
        return self.factor.predict(K_star, k_star_diag, mean_star)

    def at_inputs(
        self, points: Array, mean: ArrayLike, crossed: Callable[[], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Predict as `qpruntime.inference.solver.Fitted` asks for."""
        return self.predict(*crossed(), mean)

    @property
    def corrects(self) -> bool:
        """Whether there are corrections."""
        return True

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return self.mean.size

    def on(self, kernel: Any, X: Array, unscaled: Callable[[Array], Array]) -> Posterior:
        """Return this posterior, which does not know its inputs."""
        return self

    @sized(_rows)
    def marginals(
        self,
        K_star: ArrayLike | None = None,
        k_star_diag: ArrayLike | None = None,
        mean_star: ArrayLike = 0.0,
        *,
        correction: Correction = "blend",
        steps: int = 10_000,
        random_state: int | np.random.Generator | None = None,
    ) -> Marginals:
        """Marginal posterior densities, corrected: truer than EP's, QP's or VB's normals.

        All start from EP's fixed point; of a posterior by another method, or of power EP, EP is
        run as well, and `Marginals.notes` says so. The first call costs about one inference more,
        N^3 operations, and new points N operations each per node of their densities. Where the
        likelihood does not know the sign of f and the prior mean is 0, they are those of |f|.

        Parameters
        ----------
        K_star, k_star_diag, mean_star
            Of T new points, as for `predict`; without them the marginals are those of the N sites.
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
        if (K_star is None) != (k_star_diag is None):
            raise InputError("K_star and k_star_diag go together: hand over both, or none")
        if K_star is None or k_star_diag is None:
            points = Points(None, self.variance, self.mean)
        else:
            self.predict(K_star, k_star_diag, mean_star)  # checks the arguments
            K_star = real(K_star, "K_star")
            both = (np.broadcast_to(real(a, ""), len(K_star)) for a in (k_star_diag, mean_star))
            points = Points(K_star, *both)
        if correction == "sample":
            rng = generator(random_state)
            return sampled(self._normal(), points, rng, steps, self._signless)
        return self._corrected.marginals(points, correction)

    @sized(_rows)
    def corrected_evidence(self) -> CorrectedEvidence:
        """Log evidence corrected by pairs of cumulants (after Opper, Paquet & Winther, 2013).

        Returns
        -------
        CorrectedEvidence
            Named tuple ``value`` and ``spread``: the size of all terms of fourth order, of which
            half are in the value; about what it may be off by where it is large.
        """
        return self._corrected.evidence

    @sized(_rows)
    def check(self) -> tuple[str, ...]:
        """Say in plain words what is known to be off in this posterior, and what to do.

        Costs as much as `marginals` at the sites. Corrected means and variances are compared with
        others found another way, and for likelihoods that are not log-concave and 100 sites at most
        with short chains of the exact posterior. Nothing said means that they agree with EP's;
        peaks so far apart that chains do not find them remain unseen.

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
            said.extend(self._corrected.words())
        except NumericalError as error:
            said.append(f"corrections have no fixed point of EP to start from: {error}")
        return tuple(said)

    @property
    def knows_covariance(self) -> bool:
        """Whether the prior covariance is at hand, which corrections take and pickles leave out."""
        return self.observed is not None and self.observed.K is not None

    @sized(_rows)
    def with_covariance(self, K: ArrayLike) -> Posterior:
        """Return this posterior with its prior covariance, which pickles leave out.

        Raises
        ------
        InputError
            If `K` is not the covariance that the posterior was computed with.
        """
        if self.observed is None:
            raise InputError("this posterior does not know its data: infer again")
        observed = self.observed.with_covariance(K, self.factor.weights, self.mean)
        return replace(self, observed=observed)

    def _normal(self) -> Normal:
        """Return what chains run around: EP's normal, or the posterior's own where EP fails."""
        needed(self.observed)
        assert self.observed is not None
        _check_memory(self.mean.size)
        if self.method != "ep" or self._signless:
            with contextlib.suppress(NumericalError):
                return Normal(*self._corrected.found[:6])
        return normal_of(self.observed, self.sites)

    @cached_property
    def _corrected(self) -> Corrected:
        needed(self.observed)
        assert self.observed is not None
        _check_memory(self.mean.size)
        own = self.method == "ep" and self.observed.power == 1.0 and self.status == "converged"
        find = one_sided if self._signless else fixed_point
        return Corrected(find(self.observed, self.sites, self.log_evidence, own))

    @cached_property
    def _signless(self) -> bool:
        """Whether the posterior is its own mirror image."""
        assert self.observed is not None
        return signless(self.observed)

    def plot_history(self, axes: Any = None) -> Any:
        """Draw the change per sweep on a log scale; needs matplotlib. Returns the axes."""
        if axes is None:
            import matplotlib.pyplot as plt

            axes = plt.subplots(layout="constrained")[1]
        axes.semilogy(np.arange(1, len(self.history) + 1), self.history, marker="o")
        axes.set(xlabel="sweep", ylabel="change of the sites", title=f"converged: {self.converged}")
        return axes

    def loo(self) -> Array:
        """Leave-one-out log predictive densities log p(y_i | y_-i), shape (N,).

        They are the log normalisers of the tilted densities at the final cavities.
        """
        return self.log_z.copy()

    @sized(_rows)
    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Gradient of the log evidence, given the derivative of K.

        Exact at an EP fixed point only (Rasmussen & Williams, 5.27): the evidence is stationary
        in EP's sites, but not in those of QP. Every call inverts the factor again, N^3 operations:
        hand over all derivatives at once.

        Parameters
        ----------
        dK : array-like, shape (N, N) or (N, N, p)
            Derivative of K with respect to one or p parameters.

        Returns
        -------
        float or ndarray of shape (p,)
        """
        return self.factor.evidence_gradient(dK)
