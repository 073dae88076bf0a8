"""
Trees and a Gaussian process together
=====================================

Thresholds are easy for trees and hard for a smooth function; with smooth changes it is the reverse.
``prior_mean=`` takes any classifier of scikit-learn's manner as the prior mean of the Gaussian
process, which then learns what that one leaves, and keeps its intervals.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from qpruntime import GPClassifier
from qpruntime.plotting import BoundaryDisplay

rng = np.random.default_rng(1)


def truth(X):
    """Probability of class 1: a wave, and a pattern of thresholds."""
    pattern = np.sign(X[:, 0] - 0.4) * np.sign(X[:, 0] + 0.5) * np.sign(X[:, 1] + 0.2)
    return 1.0 / (1.0 + np.exp(-1.2 * np.sin(2.0 * X[:, 0] + 1.5 * X[:, 1]) - 3.0 * pattern))


X, new = rng.uniform(-1.0, 1.0, (600, 2)), rng.uniform(-1.0, 1.0, (4000, 2))
y, hidden = ((rng.random(len(a)) < truth(a)).astype(int) for a in (X, new))

# %%
# Three models of the same rows
# -----------------------------
# The log loss of new rows, smaller is better, stands above each map; that of the true probabilities
# is printed first. Here both parts are needed: boosting alone makes steps of the wave, the smooth
# process alone has no edges. With fewer thresholds the process alone can be the best of the three.

print(f"log loss of the truth: {log_loss(hidden, truth(new)):.4f}")
boosting = HistGradientBoostingClassifier(max_iter=60, random_state=0)
models = {
    "boosting": boosting,
    "Gaussian process": GPClassifier(random_state=0),
    "boosting as prior mean": GPClassifier(prior_mean=boosting, random_state=0),
}
figure, panels = plt.subplots(1, 3, figsize=(14.0, 4.8), sharey=True, layout="constrained")
for ax, (name, model) in zip(panels, models.items(), strict=True):
    model.fit(X, y)
    BoundaryDisplay.from_estimator(model, X, y, ax=ax, points=False, bar=ax is panels[-1])
    loss = log_loss(hidden, model.predict_proba(new))
    ax.set_title(f"{name}: {loss:.4f}")
    print(f"{name:23} {loss:.4f}")

# %%
# Do the intervals hold the truth?
# --------------------------------
# Boosting has none. Of both others 90 % should hold the truth. Near a threshold the smooth process
# cannot follow, and its intervals do not know it; with trees beneath they hold more.

near = np.abs(new[:, [0, 0, 1]] - [0.4, -0.5, -0.2]).min(axis=1) < 0.08
for name in list(models)[1:]:
    low, high = models[name].predict_interval(new).T
    held = (low <= truth(new)) & (truth(new) <= high)
    print(f"{name:23} held: {held.mean():.2f} everywhere, {held[near].mean():.2f} near a threshold")

plt.show()
