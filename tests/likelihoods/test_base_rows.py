"""Observations of several numbers: rows, which a likelihood's functions read by their number."""

import math
import pickle

import numpy as np
import pytest

import tablegen
from qpruntime import InputError, Likelihood, infer, likelihoods, project, project_sampled
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._validation import finite
from tests.tools.cases import refuses

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
