"""Moments of layers beside tensor Gauss-Hermite."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra deep is not installed")

from qpruntime.deep import layers  # noqa: E402
from tests.tools.oracle import unit_normal  # noqa: E402

pytestmark = pytest.mark.usefixtures("double")

EPSILON = 1.0 / 30.0
#: Rows' inputs: means and variances, one of them nearly known.
MEANS = np.array([[0.3, -0.7], [1.2, 0.4], [-2.0, 0.1]])
VARIANCES = np.array([[0.4, 1.5], [0.05, 0.3], [1e-3, 0.6]])


def layer(inputs=2, outputs=2, points=5, linear=True, seed=0):
    """A layer of random parameters."""
    rng = np.random.default_rng(seed)
    root = np.tril(rng.standard_normal((outputs, points, points)))
    slope = rng.standard_normal((outputs, inputs)) if linear else None
    return layers.Layer(
        Z=rng.standard_normal((points, inputs)),
        log_scale=rng.uniform(-0.3, 0.5, inputs),
        log_variance=np.array(0.26),
        log_noise=np.array(-1.0),
        eta=rng.standard_normal((outputs, points)) * 2.0,
        root=root,
        slope=slope,
    )


def kernel(own, a, b):
    """k(a, b) by its definition."""
    gaps = (a[:, None] - b) / np.exp(own.log_scale)
    return np.exp(own.log_variance) * np.exp(-0.5 * (gaps**2).sum(axis=2))


def given(own, x, epsilon=EPSILON):
    """Mean and variance of every output at known inputs, by plain inverses."""
    K = kernel(own, own.Z, own.Z)
    K += layers.JITTER * np.exp(own.log_variance) * np.eye(len(K))
    k = kernel(own, x, own.Z)
    phi = np.linalg.solve(np.linalg.cholesky(K), k.T).T
    mean, variance = [], []
    for eta, root in zip(own.eta, own.root, strict=True):
        V = np.linalg.inv(np.eye(len(K)) + (1.0 - epsilon) * root @ root.T)
        mean.append(phi @ V @ eta * (1.0 - epsilon))
        variance.append(np.exp(own.log_variance) - (phi * (phi @ (np.eye(len(K)) - V))).sum(axis=1))
    return np.array(mean).T + (0.0 if own.slope is None else x @ own.slope.T), np.array(variance).T


def average(function, mean, variance, nodes=200):
    """E function(x) for x ~ N(mean, diag variance) in two dimensions."""
    x, w = unit_normal(nodes)
    points = np.array(np.meshgrid(x, x, indexing="ij")).reshape(2, -1).T
    return np.tensordot(np.outer(w, w).ravel(), function(mean + np.sqrt(variance) * points), axes=1)


def through(own, mean, variance):
    """Moments of the outputs at normal inputs: those of conditional moments."""

    def squares(x):
        m, v = given(own, x)
        return np.hstack([m, v + m**2])

    both = np.array([average(squares, m, v) for m, v in zip(mean, variance, strict=True)])
    first, second = np.hsplit(both, 2)
    return first, second - first**2


def test_reference_values():
    """Made with another program; eight digits."""
    Z = np.array([[0.0, 0.0], [1.0, -1.0], [-0.5, 2.0]])
    log_scale = np.log([0.8, 1.7])
    own = layer(points=3)._replace(Z=Z, log_scale=log_scale, log_variance=np.array(np.log(1.3)))
    m, s = MEANS[:1], VARIANCES[:1]
    psi1 = [0.74938389, 0.64710061, 0.26516197]
    psi2 = [0.68220289, 0.47310616, 0.25129068, 0.55305698, 0.11760690, 0.14677246]
    np.testing.assert_allclose(layers.expected(own, m, s)[0], psi1, atol=6e-9)
    logs, factor = layers.log_pairs(own, m, s)
    np.testing.assert_allclose(np.exp(logs[0]) * factor[0], psi2, atol=6e-9)


@pytest.mark.parametrize("linear", [False, True])
def test_moments_beside_quadrature(linear):
    own = layer(linear=linear)
    (known,), _ = jax.jit(layers.shared)([own], EPSILON)
    normals = jax.jit(layers.at_normals)
    found = normals(own, known, MEANS, VARIANCES)
    wanted = through(own, MEANS, VARIANCES)
    # Inverses of K lose cond(K) = 1e2 of the rounding.
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-11)
    at, exact = layers.at_points(own, known, MEANS), given(own, MEANS)
    np.testing.assert_allclose(at[0], exact[0], rtol=1e-12)
    np.testing.assert_allclose(at[1], exact[1], rtol=1e-12)
    close = normals(own, known, MEANS, np.full_like(MEANS, 1e-14))
    np.testing.assert_allclose(close[0], at[0], rtol=1e-11)
    np.testing.assert_allclose(close[1], at[1], rtol=1e-10)


def test_single_precision_of_pairs():
    """Where coefficients add up to 4e6 and cancel: exponents and sums in single err by 0.04."""
    own = layer(outputs=1, linear=False, points=30)
    own = own._replace(log_scale=np.zeros(2), root=3.0 * np.eye(30)[None])

    @jax.jit
    def both(own):
        (known,), _ = layers.shared([own], EPSILON)
        return [layers.at_normals(own, known, MEANS, VARIANCES, t) for t in (None, np.float32)]

    exact, found = both(own)
    assert found[1].dtype == np.float64
    assert (found[1] != exact[1]).any()
    np.testing.assert_allclose(found[1], exact[1], atol=0.02)


def test_two_layers_average_over_the_layer_below():
    """Eq. (3): the hidden layer's own distribution, with its noise, is what is averaged over."""
    below, above = layer(), layer(outputs=1, seed=1)._replace(log_noise=np.array(0.3))
    x = MEANS

    @jax.jit
    def moved(both):
        return layers.forward(both, layers.shared(both, EPSILON)[0], x)[-1]

    mean, variance = moved((below, above))
    m, s = given(below, x)
    wanted = through(above, m, s + np.exp(below.log_noise))
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-11)
