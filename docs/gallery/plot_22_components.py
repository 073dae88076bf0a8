"""
What each feature contributes
=============================

A kernel that is a sum makes the latent function a sum: here of an hour, a temperature and a shop.
Each part has a band of its own, and together they are the whole.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPPoissonRegressor
from qpruntime.kernels import On, Same

rng = np.random.default_rng(2)
hour, heat = rng.uniform(0.0, 24.0, 260), rng.uniform(-5.0, 30.0, 260)
shop = rng.integers(0, 6, 260)
own = np.array([-0.6, -0.3, 0.0, 0.1, 0.3, 0.5])
log_rate = 1.0 + 0.8 * np.sin((hour - 8.0) / 24.0 * 2.0 * np.pi) + 0.02 * heat + own[shop]
visits = rng.poisson(np.exp(log_rate))
X = np.column_stack([hour, heat, shop])

# %%
# An hour, a temperature, a shop
# ------------------------------
# Each kernel sees one column; ``Same`` gives every shop a value of its own. Parts are centred over
# the rows of the fit, so that none holds the level.

kernel = ConstantKernel(1.0) * On(RBF(5.0), [0])
kernel += ConstantKernel(1.0) * On(RBF(20.0), [1])
kernel += ConstantKernel(1.0) * On(Same(), [2])
model = GPPoissonRegressor(kernel, link="exp").fit(X, visits)

figure, panels = plt.subplots(1, 3, figsize=(12.0, 3.8), sharey=True, layout="constrained")
for k, (label, grid) in enumerate(
    (("hour", np.linspace(0, 24, 97)), ("heat", np.linspace(-5, 30, 71)), ("shop", np.arange(6.0)))
):
    points = np.tile([12.0, 12.5, 0.0], (len(grid), 1))
    points[:, k] = grid
    parts = model.components(points, centred=True)
    mean, half = parts.mean[:, k], 1.645 * np.sqrt(parts.variance[:, k])
    if label == "shop":
        panels[k].errorbar(grid, mean, half, fmt="o", color="#0072B2")
        truth = own - own[shop].mean()
        panels[k].plot(grid, truth, "k_", markersize=16.0)
    else:
        panels[k].fill_between(grid, mean - half, mean + half, color="#0072B2", alpha=0.2)
        panels[k].plot(grid, mean, color="#0072B2")
        curve = {
            "hour": lambda x: 0.8 * np.sin((x - 8.0) / 24.0 * 2.0 * np.pi),
            "heat": lambda x: 0.02 * x,
        }[label]
        panels[k].plot(grid, curve(grid) - curve(X[:, k]).mean(), "k--")
    panels[k].set(xlabel=label)
panels[0].set_ylabel("part of the log rate")

# %%
# The parts are the whole
# -----------------------

parts = model.components(X, centred=True)
gap = np.abs(parts.mean.sum(axis=1) + parts.offset - model.latent(X)[0]).max()
print(f"parts and offset add up to the whole within {gap:.0e}")

plt.show()
