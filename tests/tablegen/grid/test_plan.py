"""Plans against brute force: chunks tile the grid, fingerprints tell plans apart."""

from dataclasses import replace

import numpy as np
from hypothesis import given, strategies as st

from qpruntime.table_format.metadata import Axis
from tablegen.grid.plan import Plan, make_plan
from tests.tools.cases import every_case, refuses


def axes(name, most):
    return st.builds(Axis, st.just(name), st.just(-1.0), st.just(1.0), st.integers(2, most))


plans = st.builds(
    Plan,
    likelihood=st.just("probit"),
    outcomes=st.lists(st.floats(-9, 9), min_size=1, max_size=3),
    axes=st.tuples(axes("mu", 90), axes("log10_sigma", 50)),
    dtype=st.sampled_from(["float64", "float32"]),
    method=st.sampled_from(["spectral", "direct"]),
    generator=st.just("a test"),
    rows=st.integers(1, 100),
)


@given(plans)
def test_chunks_cover_every_row_once_and_in_order(plan):
    rows = [(c.outcome, i) for c in plan.chunks for i in range(c.start, c.stop)]
    assert rows == [(k, i) for k in range(len(plan.outcomes)) for i in range(plan.mu.size)]
    assert all(c.stop - c.start <= plan.rows for c in plan.chunks)


@given(plans)
def test_sizes_are_those_of_the_array(plan):
    array = np.empty(plan.shape, plan.dtype)
    assert (plan.size, plan.nbytes) == (array.size, array.nbytes)
    assert plan.metadata().nbytes == array.nbytes


def test_defaults_are_the_grid_of_the_paper():
    plan = make_plan("probit")
    assert plan.shape == (1, 20001, 2001)
    assert (plan.mu.start, plan.mu.stop) == (-10.0, 10.0)
    assert (plan.log10_sigma.start, plan.log10_sigma.stop) == (-1.0, 1.0)
    assert plan.dtype == "float64"
    assert 1e6 < plan.rows * 2001 * 8 <= 8e6


def test_fingerprint_changes_with_everything_that_changes_the_bytes():
    plan = make_plan("probit", mu_step=0.5, log10_sigma_step=0.1)
    others = [
        replace(plan, outcomes=[-1.0]),
        replace(plan, likelihood="other"),
        replace(plan, axes=(replace(plan.mu, stop=10.5), plan.log10_sigma)),
        replace(plan, axes=(plan.mu, replace(plan.log10_sigma, size=22))),
        replace(plan, dtype="float32"),
        replace(plan, method="direct"),
        replace(plan, rows=7),
        replace(plan, nodes=(10, 20)),
    ]
    assert len({p.fingerprint() for p in [plan, *others]}) == 1 + len(others)
    assert replace(plan).fingerprint() == plan.fingerprint()


@every_case(
    ("options", "message"),
    [
        ({"mu_step": 0.3}, "step 0.3 does not divide -10 to 10; the nearest step that does is"),
        ({"mu_step": 0.0}, "step must be a positive number"),
        ({"mu_step": 1e-320}, "more nodes than can be counted"),
        ({"mu_step": 40.0}, "does not divide"),
        ({"mu_range": (1.0, 1.0)}, "a range of one node cannot be interpolated"),
        ({"mu_range": (0.0, float("inf"))}, "finite"),
        ({"mu_range": (0.0,)}, "needs two numbers"),
        ({"log10_sigma_range": (-1.0, 400.0), "log10_sigma_step": 1.0}, "log10 sigma must stay"),
        ({"log10_sigma_step": 0.7}, "axis log10_sigma: step 0.7 does not divide"),
        ({"method": "magic"}, "method must be one of spectral, direct"),
        ({"dtype": "float16"}, "dtype must be one of float64, float32"),
    ],
)
def test_bad_options_say_what_would_be_good(options, message):
    refuses(message, make_plan, "probit", **options)
