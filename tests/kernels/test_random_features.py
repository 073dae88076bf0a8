"""Functions drawn from priors have the covariances of their kernels."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from qpruntime.kernels import Categories, On
from qpruntime.kernels.random_features import PriorDraws
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.standard_normal((8, 2)), RNG.integers(0, 3, 8), RNG.integers(0, 2, 8)])
KERNELS = [
    1.7 * On(RBF([0.8, 2.0]), [0, 1]) * Categories([2], 0.4),
    On(Matern(1.3, nu=1.5), [1]) * (Categories([2, 3], [0.3, 2.0]) + 0.5),
    On(RBF(0.7), [0]) * On(Matern(2.0, nu=2.5), [1]) + 0.3 * Categories([3], 100.0),
    On(0.6 * DotProduct(1.4), [0, 1]) + On(RBF(1.0), [1]) + WhiteKernel(0.5),
    On(On(ConstantKernel(2.0) * RBF(0.9), [1]), [2, 0]) + 0.2,
]


@every_case("kernel", KERNELS)
def test_covariances_and_functions(kernel):
    """Sums over phases, whose error is their number's; amplitudes are apart."""
    draws = PriorDraws(kernel, 4, 1, np.random.default_rng(1), 100_000)
    found = np.zeros((8, 8))
    for term, of_term in zip(draws.waves, draws.phases, strict=True):
        phase = sum(one(X) for one in of_term)
        cos, sin = np.cos(phase), np.sin(phase)
        found += term.variance * (cos @ cos.T + sin @ sin.T) / phase.shape[1]
    for term in draws.flat:
        found += term.variance * term.offset**2
        if term.columns is not None:
            found += term.variance * X[:, term.columns] @ X[:, term.columns].T
    quiet = kernel(X) - (0.5 * np.eye(8) if "White" in str(kernel) else 0.0)
    spread = sum(term.variance for term in draws.waves)
    assert np.abs(found - quiet).max() < 5.0 * spread * np.sqrt(len(draws.waves) / 100_000)
    np.testing.assert_allclose(draws.diag(X), np.diag(quiet), rtol=1e-12)
    # 4000 of them have the moments of their phases, and are the same in pieces.
    draws = PriorDraws(kernel, 4, 4000, np.random.default_rng(2), 500)
    f = draws(X)
    np.testing.assert_allclose(np.vstack([draws(X[i : i + 1]) for i in range(8)]), f, atol=1e-10)
    variance = draws.diag(X)
    # Of a variance the relative standard error is that of 4000 squares.
    np.testing.assert_allclose(np.square(f).mean(axis=1), variance, rtol=5.0 * np.sqrt(2 / 4000))
    assert (np.abs(f.mean(axis=1)) < 5.0 * np.sqrt(variance / 4000)).all()


def test_too_many_terms_are_refused():
    kernel = RBF(1.0) + RBF(2.0) + RBF(3.0)
    for _ in range(2):
        kernel = kernel * kernel
    refuses("cannot be drawn", PriorDraws, kernel, 4, 1, RNG, 10)
