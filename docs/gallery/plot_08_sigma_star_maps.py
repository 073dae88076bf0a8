"""
QP's variance is below EP's, most for skewed densities
======================================================

EP replaces a tilted density by the normal with its mean and variance. Quantile propagation keeps
the mean and takes the standard deviation sigma* of the normal that is nearest in the Wasserstein
distance. It is never above EP's (Theorem 2 of the paper). The maps show the ratio of the two, over
the mean and the standard deviation of the cavity.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import ndtr

from qpruntime import project
from qpruntime.plotting import RatioDisplay

# %%
# Three likelihoods
# -----------------
# A label that contradicts a wide cavity, at the upper left of the first map, leaves a skewed
# density and a ratio of 0.96. Under a jump, the second likelihood, what is left of a contradicted
# cavity is nearly exponential: the ratio comes near to its limit of 0.903. A count of 3 under the
# square link leaves two peaks where the cavity reaches across 0, and a ratio of 0.87.

figure, panels = plt.subplots(1, 3, figsize=(14.0, 4.2), sharey=True, layout="constrained")
tables = (("probit-compact", 1), ("heaviside-compact", 1), ("poisson-compact", 3))
for ax, (table, y) in zip(panels, tables, strict=True):
    display = RatioDisplay.from_table(
        table, y, mu_range=(-6.0, 6.0), log10_sigma_range=(-0.5, 1.5), ax=ax
    )
    at = np.unravel_index(display.ratio.argmin(), display.ratio.shape)
    print(f"{table:18} smallest ratio {display.ratio.min():.4f}", end=" ")
    print(f"at mu = {display.mu[at[1]]:.1f}, log10 sigma = {display.log10_sigma[at[0]]:.1f}")
for ax in panels[1:]:
    ax.set_ylabel("")

# %%
# One cavity on the map
# ---------------------
# The tilted density of the label 1 under a cavity N(-3, 10^2), with both normals. Both have its
# mean. EP's is wider than QP's, because of the long tail on the right; the density itself is
# neither.

mu, sigma = -3.0, 10.0
f = np.linspace(-8.0, 30.0, 4001)
mean, star = project("probit", mu, sigma, 1)
_, ep = project("probit", mu, sigma, 1, method="ep")
print(f"mean {mean:.4f}, sigma* {star:.4f}, sigma_EP {ep:.4f}, ratio {star / ep:.4f}")


def normal(x, m, s):
    """Density of a normal."""
    return np.exp(-0.5 * ((x - m) / s) ** 2) / (s * np.sqrt(2.0 * np.pi))


tilted = ndtr(f) * normal(f, mu, sigma)
tilted /= np.trapezoid(tilted, f)
figure, ax = plt.subplots(figsize=(7.0, 4.0), layout="constrained")
ax.fill_between(f, tilted, color="0.8", label="tilted density")
ax.plot(f, normal(f, mean, ep), color="#D55E00", linestyle="--", label="EP")
ax.plot(f, normal(f, mean, star), color="#0072B2", label="QP")
ax.set(xlabel="f", ylabel="density", ylim=(0.0, None))
ax.legend(frameon=False)

plt.show()
