"""
A field that respects a coast predicts better near it
=====================================================

Fish are counted along two shores of a headland. Places that are near across land are far apart by
water. The mesh ends at the coast, so the field does not cross land.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime.effects import EffectsModel, Plane
from qpruntime.plotting import EffectMapDisplay

# Water is a square from which a headland juts in from the right.
coast = np.array([[0, 0], [4, 0], [4, 1.6], [1.2, 1.8], [1.2, 2.2], [4, 2.4], [4, 4], [0, 4]])
rng = np.random.default_rng(2)
points = rng.uniform(0.0, 4.0, (700, 2))
headland = (points[:, 0] > 1.15) & (np.abs(points[:, 1] - 2.0) < 0.15 + 0.1 * points[:, 0])
points = points[~headland]


def rate(x, y):
    """Many fish north of the headland, few south of it; about the same at sea."""
    side = np.clip((x - 1.0) / 1.5, 0.0, 1.0) * np.sign(y - 2.0)
    return np.exp(1.0 + 1.4 * side + 0.2 * np.sin(2.0 * x))


counts = rng.poisson(rate(*points.T))
data = {"x": points[:, 0], "y": points[:, 1]}

# %%
# Fit with the coast and on a plain square
# ----------------------------------------

models = {}
for name, boundary in {"coast": coast, "no coast": None}.items():
    term = Plane(
        "x", "y", spacing=0.16, boundary=boundary, extension=0.6 if boundary is None else None
    )
    models[name] = EffectsModel([term], "poisson").fit(data, counts)
    print(name, models[name].names_, models[name].theta_.round(2))

new = rng.uniform(0.0, 4.0, (2000, 2))
near = (np.abs(new[:, 1] - 2.0) > 0.2 + 0.1 * new[:, 0]) & (new[:, 0] > 1.2)
new = new[near & (np.abs(new[:, 1] - 2.0) < 0.9)]
truth = np.log(rate(*new.T))
for name, model in models.items():
    error = model.latent({"x": new[:, 0], "y": new[:, 1]})[0] - truth
    print(f"{name}: root mean squared error of the log rate near the shores {error.std():.3f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.0, 4.2), layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=False):
    EffectMapDisplay.from_estimator(model, "plane(x, y)", ax=ax, clim=(-1.8, 1.8))
    ax.plot(*np.vstack([coast, coast[:1]]).T, color="black", linewidth=0.8)
    ax.plot(*points.T, ".", color="white", markersize=1.5)
    ax.set(xlabel="west to east, km", ylabel="south to north, km", title=name)
    ax.set(xlim=(-0.1, 4.1), ylim=(-0.1, 4.1))
plt.show()
