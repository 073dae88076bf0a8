"""
An EP loop of your own in JAX
=============================

Authors of packages need moments, not another package. This is EP and QP for labels in some forty
lines of JAX, compiled by ``jit``: probit moments in closed form and, for QP, sigma* from the
compact table that ships, an array of spline coefficients. The results are those of ``infer``.

JAX comes with the extra ``deep``. Without it the example says so, and draws what ``infer`` finds.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer, open_table

try:
    import jax
    import jax.numpy as jnp
    from jax.scipy.stats import norm
except ImportError:
    jax = None
    print("JAX is not installed: pip install '.[deep]' in a checkout runs the loop, too")

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-3.0, 3.0, 80))
y = np.where(np.sin(2.0 * x) + 0.4 * rng.standard_normal(80) > 0.0, 1.0, -1.0)
K = (9.0 * RBF(0.8))(x[:, None])

# %%
# The table
# ---------
# A compact table is one quintic spline of sigma*/sigma_EP over two coordinates of the cavity, which
# its metadata names. Six coefficients along either axis make a value.

table = open_table("probit-compact")
for axis in table.metadata.axes:
    print(f"from {axis.start:.3f} to {axis.stop:.3f} in {axis.size - 1} cells: {axis.name}")


def basis(t):
    """Six uniform quintic B-splines at 0 <= t <= 1: sums of truncated fifth powers."""
    shifts = jnp.arange(6.0)
    signs = jnp.array([1.0, -6.0, 15.0, -20.0, 15.0, -6.0])
    at = t[..., None] + 5.0 - shifts  # of the spline that began so many cells before
    return jnp.sum(signs * jnp.maximum(at[..., None] - shifts, 0.0) ** 5, axis=-1) / 120.0


def ratio(k, sigma):
    """sigma*/sigma_EP, by k = y mu / sqrt(1 + sigma^2) and sigma of the cavity."""
    root = jnp.sqrt(16.0 + k**2)
    places = (k / root, jnp.log10(sigma / jnp.sqrt(1.0 + 0.25 * (root - k) ** 2)))
    cells, weights = [], []
    for place, axis in zip(places, table.metadata.axes, strict=True):
        at = (jnp.clip(place, axis.start, axis.stop) - axis.start) / axis.step
        cell = jnp.clip(at.astype(int), 0, axis.size - 2)
        cells.append(cell[:, None] + jnp.arange(6))
        weights.append(basis(at - cell))
    picked = jnp.asarray(table.values[0])[cells[0][:, :, None], cells[1][:, None, :]]
    return jnp.einsum("nij,ni,nj->n", picked, *weights)


# %%
# The loop
# --------
# All sites move at once, by 0.8 of the step, until the largest change is below 1e-11.


def sweep(sites, qp):
    """Posterior, cavities, moments, new sites."""
    tau, nu = sites
    root = jnp.sqrt(tau)
    chol = jnp.linalg.cholesky(jnp.eye(len(x)) + root[:, None] * K * root)
    half = jax.scipy.linalg.solve_triangular(chol, root[:, None] * K, lower=True)
    covariance = K - half.T @ half
    mean, variance = covariance @ nu, jnp.diag(covariance)
    cavity = 1.0 / variance - tau
    mu, s2 = (mean / variance - nu) / cavity, 1.0 / cavity
    z = y * mu / jnp.sqrt(1.0 + s2)
    r = jnp.exp(norm.logpdf(z) - norm.logcdf(z))
    new_mean = mu + y * s2 * r / jnp.sqrt(1.0 + s2)
    new_variance = s2 - s2**2 * r * (z + r) / (1.0 + s2)
    if qp:
        new_variance = new_variance * ratio(z, jnp.sqrt(s2)) ** 2
    target = jnp.stack([1.0 / new_variance - cavity, new_mean / new_variance - cavity * mu])
    return sites + 0.8 * (target - sites), mean, variance


def settle(qp):
    """Mean and variance of the posterior, and how many sweeps they took."""

    def more(state):
        sites, last, n = state
        return (jnp.abs(sites - last).max() > 1e-11) & (n < 500)

    def step(state):
        return sweep(state[0], qp)[0], state[0], state[2] + 1

    sites = jnp.zeros((2, len(x)))
    sites, _, n = jax.lax.while_loop(more, step, (sites, sites + 1.0, 0))
    return *sweep(sites, qp)[1:], n


stds = {}
for method in ("ep", "qp"):
    post = infer(K, y, method=method, tol=1e-11)
    stds[method, "infer"] = np.sqrt(post.variance)
    if jax is not None:
        with jax.enable_x64(True):
            found = jax.jit(settle, static_argnums=0)(method == "qp")
        mean, variance, n = map(np.asarray, found)
        stds[method, "the loop in JAX"] = np.sqrt(variance)
        off = max(np.abs(mean - post.mean).max(), np.abs(variance - post.variance).max())
        print(f"{method.upper()}: {n} sweeps; differs from infer by {off:.1e}")
        assert off < 1e-8

# %%
# How far QP's posterior is below EP's
# ------------------------------------

figure, ax = plt.subplots(figsize=(7.4, 4.0), layout="constrained")
for name, style in (("infer", "-"), ("the loop in JAX", ".")):
    if ("qp", name) in stds:
        ax.plot(x, stds["qp", name] / stds["ep", name], style, label=f"by {name}")
ax.plot(x, np.where(y > 0, 1.0, ax.get_ylim()[0]), "|", color="0.35", label="labels, up and down")
ax.set(xlabel="x", ylabel="standard deviation of f, QP by EP")
figure.legend(loc="outside lower center", ncols=3, frameon=False)

plt.show()
