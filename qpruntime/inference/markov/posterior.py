"""Result of inference on a series: a `Posterior` that knows its kernel and can be extended."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.inference.markov.solution import Placed, SeriesSolution, concluded
from qpruntime.inference.markov.streaming import merged, read_more
from qpruntime.inference.posterior import Posterior, report_of
from qpruntime.inference.sites import Sites

__all__ = ["SeriesPosterior"]


@restorable("series-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class SeriesPosterior(Posterior):
    """Gaussian approximation of the latent posterior of a series, with everything in O(N).

    Attributes are those of `qpruntime.Posterior`, in the given order of the rows, without those of
    NaN. White noise in the kernel is part of the latent values at the observations, as in
    ``kernel(X)``, and of the variance of predictions, as in ``kernel.diag(X)``. Corrections need
    the covariance matrix, and are available for series of up to 3000 rows.

    Attributes
    ----------
    kernel : scikit-learn kernel
        Kernel of the prior.
    state_dimension : int
        Size of the state.
    kernel_error : float
        Upper bound on the part of the kernel that the state leaves out: the rest of the Fourier
        series of a periodic part.
    rows : ndarray of int, shape (n,)
        Indices of the given rows that were observed.
    given : int
        Number of given rows.
    swept : int
        Number of rows that were swept, which is smaller than n after `extend` has appended rows.

    See Also
    --------
    qpruntime.infer_series, qpruntime.Posterior

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import Matern
    >>> from qpruntime import infer_series
    >>> t = np.linspace(0.0, 10.0, 200)
    >>> post = infer_series(t, np.sign(np.sin(t + 0.1)), 4.0 * Matern(1.0, nu=1.5))
    >>> post.state_dimension, post.n
    (2, 200)
    >>> later = post.extend([10.1, 10.2], [-1.0, -1.0])
    >>> later.n, later.converged
    (202, True)
    """

    _solution: SeriesSolution = field(kw_only=True)
    swept: int = 0

    @property
    def kernel(self) -> Kernel:
        """Kernel of the prior."""
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
        """Indices of the given rows that were observed."""
        return self._solution.rows

    @property
    def given(self) -> int:
        """Number of given rows, observed or not."""
        return self._solution.given

    def _predict_once(self) -> tuple[Array, ...]:
        self.loo()
        return self.latent()

    def extend(
        self, t: ArrayLike, y: ArrayLike, mean: ArrayLike = 0.0, weights: ArrayLike | None = None
    ) -> SeriesPosterior:
        """Return the posterior of these rows and of M more, at any times.

        Later rows cost as much as a few hundred rows, whatever N is, unless the kernel has
        unlimited memory: only so many earlier rows are swept again that the others stay as they
        were, to the tolerance. If rows lie in between, all rows are swept, starting from the
        present sites. The result equals inference from all rows to the tolerance of `infer_series`.

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
            If rows are not usable, or this posterior was pickled and its likelihood could not be.
        """
        earlier = self._solution
        more = read_more(earlier.clock, earlier.how.projector, t, y, mean, weights)
        settled = self.status == "converged" and earlier.how.weights is None
        last = earlier.pieces[-1].t[-1]
        if more.weights is None and settled and more.t.size and bool(more.t.min() >= last):
            appended, later = earlier.appended(more)
            rise = self.log_evidence + appended.rise
            outcome = report_of(earlier.how.projector, appended.ended, later.held_rows, rise)
            return SeriesPosterior._of(outcome, later, swept=appended.swept)
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
        return SeriesPosterior._of(outcome, solution, swept=outcome.n)
