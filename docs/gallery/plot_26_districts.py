"""
Disease in districts
====================

Cases in districts of different populations, beside expected ones: raw ratios are largest where
almost nobody lives. With BYM2 a district is told by its neighbours and by itself, and what is asked
is how likely its risk is above that of the country.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime.effects import Areas, EffectsModel, Fixed
from qpruntime.plotting import EffectMapDisplay

rng = np.random.default_rng(4)
side = 9
place = np.arange(side**2)
row, column = place // side, place % side
expected = np.exp(rng.normal(1.3, 0.9, place.size))
farming = rng.uniform(0.0, 3.0, place.size)
risk = 0.2 * farming - 0.3 + 1.2 * np.exp(-((row - 6.0) ** 2 + (column - 2.0) ** 2) / 6.0)
cases = rng.poisson(expected * np.exp(risk + 0.15 * rng.standard_normal(place.size)))

neighbours = {
    int(k): [int(j) for j in place if abs(row[j] - row[k]) + abs(column[j] - column[k]) == 1]
    for k in place
}
data = {"district": place, "farming": farming, "expected": expected}
terms = [Fixed("farming"), Areas("district", neighbours)]
model = EffectsModel(terms, "poisson", exposure="expected").fit(data, cases)
print(model.summary())

# %%
# Ratios, the effect of each district, and how sure it is above 0
# ---------------------------------------------------------------

shapes = {
    k: [[c, r], [c + 1, r], [c + 1, r + 1], [c, r + 1]]
    for k, r, c in zip(place, row, column, strict=False)
}
figure, axes = plt.subplots(1, 3, figsize=(10.0, 3.4), layout="constrained")
raw = axes[0].imshow(np.log((cases + 0.5) / expected).reshape(side, side), origin="lower")
figure.colorbar(raw, ax=axes[0])
EffectMapDisplay.from_estimator(model, "district", shapes=shapes, ax=axes[1])
EffectMapDisplay.from_estimator(
    model, "district", what="exceedance", shapes=shapes, ax=axes[2], cmap="magma", clim=(0.0, 1.0)
)
for ax, title in zip(
    axes, ("log (cases + .5)/expected", "effect, mean", "P(effect > 0)"), strict=False
):
    ax.set(title=title, xticks=[], yticks=[])
plt.show()
