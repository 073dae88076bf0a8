"""What `infer` and its result refuse, in words; covariances of other libraries and formats."""

import numpy as np
import pytest

from qpruntime import infer
from qpruntime.errors import InputError
from tests.tools.cases import every_case, refuses

K = np.array([[1.0, 0.3, 0.1], [0.3, 1.0, 0.3], [0.1, 0.3, 1.0]])
Y = np.array([1.0, -1.0, 1.0])


def with_entry(value, *places):
    changed = K.copy()
    for place in places:
        changed[place] = value
    return changed


@every_case(
    ("change", "words"),
    [
        ({"K": np.ones((3, 2))}, r"square matrix, got shape \(3, 2\)"),
        ({"K": np.zeros((0, 0))}, "square matrix"),
        ({"K": with_entry(np.nan, (0, 2), (2, 0))}, r"K\[0, 2\] is nan"),
        ({"K": with_entry(np.inf, (1, 1))}, r"K\[1, 1\] is inf"),
        ({"K": with_entry(0.3001, (0, 1))}, r"symmetric: K\[0, 1\] = 0.3000.*K\[1, 0\] = 0.2999"),
        ({"K": with_entry(0.3 + 1e-9, (0, 1))}, "not symmetric"),
        ({"K": with_entry(-1.0, (1, 1))}, r"K\[1, 1\] = -1: prior variances must be positive"),
        ({"K": with_entry(0.0, (0, 0))}, "prior variances must be positive"),
        ({"K": with_entry(1.1, (0, 1), (1, 0))}, "semi-definite: its smallest eigenvalue"),
        ({"K": np.array([[1.0, 1.0], [1.0, 1.0 - 1e-6]])}, "add at least 5.5e-07 to its diagonal"),
        ({"y": [1, -1]}, r"y must have shape \(3,\) like K, got \(2,\)"),
        ({"y": [0, 1, 1]}, "labels must be -1 or .1, got 0"),
        ({"y": [1, -1, 2]}, "got 2"),
        ({"y": [1, -1, np.nan]}, "got nan"),
        ({"y": ["a", "b", "a"]}, "got <U1 values"),
        ({"likelihood": "probits"}, "unknown likelihood"),
        ({"method": "laplace"}, "method must be one of"),
        ({"table": 1.0}, "table must be None"),
        ({"mean": [0.0, 1.0]}, r"mean must be a number or have shape \(3,\)"),
        ({"mean": np.nan}, "mean is nan: it must be finite"),
        ({"mean": [0.0, 0.0, np.inf]}, r"mean\[2\] is inf"),
        ({"tol": 0.0}, "tol must be positive"),
        ({"tol": np.nan}, "tol must be positive"),
        ({"max_sweeps": 0}, "max_sweeps must be a whole number of at least 1"),
        ({"max_sweeps": 1.5}, "max_sweeps must be a whole number"),
        ({"mean": "zero"}, "mean must be an array of real numbers"),
        ({"sites": ([1.0] * 3,) * 3}, "sites must be a pair"),
        ({"sites": "ab"}, "tau must be an array of real numbers: <U1 values"),
        ({"damping": 0.0}, r"damping must be in \(0, 1\]"),
        ({"damping": np.nan}, "damping must be in"),
        ({"order": "alphabetical"}, "order must be one of"),
        ({"sites": ([1.0, 1.0], [0.0, 0.0])}, r"tau must have shape \(3,\)"),
        ({"sites": ([1.0, 1.0, np.nan], [0.0] * 3)}, r"tau\[2\] is nan"),
        ({"sites": ([1.0, 1.0, -0.1], [0.0] * 3)}, "must not be negative, got -0.1"),
        ({"K": np.ma.array(K, mask=K == 0.1)}, "masked entries"),
        ({"y": np.ma.array(Y, mask=[0, 1, 0])}, "masked entries"),
        ({"mean": np.ma.array(np.ones(3), mask=[0, 1, 0])}, "mean .*masked entries"),
        ({"weights": np.ma.array(np.ones(3), mask=[0, 1, 0])}, "weights .*masked entries"),
    ],
)
def test_refuses(change, words):
    given = {"K": K, "y": Y, **change}
    if "K" in change and np.ndim(change["K"]):
        given["y"] = Y[: np.shape(change["K"])[0]]
    refuses(words, infer, **given)


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


