"""Pair corrections of the marginals and of the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._numba import contracted, kernel, plain
from qpruntime._pointers import call_moments, call_raised_moments
from qpruntime._restorable import restorable
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.corrections.corrected import CorrectedEvidence
from qpruntime.inference.corrections.tilted import TiltedMoments, rule_of, tilted_moments
from qpruntime.inference.precision.cholesky import Pattern, SparseRows
from qpruntime.inference.precision.pattern_kernels import place_of
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.quadrature.sigma_star_kernels import PlainFunctions

__all__ = [
    "LevelPairs",
    "PairSums",
    "all_pairs",
    "corrected_by_pairs",
    "level_pairs",
    "pair_sums",
    "pairs_of_levels",
    "quantile_shifts",
    "third_and_fourth",
]

# --- Evidence corrected by pairs of cumulants

#: Number of sites up to which all pairs are summed.
_FEW = 2000
#: Half of the fourth order agrees best with exact evidences.
_HALF = 0.5


def pair_sums(
    problem: Problem,
    solved: PrecisionSolved,
    here: Marginals,
    sites: Sites,
    levels: bool | None = None,
) -> PairSums:
    """Return sums over pairs that share a level, or over all pairs, the default up to 2000 sites.

    They are 0 for normal noise, for which EP is exact.

    Raises
    ------
    InputError
        If the sites are not those of EP.
    """
    if problem.projector.method != "ep" or problem.power != 1.0:
        raise InputError(
            'corrections by pairs start from EP\'s fixed point: infer with method="ep"'
        )
    if problem.projector.likelihood.is_normal:
        return PairSums(0.0, 0.0)
    hermite = third_and_fourth(problem, here, sites)
    std = np.sqrt(here.variance)
    if levels is None:
        levels = here.mean.size > _FEW
    if not levels:
        return all_pairs(solved, std, hermite)
    return pairs_of_levels(solved, level_pairs(solved.prior), std, hermite)


def corrected_by_pairs(evidence: float, sums: PairSums) -> CorrectedEvidence:
    """Return the evidence plus both sums, and the size of the fourth-order terms."""
    return CorrectedEvidence(evidence + sums.third + _HALF * sums.fourth, abs(sums.fourth))


# --- Hermite moments of tilted densities
#
# Derivatives of the tilted variance by the cavity mean are cumulants: k3 over the cavity variance,
# and k4 over its square. There the tilted mean and variance are the marginal's. Differences of
# closed moments cost a tenth of what quadrature does.

#: Step of differences in cavity standard deviations: differences of five points err by 1e-7 of the
#: moments, including rounding.
_STEP = 0.03


def third_and_fourth(problem: Problem, marginals: Marginals, sites: Sites) -> Array:
    """Return E He_3 and E He_4 of (f - mean)/std under every tilted density, shape (2, S).

    Raises
    ------
    NumericalError
        If a tilted density has no moments.
    """
    likelihood, weights = problem.projector.likelihood, problem.exponents
    hermite = np.full((2, problem.n), np.nan)
    powers = likelihood.powers
    has_powers = problem.weights is None or (powers is not None and powers.moments is not None)
    if likelihood.moments is not None and has_powers:
        difference(plain(problem.functions), (*marginals,), problem.observations, hermite)
    if not np.isfinite(hermite).all():
        std = np.sqrt(marginals.variance)
        fixed = TiltedMoments(sites.tau, sites.nu, marginals.mean, std, problem.y, weights)
        _, tilted = tilted_moments(rule_of(likelihood, weights), fixed, likelihood)
        hermite = np.ascontiguousarray(tilted.hermite[:, 3:5].T)
    if not np.isfinite(hermite).all():
        site = int(np.argmin(np.isfinite(hermite).all(axis=0)))
        raise NumericalError(
            f"the tilted density of site {site} has no third or fourth moment in double precision: "
            "the evidence cannot be corrected; check that observation"
        )
    return hermite


@kernel
def difference(
    functions: PlainFunctions, marginals: Arrays, observed: tuple[Array, Array], out: Array
) -> None:
    """Fill both moments of every site, by differences of five points."""
    mean, variance, kept, pull = marginals
    theta, moments, raised_moments = functions[0], functions[4], functions[5][3]
    y, exponents = observed
    v = np.empty(5)
    for i in range(mean.size):
        if exponents[i] == 0.0:
            out[0, i], out[1, i] = 0.0, 0.0
            continue
        square = variance[i] / kept[i]
        centre, std = mean[i] - pull[i] * square, math.sqrt(square)
        step = _STEP * std
        for k in range(5):
            at = centre + (k - 2) * step
            if exponents[i] == 1.0:
                _, _, v[k] = call_moments(moments, at, std, y[i], theta)
            else:
                _, _, v[k] = call_raised_moments(raised_moments, at, std, y[i], theta, exponents[i])
        first = (8.0 * (v[3] - v[1]) - (v[4] - v[0])) / (12.0 * step)
        second = (16.0 * (v[3] + v[1]) - (v[4] + v[0]) - 30.0 * v[2]) / (12.0 * step * step)
        tilted_std = math.sqrt(v[2])
        out[0, i] = first * square / tilted_std**3
        out[1, i] = second * square * square / tilted_std**4


# --- Pairs of rows
#
# EP's evidence gains r^3 h3 h3/6 + r^4 h4 h4/48 for every pair of rows, with r their posterior
# correlation and h3, h4 Hermite moments of their tilted densities (after Opper, Paquet & Winther,
# JMLR 2013; half of the fourth order). Pairs that share a level carry nearly all of it, and their
# covariances stand on the pattern of the factor.

#: Number of rows of a level up to which its pairs are summed: with more rows the level's effect is
#: normal.
MOST = 30
#: Number of columns per solve.
_BATCH = 64


@restorable("pair-sums/1")
class PairSums(NamedTuple):
    """Sums over pairs: third-order terms, and all fourth-order terms."""

    third: float
    fourth: float
    missing: int = 0


class LevelPairs(NamedTuple):
    """Pairs of rows that share a level, each pair once.

    first, second : (P,), rows
    begin : (P,), where the places of their columns' products begin in `places`; where both have the
        same columns -1 - q, with q where those of the first row's own pairs begin
    places : of all products of other pairs, -1 where the factor has none
    """

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    begin: NDArray[np.int64]
    places: NDArray[np.integer]


def level_pairs(prior: PrecisionPrior) -> LevelPairs:
    """Return the pairs of rows that share a column of at most `MOST` rows; they are cached."""
    pattern, rows = prior.pattern, prior.rows
    cached = pattern.held.get("pairs")
    if cached is None or cached[0] is not rows.indptr:
        cached = pattern.held["pairs"] = rows.indptr, _level_pairs(pattern, rows)
    return cached[1]


def _level_pairs(pattern: Pattern, rows: SparseRows) -> LevelPairs:
    k = pattern.k
    counts = np.bincount(rows.columns, minlength=k)
    starts = np.concatenate([[0], np.cumsum(counts)])
    members = np.empty(rows.columns.size, np.int32)
    fill_members(rows.indptr, rows.columns, starts[:-1].copy(), members)
    level = (counts >= 2) & (counts <= MOST)
    shape = tuple(pattern.symbolic.shape)
    none = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64), rows.pairs[:0]
    structure = rows.indptr, rows.columns, starts, members, level
    count, products = find_pairs(shape, structure, False, *none)
    members_of_pairs = np.empty((2, count), np.int32)
    begin, places = np.empty(count, np.int64), np.empty(products, rows.pairs.dtype)
    find_pairs(shape, structure, True, members_of_pairs[0], members_of_pairs[1], begin, places)
    return LevelPairs(members_of_pairs[0], members_of_pairs[1], begin, places)


@kernel
def fill_members(indptr: IntArray, columns: IntArray, ends: IntArray, members: IntArray) -> None:
    """Fill the rows of every column in ascending order."""
    for n in range(indptr.size - 1):
        for p in range(indptr[n], indptr[n + 1]):
            members[ends[columns[p]]] = n
            ends[columns[p]] += 1


@kernel
def shared_level(
    indptr: IntArray, columns: IntArray, level: NDArray[np.bool_], n: int, m: int
) -> tuple[int, bool]:
    """Return the first level that two rows share, -1 if none, and whether all columns are equal."""
    p, q = indptr[n], indptr[m]
    same = indptr[n + 1] - p == indptr[m + 1] - q
    shared = -1
    while p < indptr[n + 1] and q < indptr[m + 1]:
        if columns[p] == columns[q]:
            if shared < 0 and level[columns[p]]:
                shared = columns[p]
            p += 1
            q += 1
        elif columns[p] < columns[q]:
            same = False
            p += 1
        else:
            same = False
            q += 1
    return shared, same


@kernel
def find_pairs(
    shape: tuple[IntArray, ...],
    structure: tuple[NDArray[np.integer], ...],
    fill: bool,
    first: IntArray,
    second: IntArray,
    begin: IntArray,
    places: IntArray,
) -> tuple[int, int]:
    """Count pairs and products of their columns, or fill them."""
    indptr, columns, starts, members, level = structure
    first_products = np.empty(indptr.size, np.int64)
    total = 0
    for n in range(indptr.size - 1):
        first_products[n] = total
        width = indptr[n + 1] - indptr[n]
        total += width * (width + 1) // 2
    count, products = 0, 0
    for j in range(level.size):
        if not level[j]:
            continue
        for a in range(starts[j], starts[j + 1]):
            n = members[a]
            for b in range(a + 1, starts[j + 1]):
                m = members[b]
                shared, same = shared_level(indptr, columns, level, n, m)
                if shared != j:
                    continue
                if fill:
                    first[count], second[count] = n, m
                    begin[count] = -1 - first_products[n] if same else products
                count += 1
                if same:
                    continue
                for p in range(indptr[n], indptr[n + 1]):
                    for q in range(indptr[m], indptr[m + 1]):
                        if fill:
                            column_n, column_m = columns[p], columns[q]
                            places[products] = place_of(
                                shape, max(column_n, column_m), min(column_n, column_m)
                            )
                        products += 1
    return count, products


@contracted
def pair_covariances(
    inverse: Array, rows: tuple[NDArray[np.integer], ...], pairs: tuple[IntArray, ...], out: Array
) -> int:
    """Fill a_n' Z a_m of every pair; NaN where the factor lacks an entry. Return how many lack."""
    indptr, _, values, entries = rows
    first, second, begin, places = pairs
    missing = 0
    for k in range(first.size):
        n, m = first[k], second[k]
        total = 0.0
        if begin[k] < 0:
            q = -1 - begin[k]
            shift = indptr[m] - indptr[n]
            for a in range(indptr[n], indptr[n + 1]):
                total += values[a] * values[a + shift] * inverse[entries[q]]
                q += 1
                for b in range(a + 1, indptr[n + 1]):
                    products = values[a] * values[b + shift] + values[b] * values[a + shift]
                    total += products * inverse[entries[q]]
                    q += 1
        else:
            q = begin[k]
            known = True
            for a in range(indptr[n], indptr[n + 1]):
                for b in range(indptr[m], indptr[m + 1]):
                    if places[q] < 0:
                        known = False
                    else:
                        total += values[a] * values[b] * inverse[places[q]]
                    q += 1
            if not known:
                missing += 1
                total = np.nan
        out[k] = total
    return missing


