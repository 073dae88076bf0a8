"""
Exposure turns counts into rates
================================

Twelve accidents in a year of heavy traffic may mean a lower risk than two in a quiet week. The
rate per unit of exposure is to be learnt: per hour, per vehicle, per policy.
``GPPoissonRegressor`` takes the exposure of every row and multiplies the rate by it.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime import GPPoissonRegressor
from qpruntime.plotting import FunctionDisplay

rng = np.random.default_rng(4)


def rate(hour):
    """Accidents per million kilometres at an hour of the day."""
    return 2.0 + 4.0 * np.exp(-0.5 * ((hour - 2.5) / 2.0) ** 2) + 0.5 * np.sin(hour / 3.0)


hour = np.sort(rng.uniform(0.0, 24.0, 90))
# Little traffic by night, when the rate is highest.
traffic = 0.15 + 3.0 * np.exp(-0.5 * ((hour - 14.0) / 5.0) ** 2) * rng.uniform(0.6, 1.4, 90)
accidents = rng.poisson(traffic * rate(hour))
X = hour[:, None]

# %%
# Compare fits with and without exposure
# --------------------------------------
# Counts alone are highest by day, because of the traffic. Points on the right are counts by
# exposure, and the band is the 90 % interval of the rate. It is wide by night, where little was
# driven, although there are as many rows.

counted = GPPoissonRegressor(dispersion=np.inf).fit(X, accidents)
model = GPPoissonRegressor(dispersion=np.inf).fit(X, accidents, exposure=traffic)

figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.2), layout="constrained")
FunctionDisplay.from_estimator(counted, X, accidents, ax=panels[0], limits=(0.0, 24.0))
panels[0].set(title="counts as they are", ylabel="accidents a row", xlabel="hour")
display = FunctionDisplay.from_estimator(
    model, X, accidents, exposure=traffic, ax=panels[1], limits=(0.0, 24.0)
)
panels[1].plot(display.x, rate(display.x), color="black", linestyle="--", label="truth")
panels[1].set(title="by exposure", ylabel="accidents per million km", xlabel="hour", ylim=(0, 20))
handles = panels[1].get_legend_handles_labels()
for ax in panels:
    ax.get_legend().remove()
figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)

# %%
# Counts of another exposure
# --------------------------
# The same model predicts the counts of any exposure, with exact quantiles: of half a million and of
# five million kilometres, at two in the morning and at two in the afternoon.

for at in (2.0, 14.0):
    for much in (0.5, 5.0):
        low, high = model.predict_quantiles([[at]], [0.05, 0.95], exposure=much)[0]
        mean = model.predict([[at]], exposure=much)[0]
        print(f"{at:4.0f} h, {much} million km: {mean:5.1f} expected, {low} to {high} in 90 %")

plt.show()
