"""Every argument `infer` and its result have to refuse, each with its own words."""

import numpy as np
import pytest

from qpruntime import InputError, infer
from tests.tools.cases import every_case

K = np.array([[1.0, 0.3, 0.1], [0.3, 1.0, 0.3], [0.1, 0.3, 1.0]])
Y = np.array([1.0, -1.0, 1.0])


def with_entry(value, *places):
    changed = K.copy()
    for place in places:
        changed[place] = value
    return changed


@every_case(
    ("matrix", "words"),
    [
        (np.ones((3, 2)), r"square matrix, got shape \(3, 2\)"),
        (np.ones(3), r"square matrix, got shape \(3,\)"),
        (np.ones((3, 3, 1)), "square matrix"),
        (np.zeros((0, 0)), "square matrix"),
        (None, "square matrix"),
        (with_entry(np.nan, (0, 2), (2, 0)), r"K\[0, 2\] is nan"),
        (with_entry(np.inf, (1, 1)), r"K\[1, 1\] is inf"),
        (with_entry(0.3001, (0, 1)), r"not symmetric: K\[0, 1\] = 0.3000.*K\[1, 0\] = 0.2999"),
        (with_entry(0.3 + 1e-9, (0, 1)), "not symmetric"),
        (with_entry(-1.0, (1, 1)), r"K\[1, 1\] = -1: prior variances must be positive"),
        (with_entry(0.0, (0, 0)), "prior variances must be positive"),
        (with_entry(1.1, (0, 1), (1, 0)), "not positive semi-definite: its smallest eigenvalue"),
        (np.array([[1.0, 1.0], [1.0, 1.0 - 1e-6]]), "add at least 5.5e-07 to its diagonal"),
    ],
)
def test_refuses_covariance(matrix, words):
    y = Y[: np.shape(matrix)[0]] if np.ndim(matrix) else Y
    with pytest.raises(InputError, match=words):
        infer(matrix, y)


def test_accepts_rounding():
    ok = with_entry(0.3 + 1e-13, (0, 1))  # as exp(-d^2) of two orders of summation
    assert infer(ok, Y).converged
    assert infer(np.ones((3, 3)), Y).converged  # singular, and its smallest eigenvalue is -1e-17
    assert infer(K.tolist(), Y.tolist()).converged
    assert infer(np.asfortranarray(K, dtype=np.float32), Y.astype(int)).converged
    frozen = K.copy()
    frozen.flags.writeable = False
    before = infer(frozen, Y)
    np.testing.assert_array_equal(infer(K, Y).mean, before.mean)
    np.testing.assert_array_equal(K, frozen)  # and the argument is left alone


@every_case(
    ("y", "words"),
    [
        ([1, -1], r"y must have shape \(3,\) like K, got \(2,\)"),
        ([1, -1, 1, 1], r"got \(4,\)"),
        ([[1, -1, 1]], r"got \(1, 3\)"),
        (1, r"got \(\)"),
        ([0, 1, 1], "labels must be -1 or .1, got 0"),
        ([1, -1, 2], "got 2"),
        ([1, -1, np.nan], "got nan"),
        ([1, -1, None], "got nan"),
        (["a", "b", "a"], "got <U1 values"),
    ],
)
def test_refuses_observations(y, words):
    with pytest.raises(InputError, match=words):
        infer(K, y)


@every_case(
    ("option", "words"),
    [
        ({"likelihood": "probits"}, "unknown likelihood"),
        ({"method": "laplace"}, "method must be one of"),
        ({"table": 1.0}, "table must be None"),
        ({"mean": [0.0, 1.0]}, r"mean must be a number or have shape \(3,\)"),
        ({"mean": np.nan}, "mean is nan: it must be finite"),
        ({"mean": [0.0, 0.0, np.inf]}, r"mean\[2\] is inf"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"tol": -1e-6}, "tol must be positive"),
        ({"tol": np.nan}, "tol must be positive"),
        ({"max_sweeps": 0}, "max_sweeps must be a whole number of at least 1"),
        ({"max_sweeps": 1.5}, "max_sweeps must be a whole number"),
        ({"mean": "zero"}, "mean must be an array of real numbers"),
        ({"sites": ([1.0] * 3,) * 3}, "sites must be a pair"),
        ({"sites": "ab"}, "tau must be an array of real numbers: <U1 values"),
        ({"damping": 0.0}, r"damping must be in \(0, 1\]"),
        ({"damping": 1.5}, "damping must be in"),
        ({"damping": np.nan}, "damping must be in"),
        ({"order": "alphabetical"}, "order must be one of"),
        ({"sites": ([1.0, 1.0], [0.0, 0.0])}, r"tau must have shape \(3,\)"),
        ({"sites": ([1.0, 1.0, np.nan], [0.0] * 3)}, r"tau\[2\] is nan"),
        ({"sites": ([1.0, 1.0, -0.1], [0.0] * 3)}, "must not be negative, got -0.1"),
    ],
)
def test_refuses_options(option, words):
    with pytest.raises(InputError, match=words):
        infer(K, Y, **option)


def test_sites_are_not_changed():
    tau, nu = np.full(3, 0.5), np.zeros(3)
    infer(K, Y, sites=(tau, nu))
    np.testing.assert_array_equal([tau, nu], [[0.5] * 3, [0.0] * 3])


@every_case("shape", [(3,), (2, 2), (3, 2), (1, 3, 1)])
def test_predict_refuses(shape):
    with pytest.raises(InputError, match=r"K_star must have shape \(T, 3\)"):
        infer(K, Y).predict(np.zeros(shape), 1.0)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 3, 3)])
def test_gradient_refuses(shape):
    with pytest.raises(InputError, match=r"dK must begin with \(3, 3\)"):
        infer(K, Y).evidence_gradient(np.zeros(shape))


def test_results_are_copies():
    post = infer(K, Y)
    post.loo()[:] = 0.0
    assert np.all(post.loo() < 0.0)


@every_case(
    "arguments",
    [
        (np.ma.array(K, mask=K == 0.1), Y),
        (K, np.ma.array(Y, mask=[0, 1, 0])),
        (K, [1.0, np.ma.masked, 1.0]),
    ],
)
def test_masked_entries_are_refused(arguments):
    with pytest.raises(InputError, match="masked entries"):
        infer(*arguments)


@every_case("name", ["mean", "weights"])
def test_masked_options_are_refused(name):
    with pytest.raises(InputError, match=f"{name} .*masked entries"):
        infer(K, Y, **{name: np.ma.array(np.ones(3), mask=[0, 1, 0])})
