"""
Bayesian optimisation with a constraint
=======================================

Make a process as cheap as possible, as long as its product passes a test. Both the cost and the
test are found out by expensive trials only. ``Optimizer`` models both, and tries next where it
learns most about the best point that passes.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime.bayesopt import Optimizer
from qpruntime.plotting import ProgressDisplay

BEST = 0.59979  # of this problem of R. Gramacy and others, known to five digits


def cost(x):
    """To be minimised."""
    return x[0] + x[1]


def passes(x):
    """Two quantities that must not be negative."""
    wave = 0.5 * np.sin(2.0 * np.pi * (x[0] ** 2 - 2.0 * x[1]))
    return [x[0] + 2.0 * x[1] + wave - 1.5, 1.5 - x @ x]


# %%
# Ask and tell
# ------------
# ``ask`` says where to try next, ``tell`` takes what came out. No point that passes is needed to
# begin.

opt = Optimizer([(0.0, 1.0), (0.0, 1.0)], constraints=2, noise=0.0, random_state=1)
for _ in range(18):
    x = opt.ask()
    opt.tell(x, f=cost(x), c=passes(x))
best = opt.recommend()
print(f"recommended {best.round(4)}: cost {cost(best):.5f}, the least possible is {BEST}")
print("margins of the two tests:", np.round(passes(best), 5))

# %%
# What it did
# -----------
# Crosses are trials that did not pass. They tell where the edge is. The recommendation may lie
# between trials, and be better than the best of them.

display = ProgressDisplay.from_optimizer(opt, optimum=BEST)
display.ax_.set_ylabel("cost")

# %%
# What it knows
# -------------
# Colours are the probability that a point passes, the white line is the true edge.

side = np.linspace(0.0, 1.0, 60)
X = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure, ax = plt.subplots(figsize=(6.2, 5.0), layout="constrained")
filled = ax.contourf(side, side, opt.probability(X).reshape(60, 60), np.linspace(0, 1, 11))
figure.colorbar(filled, ax=ax, label="probability to pass")
edge = np.array([min(passes(x)) for x in X]).reshape(60, 60)
ax.contour(side, side, edge, [0.0], colors="white", linewidths=1.5)
tried = np.array([opt.columns()["x0"], opt.columns()["x1"]])
ax.plot(*tried, "o", color="black", markeredgecolor="white", label="tried", clip_on=False)
ax.plot(*best, "*", color="#D55E00", ms=16, markeredgecolor="white", label="recommended")
ax.set(xlabel="$x_0$", ylabel="$x_1$", aspect="equal")
figure.legend(loc="outside lower center", ncols=2, frameon=False)

plt.show()
