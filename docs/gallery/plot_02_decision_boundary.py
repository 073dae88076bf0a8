"""
Where is the boundary between two classes?
==========================================

A decision boundary is an estimate like any other. The solid line below is where both classes are
equally probable. Between the dashed lines the 90 % interval of the probability holds 1/2: there the
model leaves open which side of the boundary a point is on.
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
# probability is near 1/2 for two reasons: amid the rows because the classes overlap there, and in
# the lower left and upper right corners because nothing was seen there. The width tells the two
# apart: in the corners it is 1.

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.6), layout="constrained")
display = BoundaryDisplay.from_estimator(model, X, y, ax=panels[0])
display.plot(panels[1], show="width")
panels[0].set_title("probability")
panels[1].set_title("width of its interval")

# %%
# A forest draws a boundary too
# -----------------------------
# Any classifier with ``predict_proba`` can be drawn. In the corners the forest's map goes on as it
# is at the last rows before them, and no interval says that nothing was seen there.

forest = RandomForestClassifier(200, random_state=0).fit(X, y)
figure, ax = plt.subplots(figsize=(6.2, 4.6), layout="constrained")
BoundaryDisplay.from_estimator(forest, X, y, ax=ax)
ax.set_title("random forest")

# %%
# The same in numbers: one point amid the rows of class 0, one on the boundary, one far from all.

points = np.array([[-0.8, 0.5], [0.45, 0.25], [-1.2, -0.9]])
low, high = model.predict_interval(points).T
for point, p, a, b in zip(points, model.predict_proba(points)[:, 1], low, high, strict=True):
    print(f"at {point}: p = {p:.2f}, 90 % interval {a:.2f} to {b:.2f}")

plt.show()