def test_arguments_are_not_changed_and_results_are_copies():
    tau, nu = np.full(3, 0.5), np.zeros(3)
    post = infer(K, Y, sites=(tau, nu))
    np.testing.assert_array_equal([tau, nu], [[0.5] * 3, [0.0] * 3])
    post.loo()[:] = 0.0
    assert np.all(post.loo() < 0.0)
    for shape in ((3,), (2, 2), (3, 2), (1, 3, 1)):
        refuses(r"K_star must have shape \(T, 3\)", post.predict, np.zeros(shape), 1.0)
    for shape in ((3,), (2, 2), (2, 3, 3)):
        refuses(r"dK must begin with \(3, 3\)", post.evidence_gradient, np.zeros(shape))


N = 60
RNG = np.random.default_rng(5)
X = RNG.uniform(-3.0, 3.0, (N, 2))
SIDES = np.sign(X[:, 0] + 0.3 * RNG.standard_normal(N))


def kernel(dtype, nugget=0.0):
    """RBF by |x|^2 + |x'|^2 - 2 x x', all in this format: asymmetric and indefinite by rounding."""
    x = X.astype(dtype)
    square = (x * x).sum(1)
    distance = square[:, None] + square - dtype(2) * (x @ x.T)
    distance[np.tril_indices(N, -1)] += np.finfo(dtype).eps * square.max()
    return np.exp(dtype(-0.05) * np.maximum(distance, 0)) + dtype(nugget) * np.eye(N, dtype=dtype)


SYMMETRIC = np.exp(-0.05 * ((X[:, None] - X) ** 2).sum(-1))


class Tensor:
    """As much of a tensor as conversion needs."""

    def __init__(self, values, fails=""):
        self.values, self.fails = values, fails

    def __array__(self, dtype=None, copy=None):
        if self.fails:
            raise RuntimeError(self.fails)
        return self.values if dtype is None else self.values.astype(dtype)


@every_case("dtype", [np.float32, np.float16])
@every_case("wrap", [np.asarray, Tensor])
def test_narrow_formats_agree_with_float64(dtype, wrap):
    K = kernel(dtype)
    eps = float(np.finfo(dtype).eps)
    assert np.abs(K - K.T).max() > 0.0
    assert np.linalg.eigvalsh(K.astype(float)).min() < -1e-8
    post = infer(wrap(K), SIDES, method="ep")
    right = infer(SYMMETRIC, SIDES, method="ep")
    # Entries are off by some eps, and so are means and variances: measured, by up to 3.3.
    assert 0.0 < post.jitter < 4.0 * N * eps
    np.testing.assert_allclose(post.mean, right.mean, atol=10.0 * eps)
    np.testing.assert_allclose(post.variance, right.variance, atol=10.0 * eps)
    assert post.converged


def test_float64_and_integers_have_no_jitter():
    assert infer(SYMMETRIC, SIDES).jitter == 0.0
    whole = infer(3 * np.eye(N, dtype=int), SIDES)
    assert whole.jitter == 0.0
    np.testing.assert_array_equal(whole.mean, infer(3.0 * np.eye(N), SIDES).mean)
    assert infer(kernel(np.float32, nugget=0.1), SIDES).jitter == 0.0


def test_rounded_to_float32_and_cast_back():
    K = kernel(np.float32)
    refuses(r"not symmetric.*\(K \+ K.T\) / 2, or K in the float32", infer, K.astype(float), SIDES)
    K = SYMMETRIC.astype(np.float32)
    refuses(r"semi-definite.*or pass it as the float32", infer, K.astype(float), SIDES)
    post = infer(K, SIDES)
    assert post.jitter > 0.0
    assert post.summary()["jitter"] == post.jitter
    assert f"jitter {post.jitter:.2g}" in str(post)


def test_what_rounding_does_not_explain_is_refused():
    K = SYMMETRIC.astype(np.float32)
    K[0, 1] += 0.01
    refuses("not symmetric", infer, K, SIDES)
    K[1, 0] = K[0, 1] = 1.5
    with pytest.raises(InputError, match="not positive semi-definite") as caught:
        infer(K, SIDES)
    assert "float32" not in str(caught.value)
    refuses("grad", infer, Tensor(K, "call detach() on a Tensor that requires grad"), SIDES)
    void = np.zeros((N, N), dtype=np.dtype("V2"))
    refuses("convert it to float32 or float64", infer, void, SIDES)
