"""Derivatives over the half-plane: probit's closed forms differenced with 60 digits."""

import numpy as np
import pytest
from mpmath import mp, mpf

from qpruntime import functions

STEP = mpf(10) ** -10


def closed(mu, sigma, y):
    """Log Z, mean and standard deviation (Rasmussen & Williams, 3.58, 3.82, 3.85)."""
    root = mp.sqrt(1 + sigma**2)
    z = y * mu / root
    Z = mp.erfc(-z / mp.sqrt(2)) / 2
    r = mp.npdf(z) / Z
    variance = sigma**2 - sigma**4 * r * (z + r) / (1 + sigma**2)
    return mp.log(Z), mu + y * sigma**2 * r / root, mp.sqrt(variance)


def quotients(mu, sigma, y):
    """Rows of a value and its differences of fourth order in mu and sigma."""
    m, s = mpf(mu), mpf(sigma)
    h = STEP * s
    rows = [[float(v)] for v in closed(m, s, y)]
    for by_mu, by_sigma in ((1, 0), (0, 1)):
        at = {k: closed(m + by_mu * k * h, s + by_sigma * k * h, y) for k in (-2, -1, 1, 2)}
        for row, *moved in zip(rows, *(at[k] for k in (-2, -1, 1, 2)), strict=True):
            row.append(float((8 * (moved[2] - moved[1]) - (moved[3] - moved[0])) / (12 * h)))
    return np.array(rows)


@pytest.mark.slow
def test_probit_narrow_and_wide_near_and_far():
    rng = np.random.default_rng(20)
    n = 60
    sigma = 10.0 ** rng.uniform(-6.0, 6.0, n)
    reach = 10.0 ** rng.uniform(-3.0, 2.5, n) * np.maximum(sigma, 1.0) ** rng.uniform(0.0, 1.0, n)
    mu, y = rng.choice([-1.0, 1.0], n) * reach, rng.choice([-1.0, 1.0], n)
    own = functions("probit")
    log_z = own.log_partition(mu, sigma, y, derivatives=True)
    mean, std = zip(*own.moments(mu, sigma, y, derivatives=True), strict=True)
    with mp.workdps(60):
        want = np.array([quotients(*at) for at in zip(mu, sigma, y, strict=True)])
    # Units: of the values, then of both derivatives; see `LikelihoodFunctions`.
    one = np.ones(n)
    units = ((1e-3 * one, 1.0 / sigma), (np.abs(mu) + sigma, one), (0.0 * one, one))
    for k, found in enumerate((log_z, mean, std)):
        for j in range(3):
            right, unit = want[:, k, j], units[k][min(j, 1)]
            error = np.abs(found[j] - right)
            allowed = np.maximum(1e-9 * np.abs(right), 1e-12 * unit)
            assert (error <= allowed).all(), (k, j, mu[error > allowed], sigma[error > allowed])
