"""Forward and backward passes over the rows of a series."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import plain
from qpruntime._typing import Array
from qpruntime.inference.fixed_point.schedules import Swept
from qpruntime.inference.markov.data import SortedSeries
from qpruntime.inference.markov.messages_covariance_kernels import wide_pass, wide_slope, wide_sweep
from qpruntime.inference.markov.messages_small_kernels import pair_pass, pair_slope, pair_sweep
from qpruntime.inference.markov.messages_sqrt_kernels import careful_pass, careful_sweep
from qpruntime.inference.markov.messages_trio_kernels import trio_pass, trio_slope, trio_sweep
from qpruntime.inference.sites import Counts, Sites
from qpruntime.kernels.state_space import StateSpace
from qpruntime.projection.site_kernel import EP, project_many, raise_status
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "NOTHING",
    "NO_SUMMARY",
    "Report",
    "Rows",
    "Summary",
    "Tally",
    "cavities",
    "factored",
    "multiplied",
    "noise_slope",
    "opening",
    "read",
    "summarise",
    "width",
    "written",
]

# --- Passes over a series

#: Report of passes that fill none.
NOTHING = np.empty((0, 4))
#: Precision of a site, in units of the prior's, from which on covariances lose more than 1e-11.
_OUTWEIGHED = 1e6


def _kernels(space: StateSpace, begin: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the parts of a kernel for passes, and the passes for its size of state."""
    if space.pair is not None:
        return space.pair, (pair_pass, pair_sweep, pair_slope)
    if space.trio is not None:
        return space.trio, (trio_pass, trio_sweep, trio_slope)
    return space.arrays(begin), (wide_pass, wide_sweep, wide_slope)


