"""When an iteration has come far enough: what changes are measured in, and against what."""

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import infer_series
from qpruntime.inference.sparse.passes import Block, Proposal, cavities, changes


def test_rows_appended_settle_ten_times_further_than_the_tolerance():
    # Rows before the new ones are not swept again: what is left of a change there stays for good.
    rng = np.random.default_rng(0)
    t, y = np.arange(40.0), rng.poisson(3.0, 40)
    kernel, tol = ConstantKernel(4.0) * Matern(8.0, nu=1.5), 1e-3
    more, new = np.arange(40.0, 44.0), np.array([30.0, 0.0, 40.0, 12.0])
    found = infer_series(t, y, kernel, "poisson-exp", "ep", tol=tol).extend(more, new)
    assert found.converged
    assert found.history[-1] < 0.1 * tol
    exact = infer_series([*t, *more], [*y, *new], kernel, "poisson-exp", "ep", tol=1e-10)
    assert np.abs((found.mean - exact.mean) / np.sqrt(exact.variance)).max() < tol


def test_changes_of_scaled_rows_are_those_of_what_is_observed():
    # A site (t, n) of g = s f is one of f with precision s^2 t and precision times mean s n: a row
    # that observes s f and one that observes g change by the same amounts.
    s = np.array([0.2, 3.0, 7.0])
    t, n = np.array([0.4, 1.0, 2.0]), np.array([-0.3, 0.1, 2.0])
    d_t, d_n = np.array([0.1, -0.2, 0.3]), np.array([0.2, 0.5, -0.1])
    mean, w, r, y = np.array([0.1, 0.2, -0.4]), np.full(3, 0.2), np.full(3, 0.1), np.ones(3)
    plain = Block(y, None, None, t, n)
    scaled = Block(y, None, None, s**2 * t, s * n, s)
    observed = cavities(plain, mean, w, r, 1.0, 1.0)
    latent = cavities(scaled, mean / s, w / s**2, r / s**2, 1.0, 1.0)
    counts = np.zeros(4)
    expected = changes(plain, Proposal(t + d_t, n + d_n, counts), observed, 1.0)
    found = changes(scaled, Proposal(s**2 * (t + d_t), s * (n + d_n), counts), latent, 1.0)
    # Differences of numbers of order one: a few roundings of those.
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-13)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-13)
    # Plain sums of squares, and the largest size in posterior units, written out.
    width = observed.v / (1.0 + t * observed.v)
    np.testing.assert_allclose(found[0][:2], [d_t @ d_t, d_n @ d_n], rtol=1e-13)
    np.testing.assert_allclose(found[1], abs(d_t) * width + abs(d_n) * np.sqrt(width), rtol=1e-13)
