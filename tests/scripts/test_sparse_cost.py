"""The simulated passes, against closed forms; constants that are found again."""

from __future__ import annotations

import math

import pytest

from scripts.reports import passes as cost

COSTS = cost.Costs(chunk=2e-3, row=3e-6, operation=1e-10, call=4e-3)


def test_makespans():
    """Equal chunks and a client that costs nothing; then one that is all that costs."""
    for chunks, workers in ((1, 4), (31, 1), (31, 2), (64, 5)):
        given = cost.Problem(rows=1000 * chunks, inducing=100, workers=workers, chunks=chunks)
        work = 2e-3 + 1000 * (3e-6 + 3 * 100**2 * 1e-10)
        found = cost.simulated(COSTS._replace(call=0.0), given, "sweep")
        assert found == pytest.approx(math.ceil(chunks / workers) * work, rel=1e-12)
        idle = cost.Costs(0.0, 0.0, 0.0, 4e-3)
        assert cost.simulated(idle, given, "sweep") == pytest.approx(4e-3 * chunks, rel=1e-12)
    # Sums of M(M + 1)/2 numbers and 32 bytes a row through the network, and 24 M^2 bytes there.
    slow = given._replace(network=1e6)
    bytes_ = 64 * (8 * 5050 + 32 * 1000) + 24 * 100**2 * math.log2(6)
    free = cost.Costs(0.0, 0.0, 0.0, 0.0)
    assert cost.simulated(free, slow, "sweep") == pytest.approx(1e-6 * bytes_, rel=1e-12)


def test_constants_are_found_again():
    points = []
    for rows, inducing, chunks in ((10**5, 50, 25), (10**5, 200, 25), (10**6, 100, 31)):
        row = {"rows": rows, "inducing": inducing, "workers": 1, "chunks": chunks}
        for stage, operations in cost.OPERATIONS.items():
            flops = operations * inducing**2
            row[f"{stage}_workers"] = 2e-3 * chunks + rows * (3e-6 + flops * 1e-10)
            row[f"{stage}_client"] = 4e-3 * chunks
        points.append(row)
    assert cost.fitted(points) == pytest.approx(COSTS, rel=1e-6)


def test_failures_cost_what_is_done_again():
    given = cost.problem(10**8, 200, 10)
    lost = list(cost.failures(COSTS, given, features=10).values())
    assert 0.0 < lost[0] < lost[1] == pytest.approx(lost[0] + cost.SILENT)
    assert lost[2] > 10**8 * 88 / given.network
    assert lost[3] > cost.simulated(COSTS, given, "sweep")