class Rows:
    """Series under one kernel, with a buffer of messages and its sites.

    Parameters
    ----------
    series : SortedSeries
    space : StateSpace
    sites : Sites
        Sites about the prior mean; `sweep` changes them in place.
    edges : ndarray, shape (2, width), optional
        Messages from before the first row and from beyond the last one: by default the prior, and
        an empty one.
    """

    def __init__(
        self, series: SortedSeries, space: StateSpace, sites: Sites, edges: Array | None = None
    ) -> None:
        self.series, self.space = series, space
        self.tau, self.nu = sites
        self.noise = space.noise
        self.edges = np.zeros((4, width(space)))
        self.edges[:2] = opening(space, float(series.t[0])) if edges is None else edges
        self.buffer = np.zeros((self.tau.size, self.edges.shape[1]))
        self.chain, self._kernels = _kernels(space, float(series.t[0]))
        self._careful = False

    @cached_property
    def _functions(self) -> tuple[Any, ...]:
        """Functions and settings as plain tuples; made once, not at every pass."""
        return plain(self.series.functions)

    def run(self, ahead: bool, report: Array = NOTHING) -> None:
        """Run a pass with the sites fixed; fill a report (N, 4) if there is one."""
        if self._adapt() and report.shape[0]:
            self._run(not ahead, NOTHING)
        self._run(ahead, report)

    def _run(self, ahead: bool, report: Array) -> None:
        run = careful_pass if self._careful else self._kernels[0]
        chain, steps, observed, sites, (buffer, _) = self._given()
        edges = self._edges()
        run(chain, steps, observed, sites, (buffer, edges), ahead, report)
        self._keep(edges, ahead)

    def _adapt(self) -> bool:
        """Switch to factors if sites outweigh the prior; return whether the buffer is void.

        Covariances lose as many digits as the products of precisions and variances of f have.
        Negative sites require covariances.
        """
        if self._kernels[1] is not wide_sweep or not self.tau.size:
            return False
        before, h = self._careful, self.series.scales
        careful = bool(self.tau.min() >= 0.0)
        if careful and not before:
            share = h * h * self.tau
            most = float(np.max(share / (1.0 + self.noise * share)))
            careful = most * self._variance >= _OUTWEIGHED
        self._careful = careful
        return careful != before

    @cached_property
    def _variance(self) -> float:
        """Return the largest variance of f under the prior."""
        ends = (float(self.series.t[i]) for i in (0, -1))
        return max(float(a[5] @ a[6] @ a[5]) for a in map(self.space.arrays, ends))

    def _edges(self) -> Array:
        """Return the first messages of passes in the form of the kernels."""
        if not self._careful:
            return self.edges
        factors = np.zeros_like(self.edges)
        for k, ahead in enumerate((True, False)):
            factors[k] = factored(*read(self.space, self.edges[k], ahead), ahead)
        return factors

    def _keep(self, edges: Array, ahead: bool) -> None:
        """Store the last message of a pass."""
        if self._careful:
            k = 2 if ahead else 3
            self.edges[k] = self._plain(edges[k], ahead)

    def _plain(self, row: Array, ahead: bool) -> Array:
        """Return a message in factors as a row of plain numbers."""
        return written(self.space, *multiplied(row, self.space.dimension, ahead), ahead)

    def marks(self, every: int) -> Array:
        """Return the forward messages of one row in every `every` rows."""
        messages = self.buffer[::every].copy()
        return np.array([self._plain(row, True) for row in messages]) if self._careful else messages

    def refresh(self) -> None:
        """Compute the messages of sites that were set from outside."""
        self.run(ahead=False)

    def sweep(self, damping: float, hold: bool) -> Swept:
        """Update every site forwards and backwards; the change is the larger rms."""
        tally, change = Tally(), 0.0
        for ahead in (True, False):
            tally.begin_pass()
            self.update(ahead, damping, hold, tally)
            change = max(change, tally.change(self.tau.size))
            if not math.isfinite(change):
                break
        return Swept(change, tally.worst, tally.counts)

    def update(self, ahead: bool, damping: float, hold: bool, tally: Tally) -> None:
        """Run a pass that updates every site."""
        series = self.series
        projector = series.projector
        functions = self._functions
        closed = bool(series.plain and projector.source[0] == EP and functions[1])
        if self._adapt():
            self._run(not ahead, NOTHING)
        run = careful_sweep if self._careful else self._kernels[1]
        edges = self._edges()
        status, site = run(
            self.chain,
            series.steps,
            (self.noise, series.scales, series.y, series.prior, series.exponents),
            (self.tau, self.nu),
            (self.buffer, edges),
            ahead,
            (functions, projector.source, series.power, damping, hold, closed),
            tally.sums,
        )
        if status != OK:
            place = *tally.cavity, series.y[site]
            raise_status(status, projector.likelihood, *place, projector.table)
        self._keep(edges, ahead)

    @property
    def nonnegative(self) -> bool:
        """True if no site precision can be negative."""
        return self.series.nonnegative

    def report(self) -> Report:
        """Return cavities and forward messages of every row; the buffer keeps the latter.

        The backward messages are those of the previous pass.
        """
        columns = np.empty((self.tau.size, 4))
        self.run(ahead=True, report=columns)
        return Report(columns)

    def finish(self) -> Summary:
        """Return a summary of the sites, and leave forward messages in the buffer."""
        return summarise(self, self.report())

    def cavities(self) -> tuple[Array, Array]:
        """Return means and standard deviations of the cavities of g, each of shape (N,)."""
        self.refresh()
        return cavities(self, self.report())

    def negative(self, summary: Summary, least: float) -> int:
        """Return how many precisions would be below -`least` marginal ones if free."""
        tau, nu, buffer = self.tau.copy(), self.nu.copy(), self.buffer.copy()
        self.refresh()
        self.update(True, 1.0, False, Tally())
        count = int(np.sum(self.tau * summary.variance < -least))
        self.tau[:], self.nu[:], self.buffer[:] = tau, nu, buffer
        return count

    def slope(self) -> Array:
        """Return the sums of the gradient; the buffer must hold forward messages."""
        if self._careful:
            # The sums exist for covariances only, not for factors.
            self._careful = False
            self._run(True, NOTHING)
        d = self.space.dimension
        far = self.space.far()
        first = self.series.before is None
        short = self.space.pair is not None or self.space.trio is not None
        size = 2 if self.space.pair is not None else d
        sums = np.zeros((4, size, size))
        rate = self.space.terms[0].factors[0].rate if short else 1.0
        self._kernels[2](*self._given(), (float(far[0] * rate) if short else far, first), sums)
        return sums[:, :d, :d]

    def _given(self) -> tuple[Any, ...]:
        """Return the arguments of every pass that leaves the sites unchanged."""
        series = self.series
        observed, sites = (self.noise, series.scales), (self.tau, self.nu)
        return self.chain, series.steps, observed, sites, (self.buffer, self.edges)


