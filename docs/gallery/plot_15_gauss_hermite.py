"""
Where 20 points of Gauss and Hermite are not enough
===================================================

Most packages integrate a likelihood against a normal by 20 nodes of Gauss and Hermite. That is
exact for polynomials, and good where the likelihood is smooth on the scale of the normal. Where it
is not, the nodes miss it, and nothing says so. ``project`` chooses its nodes by the likelihood and
is certified.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from scipy.special import log_expit

from qpruntime import project


def student(f, y):
    """Student-t noise of scale 0.1."""
    return stats.t.logpdf((y - f) / 0.1, 4.0) - np.log(0.1)


def logistic(f, y):
    """Labels by the logistic function."""
    return log_expit(y * f)


def poisson(f, y):
    """Counts of rate e^f."""
    return stats.poisson.logpmf(y, np.exp(f))


# %%
# The standard deviation of the tilted density
# --------------------------------------------
# That is what EP takes: of p(y | f) N(f | mu, sigma^2), normalised. ``hermite`` has it by n nodes,
# ``project`` by its own rules, which are right to 1e-9. At the right end of each panel the
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
    "Student-t, scale 0.1, y = 0.5, mu = 0": ("student-t(nu=4, scale=0.1)", student, 0.0, 0.5, 1.0),
    "logistic, y = 1, mu = -3 sigma": ("logistic", logistic, -3.0, 1, 0.0),
    "Poisson, y = 100, mu = 0": ("poisson-exp", poisson, 0.0, 100, 1.0),
}
sigmas = np.logspace(-1.0, 1.5, 60)
figure, panels = plt.subplots(1, 3, figsize=(13.0, 4.0), sharey=True, layout="constrained")
for ax, (title, (name, log_prob, mu, y, fixed)) in zip(panels, cases.items(), strict=True):
    for n, colour, style in ((20, "#D55E00", "-"), (100, "#0072B2", "--")):
        error = []
        for sigma in sigmas:
            centre = mu if fixed else mu * sigma
            truth = float(project(name, centre, sigma, y, method="ep")[1])
            error.append(abs(hermite(log_prob, centre, sigma, y, n)[1] / truth - 1.0))
        ax.loglog(sigmas, np.maximum(error, 1e-12), style, color=colour, label=f"{n} nodes")
        print(f"{title:38} {n:3} nodes: relative error at most {max(error):.2g}")
    ax.set(title=title, xlabel="standard deviation of the normal")
panels[0].set_ylabel("relative error of the deviation")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)

# %%
# One of them, looked at
# ----------------------
# The nodes that are nearest are drawn with the density that they are to integrate. None is on its
# peak: what the rule returns is the place of a node, not of the density.

sigma = 3.0
f = np.linspace(-4.0, 4.5, 2001)
density = np.exp(student(f, 0.5)) * stats.norm.pdf(f, 0.0, sigma)
nodes = sigma * np.polynomial.hermite_e.hermegauss(20)[0]
mean, std = hermite(student, 0.0, sigma, 0.5)
right, width = project("student-t(nu=4, scale=0.1)", 0.0, sigma, 0.5, method="ep")
figure, ax = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
ax.plot(f, density / density.max(), color="black", label="tilted density")
shown = nodes[(nodes > -4.0) & (nodes < 4.5)]
ax.vlines(shown, 0.0, 0.25, color="#D55E00", label="nodes")
for m, s, at, colour, label in (
    (mean, std, 0.45, "#D55E00", "20 nodes: mean and deviation"),
    (right, width, 0.6, "#0072B2", "project: mean and deviation"),
):
    ax.errorbar([m], [at], xerr=[s], fmt="o", color=colour, capsize=3.0, label=label)
ax.set(xlabel="f", yticks=[], ylim=(0.0, 1.05))
figure.legend(loc="outside lower center", ncols=2, frameon=False)
print(f"20 nodes: {mean:.3f} ± {std:.3f}; project: {right:.3f} ± {width:.3f}")

plt.show()
