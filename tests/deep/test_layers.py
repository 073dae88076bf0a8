"""Layers beside quadrature: moments, the energy of all of them, its slopes; weights, powers."""

import mpmath
import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

jax = pytest.importorskip("jax", reason="the extra deep is not installed")

from qpruntime import likelihoods  # noqa: E402
from qpruntime.deep import layers  # noqa: E402
from qpruntime.deep.layers import Batch, energy, forward, shared  # noqa: E402
from qpruntime.deep.predictive import ByKernel, evidence, gaussian, probit  # noqa: E402
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


ROWS = 12


def data(seed=3, signs=False):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((ROWS, 2)), rng.standard_normal(ROWS)
    return Batch(X, np.sign(y) if signs else y, np.ones(ROWS))


def deep():
    return layer(), layer(seed=1, linear=False), layer(outputs=1, seed=2, linear=False)


def printed(own, epsilon):
    """-(1/eps - 1) phi(q) + phi(cavity) / eps - phi(prior), with 60 digits."""
    total = mpmath.mpf(0)
    with mpmath.workdps(60):
        e = mpmath.mpf(epsilon)
        for eta, root in zip(own.eta, own.root, strict=True):
            R, h = mpmath.matrix(root.tolist()), mpmath.matrix(eta.tolist())

            def phi(share, R=R, h=h):
                B = mpmath.eye(R.rows) + share * R * R.T
                solved = mpmath.lu_solve(B, share * h)
                return ((share * h).T * solved)[0] / 2 - mpmath.log(mpmath.det(B)) / 2

            total += -(1 / e - 1) * phi(mpmath.mpf(1)) + phi(1 - e) / e
        return float(total)


@pytest.mark.parametrize("rows", [3.0, 1e3, 1e7])
def test_stable_beside_printed(rows):
    """As printed it subtracts numbers N times as large: at 1e7 rows eight digits would be left."""
    own = layer(points=4)
    found = jax.jit(lambda own, epsilon: shared([own], epsilon)[1])(own, 1.0 / rows)
    # log L_c / epsilon has the rounding of L_c, N times as large.
    assert float(found) == pytest.approx(printed(own, 1.0 / rows), rel=1e-13, abs=3e-16 * rows)


def tied(own, batch, power):
    """The tied-site energy of one layer by eigenvalues, log Z by closed form; and its parts."""
    e = power / len(batch.y)
    K = kernel(own, own.Z, own.Z) + 1e-6 * np.exp(own.log_variance) * np.eye(len(own.Z))
    phi = np.linalg.solve(np.linalg.cholesky(K), kernel(own, batch.X, own.Z).T).T
    precision, eta = own.root[0] @ own.root[0].T, own.eta[0]
    length, U = np.linalg.eigh(precision)
    q = (U.T @ eta) ** 2
    F = (
        -0.5 * np.log1p(length)
        + 0.5 * q / (1 + length)
        - np.log1p(-e * length / (1 + length)) / (2 * e)
        + 0.5 * q * (e * (1 + length) - (2 + length)) / ((1 + length) * (1 + (1 - e) * length))
    ).sum()
    V = np.linalg.inv(np.eye(len(K)) + (1 - e) * precision)
    mean = V @ eta * (1 - e)
    m, w = phi @ mean, (phi @ V * phi).sum(axis=1)
    return F, (phi, V, mean, m, np.exp(own.log_variance) - (phi * phi).sum(axis=1) + w)


def test_one_layer_is_the_tied_site_energy():
    own, batch = layer(outputs=1, linear=False), data(signs=True)
    F, (*_, m, v) = tied(own, batch, 1.0)
    wanted = F + log_ndtr(batch.y * m / np.sqrt(1.0 + v)).sum()
    found = jax.jit(lambda one: energy((one,), batch, float(ROWS), 1.0, probit))(own)
    assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_stationary_where_moments_match():
    """Its slopes in eta and R are differences of tilted moments and those of q, signs and all."""
    own, batch = layer(outputs=1, linear=False), data(signs=True)
    _, (phi, V, mean, m, v) = tied(own, batch, 1.0)
    slope = jax.jit(jax.grad(lambda one: energy((one,), batch, float(ROWS), 1.0, probit)))(own)
    z = batch.y * m / np.sqrt(1.0 + v)
    ratio = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
    b1, b2 = batch.y * ratio / np.sqrt(1.0 + v), ratio * (z + ratio) / (1.0 + v)
    reach = phi @ V
    means = mean + reach * b1[:, None]
    seconds = [
        V - b * np.outer(r, r) + np.outer(t, t) for r, t, b in zip(reach, means, b2, strict=True)
    ]
    B = np.eye(len(V)) + own.root[0] @ own.root[0].T
    own_mean = np.linalg.solve(B, own.eta[0])
    own_second = np.linalg.inv(B) + np.outer(own_mean, own_mean)
    wanted = (ROWS - 1) * (means.mean(axis=0) - own_mean)
    np.testing.assert_allclose(slope.eta[0], wanted, rtol=1e-10, atol=1e-11)
    wanted = -(ROWS - 1) * (np.mean(seconds, axis=0) - own_second) @ own.root[0]
    np.testing.assert_allclose(slope.root[0], np.tril(wanted), rtol=1e-10, atol=1e-10)


