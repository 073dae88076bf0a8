"""Measure the error of a grid by the second quadrature rule, at nodes and in cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime import likelihoods
from qpruntime._numba import kernel
from qpruntime._pointers import call_moments
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen.files.looking import Found, Look, Runner, hash_problems, in_blocks, largest
from tablegen.second_rule.framed import RULE, independent

__all__ = ["TOLERANCES", "certify", "check", "worst_nodes"]

Index = NDArray[np.int64]
#: Relative difference, outcome, row and column of nodes.
Places = list[tuple[float, int, int, int]]

#: Largest relative error allowed at nodes. float32 rounds by 2^-24 = 6e-8.
TOLERANCES = {"float64": 1e-12, "float32": 1e-7}
#: Nodes on each edge, random cells, and worst places kept.
EDGE, CELLS, WORST = 49, 1000, 64


@kernel
def _worst(values: Array, first: int, last: int) -> tuple[float, int, int]:
    """Return the largest relative second difference in columns first:last (-1: none), and i, j."""
    best, row, column = -1.0, 0, 0
    for i in range(1, values.shape[0] - 1):
        for j in range(max(first, 1), min(last, values.shape[1] - 1)):
            v = values[i, j]
            bend = abs(values[i - 1, j] - 2.0 * v + values[i + 1, j])
            bend += abs(values[i, j - 1] - 2.0 * v + values[i, j + 1])
            if bend > best * v:
                best, row, column = bend / v, i, j
    return best, row, column


@kernel
def _rough(values: Array, first: int, last: int) -> tuple[float, int, int, int]:
    """Return the largest relative sixth difference that starts in columns first:last (-1: none).

    Also return row and column of its first node and the axis it runs along.
    """
    best, row, column, axis = -1.0, 0, 0, 0
    m, n = values.shape
    for i in range(m):
        for j in range(first, last):
            v = values[i, j]
            if i + 6 < m:
                bend = abs(
                    (v + values[i + 6, j])
                    - 6.0 * (values[i + 1, j] + values[i + 5, j])
                    + 15.0 * (values[i + 2, j] + values[i + 4, j])
                    - 20.0 * values[i + 3, j]
                )
                if bend > best * v:
                    best, row, column, axis = bend / v, i, j, 0
            if j + 6 < n:
                bend = abs(
                    (v + values[i, j + 6])
                    - 6.0 * (values[i, j + 1] + values[i, j + 5])
                    + 15.0 * (values[i, j + 2] + values[i, j + 4])
                    - 20.0 * values[i, j + 3]
                )
                if bend > best * v:
                    best, row, column, axis = bend / v, i, j, 1
    return best, row, column, axis


def _in_column_blocks(find: Callable[..., tuple[Any, ...]], values: NDArray[Any]) -> list[Any]:
    """Return what a kernel finds in each of 16 blocks of the columns of a chunk."""
    chunk = np.array(values, dtype=np.float64, order="C")
    ends = [block * chunk.shape[1] // 16 for block in range(17)]
    places = [find(chunk, first, last) for first, last in pairwise(ends)]
    return [place for place in places if place[0] >= 0.0]


def worst_nodes(values: NDArray[Any], outcome: int, start: int) -> Places:
    """Return the most curved node in each of 16 column blocks of a chunk, shape (rows, columns).

    Its first row is row `start` of the table; the numbers are relative second differences.
    """
    return [(bend, outcome, start + i, j) for bend, i, j in _in_column_blocks(_worst, values)]


def rough_nodes(values: NDArray[Any], outcome: int, start: int) -> Places:
    """Return the seven nodes that fit each other worst in each of 16 column blocks.

    One wrong node is seen as twenty times its error, where a smooth function leaves next to
    nothing. Arguments and result as those of `worst_nodes`.
    """
    return [
        (bend, outcome, start + i + k * (axis == 0), j + k * (axis == 1))
        for bend, i, j, axis in _in_column_blocks(_rough, values)
        for k in range(7)
    ]


def certify(
    values: NDArray[Any],
    metadata: Metadata,
    worst: Places,
    *,
    rough: Places | None = None,
    run: Runner,
    points: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare a grid, of shape (outcomes, mu.size, log10_sigma.size), with the second rule.

    Besides `points` random nodes these are edges, corners, and nodes of `worst` and `rough`, the
    results of `worst_nodes` and `rough_nodes` over all chunks. With `rough`, a grid of up to four
    times as many nodes is looked at whole.

    Returns
    -------
    dict
        ``nodes`` and ``cells``, each with ``max_relative_error``, ``points`` and the place
        (``mu``, ``log10_sigma``, ``outcome``); ``cells`` is the error of bilinear interpolation at
        cell centres.

    Raises
    ------
    NumericalError
        If the second rule does not converge, or a value of the table is not finite.
    """
    rng = np.random.default_rng(seed)
    outcomes, rows, columns = values.shape
    curved = _worst_of(worst, WORST)
    if rough and values.size <= 4 * points:
        indices = np.stack(np.unravel_index(np.arange(values.size), values.shape), 1)
    else:
        indices = rng.integers((outcomes, rows, columns), size=(points, 3))
    extra = [_edges(outcomes, rows, columns), curved, _worst_of(rough or [], 7 * WORST)]
    nodes = np.concatenate([indices, *extra])
    cells = np.concatenate(
        [
            rng.integers((outcomes, rows - 1, columns - 1), size=(CELLS, 3)),
            curved,
            curved - (0, 1, 1),
        ]
    )
    model = likelihoods.get(metadata.spelt)
    k, i, j = nodes.T
    at_nodes = values[k, i, j].astype(np.float64)
    k, i, j = cells.T
    corners = [values[k, i + a, j + b].astype(np.float64) for a in (0, 1) for b in (0, 1)]
    return {
        "rule": RULE,
        "seed": seed,
        "random_nodes": points,
        "nodes": _compare(at_nodes, nodes, 0.0, metadata, model, run),
        "cells": _compare(sum(corners) / 4.0, cells, 0.5, metadata, model, run),
    }


