"""Solution of a series: its rows in pieces, in order of time, and their likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.fixed_point.convergence import Limits, Trace, finite_evidence
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.draws import draw
from qpruntime.inference.markov.passes import Rows, noise_slope
from qpruntime.inference.markov.streaming import (
    EVERY,
    Appended,
    More,
    SeriesPiece,
    append,
    joined_pieces,
    settle,
    with_times,
)
from qpruntime.inference.posterior import InferenceReport, report_of
from qpruntime.inference.problem import Observed
from qpruntime.inference.sites import Sites, no_sites
from qpruntime.inference.solution_protocol import Crossed, Solution, prior_mean
from qpruntime.kernels.state_space import StateSpace, state_space

__all__ = [
    "Placed",
    "SeriesSolution",
    "concluded",
]

# --- Settled series


class Placed(NamedTuple):
    """Positions of the rows of a sorted series in the user's order.

    `order` has the position of each among the observed rows, and `rows` the positions of these
    among all `given`.
    """

    clock: Clock
    order: NDArray[np.intp]
    rows: NDArray[np.intp]
    given: int


def concluded(
    kernel: Kernel,
    space: StateSpace,
    series: SortedSeries,
    limits: Limits,
    start: Sites | None,
    placed: Placed,
) -> tuple[InferenceReport, SeriesSolution]:
    """Settle the sites of a sorted series; return the report and the solution.

    `start` is in order of time, with nu as reported to users.
    """
    n = series.t.size
    sites = no_sites(n)
    if start is not None:
        sites = Sites(start.tau.copy(), start.nu - start.tau * series.prior)
    rows = Rows(series, space, sites)
    end = settle(rows, limits, Trace(), warm=start is not None)
    marks = rows.marks(EVERY)
    del rows
    summary, order = end.summary, placed.order
    finite_evidence(summary.log_evidence)
    worst = int(order[end.worst])
    outcome = report_of(series.projector, end, n, summary.log_evidence, worst=worst)
    columns = series.t, series.y, series.prior, series.weights, series.scale
    piece = SeriesPiece(
        *columns, *sites, summary.mean, summary.variance, summary.log_z, order, marks
    )
    solution = SeriesSolution(
        kernel=kernel,
        space=space,
        clock=placed.clock,
        limits=limits,
        how=series,
        pieces=(piece,),
        seen=(placed.rows,),
        given=placed.given,
    )
    return outcome, solution


# --- What a posterior of a series keeps

#: Number of rows up to which corrections take the covariance matrix of a series.
MOST = 3000
_COLUMNS = ("t", "y", "prior", "weights", "scale")
_DENSE = "the dense engine has corrections of any kernel, infer(kernel(t[:, None]), y)"


@restorable("series-solution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SeriesSolution(Solution):
    """Solution of a series; see `qpruntime.inference.solution_protocol.Solution`.

    Attributes
    ----------
    kernel : scikit-learn kernel
    space : StateSpace
    clock : Clock
        Clock that reads times.
    limits : Limits
    how : SortedSeries
        Series of the first rows, which has the likelihood of all.
    pieces : tuple of SeriesPiece
        All observed rows, in order of time.
    seen : tuple of ndarray of int
        Positions of these among all `given` rows, in the user's order.
    given : int
    """

    kernel: Kernel
    space: StateSpace
    clock: Clock
    limits: Limits
    how: SortedSeries
    pieces: tuple[SeriesPiece, ...]
    seen: tuple[NDArray[np.intp], ...]
    given: int

    where = ("t",)
    width = algebra = 0
    name = "markov"

    def __getstate__(self) -> dict[str, object]:
        # Cached columns are left out, because the pieces contain them.
        names = ("kernel", "space", "clock", "limits", "how", "pieces", "seen", "given")
        return {name: getattr(self, name) for name in names}

    @property
    def words(self) -> str:
        """Words about the engine for a line of the summary."""
        return f", {self.space.dimension} states"

    @property
    def corrects(self) -> bool:
        """True if the covariance matrix is small enough for corrections."""
        exact = self.space.error == 0.0 and self.pieces[0].scale is None
        return exact and self.held_rows <= MOST

    @property
    def held_rows(self) -> int:
        """Number of observed rows."""
        return sum(piece.t.size for piece in self.pieces)

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        """Positions of the observed rows among the given ones."""
        return np.concatenate(self.seen)

    @cached_property
    def series(self) -> SortedSeries:
        """All rows in order of time."""
        if len(self.pieces) == 1 and self.pieces[0].t is self.how.t:
            return self.how
        return replace(self.how, **{c: joined_pieces(self.pieces, c) for c in _COLUMNS})

    @cached_property
    def back(self) -> NDArray[np.intp]:
        """Place in order of time of each row in the user's order."""
        order = joined_pieces(self.pieces, "index")
        back = np.empty(order.size, dtype=np.intp)
        back[order] = np.arange(order.size)
        return back

    @cached_property
    def _at_rows(self) -> tuple[Sites, Array, Array, Array]:
        tau, nu, mean, variance, log_z, prior = (
            joined_pieces(self.pieces, name)[self.back]
            for name in ("tau", "nu", "mean", "variance", "log_z", "prior")
        )
        return Sites(tau, nu + tau * prior), mean, variance, log_z

    def sites(self) -> Sites:
        """Return sites at the rows, in the user's order."""
        return self._at_rows[0]

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances at the rows, in the user's order."""
        return self._at_rows[1:3]

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of chosen rows."""
        log_z = self._at_rows[3]
        return log_z.copy() if rows is None else log_z[rows]

    def sorted_sites(self) -> Sites:
        """Return sites in order of time, about the prior mean."""
        return Sites(joined_pieces(self.pieces, "tau"), joined_pieces(self.pieces, "nu"))

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances at T times, in O(N + T)."""
        rows, place, offset = self._with(at, mean)
        rows.refresh()
        marginals = rows.report()[place]
        return marginals.mean + offset, np.maximum(marginals.variance, 0.0) + rows.noise

    def draw(
        self,
        at: tuple[ArrayLike, ...],
        mean: ArrayLike | None,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Draw jointly at T times, in O(N + T) each, with the kernel's white noise."""
        if not at:
            raise InputError("draws of a series take times: sample(t)")
        rows, place, offset = self._with(at, mean)
        draws = draw(rows, place, count, rng)
        return np.asarray(draws + offset + np.sqrt(rows.noise) * rng.standard_normal(draws.shape))

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return means and covariances at T times, in O(T (N + T)), with the kernel's white noise.

        A site with precision-weighted mean 1 at an unobserved time moves the posterior mean
        everywhere else by its covariance with that time.
        """
        if not at:
            raise InputError("a joint distribution of a series takes times")
        rows, place, offset = self._with(at, mean)
        rows.refresh()
        marginals = rows.report()[place]
        centre = marginals.mean + offset
        covariance, variance = (
            np.empty((place.size, place.size)),
            np.maximum(marginals.variance, 0.0),
        )
        for row, number in enumerate(place):
            rows.nu[:] = 0.0
            rows.nu[number] = 1.0
            rows.refresh()
            covariance[row] = rows.report()[place].mean
        covariance = 0.5 * (covariance + covariance.T)
        covariance.flat[:: place.size + 1] = variance + rows.noise
        return centre, covariance

    def _with(
        self, at: tuple[ArrayLike, ...], mean: ArrayLike | None
    ) -> tuple[Rows, NDArray[np.intp], Array]:
        """Return these rows with T unobserved ones, the places of these, and their prior mean."""
        new = self.clock.read(at[0], "t")
        offset = prior_mean(mean, self.usual, new.shape)
        rows, place = with_times(self.series, self.space, self.sorted_sites(), new)
        return rows, place, offset

    @cached_property
    def usual(self) -> float | None:
        """Prior mean, if it is one number for all rows."""
        low = min(float(piece.prior.min()) for piece in self.pieces)
        high = max(float(piece.prior.max()) for piece in self.pieces)
        return low if low == high else None

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of EP's log evidence by the kernel's free log parameters, in O(N)."""
        if change is not None:
            raise InputError("a series knows its kernel: evidence_gradient() takes no dK")
        rows = Rows(self.series, self.space, self.sorted_sites())
        noise = 0.0
        if self.space.noises:
            rows.refresh()
            noise = noise_slope(rows, rows.report())
        else:
            rows.run(ahead=True)
        return self.space.gradient(rows.slope(), noise)

    def observed(self) -> Observed:
        """Return data and prior covariance of a short series."""
        n = self.held_rows
        if n > MOST:
            raise InputError(
                f"they take a covariance matrix, and this series has N = {n} rows, more than "
                f"{MOST}: infer a part of it"
            )
        series, space = self.series, self.space
        if space.error > 0.0 or series.scale is not None:
            raise InputError(f"the states only approximate the kernel of this series: {_DENSE}")
        if series.projector is None:
            raise InputError("this posterior was pickled without its likelihood: infer anew")
        back = self.back
        weights = None if series.weights is None else series.weights[back]
        return Observed(
            self.kernel(series.t[back][:, None]),
            series.y[back],
            series.prior[back],
            series.projector.likelihood,
            series.power,
            weights,
        )

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Return points for corrections."""
        new = self.clock.read(at[0], "t")
        offset = np.broadcast_to(prior_mean(mean, self.usual, new.shape), new.shape)
        known = self.series.t[self.back]
        K_star = self.kernel(new[:, None], known[:, None])
        return MarginalPoints(K_star, self.kernel.diag(new[:, None]), np.array(offset))

    def facts(self) -> dict[str, str | int | float]:
        """Return what this engine adds to a summary."""
        return {
            "n_negative": sum(int((piece.tau < 0.0).sum()) for piece in self.pieces),
            "state_dimension": self.space.dimension,
            "kernel_error": self.space.error,
        }

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return the one column of the points: times."""
        return (points[:, 0],)

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> SeriesSolution:
        """Return the solution in another unit of time, that of X, with the kernel in it."""
        space = state_space(kernel, self.space.approximate)
        index = joined_pieces(self.pieces, "index")
        t = np.ascontiguousarray(X[index, 0])
        whole = self.whole()
        pieces = (replace(whole, t=t, marks=np.empty((0, 0))),)
        how = replace(self.how, t=t) if len(self.pieces) == 1 else replace(self.series, t=t)
        return replace(self, kernel=kernel, space=space, how=how, pieces=pieces)

    def whole(self) -> SeriesPiece:
        """Return all rows as one piece, with new messages where pieces do not have them."""
        if len(self.pieces) == 1:
            return self.pieces[0]
        names = [name for name in vars(self.pieces[0]) if name != "marks"]
        columns = {name: joined_pieces(self.pieces, name) for name in names}
        return SeriesPiece(**columns, marks=np.empty((0, 0)))

    def appended(self, more: More) -> tuple[Appended, SeriesSolution]:
        """Sweep later rows, and so many earlier ones that the others stay as they were."""
        pieces = self.pieces
        if any(not piece.marks.size for piece in pieces):
            pieces = (self._marked(self.whole()),)
        new = more.piece(self.held_rows, scaled=pieces[0].scale is not None)
        appended = append(pieces, new, self.how, self.space, self.limits)
        later = replace(
            self,
            pieces=appended.pieces,
            seen=(*self.seen, self.given + more.seen),
            given=self.given + more.given,
        )
        return appended, later

    def _marked(self, piece: SeriesPiece) -> SeriesPiece:
        """Return a piece with messages of some of its rows."""
        rows = Rows(self.series, self.space, Sites(piece.tau, piece.nu))
        rows.run(ahead=True)
        return replace(piece, marks=rows.marks(EVERY))
