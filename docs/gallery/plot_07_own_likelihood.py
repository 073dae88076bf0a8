"""
A censored likelihood needs only its log density
================================================

A sensor reports nothing below its limit. If such rows are left out, or taken for the limit, the
curve is too high. A Python function with the log density of one observation y given one latent
value f treats them correctly.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF

from qpruntime import Likelihood, infer

LIMIT, SCALE, MEAN = 1.0, 0.15, 1.5


def log_prob(f, y, theta):
    """Logistic noise; a value at the limit says only that the true one is below."""
    if y <= theta[0]:
        return -np.logaddexp(0.0, (f - theta[0]) / theta[1])
    z = (y - f) / theta[1]
    return -z - 2.0 * np.logaddexp(0.0, -z) - np.log(theta[1])


def with_limit(limit):
    """Likelihood that treats values at or below the limit as censored."""
    theta = {"limit": limit, "scale": SCALE}
    return Likelihood.from_log_prob(log_prob, name="censored", theta=theta, log_concave=True)


censored, plain = with_limit(LIMIT), with_limit(-100.0)

# %%
# Three ways to treat the same rows
# ---------------------------------
# ``infer``, estimators and tables take the likelihood in place of a name. Triangles are rows at the
# limit. The naive ways use the same function with a limit below all values, so that no value counts
# as censored.

rng = np.random.default_rng(2)
x = np.sort(rng.uniform(0.0, 8.0, 70))
truth = 1.5 + 1.2 * np.sin(x)
y = np.maximum(truth + rng.logistic(0.0, SCALE, x.size), LIMIT)
fine = np.linspace(0.0, 8.0, 200)
kernel = 1.5 * RBF(1.0)


def curve(likelihood, rows):
    """Posterior mean of f along the axis."""
    at = x[rows, None]
    post = infer(kernel(at), y[rows], likelihood, table="exact", method="ep", mean=MEAN)
    return post.predict(kernel(fine[:, None], at), np.full(200, 1.5), mean=MEAN)[0]


observed = y > LIMIT
ways = {
    "censored": (curve(censored, y > 0.0), "-"),
    "limit taken for the value": (curve(plain, y > 0.0), "-."),
    "rows at the limit left out": (curve(plain, observed), ":"),
}
figure, ax = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
for name, (mean, style) in ways.items():
    ax.plot(fine, mean, style, lw=2.0, label=name)
    print(f"{name:27} mean error {np.abs(mean - 1.5 - 1.2 * np.sin(fine)).mean():.3f}")
ax.plot(fine, 1.5 + 1.2 * np.sin(fine), "k--", lw=1.2, label="truth")
ax.plot(x[observed], y[observed], "o", color="0.4", markersize=4.0, label="measured")
ax.plot(x[~observed], y[~observed], "v", color="0.4", markersize=5.0, label="at the limit")
ax.set(xlabel="position x", ylabel="concentration")
figure.legend(loc="outside lower center", ncols=3, frameon=False)

# %%
# If you use it often, ``tablegen.build(censored, "censored.h5", ...)`` makes a table. Inference
# then looks numbers up instead of integrating.

plt.show()
