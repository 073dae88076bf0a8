"""
EP, QP, VB, Laplace and long chains
===================================

All approximations replace the posterior of the latent function by a normal. Which of them is near
it? On a small problem long chains of elliptical slice sampling tell, as exactly as their length
allows. The labels here are separable and the prior is wide, which is where approximations differ
most.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer

rng = np.random.default_rng(1)
x = np.sort(rng.uniform(-3.0, 3.0, 30))
y = np.where(np.sin(1.3 * x) > 0.0, 1, -1)
kernel = 100.0 * RBF(1.5)
K = kernel(x[:, None])

# %%
# Four approximations
# -------------------
# The same kernel and the logistic likelihood for all; Laplace's is that of scikit-learn.

found = {}
for method in ("ep", "qp", "vb"):
    post = infer(K, y, "logistic", method)
    found[method.upper()] = post.mean, np.sqrt(post.variance)
laplace = GaussianProcessClassifier(kernel, optimizer=None).fit(x[:, None], y)
mean, variance = laplace.base_estimator_.latent_mean_and_variance(x[:, None])
found["Laplace"] = mean, np.sqrt(variance)

# %%
# Long chains
# -----------
# Elliptical slice sampling (Murray, Adams and MacKay, 2010), forty chains side by side. Every
# proposal lies on an ellipse through the state and a draw from the prior; the bracket shrinks
# around the state until a proposal is likely enough.


def level(f):
    """Log likelihood of every chain."""
    return -np.logaddexp(0.0, -y * f).sum(axis=1)


def chains(steps, side=40, burn=300):
    """Draw f from its posterior; of shape (steps, side, rows)."""
    root = np.linalg.cholesky(K + 1e-9 * np.eye(x.size))
    f, kept = np.zeros((side, x.size)), []
    for _ in range(burn + steps):
        start, prior = f, rng.standard_normal(f.shape) @ root.T
        least = level(f) + np.log(rng.random(side))
        angle = rng.uniform(0.0, 2.0 * np.pi, side)
        low, high = angle - 2.0 * np.pi, angle
        short = np.ones(side, dtype=bool)
        while short.any():
            f = start * np.cos(angle)[:, None] + prior * np.sin(angle)[:, None]
            short = level(f) < least
            low = np.where(short & (angle < 0.0), angle, low)
            high = np.where(short & (angle >= 0.0), angle, high)
            angle = np.where(short, rng.uniform(low, high), angle)
        kept.append(f)
    return np.array(kept[burn:])


draws = chains(2000)
truth, spread = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
error = draws.mean(axis=0).std(axis=0) / np.sqrt(draws.shape[1]) / spread
print(f"the chains know the means to {error.max():.3f} standard deviations")

# %%
# Where each of them stands
# -------------------------
# Errors of means are in true standard deviations; deviations are divided by the true ones. The
# means of EP, QP and VB are right to 0.03. All deviations are too small: EP's by a tenth, QP's by a
# little more, VB's and Laplace's most. Laplace takes the mode for the mean, which is nearer to 0.

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.4), layout="constrained")
colours = ("#0072B2", "#E69F00", "#009E73", "#D55E00")
for (name, (mean, std)), colour, marker in zip(found.items(), colours, "os^x", strict=True):
    panels[0].plot(truth, (mean - truth) / spread, marker, color=colour, label=name, ms=5.0)
    panels[1].plot(truth, std / spread, marker, color=colour, ms=5.0)
    off = np.sqrt(np.mean(((mean - truth) / spread) ** 2))
    print(
        f"{name:8} means off by {off:.3f}, deviations {np.mean(std / spread):.3f} of the true ones"
    )
for ax, level in zip(panels, (0.0, 1.0), strict=True):
    ax.axhline(level, color="0.4", linewidth=1.0, linestyle=":")
    ax.set_xlabel("true posterior mean of f")
panels[0].set_ylabel("error of the mean, standard deviations")
panels[1].set_ylabel("standard deviation by the true one")
figure.legend(loc="outside lower center", ncols=4, frameon=False)

# %%
# What EP leaves out can be corrected: ``marginals`` takes EP's normals a step further.

post = infer(K, y, "logistic", "ep")
better = post.marginals()
print(f"EP corrected: deviations {np.mean(np.sqrt(better.variance) / spread):.3f} of the true ones")

plt.show()
