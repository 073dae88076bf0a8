"""
Rank players from games while strengths change
==============================================

Results of games go in; strengths with bands and probabilities of ranks come out. If games have
dates, strength is a series.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime import GPPreference

rng = np.random.default_rng(4)
names = np.array(["Ada", "Ben", "Cleo", "Dov", "Eve", "Finn"])
pairs = np.array([rng.choice(6, 2, replace=False) for _ in range(240)])
days = np.sort(rng.uniform(0.0, 360.0, 240))


def strength(player, day):
    """True strength; two of the six change places."""
    level = np.array([0.8, 0.4, 0.0, -0.2, -0.6, -0.9])[player]
    drift = np.where(player == 0, -1.0, np.where(player == 4, 1.0, 0.0))
    return level + drift * (day - 180.0) / 180.0


f = strength(pairs, days[:, None])
scores = (f[:, 0] - f[:, 1] + rng.normal(size=240) > 0.0).astype(float)

# %%
# Compare fits with and without dates
# -----------------------------------
# The evidence says whether strengths changed.

still = GPPreference().fit(None, names[pairs], scores=scores)
moving = GPPreference().fit(None, names[pairs], scores=scores, times=days)
for name, model in (("without", still), ("with", moving)):
    print(f"log evidence {name} dates {model.log_marginal_likelihood_value_:.1f}")

figure, panel = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
grid = np.linspace(0.0, 360.0, 61)
for k, colour in ((0, "#0072B2"), (2, "#5A5A5A"), (4, "#D55E00")):
    mean, std = np.array([moving.utility([names[k]], times=day) for day in grid])[:, :, 0].T
    panel.fill_between(grid, mean - 1.645 * std, mean + 1.645 * std, color=colour, alpha=0.2)
    panel.plot(grid, mean, color=colour, label=names[k])
    truth = strength(k, grid) - np.mean([strength(np.array(j), grid) for j in range(6)], axis=0)
    panel.plot(grid, truth, color=colour, linestyle="--")
panel.set(xlabel="day", ylabel="strength (dashed: truth), with 90 % band")
panel.legend(frameon=False)
plt.show()

# %%
# Ranks on the last day
# ---------------------
# Probabilities come from joint draws of all strengths.

ranks = moving.rank_proba()
figure, panel = plt.subplots(figsize=(5.0, 4.2), layout="constrained")
image = panel.imshow(ranks, cmap="Blues", vmin=0.0, vmax=1.0)
for i in range(6):
    for j in range(6):
        if ranks[i, j] >= 0.05:
            style = {"ha": "center", "color": "white" if ranks[i, j] > 0.6 else "black"}
            panel.text(j, i, f"{ranks[i, j]:.2f}", va="center", **style)
panel.set_xticks(range(6), [str(place) for place in range(1, 7)])
panel.set_yticks(range(6), moving.items_)
panel.set(title="probability of each place on the last day", xlabel="place", ylabel="player")

plt.show()
