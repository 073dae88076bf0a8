"""
Twenty Gauss-Hermite nodes can fail silently
============================================

Most packages integrate a likelihood against a normal by 20 Gauss-Hermite nodes. The rule is exact
for polynomials, and accurate if the likelihood is smooth on the scale of the normal. Otherwise the
nodes miss its peak, and no warning says so. ``project`` adapts its nodes to the likelihood.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import special, stats

from qpruntime import project


def student(f, y):
    """Student-t noise of scale 0.1."""
    return stats.t.logpdf((y - f) / 0.1, 4.0) - np.log(0.1)


# %%
# The standard deviation of the tilted density
# --------------------------------------------
# EP needs the standard deviation of p(y | f) N(f | mu, sigma^2), normalised. ``hermite`` uses n
# nodes; ``project`` is right to 1e-9. At the right end of each panel the likelihood changes much
# faster than the normal. A hundred nodes fail too, only later.


def hermite(log_prob, mu, sigma, y, n=20):
    """Mean and standard deviation of the tilted density by n nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    f = mu + sigma * x
    weight = w * special.softmax(log_prob(f, y))
    mean = np.sum(weight * f) / weight.sum()
    return mean, np.sqrt(np.sum(weight * (f - mean) ** 2) / weight.sum())


cases = {
    "Student-t, scale 0.1, y = 0.5": ("student-t(nu=4, scale=0.1)", student, 0.5),
    "Poisson, y = 100": ("poisson-exp", lambda f, y: stats.poisson.logpmf(y, np.exp(f)), 100),
}
sigmas = np.logspace(-1.0, 1.5, 60)
figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.0), sharey=True, layout="constrained")
for ax, (title, (name, log_prob, y)) in zip(panels, cases.items(), strict=True):
    truth = project(name, 0.0, sigmas, y, method="ep")[1]
    for n, style in ((20, "-"), (100, "--")):
        std = np.array([hermite(log_prob, 0.0, sigma, y, n)[1] for sigma in sigmas])
        error = np.abs(std / truth - 1.0)
        ax.loglog(sigmas, np.maximum(error, 1e-12), style, label=f"{n} nodes")
        print(f"{title:30} {n:3} nodes: relative error at most {error.max():.2g}")
    ax.set(title=title, xlabel="standard deviation of the normal, mean 0")
panels[0].set_ylabel("relative error of the tilted deviation")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)

# %%
# One density with the nodes
# --------------------------
# No node is near the peak of the density, so the rule returns the position of a node.

f = np.linspace(-4.0, 4.5, 2001)
density = np.exp(student(f, 0.5)) * stats.norm.pdf(f, 0.0, 3.0)
nodes = 3.0 * np.polynomial.hermite_e.hermegauss(20)[0]
figure, ax = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
ax.plot(f, density / density.max(), color="black", label="tilted density")
ax.vlines(nodes[np.abs(nodes) < 4.0], 0.0, 0.25, color="#E69F00", label="nodes")
ax.set(xlabel="f", ylabel="density, share of its maximum", ylim=(0.0, 1.05))
ax.legend()
right = project("student-t(nu=4, scale=0.1)", 0.0, 3.0, 0.5, method="ep")
for name, (mean, std) in {"20 nodes": hermite(student, 0.0, 3.0, 0.5), "project": right}.items():
    print(f"{name}: {mean:.3f} ± {std:.3f}")
plt.show()
