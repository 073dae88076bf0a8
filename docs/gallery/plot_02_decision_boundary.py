"""
A decision boundary is uncertain, and intervals show where
==========================================================

The solid line below is where both classes are equally probable. Between the dashed lines the 90 %
interval of the probability contains 1/2: there the model leaves open on which side a point lies.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.ensemble import RandomForestClassifier

from qpruntime import GPClassifier
from qpruntime.plotting import BoundaryDisplay

X, y = make_moons(120, noise=0.25, random_state=0)
model = GPClassifier().fit(X, y)

# %%
# Probability, and how well it is known
# -------------------------------------
# Colours on the left are the probability of class 1; on the right, the width of its interval. The
# probability is near 1/2 for two reasons: classes overlap amid the rows, and nothing was seen in
# the lower left and upper right corners. The width tells the two apart: it is 1 in the corners.

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.6), layout="constrained")
display = BoundaryDisplay.from_estimator(model, X, y, ax=panels[0])
display.plot(panels[1], show="width")
for ax in panels:
    ax.set(xlabel="first feature", ylabel="second feature")
panels[0].set_title("probability")
panels[1].set_title("width of its interval")

# %%
# A forest draws a boundary too
# -----------------------------
# Any classifier with ``predict_proba`` can be drawn. In the corners the forest continues the last
# rows before them, and no interval says that nothing was observed there.

forest = RandomForestClassifier(200, random_state=0).fit(X, y)
figure, ax = plt.subplots(figsize=(6.2, 4.6), layout="constrained")
BoundaryDisplay.from_estimator(forest, X, y, ax=ax)
ax.set(title="random forest", xlabel="first feature", ylabel="second feature")

# %%
# The same in numbers: one point amid the rows of class 0, one on the boundary, one far from all.

points = np.array([[-0.8, 0.5], [0.45, 0.25], [-1.2, -0.9]])
low, high = model.predict_interval(points).T
for point, p, a, b in zip(points, model.predict_proba(points)[:, 1], low, high, strict=True):
    print(f"at {point}: p = {p:.2f}, 90 % interval {a:.2f} to {b:.2f}")

plt.show()
