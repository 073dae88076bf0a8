"""
Regression with outliers
========================

Under normal noise an outlier pulls the curve towards itself, and raises the noise that is learnt.
``GPRobustRegressor`` has Student-t noise: an observation far from all others loses its pull.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from qpruntime import GPRobustRegressor
from qpruntime.plotting import FunctionDisplay

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(0.0, 10.0, 80))
truth = np.sin(x) + 0.1 * x
y = truth + 0.12 * rng.standard_normal(80)
wrong = rng.choice(80, 9, replace=False)
y[wrong] += rng.choice([-1.0, 1.0], 9) * rng.uniform(2.0, 4.0, 9)
X = x[:, None]

# %%
# Two kinds of noise
# ------------------
# The band on the left is what the robust model knows of the function. On the right is a Gaussian
# process of scikit-learn with normal noise, fitted to the same rows.

robust = GPRobustRegressor().fit(X, y)
normal = GaussianProcessRegressor(
    1.0 * RBF(1.0) + WhiteKernel(0.1), normalize_y=True, random_state=0
).fit(X, y)

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.2), sharey=True, layout="constrained")
display = FunctionDisplay.from_estimator(robust, X, y, ax=panels[0])
fine = display.x[:, None]
noise = normal.kernel_.k2.noise_level * y.var()
mean, std = normal.predict(fine, return_std=True)
half = 1.645 * np.sqrt(std**2 - noise)  # of the function: scikit-learn adds the noise
panels[1].plot(X, y, "o", color="#5A5A5A", markersize=4.5, alpha=0.65)
panels[1].fill_between(fine[:, 0], mean - half, mean + half, color="#D55E00", alpha=0.22, lw=0.0)
panels[1].plot(fine, mean, color="#D55E00")
panels[1].set_xlabel("x")
for ax, title in zip(panels, ("Student-t noise", "normal noise"), strict=True):
    ax.plot(fine, np.sin(fine) + 0.1 * fine, color="black", linestyle="--", label="truth")
    ax.set(title=title, xlabel="x", ylabel="y")
handles = panels[0].get_legend_handles_labels()
panels[0].get_legend().remove()
figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)

# %%
# What was taken for an outlier
# -----------------------------
# The weight of an observation is the precision of its site. Where the noise explains an observation
# better than the function does, the site has hardly any precision, or a negative one.

tau = robust.posterior_.sites.tau
order = np.argsort(tau)[: len(wrong)]
print(f"noise learnt: {robust.scale_:.3f} and {np.sqrt(noise):.3f}; 0.12 was drawn")
print("rows that were moved:      ", sorted(wrong.tolist()))
print("rows of smallest precision:", sorted(order.tolist()))
print(f"mean error: {np.abs(robust.predict(X) - truth).mean():.3f} by Student-t noise,")
print(f"            {np.abs(normal.predict(X) - truth).mean():.3f} by normal noise")

plt.show()
