"""Covariances of other libraries and of narrower formats than float64."""

import numpy as np
import pytest

from qpruntime import infer
from qpruntime.errors import InputError
from tests.tools.cases import every_case, refuses

N = 60
RNG = np.random.default_rng(5)
X = RNG.uniform(-3.0, 3.0, (N, 2))
Y = np.sign(X[:, 0] + 0.3 * RNG.standard_normal(N))


def kernel(dtype, nugget=0.0):
    """RBF by |x|^2 + |x'|^2 - 2 x x', all in this format: asymmetric and indefinite by rounding."""
    x = X.astype(dtype)
    square = (x * x).sum(1)
    distance = square[:, None] + square - dtype(2) * (x @ x.T)
    distance[np.tril_indices(N, -1)] += np.finfo(dtype).eps * square.max()
    return np.exp(dtype(-0.05) * np.maximum(distance, 0)) + dtype(nugget) * np.eye(N, dtype=dtype)


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
    post = infer(wrap(K), Y, method="ep")
    right = infer(symmetric(), Y, method="ep")
    # Entries are off by some eps, and so are means and variances: measured, by up to 3.3.
    assert 0.0 < post.jitter < 4.0 * N * eps
    np.testing.assert_allclose(post.mean, right.mean, atol=10.0 * eps)
    np.testing.assert_allclose(post.variance, right.variance, atol=10.0 * eps)
    assert post.converged


def symmetric():
    return np.exp(-0.05 * ((X[:, None] - X) ** 2).sum(-1))


def test_float64_and_integers_have_no_jitter():
    assert infer(symmetric(), Y).jitter == 0.0
    whole = infer(3 * np.eye(N, dtype=int), Y)
    assert whole.jitter == 0.0
    np.testing.assert_array_equal(whole.mean, infer(3.0 * np.eye(N), Y).mean)
    assert infer(kernel(np.float32, nugget=0.1), Y).jitter == 0.0


def test_rounded_to_float32_and_cast_back():
    K = kernel(np.float32)
    refuses(r"not symmetric.*\(K \+ K.T\) / 2, or K in the float32", infer, K.astype(float), Y)
    K = symmetric().astype(np.float32)
    refuses(r"semi-definite.*or pass it as the float32", infer, K.astype(float), Y)
    post = infer(K, Y)
    assert post.jitter > 0.0
    assert post.summary()["jitter"] == post.jitter
    assert f"jitter {post.jitter:.2g}" in str(post)


def test_what_rounding_does_not_explain_is_refused():
    K = symmetric().astype(np.float32)
    K[0, 1] += 0.01
    refuses("not symmetric", infer, K, Y)
    K[1, 0] = K[0, 1] = 1.5
    with pytest.raises(InputError, match="not positive semi-definite") as caught:
        infer(K, Y)
    assert "float32" not in str(caught.value)
    refuses("grad", infer, Tensor(K, "call detach() on a Tensor that requires grad"), Y)
    refuses("convert it to float32 or float64", infer, np.zeros((N, N), dtype=np.dtype("V2")), Y)
