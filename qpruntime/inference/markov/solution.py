"""Solution of a series: its rows in pieces, in order of time, and their likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._numba import kernel
from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.fixed_point.convergence import Limits, Trace, finite_evidence
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.messages_covariance_kernels import (
    Chain,
    eliminate,
    load,
    one_plus_product,
    spans,
    step_back,
    store,
    take_in,
)
from qpruntime.inference.markov.messages_small_kernels import absorbed
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
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed, Solution, prior_mean
from qpruntime.kernels.state_space import StateSpace, state_space
from qpruntime.kernels.transition_kernels import fill

__all__ = [
    "Placed",
    "SeriesSolution",
    "concluded",
    "draw",
    "draw_states",
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
    sites = Sites(np.zeros(n), np.zeros(n))
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
    def _at_rows(self) -> tuple[Sites, Array, Array, Array]:
        order = joined_pieces(self.pieces, "index")
        back = np.empty(order.size, dtype=np.intp)
        back[order] = np.arange(order.size)
        tau, nu, mean, variance, log_z, prior = (
            joined_pieces(self.pieces, name)[back]
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
        order = joined_pieces(self.pieces, "index")
        back = np.argsort(order)
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
        known = self.series.t[np.argsort(joined_pieces(self.pieces, "index"))]
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


# --- Joint draws

#: Random numbers that are drawn at once.
_NUMBERS = 4_000_000


def draw(rows: Rows, place: NDArray[np.intp], count: int, rng: np.random.Generator) -> Array:
    """Return draws of f at chosen rows, (count, size of `place`)."""
    series, d = rows.series, rows.space.dimension
    n = series.t.size
    wanted = np.zeros(n, dtype=np.bool_)
    wanted[place] = True
    column = np.cumsum(wanted) - 1
    draws = np.empty((count, place.size))
    most = max(1, _NUMBERS // (n * d))
    chain = rows.space.arrays(float(series.t[0]))
    model = chain, series.steps, (rows.noise, series.scales), (rows.tau, rows.nu)
    for begin in range(0, count, most):
        batch = slice(begin, min(begin + most, count))
        normal = rng.standard_normal((n, d, batch.stop - batch.start))
        out = np.empty((int(wanted.sum()), batch.stop - batch.start))
        draw_states(*model, np.empty((n, d + d * (d + 1) // 2)), normal, wanted, out)
        draws[batch] = out[column[place]].T
    return draws


# --- Kernels of the draws


@kernel
def root(C: Array, L: Array) -> None:
    """Fill the Cholesky factor of a covariance, with zeros where no variance is left."""
    d = C.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = C[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            if i == j:
                # A variance that consists of rounding alone counts as zero.
                L[i, i] = math.sqrt(total) if total > 1e-15 * C[i, i] else 0.0
            else:
                L[i, j] = total / L[j, j] if L[j, j] > 0.0 else 0.0
        for j in range(i + 1, d):
            L[i, j] = 0.0


@kernel
def draw_states(
    chain: Chain,
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    buffer: Array,
    normal: Array,
    wanted: NDArray[np.bool_],
    out: Array,
) -> None:
    """Fill `out` (wanted rows, draws) with f, from standard normal numbers (N, d, draws).

    Given x_{i-1}, x_i is N((I + Q J)^-1 (A x_{i-1} + Q eta), (I + Q J)^-1 Q). The factor exp(eta' x
    - x' J x/2) is the information of row i and all later ones about x_i. Q of the first row is
    its covariance.
    """
    heads, start = chain[5], chain[6]
    noise, scale = observed
    tau, nu = sites
    n, d, count = normal.shape
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, system = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    work, solved = np.zeros((d, d + 1)), np.zeros((d, 2 * d + 1))
    eta, J, C, L = np.zeros(d), np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    x, moved = np.zeros((d, count)), np.zeros((d, count))
    last = 0.0
    for i in range(n - 1, -1, -1):
        step = steps[i + 1]
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            step_back(A, Q, low, high, eta, J, system, work)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        take_in(T, N, heads, eta, J, False, work)
        store(buffer, i, eta, J)
    place = 0
    for i in range(n):
        step = steps[i]
        if i == 0 or step > 0.0:
            if i == 0:
                for a in range(d):
                    for b in range(d):
                        A[a, b] = 0.0
                        Q[a, b] = start[a, b]
            else:
                fill(step, chain, A, Q, tensor)
            load(buffer, i, eta, J)
            one_plus_product(Q, J, system)
            # These are (I + Q J)^-1 times Q, times Q eta and times A.
            for a in range(d):
                solved[a, d] = 0.0
                for b in range(d):
                    solved[a, b] = Q[a, b]
                    solved[a, d] += Q[a, b] * eta[b]
                    solved[a, d + 1 + b] = A[a, b]
            eliminate(system, solved, 2 * d + 1)
            for a in range(d):
                for b in range(d):
                    C[a, b] = 0.5 * (solved[a, b] + solved[b, a])
            root(C, L)
            for a in range(d):
                for s in range(count):
                    total = solved[a, d]
                    for b in range(d):
                        total += solved[a, d + 1 + b] * x[b, s] + L[a, b] * normal[i, b, s]
                    moved[a, s] = total
            for a in range(d):
                for s in range(count):
                    x[a, s] = moved[a, s]
        if wanted[i]:
            for s in range(count):
                out[place, s] = 0.0
                for a in range(d):
                    out[place, s] += heads[a] * x[a, s]
            place += 1