# --- Marginals, leave-one-out densities, evidence and gradient
#
# No term of the sum is large: every row gives the evidence's share of its site, relative to the
# marginal, and the log density of its innovation.

#: Number of rows that are summed at once: more take memory, and no less time.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Summary:
    """Moments of g and leave-one-out log densities in order of time, and the log evidence.

    `noise` is the derivative of EP's evidence by white noise at its fixed point. `balance` is the
    number of positive sites with negative innovations minus that of negative sites. `sound` says
    that cavities are proper; moments exist only then.
    """

    mean: Array
    variance: Array
    log_z: Array
    log_evidence: float
    balance: int = 0
    sound: bool = True
    noise: float = 0.0

    @property
    def proper(self) -> bool:
        """True if the posterior has a positive precision.

        Innovations of g are negative as often as precisions exactly then (Sylvester).
        """
        return self.sound and self.balance == 0


NO_SUMMARY = Summary(np.empty(0), np.empty(0), np.empty(0), math.nan, sound=False)


def cavities(rows: Rows, report: Report) -> tuple[Array, Array]:
    """Return means and standard deviations of the cavities of g, each of shape (N,)."""
    h = rows.series.scales
    mean = rows.series.prior + h * report.mean
    return mean, h * np.sqrt(report.variance + rows.noise)


def summarise(rows: Rows, report: Report) -> Summary:
    """Compute the summary of a series' sites, block by block."""
    n = rows.tau.size
    blocks = [slice(begin, begin + _BLOCK) for begin in range(0, n, _BLOCK)]
    signs = [_signs(rows, report, rows_of_block) for rows_of_block in blocks]
    if not all(sound for sound, _ in signs):
        return NO_SUMMARY
    summary = Summary(np.empty(n), np.empty(n), np.empty(n), 0.0)
    total = math.fsum(_fill(rows, report, rows_of_block, summary) for rows_of_block in blocks)
    balance = sum(balance for _, balance in signs)
    noise = math.fsum(noise_slope(rows, report, rows_of_block) for rows_of_block in blocks)
    return replace(summary, log_evidence=total, balance=balance, noise=noise)


def _signs(rows: Rows, whole: Report, block: slice) -> tuple[bool, int]:
    """Decide whether cavities of some rows are proper, and the balance of their innovations."""
    report, tau = whole[block], rows.tau[block]
    w, h = rows.noise, rows.series.scales[block]
    wide = h * h * (report.variance + w)
    with np.errstate(all="ignore"):
        S = 1.0 + tau * (h * h * (report.variance_before + w))
        balance = int(np.sum((tau > 0.0) & (S < 0.0))) - int(np.sum((tau < 0.0) & (S < 0.0)))
        sound = (
            np.isfinite(report.columns).all()
            and (wide > 0.0).all()
            and (1.0 + tau * wide > 0.0).all()
        )
    return bool(sound), balance


