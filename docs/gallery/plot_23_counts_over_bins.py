"""
Counts over bins of different width
===================================

A count sees the mean rate of its bin. ``count_bins`` says where the latent values of bins are, and
``infer`` takes them along an operator.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import InputError, count_bins, infer


def rate(t):
    """Events per hour."""
    return 8.0 * np.exp(np.sin(t / 24.0 * 2.0 * np.pi) - 0.4 * np.cos(t / 6.0 * 2.0 * np.pi / 2.0))


rng = np.random.default_rng(0)
edges = np.cumsum(np.concatenate([[0.0], rng.uniform(0.2, 1.4, 90)]))
edges = edges[edges < 48.0]
fine = [np.linspace(*ends, 50) for ends in pairwise(edges)]
counts = rng.poisson([np.diff(t[[0, -1]])[0] * rate(t).mean() for t in fine])

# %%
# Bins up to half a length-scale
# ------------------------------

kernel = ConstantKernel(1.0) * RBF(3.0)
points, operator, mean = count_bins(edges, kernel, mean=np.log(8.0))
post = infer(kernel(points), counts, "poisson-exp", "ep", operator=operator, mean=mean)

grid = np.linspace(0.0, edges[-1], 400)[:, None]
f, variance = post.predict(kernel(grid, points), kernel.diag(grid), mean=np.log(8.0))
low, high = (np.exp(f + side * 1.645 * np.sqrt(variance)) for side in (-1.0, 1.0))

figure, ax = plt.subplots(figsize=(10.0, 4.2), layout="constrained")
ax.stairs(counts / np.diff(edges), edges, color="#5A5A5A", alpha=0.6, label="counts / width")
ax.fill_between(grid[:, 0], low, high, color="#0072B2", alpha=0.2)
ax.plot(grid[:, 0], np.exp(f), color="#0072B2", label="rate, 90 % band")
ax.plot(grid[:, 0], rate(grid[:, 0]), "k--", label="truth")
ax.set(xlabel="hour", ylabel="events per hour")
ax.legend(frameon=False)
inside = ((low < rate(grid[:, 0])) & (rate(grid[:, 0]) < high)).mean()
print(f"{len(counts)} bins; the truth is inside the band on {inside:.0%} of the grid")

# %%
# Wider ones are refused
# ----------------------

try:
    count_bins([0.0, 6.0], kernel)
except InputError as error:
    print(error)

plt.show()