def test_slopes_beside_differences():
    """Of every kind of parameter, in first, middle and last layers, by central differences."""
    own, batch = deep(), data()
    value = jax.jit(lambda layers: energy(layers, batch, 40.0, 0.5, evidence(None, 0.5)))
    slopes = jax.jit(jax.grad(value))(own)
    rng, step = np.random.default_rng(0), 1e-5
    for number, (one, slope) in enumerate(zip(own, slopes, strict=True)):
        for name in one._fields[:-1]:
            at = np.asarray(getattr(one, name))
            along = rng.standard_normal(at.shape)

            def moved(t, one=one, name=name, at=at, along=along, number=number):
                changed = one._replace(**{name: at + t * along})
                return float(value((*own[:number], changed, *own[number + 1 :])))

            wanted = (moved(step) - moved(-step)) / (2.0 * step)
            found = float((np.asarray(getattr(slope, name)) * along).sum())
            # Differences: step^2 in theory, and 1e-16 F / step.
            assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6), (number, name)


def test_batches_average_to_the_whole_and_order_does_not_matter():
    own, batch = deep()[::2], data()
    # Weights that differ: scaled by those of the batch the mean would not be that of all rows.
    batch = batch._replace(weight=np.linspace(0.1, 9.0, ROWS))
    rows = batch.weight.sum()

    def of(own, b, scale):
        return energy(own, b, rows, 1.0, evidence(None, 1.0), scale=scale)

    slope = jax.jit(jax.value_and_grad(of))
    whole = slope(own, batch, 1.0)
    # Rows of weight 0 are rows left out: one size to compile.
    masks = np.repeat(np.eye(4), ROWS // 4, axis=1)
    parts = [slope(own, batch._replace(weight=batch.weight * mask), 4.0) for mask in masks]
    mean = jax.tree.map(lambda *each: np.mean(each, axis=0), *parts)
    for other in (mean, slope(own, Batch(*(c[::-1] for c in batch)), 1.0)):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_weights_count_rows():
    own, batch = (deep()[2],), data()
    twice = Batch(*(np.concatenate([c, c[:5]]) for c in batch))
    heavy = batch._replace(weight=np.where(np.arange(ROWS) < 5, 2.0, 1.0))
    of = jax.jit(lambda b: energy(own, b, ROWS + 5.0, 1.0, evidence(None, 1.0)))
    value = [of(b) for b in (twice, heavy)]
    assert float(value[0]) == pytest.approx(float(value[1]), rel=1e-13)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_kernels_called_back(power):
    """log Z and its slopes by the likelihood's kernel: closed for Gaussian noise and the probit."""
    m, v = np.array([-1.5, 0.2, 3.0]), np.array([0.3, 2.0, 1e-3])
    y = np.array([1.0, -1.0, 1.0])
    called = ByKernel(likelihoods.get("probit"), power)

    def of(log_z):
        return jax.value_and_grad(lambda m, v: log_z(m, v, y, 0.0).sum(), argnums=(0, 1))

    found = jax.jit(of(called))(m, v)
    if power == 1.0:
        wanted = of(probit)(m, v)
    else:
        x, w = unit_normal(200)
        each = w * np.exp(power * log_ndtr(y[:, None] * (m[:, None] + np.sqrt(v)[:, None] * x)))
        Z = each.sum(axis=1)
        of_mean = (each * x).sum(axis=1) / Z / np.sqrt(v)
        wanted = np.log(Z).sum(), (of_mean, 0.5 * ((each * (x**2 - 1.0)).sum(axis=1) / Z / v))
    assert float(found[0]) == pytest.approx(float(wanted[0]), rel=1e-12)
    # (v - s^2) / v^2 loses digits where v is small: 1e-13 / 1e-3.
    np.testing.assert_allclose(found[1][0], wanted[1][0], rtol=1e-9)
    np.testing.assert_allclose(found[1][1], wanted[1][1], rtol=1e-7)


def test_gaussian_noise_to_a_power():
    """By quadrature of N(y; f, noise)^power."""
    m, v, y, noise, power = 0.3, 0.7, -0.4, 0.2, 0.5
    x, w = unit_normal(150)
    wanted = np.log(w @ np.exp(power * norm(m + np.sqrt(v) * x, np.sqrt(noise)).logpdf(y)))
    assert float(gaussian(power, m, v, y, np.log(noise))) == pytest.approx(wanted, rel=1e-10)


def test_hidden_outputs_far_out_are_finite():
    """Rows far from every inducing input: psi underflows, the prior is left."""
    own = layer(linear=False), layer(outputs=1, seed=1, linear=False)
    far = np.array([[1e6, -1e6]])
    mean, variance = jax.jit(lambda own: forward(own, shared(own, 0.1)[0], far)[-1])(own)
    assert np.isfinite(mean).all()
    assert 0.0 < float(variance[0, 0]) < 10.0
