"""The result of inference on a series: a `Posterior` that knows its kernel and takes more rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.inference.markov.solution import Placed, SeriesSolution, concluded, ending
from qpruntime.inference.markov.streaming import merged, read_more
from qpruntime.inference.posterior import InferenceReport, Posterior
from qpruntime.inference.sites import Sites

__all__ = ["SeriesPosterior"]


@restorable("series-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class SeriesPosterior(Posterior):
    """Gaussian approximation of the latent posterior of a series, with everything in O(N).

    Attributes are those of `qpruntime.Posterior`, in the order of the rows that were given, those
    of NaN left out. White noise in the kernel is part of the latent values at the observations, as
    it is in ``kernel(X)``, and of the variance of predictions, as it is in ``kernel.diag(X)``.
    Corrections take the covariance matrix, and are for series of 3000 rows at most.

    Attributes
    ----------
    kernel : scikit-learn kernel
        Of the prior.
    state_dimension : int
        Size of the state.
    kernel_error : float
        Bound of what the state leaves out of the kernel: of a periodic part's Fourier series.
    rows : ndarray of int, shape (n,)
        Which of the rows given were observed.
    given : int
        How many were given.
    swept : int
        How many rows were swept: fewer than there are where `extend` has appended some.
    """

    swept: int = 0

    @property
    def kernel(self) -> Kernel:
        """The kernel of the prior."""
        return self._solution.kernel

    @property
    def state_dimension(self) -> int:
        """Size of the state."""
        return int(self._solution.space.dimension)

    @property
    def kernel_error(self) -> float:
        """Upper bound on the part of the kernel that the state leaves out."""
        return float(self._solution.space.error)

    @property
    def rows(self) -> NDArray[np.intp]:
        """Numbers of the given rows that were observed."""
        return self._solution.rows

    @property
    def given(self) -> int:
        """Number of given rows, observed or not."""
        return int(self._solution.given)

    def _predict_once(self) -> tuple[Array, ...]:
        self.loo()
        return self.latent()

    def extend(
        self, t: ArrayLike, y: ArrayLike, mean: ArrayLike = 0.0, weights: ArrayLike | None = None
    ) -> SeriesPosterior:
        """Posterior of these rows and of M more, which may be anywhere in time.

        Of later rows the cost is that of a few hundred rows before them, whatever N is, unless the
        kernel never forgets: as many are swept as keep the others as they were, to the tolerance.
        Rows in between are swept with all others, from the sites these have. Equal to inference
        from all rows to the tolerance of `infer_series`.

        Parameters
        ----------
        t, y : array-like, shape (M,)
            Times of the same kind, and observations; rows of NaN are dropped.
        mean : float or array-like, shape (M,)
            Prior mean of these rows.
        weights : array-like, shape (M,), optional

        Raises
        ------
        InputError
            If rows are not usable, or this posterior was pickled with a likelihood that was not.
        """
        earlier: SeriesSolution = self._solution
        more = read_more(earlier.clock, earlier.how.projector, t, y, mean, weights)
        settled = self.status == "converged" and earlier.how.weights is None
        last = earlier.pieces[-1].t[-1]
        if more.weights is None and settled and more.t.size and bool(more.t.min() >= last):
            appended, later = earlier.appended(more)
            rise = self.log_evidence + appended.rise
            report = ending(appended.ended, rise, appended.ended.worst, n=later.held_rows)
            reported = {field.name: getattr(self, field.name) for field in fields(InferenceReport)}
            return SeriesPosterior(**{**reported, **report}, _solution=later, swept=appended.swept)
        piece = earlier.whole()
        tau, nu = earlier.sorted_sites()
        series, start, sort = merged(
            earlier.series, Sites(tau, nu + tau * earlier.series.prior), more
        )
        order = np.concatenate([piece.index, piece.index.size + np.arange(more.t.size)])[sort]
        rows = np.concatenate([earlier.rows, earlier.given + more.seen])
        placed = Placed(earlier.clock, order, rows, earlier.given + more.given)
        outcome, solution = concluded(
            earlier.kernel, earlier.space, series, earlier.limits, start, placed
        )
        return SeriesPosterior.of(outcome, solution)

    @staticmethod
    def of(outcome: InferenceReport, solution: SeriesSolution) -> SeriesPosterior:
        """Return the posterior of a series whose rows have all been swept."""
        reported = {field.name: getattr(outcome, field.name) for field in fields(InferenceReport)}
        return SeriesPosterior(**reported, _solution=solution, swept=outcome.n)
