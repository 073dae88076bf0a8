"""The contract of likelihoods: of those registered, of one file, and of rows of observations."""

import math
import pickle
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import tablegen
from qpruntime import InputError, Likelihood, infer, likelihoods, project, project_sampled
from qpruntime._pointers import FRAME, MOMENTS, SPLIT, Pointer
from qpruntime._validation import finite
from tests.tools.cases import refuses
from tests.tools.commands import python
from tests.tools.conformance import conforms, expectation

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("name", likelihoods.names())
def test_conforms(name):
    conforms(likelihoods.get(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "source", "kind", "steps"),
    [
        (
            "cauchit.py",
            TOP / "docs" / "cauchit.py",
            "labels",
            ["conforms", "grid", "surfaces", "infer", "classifier"],
        ),
        (
            "poisson_exp2.py",
            TOP / "tests" / "tools" / "doubled.py",
            "counts",
            ["conforms", "regressor"],
        ),
    ],
)
def test_a_likelihood_is_one_file(tmp_path, file, source, kind, steps):
    """A file in another folder, which stands for that of the package, and nothing else."""
    folder = tmp_path / "more"
    folder.mkdir()
    shutil.copy(source, folder / file)
    words = "-W", "error", "-m", "tests.tools.added", folder, kind
    run = python(*words, cwd=tmp_path, environment={"PYTHONPATH": str(TOP)})
    assert run.stdout.split() == steps


SMOOTH = (-20.0, -1.0, 0.0, 3.0, 60.0), (0.05, 1.0, 2.9, 3.1, 40.0, 1e4)
#: Observations, means and standard deviations of f.
PLACES = {
    "logistic": ((-1.0, 1.0), *SMOOTH),
    "negative-binomial": ((0.0, 1.0, 300.0), *SMOOTH),
    "binomial": (((0, 1), (3, 4), (20, 20), (1, 300)), *SMOOTH),
    "poisson-exp": ((0.0, 3.0, 100.0), (-4.0, 0.0, 5.0), (0.1, 1.0, 3.0)),
    "step": ((0.3, -4.0, 700.0), (-6.0, 0.0, 0.2, 3.0), (0.1, 1.0, 50.0)),
    "probit": (
        (-1.0, 1.0),
        (-60.0, -9.0, -1.0, 0.0, 0.4, 5.0),
        (0.05, 0.9, 1.3, 1.31, 4.0, 30.0, 1e3, 1e6),
    ),
    "poisson": ((0.0, 1.0, 7.0, 300.0), (-3.0, 0.0, 0.2, 1.0, 16.0), (0.1, 0.6, 3.0, 50.0)),
}
CASES = [(name, *case) for name, places in PLACES.items() for case in product(*places)]
CASES += [
    ("laplace", y, y + d * std, std)
    for y, d, std in product((0.0, 0.7), (0.0, -0.3, 4.0, 30.0), (0.01, 1.0, 100.0))
]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(CASES[::5], marks=pytest.mark.interpreted),
        pytest.param(CASES, marks=pytest.mark.slow),
    ],
)
def test_against_quadrature(cases):
    """By the log density, which `test_registry` compares with another writing of it."""
    for name, y, mean, std in cases:
        own = likelihoods.get(name)
        likelihood, number = own.observing(y)
        got = likelihood.expected(mean, std, float(number), likelihood.theta)
        marks = (y,) if name == "laplace" else ()
        wanted = expectation(lambda f, p=own.log_prob, y=y: p(f, y), mean, std, marks)
        # Stein's identities cancel log p at the mean, once over std and once over std^2.
        lost = 30.0 * 1e-14 * max(1.0, abs(wanted[0])) / std ** np.arange(3.0)
        near = np.maximum(1e-9 * np.abs(wanted), 1e-11 + lost)
        assert (np.abs(np.subtract(got, wanted)) <= near).all(), (name, y, mean, std)


def test_where_series_meet():
    # E log f^2 changes its form at mean^2 = 80 variance.
    likelihood = likelihoods.get("poisson")
    below, above = (
        likelihood.expected(math.sqrt(80.0 * (1.0 + e)), 1.0, 5.0, likelihood.theta)
        for e in (-1e-13, 1e-13)
    )
    np.testing.assert_allclose(below, above, rtol=1e-12)


X = np.linspace(-2.0, 2.0, 9)
K = 1.5 * np.exp(-0.5 * (X[:, None] - X) ** 2)
ROWS = np.column_stack([np.sin(2.0 * X), 0.2 + 0.1 * np.arange(9.0)])
ROWS[7] = ROWS[2]  # the same observation twice