def pairs_of_levels(
    solved: PrecisionSolved, pairs: LevelPairs, std: Array, hermite: Array
) -> PairSums:
    """Return sums over pairs of rows that share a level; solve for covariances the factor lacks."""
    rows = solved.prior.rows
    covariance = np.empty(pairs.first.size)
    missing = pair_covariances(solved.inverse, tuple(rows), tuple(pairs), covariance)
    if missing:
        lacking = np.flatnonzero(np.isnan(covariance))
        covariance[lacking] = _solved_for(solved, pairs.first[lacking], pairs.second[lacking])
    if solved.taken.size:
        row_projections = np.stack([solved.prior.times(h) for h in solved.taken])
        known = np.ones(covariance.size, dtype=bool)
        if missing:
            known[lacking] = False
        first, second = pairs.first[known], pairs.second[known]
        covariance[known] -= np.einsum(
            "ij,ij->j", row_projections[:, first], row_projections[:, second]
        )
    r = covariance / (std[pairs.first] * std[pairs.second])
    h3, h4 = (h[pairs.first] * h[pairs.second] for h in hermite)
    square = r * r
    third, fourth = (square * r) @ h3 / 6.0, (square * square) @ h4 / 24.0
    return PairSums(float(third), float(fourth), missing)


def _solved_for(
    solved: PrecisionSolved, first: NDArray[np.int32], second: NDArray[np.int32]
) -> Array:
    """Return posterior covariances of pairs of rows, by solves with the rows of the first."""
    covariances = np.empty(first.size)
    A = _design(solved)
    order = np.argsort(first, kind="stable")
    rows, starts = np.unique(first[order], return_index=True)
    ends = np.append(starts[1:], first.size)
    for begin in range(0, rows.size, _BATCH):
        batch = rows[begin : begin + _BATCH]
        solutions = solved.covariances(solved.prior.dense_rows(batch))
        counts = ends[begin : begin + _BATCH] - starts[begin : begin + _BATCH]
        mine = order[starts[begin] : starts[begin] + counts.sum()]
        pairs = A[second[mine]]
        columns = np.repeat(np.arange(batch.size), counts)
        products = pairs.data * solutions[pairs.indices, np.repeat(columns, np.diff(pairs.indptr))]
        # No row is empty, because both rows of a pair have a level.
        covariances[mine] = np.add.reduceat(products, pairs.indptr[:-1])
    return covariances


