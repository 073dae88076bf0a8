"""Triangles and matched means against NumPy's dense algebra."""

import numpy as np
import pytest

from qpruntime import project
from qpruntime.inference.dense.cholesky_kernels import (
    divided,
    half_difference,
    mirror_upper,
    scaled_upper,
    solve,
    squares_of_rows,
    take_turn,
    twice,
)
from qpruntime.projection.projector import Projector
from qpruntime.quadrature.sigma_star_kernels import OK
from tests.tools.cases import every_case

pytestmark = pytest.mark.interpreted
PRIOR = np.array([0.3, -1.0, 2.0])


def draw(n, seed=0):
    """Return a covariance, roots of precisions (one of them zero), and an upper triangle."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n))
    root = rng.uniform(0.1, 2.0, n)
    root[n // 2] = 0.0
    return A @ A.T + np.eye(n), root, np.triu(rng.standard_normal((n, n)))


@every_case("n", [1, 2, 7])
def test_triangles(n):
    K, root, upper = draw(n)
    weights = np.random.default_rng(1).standard_normal(n)
    R = np.diag(root)
    np.testing.assert_allclose(
        np.triu(scaled_upper(K, root)), np.triu(np.eye(n) + R @ K @ R), rtol=1e-14
    )
    np.testing.assert_allclose(squares_of_rows(upper), (upper**2).sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(
        twice(upper, root, weights), R @ upper @ upper.T @ R @ weights, rtol=1e-12, atol=1e-13
    )
    inverse = upper + np.triu(upper, 1).T
    np.testing.assert_allclose(
        half_difference(weights, root, upper),
        0.5 * (np.outer(weights, weights) - R @ inverse @ R),
        rtol=1e-13,
        atol=1e-14,
    )


@every_case("n", [1, 63, 65])
def test_mirror_upper(n):
    # One tile has 64 rows.
    whole = np.arange(n * n, dtype=float).reshape(n, n)
    expected = np.triu(whole) + np.triu(whole, 1).T
    mirror_upper(whole)
    np.testing.assert_array_equal(whole, expected)


def test_weak_and_strong_sites_are_divided():
    """The split solves (I + diag(tau) K) x = linear, whichever part a site is in."""
    K, _, _ = draw(4)
    tau, linear = np.array([1e-9, 3.0, 1e4, 0.0]), np.array([0.5, -1.0, 2.0, 0.7])
    right, rest = divided(np.diag(K).copy(), tau, linear)
    # Only strong sites are divided by their precision.
    np.testing.assert_array_equal(rest != 0.0, [True, False, False, True])
    np.testing.assert_allclose(right, [0.0, -1.0 / 3.0, 2e-4, 0.0], rtol=1e-15)
    R = np.diag(np.sqrt(tau))
    B = np.eye(4) + R @ K @ R
    found = rest + R @ np.linalg.solve(B, R @ (right - K @ rest))
    expected = np.linalg.solve(np.eye(4) + np.diag(tau) @ K, linear)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def system_of(K, prior, tau):
    """Return the arguments `system` of `solve` for these site precisions."""
    root = np.sqrt(tau)
    B = np.eye(len(K)) + root[:, None] * K * root
    # B^-1 = U U^T for an upper triangle: a Cholesky factor with rows and columns reversed.
    upper = np.ascontiguousarray(np.linalg.cholesky(np.linalg.inv(B)[::-1, ::-1])[::-1, ::-1])
    return K, prior, upper, root, np.empty(len(K))


def test_solve():
    K, _, _ = draw(3)
    prior, tau, nu = (
        np.array([0.3, -1.0, 2.0]),
        np.array([1.5, 0.0, 1e-9]),
        np.array([1.0, 0.4, -2]),
    )
    system, mean = system_of(K, prior, tau), np.empty(3)
    solve(system, (tau, nu), mean)
    covariance = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    expected = covariance @ (np.linalg.solve(K, prior) + nu)
    np.testing.assert_allclose(mean, expected, rtol=1e-10)
    np.testing.assert_allclose(system[4], np.linalg.solve(K, expected - prior), rtol=1e-9)


@pytest.mark.parametrize("steps", [0, 2])
def test_take_turn(steps):
    """Means are matched `steps` times, with variances kept; then all sites are proposed."""
    K, _, _ = draw(3, 2)
    prior, tau, nu = (
        np.array([0.3, -1.0, 2.0]),
        np.array([0.8, 0.3, 0.5]),
        np.array([0.1, 0.4, -0.2]),
    )
    y, ones = np.array([1.0, -1.0, 1.0]), np.ones(3)
    covariance = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    variance = covariance.diagonal().copy()
    kept = 1.0 - tau * variance

    def moments(nu):
        mean = covariance @ (np.linalg.solve(K, prior) + nu)
        square = variance / kept
        centre = mean - (nu - tau * mean) * square
        tilted, std = project("probit", centre, np.sqrt(square), y, "ep")
        return mean, square, centre, tilted, std

    expected = nu.copy()
    for _ in range(steps):
        mean, square, centre, tilted, _ = moments(expected)
        # The site whose marginal, of the variance there is, has the tilted mean.
        expected = tilted / variance - centre / square
    _, square, centre, tilted, std = moments(expected)
    d_tau = 1.0 / std**2 - 1.0 / square - tau
    d_nu = tilted / std**2 - centre / square - expected

    projector = Projector("probit", "ep")
    rules = projector.functions, projector.source, 1.0, False
    system = system_of(K, prior, tau)
    mean, changes, counts = np.empty(3), (np.empty(3), np.empty(3)), np.zeros(3, dtype=np.int64)
    found = nu.copy()
    status, _ = take_turn(
        rules,
        (steps, rules),
        (y, ones),
        system,
        (mean, variance, kept, system[4]),
        (tau, found),
        changes,
        (counts, np.zeros(2)),
    )
    assert status == OK
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(changes[0], d_tau, rtol=1e-9)
    np.testing.assert_allclose(changes[1], d_nu, rtol=1e-9)