def _split(f, y, theta):
    i = 1 + 2 * int(y)
    z = (theta[i] - f) / (theta[0] * theta[i + 1])
    return -0.5 * z * z - math.log(theta[0] * theta[i + 1]) - 0.5 * math.log(2.0 * math.pi), 0.0


def _moments(mu, sigma, y, theta):
    i = 1 + 2 * int(y)
    noise, gap = (theta[0] * theta[i + 1]) ** 2, theta[i] - mu
    total = noise + sigma * sigma
    log_z = -0.5 * (gap * gap / total + math.log(2.0 * math.pi * total))
    return log_z, mu + sigma * sigma / total * gap, sigma * sigma * noise / total


def rows(y):
    given = finite(y, "y")
    if given.shape[-1:] != (2,):
        raise InputError("y must be pairs (value, noise)")
    return given


#: A normal whose standard deviation is known of every observation but for a factor.
GAUGES = Likelihood(
    name="gauges",
    outcomes="pairs (value, noise)",
    split=Pointer(_split, SPLIT),
    validate=rows,
    moments=Pointer(_moments, MOMENTS),
    parameters={"factor": 1.0},
    limits={"factor": (1e-3, 1e3)},
    columns=2,
)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_a_noise_for_every_observation(order):
    """Closed: the regression of a Gaussian process."""
    own = GAUGES.with_parameters(factor=2.0)
    post = infer(K, ROWS, own, method="ep", order=order)
    noisy = K + np.diag((2.0 * ROWS[:, 1]) ** 2)
    np.testing.assert_allclose(post.mean, K @ np.linalg.solve(noisy, ROWS[:, 0]), atol=1e-9)
    quadratic = ROWS[:, 0] @ np.linalg.solve(noisy, ROWS[:, 0])
    evidence = -0.5 * (quadratic + np.linalg.slogdet(2.0 * np.pi * noisy)[1])
    assert post.log_evidence == pytest.approx(evidence, rel=1e-10)
    # Nothing of the order of rows is left in the answer.
    other = infer(K[::-1, ::-1], ROWS[::-1], own, method="ep", order=order)
    np.testing.assert_allclose(other.mean[::-1], post.mean, atol=1e-9)


def test_rows_broadcast():
    mean, std = project(GAUGES, np.array([0.0, 1.0]), 1.0, [1.0, 0.5], "ep")
    assert mean.shape == std.shape == (2,)
    np.testing.assert_allclose(mean, [0.8, 1.0], rtol=1e-12)
    np.testing.assert_allclose(std, math.sqrt(0.2), rtol=1e-12)
    log_p = GAUGES.log_prob([0.0, 1.0], [[1.0, 0.5], [1.0, 2.0]])
    wanted = -0.5 * np.array([4.0, 0.0]) - np.log([0.5, 2.0]) - 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(log_p, wanted, rtol=1e-14)
    drawn = project_sampled(GAUGES, 0.0, 1.0, [1.0, 0.5], random_state=1)
    assert abs(drawn.mean - 0.8) < 4.0 * drawn.mean_error


def test_a_likelihood_that_holds_rows():
    own, numbers = GAUGES.observing(ROWS)
    np.testing.assert_array_equal(own.rows[numbers.astype(int)], ROWS)
    assert len(own.rows) == 8
    assert own.worded(numbers[0]) == f"({ROWS[0, 0]:g}, 0.2)"
    again, same = own.observing(numbers)
    assert again is own
    np.testing.assert_array_equal(same, numbers)
    # Parameters change, the rows stay, and the address of every function with them.
    wider = own.with_parameters(factor=3.0)
    np.testing.assert_array_equal(wider.theta, [3.0, *own.theta[1:]])
    assert wider.split is GAUGES.split
    np.testing.assert_array_equal(wider.free.theta, [3.0])
    pairs, _ = likelihoods.get("binomial").observing([[1, 3], [0, 2]])
    loaded = pickle.loads(pickle.dumps(pairs))
    assert loaded.split is pairs.split
    np.testing.assert_array_equal(loaded.rows, [[0.0, 2.0], [1.0, 3.0]])


def test_what_is_refused():
    refuses(r"y must have shape \(9,\) like K, got \(8,\)", infer, K, ROWS[:8], GAUGES)
    with pytest.raises(InputError, match=r"is 2 numbers, pairs .* infer without a table"):
        tablegen.build("binomial", preset="surfaces", outcomes=[[1, 3]])
    masked = np.ma.masked_array([[1, 3]], mask=[[False, True]])
    refuses("masked", infer, np.eye(1), masked, "binomial")
    # Kernels would take the address of this frame for that of a cell, and crash.
    with pytest.raises(InputError, match="frame of 'probit' is a Pointer: give a LatePointer"):
        replace(likelihoods.get("probit"), frame=Pointer(lambda *values: values, FRAME))