def _fill(rows: Rows, whole: Report, rows_of_block: slice, summary: Summary) -> float:
    """Fill some rows of a summary; return their share of the evidence."""
    series, tau, nu = rows.series, rows.tau[rows_of_block], rows.nu[rows_of_block]
    report, prior, y = whole[rows_of_block], series.prior[rows_of_block], series.y[rows_of_block]
    h, w = series.scales[rows_of_block], rows.noise
    projector, alpha = series.projector, series.power
    v, m = h * h * (report.variance + w), h * report.mean
    kept = 1.0 + tau * v
    variance, mean = v / kept, (m + nu * v) / kept
    likelihood, source, table = projector.likelihood, projector.without_table, projector.table
    log_z = project_many(likelihood, source, prior + m, np.sqrt(v), y, table).log_z
    summary.mean[rows_of_block], summary.variance[rows_of_block], summary.log_z[rows_of_block] = (
        prior + mean,
        variance,
        log_z,
    )
    # This is nu - tau mean without the difference, which would cancel if a site dominates its
    # marginal.
    beta = (nu - tau * m) / kept
    log_z_power, own_v = log_z, v
    if not series.plain:
        k = 1.0 + (1.0 - alpha) * tau * v
        own_v = v / k
        own_m = prior + (m + (1.0 - alpha) * nu * v) / k
        powers = alpha * series.exponents[rows_of_block]
        log_z_power = project_many(
            likelihood, source, own_m, np.sqrt(own_v), y, table, powers
        ).log_z
    with np.errstate(all="ignore"):
        total = np.sum(
            log_z_power + 0.5 * np.log1p(alpha * tau * own_v) + 0.5 * own_v * (alpha * beta) ** 2
        )
        total /= alpha
        share = 1.0 + tau * (w * h * h)
        T, b, p = h * h * tau / share, h * beta, report.variance_before
        S = 1.0 + T * p
        e = report.mean_before - (report.mean + h * nu / share * report.variance) / (
            1.0 + T * report.variance
        )
        total -= 0.5 * np.sum(np.log(np.abs(S)) + np.log(np.abs(share)) + w * b * b)
        total += np.sum((b * e + 0.5 * b * b * p - 0.5 * T * e * e) / S)
    return float(total)


def noise_slope(rows: Rows, whole: Report, block: slice = slice(None)) -> float:
    """Return the derivative of EP's log evidence by the variance of white noise, from a report.

    The difference 1 - tau var would cancel if noise is small. It is cavity over marginal precision,
    1/(1 + tau v_c), and nu - tau mean is (nu - tau m_c) times that.
    """
    report, h, tau = whole[block], rows.series.scales[block], rows.tau[block]
    v, m = h * h * (report.variance + rows.noise), h * report.mean
    kept = 1.0 + tau * v
    beta = (rows.nu[block] - tau * m) / kept
    return 0.5 * float(np.sum(h * h * (beta * beta - tau / kept)))


# --- Results of the last pass


@dataclass(frozen=True)
class Report:
    """Cavities of f and its moments given the rows before, about the prior mean.

    Attributes
    ----------
    columns : ndarray, shape (N, 4)
        Columns in the order in which kernels fill them.
    """

    columns: Array

    def __getitem__(self, block: slice | NDArray[np.intp]) -> Report:
        return Report(self.columns[block])

    @property
    def mean(self) -> Array:
        """Cavity means."""
        return self.columns[:, 0]

    @property
    def variance(self) -> Array:
        """Cavity variances."""
        return self.columns[:, 1]

    @property
    def mean_before(self) -> Array:
        """Means given the rows before."""
        return self.columns[:, 2]

    @property
    def variance_before(self) -> Array:
        """Variances given the rows before."""
        return self.columns[:, 3]


# --- Sums of a sweep


