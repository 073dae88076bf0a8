"""
Predict a map for a week without data
=====================================

A field in the plane changes from week to week: an autoregression times a Matérn field. A week
without data resembles its neighbours, with a wider band.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime.effects import Autoregressive, EffectsModel, Plane, Product

rng = np.random.default_rng(6)
week = np.repeat(np.setdiff1d(np.arange(10), [5]), 60)
x, y = rng.uniform(size=(2, week.size))


def log_rate(week, x, y):
    """A hill that wanders."""
    centre = 0.2 + 0.06 * week
    return 0.4 + 1.8 * np.exp(-((x - centre) ** 2 + (y - 0.5) ** 2) / 0.06)


counts = rng.poisson(np.exp(log_rate(week, x, y)))

# %%
# Weeks 0 to 9 without week 5, 60 counts each
# -------------------------------------------

data = {"week": week, "x": x, "y": y}
term = Product(Autoregressive("week"), Plane("x", "y", spacing=0.12, extension=0.3))
model = EffectsModel([term], "poisson", integrate="mode").fit(data, counts)
print(model.summary())

# %%
# Three weeks, the middle one unseen
# ----------------------------------

side = np.linspace(0.0, 1.0, 41)
gx, gy = np.reshape(np.meshgrid(side, side), (2, -1))
figure, axes = plt.subplots(2, 3, figsize=(9.0, 5.6), layout="constrained")
for k, now in enumerate((4, 5, 6)):
    at = {"week": np.full(gx.size, now), "x": gx, "y": gy}
    mean, variance = model.latent(at)
    for ax, values, limits in zip(
        axes[:, k], (mean, np.sqrt(variance)), ((0.0, 2.2), (0.0, 0.8)), strict=False
    ):
        image = ax.pcolormesh(side, side, values.reshape(41, 41), vmin=limits[0], vmax=limits[1])
        if k == 2:
            figure.colorbar(image, ax=ax)
    axes[0, k].plot(x[week == now], y[week == now], ".", color="white", markersize=2)
    axes[0, k].set_title(f"week {now}")
    axes[1, k].set_xlabel("west to east, km")
axes[0, 0].set_ylabel("log rate: mean")
axes[1, 0].set_ylabel("log rate: standard deviation")
plt.show()
