"""
A probability that may only rise
================================

With few noisy labels a fitted curve bends where it should not. ``monotone`` observes the sign of
its slope as well.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from qpruntime import GPClassifier

rng = np.random.default_rng(1)
dose = np.sort(rng.uniform(0.0, 10.0, 45))
truth = 0.4 * (dose - 5.0)
cured = truth + rng.normal(size=45) > 0.0

# %%
# The same rows, with and without
# -------------------------------

grid = np.linspace(0.0, 10.0, 201)
figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.2), sharey=True, layout="constrained")
for ax, monotone in zip(panels, (None, {0: +1}), strict=True):
    model = GPClassifier(monotone=monotone).fit(dose[:, None], cured)
    low, high = model.predict_interval(grid[:, None]).T
    p = model.predict_proba(grid[:, None])[:, 1]
    ax.fill_between(grid, low, high, color="#0072B2", alpha=0.2, label="90 % interval")
    ax.plot(grid, p, color="#0072B2", label="predicted")
    ax.plot(grid, norm.cdf(0.4 * (grid - 5.0)), "k--", label="truth")
    ax.plot(dose, cured, "o", color="#5A5A5A", markersize=4.0, alpha=0.6)
    ax.set(title=f"monotone={monotone}", xlabel="dose")
    error = np.abs(p - norm.cdf(0.4 * (grid - 5.0))).mean()
    falls = (np.diff(p) < 0.0).mean()
    print(f"monotone={monotone}: falls on {falls:.0%} of the grid, mean error {error:.3f}")
panels[0].set_ylabel("probability of a cure")
panels[1].legend(frameon=False, loc="lower right")

# %%
# Where the sign was seen
# -----------------------
# At rows of the fit far from each other, and where the curve still fell after a first one.

print(f"slopes were observed at {len(model.slopes_.where)} places")

plt.show()