def all_pairs(solved: PrecisionSolved, std: Array, hermite: Array) -> PairSums:
    """Return sums over all pairs of rows, by solves for N^2 covariances in batches."""
    h3, h4 = hermite
    third = fourth = 0.0
    for batch, r in _correlations(solved, std):
        square = r * r
        fourth += h4[batch] @ ((square * square) @ h4) / 48.0
        square *= r
        third += h3[batch] @ (square @ h3) / 12.0
    return PairSums(float(third), float(fourth))


def _correlations(solved: PrecisionSolved, std: Array) -> Iterator[tuple[slice, Array]]:
    """Yield posterior correlations of a batch of rows with all rows, 0 with themselves."""
    A = _design(solved)
    for begin in range(0, std.size, _BATCH):
        batch = np.arange(begin, min(begin + _BATCH, std.size))
        covariances = (A @ solved.covariances(solved.prior.dense_rows(batch))).T
        r = covariances / np.multiply.outer(std[batch], std)
        r[np.arange(batch.size), batch] = 0.0
        yield slice(begin, begin + batch.size), r


def _design(solved: PrecisionSolved) -> sparse.csr_array:
    """Return A, with columns in the order of elimination."""
    rows = solved.prior.rows
    shape = rows.indptr.size - 1, solved.prior.pattern.k
    return sparse.csr_array((rows.values, rows.columns, rows.indptr), shape=shape)


