"""Optimal transport between densities on a grid of the plane: what locality is tested with.

Entropic transport with the cost |x - y|^2, debiased (Feydy et al., 2019, "Interpolating between
optimal transport and MMD using Sinkhorn divergences"): the divergence differs from W_2^2 by a term
of second order in the regularisation. Kernels of a grid are products, so an iteration is two
products of small matrices. Potentials over eps stay below 700, so scalings need no logarithms.
"""

import numpy as np
from scipy.optimize import minimize

TINY = 1e-300


class Plane:
    """A grid, and one density `source` on it, to be compared with Gaussians."""

    def __init__(self, x1, x2, source, eps):
        self.x = np.stack(np.meshgrid(x1, x2, indexing="ij"))
        self.eps = eps
        self.left = np.exp(-((x1[:, None] - x1) ** 2) / eps)
        self.right = np.exp(-((x2[:, None] - x2) ** 2) / eps)
        self.source = source / source.sum()
        self.own = self.with_itself(self.source)[0]
        self.start = np.ones_like(source)

    def smooth(self, v):
        return np.maximum(self.left @ v @ self.right, TINY)

    def potential(self, scaling):
        return self.eps * np.log(np.maximum(scaling, TINY))

    def with_itself(self, a):
        """Return (value, potential) of the symmetric problem."""
        u = np.ones_like(a)
        for _ in range(500):
            new = np.sqrt(u * a / self.smooth(u))
            done = np.abs(new * self.smooth(new) - a).sum() < 1e-11
            u = new
            if done:
                break
        f = self.potential(u)
        return 2.0 * np.sum(a * f), f

    def divergence(self, target):
        """Return the debiased W_2^2 from `source`, and its derivative in the target's masses."""
        v = self.start
        for k in range(5000):
            u = self.source / self.smooth(v)
            back = self.smooth(u)
            if k % 10 == 0 and np.abs(v * back - target).sum() < 1e-10:
                break
            v = target / back
        else:
            raise AssertionError("the iteration has not converged")
        self.start = v
        f, g = self.potential(u), self.potential(v)
        other, h = self.with_itself(target)
        value = np.sum(self.source * f) + np.sum(target * g) - 0.5 * (self.own + other)
        return value, g - h

    def gaussian(self, p):
        """W_2^2 to the Gaussian with mean p[:2] and Cholesky factor p[2:], and its gradient."""
        L = np.array([[p[2], 0.0], [p[3], p[4]]])
        d = self.x - p[:2, None, None]
        scaled = np.einsum("ij,jkl->ikl", np.linalg.inv(L @ L.T), d)
        density = np.exp(-0.5 * np.sum(d * scaled, axis=0))
        density /= density.sum()
        value, slope = self.divergence(density)
        weight = density * (slope - np.sum(slope * density))
        by_mean = np.einsum("ikl,kl->i", scaled, weight)
        by_L = np.einsum("ikl,jkl,kl->ij", scaled, scaled, weight) @ L
        return value, np.array([*by_mean, by_L[0, 0], by_L[1, 0], by_L[1, 1]])

    def nearest(self, p):
        """Mean and factor of the nearest Gaussian, found by descent from `p`."""
        return minimize(self.gaussian, p, jac=True, method="BFGS", options={"gtol": 1e-6})
