"""Series that tests share: times, observations, kernels, and how far two posteriors differ."""

import numpy as np
from sklearn.gaussian_process import kernels as sk

KERNELS = {
    "half": 2.0 * sk.Matern(0.9, nu=0.5),
    "three halves": 2.0 * sk.Matern(0.9, nu=1.5),
    "five halves": 2.0 * sk.Matern(0.9, nu=2.5),
    "sum": 1.5 * sk.Matern(0.7, nu=2.5) + 0.5 * sk.Matern(4.0, nu=0.5) + sk.WhiteKernel(0.1),
    "products": sk.ConstantKernel(0.3) + 2.0 * sk.Matern(3.0, nu=0.5) * sk.Matern(2.0, nu=1.5),
    "power and noise": (sk.Matern(2.0, nu=1.5) + sk.WhiteKernel(0.1)) ** 2,
    "trend": sk.DotProduct(0.7) * 0.2 + sk.Matern([1.0], nu=1.5),
    "quasi-periodic": 2.0 * sk.Matern(6.0, nu=1.5) * sk.ExpSineSquared(1.3, 1.9),
}


def series(n, seed=0):
    """Irregular times, some repeated, one large gap; and observations of every kind."""
    rng = np.random.default_rng(seed)
    t = np.round(rng.uniform(0.0, n / 15.0, n), 2)
    t[rng.random(n) < 0.2] += 40.0
    f = np.sin(1.3 * t) + 0.4 * np.cos(3.1 * t)
    real = f + 0.2 * rng.standard_t(3, n)
    data = {
        "signs": np.where(f + 0.5 * rng.standard_normal(n) > 0.0, 1.0, -1.0),
        "counts": rng.poisson(np.exp(f)).astype(float),
        "reals": real,
    }
    # A rate that keeps away from zero, where the square link has two peaks.
    data["squares"] = rng.poisson((3.0 + 0.7 * f) ** 2).astype(float)
    trials = rng.integers(1, 9, n)
    data["trials"] = np.column_stack([rng.binomial(trials, 1.0 / (1.0 + np.exp(-f))), trials])
    return t, data


def worst(post, other):
    """Largest difference of what both report, of numbers of order 1."""
    parts = ((p.mean, p.variance, *p.sites, p.loo()) for p in (post, other))
    found = [np.max(np.abs(a - b) / (1.0 + np.abs(b))) for a, b in zip(*parts, strict=True)]
    return max(*found, abs(post.log_evidence - other.log_evidence) / abs(other.log_evidence))