# --- Marginals of x beyond the normal
#
# Let z = (x - mean)/std. The expectation of the rows' He_3 and He_4, and of their products for
# pairs of rows, given z, turns the normal density of z into itself times
# 1 + a He_1(z) + b He_2(z) + c He_3(z) + d He_4(z). The quantile at z then moves by
# a + b He_1(z) + c He_2(z) + d He_3(z) - c^2 (2 z^3 - 5 z), after Cornish and Fisher.


def quantile_shifts(
    problem: Problem,
    solved: PrecisionSolved,
    here: Marginals,
    sites: Sites,
    columns: NDArray[np.integer],
) -> Array:
    """Return how far quantiles at -1.96, 0 and 1.96 of x move, in standard deviations, (C, 3).

    The shifts are of second order in the Hermite moments. Terms of two fourth moments are halved,
    as in `corrected_by_pairs`.
    """
    h3, h4 = third_and_fourth(problem, here, sites)[:, :, None]
    std = np.sqrt(here.variance)
    places = solved.prior.pattern.symbolic.place[columns]
    units = np.zeros((solved.prior.pattern.k, places.size))
    units[places, np.arange(places.size)] = 1.0
    covariances = solved.covariances(units)
    scales = np.sqrt(covariances[places, np.arange(places.size)])
    r = (_design(solved) @ covariances) / np.multiply.outer(std, scales)
    h3_r, h4_r = h3 * r, h4 * r
    h3_rr, h4_rr = h3_r * r, h4_r * r
    a, b = np.zeros((2, places.size))
    c = (h3_rr * r).sum(axis=0) / 6.0
    d = (h4_rr * r * r).sum(axis=0) / 24.0
    for batch, pairs in _correlations(solved, std):
        square = pairs * pairs
        cube_h4_r = (square * pairs) @ h4_r
        a += (h3[batch] * cube_h4_r).sum(axis=0) / 6.0
        b += (h3_r[batch] * (square @ h3_r)).sum(axis=0) / 4.0
        b += _HALF * (h4_r[batch] * cube_h4_r).sum(axis=0) / 12.0
        c += (h3_r[batch] * (square @ h4_rr)).sum(axis=0) / 4.0
        d += (h3_rr[batch] * (pairs @ h3_rr)).sum(axis=0) / 8.0
    z = np.array([-1.96, 0.0, 1.96])
    polynomials = np.array([z**0, z, z**2 - 1.0, z**3 - 3.0 * z, 5.0 * z - 2.0 * z**3])
    return np.asarray(np.column_stack([a, b, c, d, c * c]) @ polynomials)
