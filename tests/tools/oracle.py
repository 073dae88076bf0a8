"""Slow and plain second implementations: what the tests compare the package with.

Nothing here imports a kernel of the package. A likelihood enters as a log density alone.
"""

from pathlib import Path

import numpy as np
from numpy.polynomial.legendre import leggauss, legint, legval, legvander
from scipy.special import gammaln, log_ndtr, ndtr, ndtri, xlogy

#: Folder of stored values.
REFERENCE = Path(__file__).parents[1] / "reference"

NODES, WEIGHTS = leggauss(16)
# Row i integrates the interpolant through the nodes from -1 to node i.
BELOW = legval(NODES, legint(np.eye(16), lbnd=-1)).T @ np.linalg.inv(legvander(NODES, 15))


def probit(f):
    """Log p(y = 1 | f)."""
    return log_ndtr(f)


def poisson(f, y):
    """Log p(y | f) of counts with the square link, for any arrays that broadcast."""
    return xlogy(np.multiply(2.0, y), np.abs(f)) - np.square(f) - gammaln(np.add(y, 1.0))


def unit_normal(count):
    """Nodes and weights of means under N(0, 1): exact for polynomials of degree 2 count - 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def slopes(function, at, step=1e-3):
    """Central differences of fourth order by each entry of an array, which is the first axis."""
    at, found = np.asarray(at, dtype=float), []
    for move in step * np.eye(at.size).reshape(-1, *at.shape):
        a, b, c, d = (function(at + k * move) for k in (-2, -1, 1, 2))
        found.append((8.0 * (c - b) - (d - a)) / (12.0 * step))
    found = np.array(found)
    return found.reshape(at.shape) if found.ndim == 1 else found


def tight(objective):
    """Return an objective whose sites settle everywhere from now on, not only near the optimum."""
    for one in (objective, getattr(objective, "_alone", objective)):
        one.tolerance = lambda: objective.tol
    return objective


def tail_masses(half, density):
    """Masses of panels, and the smaller of those below and above each node, and which it is.

    Shapes are (panels, 1) of half widths and (panels, 16) of densities at nodes.
    """
    mass, part = half[:, 0] * (density @ WEIGHTS), half * (density @ BELOW.T)
    lower = np.concatenate([[0.0], np.cumsum(mass)[:-1]])[:, None] + part
    upper = np.concatenate([np.cumsum(mass[::-1])[-2::-1], [0.0]])[:, None]
    upper = upper + mass[:, None] - part
    return mass, np.minimum(lower, upper), lower < upper


def tilted(log_likelihood, mu, sigma, marks=()):
    """Return (log Z, mean, variance, sigma*) of exp(log_likelihood(f)) N(f | mu, sigma^2).

    Gauss-Legendre panels that shrink geometrically towards 0, the cavity mean and the mode; the
    running mass in a panel comes from the interpolant through its 16 nodes. Good to about 1e-13
    times the largest exponent that cancels. `marks` are kinks and narrow peaks.
    The density must not be further than 40 sigma from mu.
    """
    steps = 40.0 * sigma * 1.2 ** -np.arange(220.0)
    edges = np.concatenate([[c, *(c + steps), *(c - steps)] for c in (0.0, mu, *marks)])

    def log_density(f):
        return log_likelihood(f) - 0.5 * ((f - mu) / sigma) ** 2

    edges = np.unique(edges[np.abs(edges - mu) <= 40.0 * sigma])
    for _ in range(3):  # find the mode on ever finer grids around the best point so far
        best = edges[np.argmax(log_density(edges))]
        edges = np.unique(np.concatenate([edges, best + steps, best - steps]))
    start, width = edges[:-1], np.diff(edges)
    f = start[:, None] + 0.5 * width[:, None] * (1.0 + NODES)
    e = log_density(f)
    kept = np.flatnonzero(e.max(axis=1) > e.max() - 80.0)
    keep = slice(kept[0], kept[-1] + 1)  # with the gap between two peaks, where F stands still
    f, e, width = f[keep], e[keep], width[keep]
    top = e.max()
    p = np.exp(e - top)
    half = 0.5 * width[:, None]
    mass, tail, _ = tail_masses(half, p)
    total = mass.sum()
    centre = f.flat[np.argmax(e)]
    weight = half * WEIGHTS * p / total
    shift = np.sum(weight * (f - centre))
    variance = np.sum(weight * (f - centre - shift) ** 2)
    tail = np.clip(tail / total, 1e-300, 0.5)
    star = np.sum(half * WEIGHTS * np.exp(-0.5 * ndtri(tail) ** 2))
    log_z = top + np.log(total / sigma) - 0.5 * np.log(2 * np.pi)
    return log_z, centre + shift, variance, star / np.sqrt(2 * np.pi)


def check_fixed_point(post, log_p, near, method="ep", marks=(), power=None):
    """Assert that marginals have the moments of their tilted densities; log_p is of f and a row.

    Return log Z of every row, and the means and precisions of cavities without a power of the site.
    If no power is given, leave-one-out densities are these too.
    """
    all_of_it, power = power is None, power or 1.0
    precision = 1.0 / post.variance - power * post.sites.tau
    centre = (post.mean / post.variance - power * post.sites.nu) / precision
    assert precision.min() > 0.0
    rows = zip(range(len(centre)), centre, precision**-0.5, strict=True)
    found = np.array(
        [tilted(lambda f, i=i: power * log_p(f, i), m, s, marks[i : i + 1]) for i, m, s in rows]
    )
    variance = found[:, 2] if method == "ep" else found[:, 3] ** 2
    if all_of_it:
        np.testing.assert_allclose(post.loo(), found[:, 0], rtol=near)
    np.testing.assert_allclose(post.mean, found[:, 1], rtol=near, atol=near)
    np.testing.assert_allclose(post.variance, variance, rtol=10.0 * near)
    return found[:, 0], centre, precision


def probit_moments(mu, sigma, y):
    """Textbook form (Rasmussen & Williams 3.58, 3.85): fine where nothing cancels, |z| < 5."""
    root = np.sqrt(1.0 + sigma**2)
    z = y * mu / root
    r = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) / ndtr(z)
    return log_ndtr(z), mu + y * sigma**2 * r / root, sigma**2 - sigma**4 * r * (z + r) / root**2


def sweep(K, y, mean, tau, nu, project, damping=1.0):
    """One sequential sweep as printed (paper, Algorithm 1): the whole covariance, every time."""
    tau, nu = tau.copy(), nu.copy()
    covariance, m = posterior(K, mean, tau, nu)
    for i in range(len(y)):
        precision = 1.0 / covariance[i, i] - tau[i]
        centre = (m[i] / covariance[i, i] - nu[i]) / precision
        star, std = project(centre, precision**-0.5, y[i])
        d_tau = damping * (std**-2 - precision - tau[i])
        d_nu = damping * (star / std**2 - centre * precision - nu[i])
        tau[i] += d_tau
        nu[i] += d_nu
        column = covariance[:, i].copy()
        shrink = 1.0 + d_tau * column[i]
        m = m + column * (d_nu - d_tau * m[i]) / shrink
        covariance = covariance - d_tau / shrink * np.outer(column, column)
    return tau, nu


def posterior(K, mean, tau, nu):
    """Covariance and mean of N(mean, K) times the sites, without square roots of tau."""
    covariance = np.linalg.solve(np.eye(len(K)) + K * tau, K)
    return covariance, mean + covariance @ (nu - tau * mean)


def evidence(K, y, mean, tau, nu):
    """log Z_EP (paper, Eq. 2) for probit: Gaussian integral of explicitly normalised sites."""
    covariance, m = posterior(K, mean, tau, nu)
    precision = 1.0 / np.diag(covariance) - tau
    centre = (m / np.diag(covariance) - nu) / precision
    log_z = log_ndtr(y * centre / np.sqrt(1.0 + 1.0 / precision))
    # site_i = s_i N(f_i | nu/tau, 1/tau); log s_i makes the tilted mass right.
    spread = 1.0 / tau + 1.0 / precision
    log_s = log_z + 0.5 * np.log(2 * np.pi * spread) + 0.5 * (centre - nu / tau) ** 2 / spread
    joint, gap = K + np.diag(1.0 / tau), nu / tau - mean
    quadratic = gap @ np.linalg.solve(joint, gap)
    _, log_det = np.linalg.slogdet(2 * np.pi * joint)
    return np.sum(log_s) - 0.5 * log_det - 0.5 * quadratic


class RBFData:
    """N points in the plane with noisy labels, and their squared-exponential covariance."""

    def __init__(self, n, seed, variance=2.0, lengthscale=1.3):
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((n, 2))
        self.y = np.where(self.x[:, 0] + 0.7 * rng.standard_normal(n) > 0, 1.0, -1.0)
        self.K = self.kernel(self.x, self.x, variance, lengthscale)

    @staticmethod
    def kernel(a, b, variance=2.0, lengthscale=1.3):
        return variance * np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(-1) / lengthscale**2)
