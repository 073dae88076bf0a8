"""Counts over bins, against rates drawn on a fine grid within them."""

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import count_bins, infer
from tests.tools.cases import every_case, refuses

FINE = 25


def drawn(kernel, edges, count, seed=0):
    """f at the middles of FINE parts of each bin, shape (count, N, FINE)."""
    rng = np.random.default_rng(seed)
    low, width = edges[:-1], np.diff(edges)
    x = low[:, None] + width[:, None] * (np.arange(FINE) + 0.5) / FINE
    values, vectors = np.linalg.eigh(kernel(x.reshape(-1, 1)))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    few = values > 1e-10 * values.max()
    return (rng.standard_normal((count, few.sum())) @ root[:, few].T).reshape(count, *x.shape)


@every_case("share", [0.25, 0.5])
@every_case("shape", [RBF(2.0), Matern(2.0, nu=2.5)])
def test_the_offset(share, shape):
    """Mean gap of log mean rate and mean log rate, of variance 2; four standard errors."""
    kernel, edges = ConstantKernel(2.0) * shape, np.array([0.0, 2.0 * share])
    f = drawn(kernel, edges, 40_000)[:, 0]
    gap = np.log(np.exp(f).mean(axis=1)) - f.mean(axis=1)
    bins = count_bins(edges, kernel)
    offset = bins.mean[0] - np.log(2.0 * share)
    assert offset == pytest.approx(gap.mean(), abs=4.0 * gap.std() / 200.0 + 0.002)
    # As the docstring says; of bins as wide as the length-scale it is three times that.
    assert gap.std() < (0.031 if type(shape) is RBF else 0.044)
    # The operator is the mean over the bin, of cubes too.
    x = bins.points[:, 0]
    for power in range(8):
        exact = (edges[1] ** (power + 1)) / (power + 1) / edges[1]
        assert (bins.operator @ x**power)[0] == pytest.approx(exact, rel=1e-12)


def test_a_posterior_by_weighted_draws():
    """Evidence and mean log rates of three bins, by draws of fine rates weighed by their counts."""
    kernel, edges = ConstantKernel(0.8) * RBF(2.0), np.array([0.0, 1.0, 2.0, 2.6])
    counts, exposure = np.array([9, 4, 3]), np.array([1.0, 0.5, 2.0])
    bins = count_bins(edges, kernel, mean=1.3, exposure=exposure)
    K = kernel(bins.points)
    post = infer(K, counts, "poisson-exp", "ep", operator=bins.operator, mean=bins.mean, tol=1e-9)
    f = 1.3 + drawn(kernel, edges, 200_000)
    expected = exposure * np.diff(edges) * np.exp(f).mean(axis=2)
    log_p = (counts * np.log(expected) - expected - gammaln(counts + 1.0)).sum(axis=1)
    share = np.exp(log_p - logsumexp(log_p))
    assert 1.0 / (share**2).sum() > 10_000
    # EP's error and that of the offset; of draws 4e-3.
    assert post.log_evidence == pytest.approx(logsumexp(log_p) - np.log(len(f)), abs=0.02)
    means = f.mean(axis=2)
    true = share @ means
    spread = np.sqrt(share @ (means - true) ** 2)
    crossed = bins.operator @ K
    own = np.einsum("ij,ij->i", bins.operator.toarray(), crossed)
    found, variance = post.predict(crossed, own, mean=1.3)
    np.testing.assert_allclose(found, true, atol=0.04 * spread.max())
    np.testing.assert_allclose(np.sqrt(variance), spread, rtol=0.03)
    # Without the offset it is off by more.
    assert bins.mean[0] > 1.3 + 0.005


@every_case(
    ("arguments", "said"),
    [
        (([0.0, 1.0, 2.2], RBF(2.0)), "bin 1 is 1.2 wide, and the kernel's length-scale is 2"),
        (([0.0, 0.6], RBF(2.0) + Matern(1.0)), "half of that at most, 0.5"),
        (([0.0], RBF(2.0)), "edges"),
        (([[0.0, 1.0, 2.0]], RBF(2.0)), "edges"),
        (([[0.0, 1.0], [2.0, 1.0]], RBF(2.0)), "bin 1 ends at 1"),
        (([0.0, 0.0], RBF(2.0)), "bin 0 ends at 0"),
        (([0.0, np.nan], RBF(2.0)), "edges"),
        (([0.0, 1.0], RBF(2.0) + WhiteKernel()), "length-scale is not known"),
        (([0.0, 1.0], "rbf"), "kernel"),
        (([0.0, 1.0], RBF(2.0), np.inf), "mean"),
        (([0.0, 1.0], RBF(2.0), 0.0, [0.0]), "exposure"),
        (([0.0, 1.0], RBF(2.0), 0.0, [1.0, 1.0]), "exposure"),
    ],
)
def test_what_is_refused(arguments, said):
    refuses(said, count_bins, *arguments)


def test_bins_that_are_given_each():
    one, other = (count_bins(e, RBF(2.0)) for e in ([0.0, 0.5, 1.0], [[0.0, 0.5], [0.5, 1.0]]))
    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.mean, other.mean)
    assert count_bins([0.0, 1.0], RBF(2.0)).operator.shape == (1, 4)
