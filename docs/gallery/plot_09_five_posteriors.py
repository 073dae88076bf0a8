"""
EP is nearest to the true posterior, before correction
======================================================

All approximations replace the posterior of the latent function by a normal. Long chains of
elliptical slice sampling show which of them is nearest. The labels here are separable and the prior
is wide, because approximations differ most there.
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

fits = {}
for method in ("ep", "qp", "vb"):
    post = infer(K, y, "logistic", method)
    fits[method.upper()] = post.mean, np.sqrt(post.variance)
laplace = GaussianProcessClassifier(kernel, optimizer=None).fit(x[:, None], y)
mean, variance = laplace.base_estimator_.latent_mean_and_variance(x[:, None])
fits["Laplace"] = mean, np.sqrt(variance)

# %%
# Long chains
# -----------
# ``marginals(correction="sample")`` runs chains of elliptical slice sampling (Murray, Adams and
# MacKay, 2010), and corrected marginals take EP's normals a step further.

post = infer(K, y, "logistic", "ep")
chains = post.marginals(correction="sample", random_state=0)
truth, spread = chains.mean, np.sqrt(chains.variance)
print(f"R-hat of the chains at most {chains.rhat.max():.4f}")
corrected = post.marginals()
fits["corrected EP"] = corrected.mean, np.sqrt(corrected.variance)

# %%
# Errors of means and deviations
# ------------------------------
# Errors of means are in true standard deviations; deviations are divided by the true ones. All
# normal approximations are too narrow: EP by a tenth, QP by a little more, VB and Laplace most.
# Laplace takes the mode for the mean, which is nearer to 0. Corrected marginals are nearest.

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.4), layout="constrained")
for (name, (mean, std)), marker in zip(fits.items(), "os^xD", strict=True):
    panels[0].plot(truth, (mean - truth) / spread, marker, label=name, ms=5.0)
    panels[1].plot(truth, std / spread, marker, ms=5.0)
    error = np.sqrt(np.mean(((mean - truth) / spread) ** 2))
    print(f"{name:12} error of means {error:.3f}, deviations {np.mean(std / spread):.3f}")
for ax, level in zip(panels, (0.0, 1.0), strict=True):
    ax.axhline(level, color="0.4", linewidth=1.0, linestyle=":")
    ax.set_xlabel("true posterior mean of f")
panels[0].set_ylabel("error of the mean, standard deviations")
panels[1].set_ylabel("standard deviation, share of the true one")
figure.legend(loc="outside lower center", ncols=5, frameon=False)
plt.show()