class Tally:
    """Sums of changes, counts and indices, in one array that kernels fill (`revise`).

    Attributes
    ----------
    sums : ndarray, shape (11,)
        Squared changes of tau and nu, plain and in units of the marginals (4); lookups inside and
        outside a grid, and skipped updates (3); the site that changed most, and by how much; mean
        and standard deviation of a cavity whose projection failed.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(11)

    def begin_pass(self) -> None:
        """Reset the changes of the previous pass."""
        self.sums[:4] = 0.0

    def change(self, n: int) -> float:
        """Return the root mean squared change of n sites, plain or in units if larger."""
        return math.sqrt(self.sums[:4].max() / n)

    @property
    def counts(self) -> Counts:
        """Numbers of lookups inside and outside a grid, and of skipped updates."""
        return self.sums[4:7].astype(np.int64)

    @property
    def worst(self) -> int:
        """Site that changed most."""
        return int(self.sums[7])

    @property
    def cavity(self) -> tuple[float, float]:
        """Mean and standard deviation of the cavity that failed."""
        return float(self.sums[9]), float(self.sums[10])


# --- Storage of messages
#
# A forward message is N(m, P), a backward one exp(eta' x - x' J x / 2). The kernels of each size of
# state document their storage.


def width(space: StateSpace) -> int:
    """Return how many numbers a message has."""
    d = space.dimension
    return 5 if space.pair is not None else d + d * (d + 1) // 2


def opening(space: StateSpace, begin: float) -> Array:
    """Return the messages at the ends of a series, (2, width): its prior, and an empty one."""
    start = np.asarray(space.arrays(begin)[-1])
    zero = np.zeros(space.dimension)
    return np.array([written(space, zero, start, True), written(space, zero, 0.0 * start, False)])


def written(space: StateSpace, vector: Array, matrix: Array, ahead: bool) -> Array:
    """Return a message as a row of numbers."""
    d = vector.size
    if space.trio is not None:
        return factored(vector, matrix, ahead)
    if space.pair is None:
        return np.concatenate([vector, matrix[np.tril_indices(d)]])
    v, M = np.zeros(2), np.zeros((2, 2))
    v[:d], M[:d, :d] = vector, matrix
    if ahead:
        slope = M[0, 1] / M[0, 0] if M[0, 0] != 0.0 else 0.0
        return np.array([*v, M[0, 0], slope, M[1, 1] - slope * M[0, 1]])
    slope = M[0, 1] / M[1, 1] if M[1, 1] != 0.0 else 0.0
    return np.array([*v, M[0, 0] - slope * M[0, 1], M[1, 1], slope])


def read(space: StateSpace, row: Array, ahead: bool) -> tuple[Array, Array]:
    """Return the vector and the matrix of a message."""
    d = space.dimension
    if space.trio is not None:
        return multiplied(row, d, ahead)
    if space.pair is None:
        M = np.zeros((d, d))
        M[np.tril_indices(d)] = row[d:]
        return row[:d], np.tril(M) + np.tril(M, -1).T
    if ahead:
        D, c, s = row[2:]
        matrix = np.array([[D, D * c], [D * c, s + c * c * D]])
    else:
        sigma, E, g = row[2:]
        matrix = np.array([[sigma + E * g * g, E * g], [E * g, E]])
    return row[:d], matrix[:d, :d]


def factored(vector: Array, matrix: Array, ahead: bool) -> Array:
    """Return a message in factors, as `messages_trio_kernels` stores it.

    A forward message has m and L diag(p) L', a backward one z and U diag(e) U' = J, eta = U z. The
    result is the vector, and a triangle that includes the diagonal.
    """
    # U diag(e) U' is L diag(e) L' of the states in reverse order.
    turn = slice(None, None, 1 if ahead else -1)
    d = vector.size
    remainder, L, D = matrix[turn, turn].astype(float), np.eye(d), np.zeros(d)
    for k in range(d):
        # Smaller values are rounding of the matrix.
        if abs(remainder[k, k]) > 1e-15 * abs(matrix[turn, turn][k, k]):
            D[k] = remainder[k, k]
            L[k:, k] = remainder[k:, k] / D[k]
            remainder = remainder - D[k] * np.outer(L[:, k], L[:, k])
    L, D = L[turn, turn], D[turn]
    kept = L if ahead else L.T
    inside = vector if ahead else np.linalg.solve(L, vector)
    return np.concatenate([inside, (kept - np.eye(d) + np.diag(D))[np.tril_indices(d)]])


def multiplied(row: Array, d: int, ahead: bool) -> tuple[Array, Array]:
    """Return vector and matrix of d states of a message in factors."""
    L = np.zeros((d, d))
    L[np.tril_indices(d)] = row[d:]
    D = np.diag(L.diagonal())
    L[np.diag_indices(d)] = 1.0
    if ahead:
        return row[:d], L @ D @ L.T
    return L.T @ row[:d], L.T @ D @ L
