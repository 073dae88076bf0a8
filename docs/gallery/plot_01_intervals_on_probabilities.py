"""
A predicted probability has an interval, narrower with more rows
================================================================

A classifier says 0.7. Is that known to within 0.02 or to within 0.3? ``predict_interval`` answers
with an interval for the probability itself, which boosting and forests do not give.

Labels are drawn here with a known probability, so that the interval can be compared with it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from qpruntime import GPClassifier
from qpruntime.plotting import FunctionDisplay

rng = np.random.default_rng(5)


def truth(x):
    """Probability of the label 1."""
    return 0.5 + 0.42 * np.sin(1.6 * x)


def draw(n):
    """Draw n rows: one feature, dense on the left and sparse on the right."""
    x = np.sort(6.0 * rng.random(n) ** 1.6)
    return x[:, None], (rng.random(n) < truth(x)).astype(int)


# %%
# The more rows there are, the narrower the interval
# --------------------------------------------------
# The band is the 90 % interval of the probability, not of the next label. It is wide where there
# are few rows: everywhere on the left, and at the right end of both panels. The dashed curve is the
# truth. The thin one is boosting, which gives a number for every x and does not say how well it is
# known.

fine = np.linspace(0.0, 6.0, 200)
figure, panels = plt.subplots(1, 2, figsize=(10.0, 4.2), sharey=True, layout="constrained")
for ax, n in zip(panels, (80, 800), strict=True):
    X, y = draw(n)
    model = GPClassifier().fit(X, y)
    display = FunctionDisplay.from_estimator(model, X, y, limits=(0.0, 6.0), ax=ax)
    boosted = HistGradientBoostingClassifier(random_state=0).fit(X, y)
    ax.plot(
        fine, boosted.predict_proba(fine[:, None])[:, 1], color="0.45", lw=0.9, label="boosting"
    )
    ax.plot(fine, truth(fine), color="black", linestyle="--", lw=1.4, label="truth")
    ax.set(title=f"{n} rows", xlabel="x")
    handles = ax.get_legend_handles_labels()
    ax.get_legend().remove()
figure.legend(*handles, loc="outside lower center", ncols=6, frameon=False)

# %%
# The interval holds what it promises
# -----------------------------------
# Twelve sets of 200 rows are fitted. The share of new places at which the interval holds the true
# probability is printed. Errors at neighbouring places are alike, so single sets may be far off.

shares = []
for _ in range(12):
    X, y = draw(200)
    new, _ = draw(400)
    low, high = GPClassifier().fit(X, y).predict_interval(new, level=0.9).T
    shares.append(np.mean((low <= truth(new[:, 0])) & (truth(new[:, 0]) <= high)))
print(f"90 % intervals hold the truth at {100 * np.mean(shares):.0f} % of new places")
print("single sets:", *(f"{100 * h:.0f}" for h in shares))

plt.show()
