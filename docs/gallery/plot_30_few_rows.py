"""
Of few rows hyper-parameters are uncertain
==========================================

Twenty rows do not tell a long length-scale with much noise from a short one with little. The most
probable pair may be the wrong one, and its intervals are then too narrow.
``hyperparameters="integrate"`` averages over all pairs.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import Matern

from qpruntime import GPRegressor

# %%
# Functions that are known
# ------------------------
# Eight functions of two features, drawn from a Matérn process, each seen in twenty rows under
# noise; how many of 100 other observations are in intervals of 90 %.

covered, widths = [], []
for seed in range(8):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 4.0, (120, 2))
    f = np.linalg.cholesky(Matern(1.5, nu=2.5)(X) + 1e-9 * np.eye(120)) @ rng.standard_normal(120)
    y = f + 0.3 * rng.standard_normal(120)
    own = []
    for how in ("mode", "integrate"):
        model = GPRegressor(Matern(1.0, nu=2.5), method="ep", hyperparameters=how)
        model.fit(X[:20], y[:20])
        low, high = model.predict_interval(X[20:], 0.9).T
        own.append((np.mean((low <= y[20:]) & (y[20:] <= high)), np.mean(high - low)))
    covered.append([cover for cover, _ in own])
    widths.append([width for _, width in own])
covered = np.array(covered)
print("covered, of 90 %:", covered.mean(axis=0).round(3).tolist())
print("smallest of any set:", covered.min(axis=0).round(3).tolist())
print("mean width:", np.mean(widths, axis=0).round(2).tolist())

# %%
# What is averaged
# ----------------
# Right: the nodes of one fit, by length-scale and noise; larger circles weigh more. The cross is
# the mode.

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.0), layout="constrained")
order = np.argsort(covered[:, 0])
left.plot(covered[order, 0], "o", color="#D55E00", label="mode")
left.plot(covered[order, 1], "o", color="#0072B2", label="integrated")
left.axhline(0.9, color="black", linestyle="--", linewidth=1.0)
left.set(xlabel="set, by the mode's cover", ylabel="share of new rows in 90 % intervals")
left.legend(frameon=False)

nodes = model.integrated_
at = np.exp(nodes.theta[:, [0, 1]])
right.scatter(*at.T, s=3000.0 * nodes.weights, color="#0072B2", alpha=0.3, linewidth=0.0)
right.plot(*np.exp(model.optimum_.theta), "x", color="#D55E00", markersize=10.0)
right.set(xscale="log", yscale="log", xlabel="length-scale", ylabel="noise, in spreads of y")
plt.show()
