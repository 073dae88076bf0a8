"""
Forecast daily counts with a trend and a weekly rhythm
======================================================

Calls to a help desk are counted day by day: a slow trend, a weekly rhythm, and chance. One column
and a Markov kernel make the process a filter, whose cost grows with the number of days and not with
its cube. Four months are learnt and one is forecast.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, ExpSineSquared, Matern

from qpruntime import GPPoissonRegressor
from qpruntime.plotting import ForecastDisplay

rng = np.random.default_rng(8)
day = np.arange(150.0)
week = 0.35 * np.sin(2.0 * np.pi * day / 7.0) + 0.2 * np.cos(4.0 * np.pi * day / 7.0)
trend = 2.2 + 0.5 * np.sin(day / 40.0)
calls = rng.poisson(np.exp(trend + week))
X = day[:, None]
past, later = day < 120, day >= 120

# %%
# Trend and week
# --------------
# The kernel says what is expected: something that changes over a month, plus something that comes
# again every seven days. The period is known and kept; the rest is learnt.

kernel = 0.3 * Matern(30.0, nu=1.5) + ConstantKernel(0.1) * ExpSineSquared(
    1.5, 7.0, length_scale_bounds=(0.7, 10.0), periodicity_bounds="fixed"
)
model = GPPoissonRegressor(kernel, link="exp", dispersion=np.inf, solver="markov")
model.fit(X[past], calls[past])
print(model.kernel_)
print(type(model.posterior_).__name__, "with a state of", model.posterior_.state_dimension)

# %%
# The forecast
# ------------
# The inner band is the rate, the outer one the counts: that is the one for planning. Diamonds are
# the days that were not fitted. Further ahead the trend is less known, and both bands widen.

display = ForecastDisplay.from_estimator(
    model, X[past], calls[past], later=(X[later], calls[later]), grid=450
)
display.ax_.set(xlabel="day", ylabel="calls a day")
inside = display.covered.mean()
print(f"{100 * inside:.0f} % of the {display.covered.size} later days are in the 90 % band")

# %%
# The 99 % quantile says how many calls to staff for.

need = model.predict_quantiles(X[later][:7], q=0.99)
print("99 % of the calls of the next seven days:", need.tolist())

plt.show()
