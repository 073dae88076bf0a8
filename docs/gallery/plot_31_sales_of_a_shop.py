"""
Sales of a shop, forecast
=========================

Parcels of a shop, day by day, as its till has them: a week's rhythm, holidays, three weeks without
records, and one day that somebody typed wrong. ``GPForecaster`` is told the dates and the holidays.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime.forecasting import GPForecaster, backtest

rng = np.random.default_rng(4)
day = np.datetime64("2025-01-06") + np.arange(196)
week = np.array([0.0, 0.0, 0.1, 0.2, 0.6, 0.4, -0.9])[np.arange(196) % 7]
holiday = np.isin(np.arange(196), [20, 61, 95, 110, 151, 172, 187])
level = 2.3 + 0.15 * np.cumsum(rng.normal(size=196)) / np.sqrt(14.0)
sold = rng.poisson(np.exp(level + week - 1.6 * holiday)).astype(float)
sold[70:91] = np.nan
sold[130] = 1200.0
past, later = slice(0, 175), slice(175, 196)

# %%
# What it finds
# -------------
# The season is that of the calendar; trend, noise and family are chosen by the evidence. The day of
# 1200 parcels has an effect of its own, so that it widens no band.

model = GPForecaster().fit(sold[past], {"holiday": holiday[past]}, index=day[past])
print("seasons", model.seasons_, "trend", model.trend_, "family", model.family_)
print("outliers", [str(one)[:10] for one in model.outliers_])
found = model.model_.summary()["holiday"]
print(f"a holiday multiplies sales by {np.exp(found['mean']):.2f}, drawn with {np.exp(-1.6):.2f}")

# %%
# Three weeks ahead, and the weeks without records
# ------------------------------------------------
# Holidays to come are known: they are handed over with the forecast.

ahead = {"X": {"holiday": holiday[later]}, "index": day[later]}
ends = model.predict_interval(**ahead)
gap = {"X": {"holiday": holiday[70:91]}, "index": day[70:91]}
between = model.predict_interval(**gap)

fig, ax = plt.subplots(figsize=(8.0, 3.6))
ax.plot(day[past], sold[past], ".", color="0.4", label="sold")
ax.plot(day[later], sold[later], "D", ms=3.0, color="C1", label="sold later")
for when, band in ((day[later], ends), (day[70:91], between)):
    ax.fill_between(when, band[:, 0], band[:, 1], color="C0", alpha=0.3, step="mid")
ax.plot(day[later], model.predict(**ahead), color="C0", label="expected, with 90 % of days")
ax.set(xlabel="day", ylabel="parcels", ylim=(-1.0, 45.0))
ax.legend(loc="upper left", fontsize="small")
fig.autofmt_xdate()
inside = (sold[later] >= ends[:, 0]) & (sold[later] <= ends[:, 1])
print(f"{100.0 * inside.mean():.0f} % of the later days are in their bands")

# %%
# How well it would have done before: two fortnights at the end are left out in turn.

plain = GPForecaster(integrate="mode")
scores = backtest(
    plain, sold[past], {"holiday": holiday[past]}, index=day[past], horizon=14, windows=2
)
print(scores)

plt.show()