def _worst_of(places: Places, count: int) -> Index:
    chosen = np.array(sorted(places, reverse=True)[:count]).reshape(-1, 4)
    return chosen[:, 1:].astype(np.int64)


def _edges(outcomes: int, rows: int, columns: int) -> Index:
    along_mu = np.unique(np.linspace(0, rows - 1, EDGE).round().astype(np.int64))
    along_sigma = np.unique(np.linspace(0, columns - 1, EDGE).round().astype(np.int64))
    pairs = [(i, j) for i in along_mu for j in (0, columns - 1)]
    pairs += [(i, j) for i in (0, rows - 1) for j in along_sigma]
    return np.array([(k, i, j) for k in range(outcomes) for i, j in pairs], dtype=np.int64)


def _place(axis: Axis, index: Index, offset: float) -> Array:
    """Return the positions `offset` of a step after the nodes `index`."""
    nodes = axis.nodes()
    upper = np.minimum(index + 1, axis.size - 1)
    return nodes[index] + offset * (nodes[upper] - nodes[index])


def _compare(
    found: Array,
    index: Index,
    offset: float,
    metadata: Metadata,
    model: Likelihood,
    run: Runner,
) -> dict[str, Any]:
    mu = _place(metadata.mu, index[:, 1], offset)
    log10_sigma = _place(metadata.log10_sigma, index[:, 2], offset)
    y = np.array(metadata.outcomes, dtype=np.float64)[index[:, 0]]
    sigma = 10.0**log10_sigma

    def block(part: slice) -> Array:
        return independent(model, mu[part], sigma[part], y[part])

    truth = in_blocks(block, mu.size, run)
    error = np.abs(found / truth - 1.0)
    at = int(np.argmax(error))
    if not np.isfinite(error[at]):
        raise NumericalError(
            f"{metadata.likelihood}: the table has {found[at]:g} and the second rule {truth[at]:g} "
            f"at mu = {mu[at]:g}, log10 sigma = {log10_sigma[at]:g}"
        )
    return largest(error, mu, log10_sigma, y)


