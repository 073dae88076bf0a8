"""Passes timed on clusters: what is said of them."""

from __future__ import annotations

from scripts.benchmarks.sparse_workers import words


def test_speed_is_that_against_the_first_cluster():
    row = {"rows": 10, "inducing": 2, "workers": 1, "first": 9.0, "gather": 2.0, "sweep": 3.0}
    row |= {"gradient": 5.0, "gather_client": 0.1, "sweep_client": 0.1, "gradient_client": 0.2}
    fast = row | {"workers": 2, "gather": 1.0, "sweep": 1.5, "gradient": 2.5}
    first, second = words([row, fast]).splitlines()
    assert "an evaluation 10.00 s (1.00 x), 0.40 s of CPU at the client" in first
    assert "2 workers" in second
    assert "an evaluation 5.00 s (2.00 x)" in second
