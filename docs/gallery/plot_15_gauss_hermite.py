"""
Twenty Gauss-Hermite nodes can fail silently
============================================

Most packages integrate a likelihood against a normal by 20 Gauss-Hermite nodes. The rule is exact
for polynomials, and good if the likelihood is smooth on the scale of the normal. If it is not, the
nodes miss it, and nothing says so. ``project`` chooses its nodes by the likelihood and is
certified.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from qpruntime import project


def student(f, y):
    """Student-t noise of scale 0.1."""
    return stats.t.logpdf((y - f) / 0.1, 4.0) - np.log(0.1)


def poisson(f, y):
    """Counts of rate e^f."""
    return stats.poisson.logpmf(y, np.exp(f))


# %%
# The standard deviation of the tilted density
# --------------------------------------------
# EP takes the standard deviation of p(y | f) N(f | mu, sigma^2), normalised. ``hermite`` takes
# n nodes, ``project`` by its own rules, which are right to 1e-9. At the right end of each panel the
# likelihood changes much faster than the normal. A hundred nodes fail as well, only later.


def hermite(log_prob, mu, sigma, y, n=20):
    """Mean and standard deviation of the tilted density by n nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(n)
    f = mu + sigma * x
    log_p = log_prob(f, y)
    weight = w * np.exp(log_p - log_p.max())
    mean = np.sum(weight * f) / weight.sum()
    return mean, np.sqrt(np.sum(weight * (f - mean) ** 2) / weight.sum())


cases = {
    "Student-t, scale 0.1, y = 0.5": ("student-t(nu=4, scale=0.1)", student, 0.5),
    "Poisson, y = 100": ("poisson-exp", poisson, 100),
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
# No node is on the peak of the density. So the rule returns the place of a node.

f = np.linspace(-4.0, 4.5, 2001)
density = np.exp(student(f, 0.5)) * stats.norm.pdf(f, 0.0, 3.0)
nodes = 3.0 * np.polynomial.hermite_e.hermegauss(20)[0]
figure, ax = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
ax.plot(f, density / density.max(), color="black", label="tilted density")
ax.vlines(nodes[np.abs(nodes) < 4.0], 0.0, 0.25, color="#E69F00", label="nodes")
ax.set(xlabel="f", ylabel="density, share of its maximum", ylim=(0.0, 1.05))
ax.legend()
by_nodes, right = (
    hermite(student, 0.0, 3.0, 0.5),
    project("student-t(nu=4, scale=0.1)", 0.0, 3.0, 0.5, method="ep"),
)
print(f"20 nodes: {by_nodes[0]:.3f} ± {by_nodes[1]:.3f}; project: {right[0]:.3f} ± {right[1]:.3f}")
plt.show()