_BLOCK_BYTES = 8_000_000


@kernel
def _outside(
    theta: Array,
    has_moments: bool,
    moments: int,
    narrows: bool,
    mu: Array,
    sigma: Array,
    y: float,
    slack: float,
    values: Array,
) -> tuple[int, int, int]:
    """Return (count, i, j) of values that are not in (0, sigma_EP], and the first of them.

    If there are no moments, the cavity's width is the bound if the likelihood `narrows`, else there
    is none.
    """
    count, row, column = 0, 0, 0
    for i in range(mu.size):
        for j in range(sigma.size):
            bound = sigma[j] if narrows else math.inf
            if has_moments:
                bound = math.sqrt(call_moments(moments, mu[i], sigma[j], y, theta)[2])
            # Written so that NaN fails it.
            if not 0.0 < values[i, j] <= bound * (1.0 + slack):
                if count == 0:
                    row, column = i, j
                count += 1
    return count, row, column


def check(table: Table, look: Look) -> Found:
    """Return the problems of a grid and the errors measured."""
    problems, worst, rough = _scan(table, look)
    if any("outside" in problem for problem in problems):
        return problems, {}
    certificate = certify(
        table.values,
        table.metadata,
        worst,
        rough=rough,
        run=look.local.run,
        points=look.points,
        seed=look.seed,
    )
    return problems + missed(certificate, look.tolerance), certificate


def missed(certificate: dict[str, Any], tolerance: float) -> list[str]:
    """Say by how much, and where, nodes miss the tolerance."""
    nodes = certificate["nodes"]
    if not nodes["max_relative_error"] > tolerance:
        return []
    return [
        f"relative error {nodes['max_relative_error']:.2g} at mu = {nodes['mu']:g}, "
        f"log10 sigma = {nodes['log10_sigma']:g}, allowed {tolerance:.2g}"
    ]


def _scan(table: Table, look: Look) -> tuple[list[str], Places, Places]:
    """Read everything once; return the problems, the most curved and the roughest nodes."""
    theta, has_moments, _, _, moments, _ = table.likelihood.functions()[:6]
    narrows = table.likelihood.log_concave
    mu, sigma = table.metadata.mu.nodes(), 10.0 ** table.metadata.log10_sigma.nodes()
    outcomes, rows, columns = table.values.shape
    step = max(1, _BLOCK_BYTES // (columns * table.values.itemsize))
    blocks = [(k, a, min(a + step, rows)) for k in range(outcomes) for a in range(0, rows, step)]

    def scan(block: tuple[int, int, int]) -> tuple[int, str, Places, Places]:
        """Return the problems of a block of the table, and its worst and roughest nodes."""
        k, a, b = block
        values = np.array(table.values[k, a:b], dtype=np.float64)
        y = table.metadata.outcomes[k]
        count, i, j = _outside(
            theta, has_moments, moments, narrows, mu[a:b], sigma, y, look.tolerance, values
        )
        where = ""
        if count:
            where = f"{values[i, j]:g} at mu = {mu[a + i]:g}, log10 sigma = {np.log10(sigma[j]):g}"
        worst = [] if count else worst_nodes(values, k, a)
        rough = [] if count else rough_nodes(values, k, a)
        return count, where, worst, rough

    problems = []
    scans = look.local.run(scan, blocks, partial(look.report, "scan"))
    count = sum(part[0] for part in scans)
    if count:
        first = next(part[1] for part in scans if part[0])
        problems.append(f"{count} values outside (0, sigma_EP], the first {first}")
    problems += hash_problems(table)
    worst = [place for part in scans for place in part[2]]
    rough = [place for part in scans for place in part[3]]
    return problems, worst, rough
