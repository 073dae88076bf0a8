"""
Laplace's approximation underestimates variation between small clinics
======================================================================

Three labels per clinic say little each, and are strongly correlated. Laplace's approximation then
makes clinics too much alike. ``EffectsModel`` corrects its evidence by pairs of rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import log_ndtr, ndtr

from qpruntime.effects import EffectsModel, Fixed, Groups
from qpruntime.plotting import CaterpillarDisplay

rng = np.random.default_rng(8)
clinics, truth = 120, 1.5
clinic = np.repeat(np.arange(clinics), 3)
dose = rng.standard_normal(clinic.size)
eta = -0.5 + 0.8 * dose + truth * rng.standard_normal(clinics)[clinic]
cured = rng.uniform(size=clinic.size) < ndtr(eta)
data = {"dose": dose, "clinic": clinic}

model = EffectsModel([Fixed("dose"), Groups("clinic")], "probit").fit(data, cured)
print(model.summary())

# %%
# Laplace's log evidence of the standard deviation
# ------------------------------------------------
# The coefficients are held at their posterior means. Each clinic has a mode and a curvature.

table = model.summary()
fixed = table["intercept"]["mean"] + table["dose"]["mean"] * dose
sign = np.where(cured, 1.0, -1.0)


def laplace(sd):
    """Log evidence by a normal at the mode of each clinic."""
    u = np.zeros(clinics)
    for _ in range(50):
        t = sign * (fixed + sd * u[clinic])
        ratio = np.exp(-0.5 * t**2 - log_ndtr(t)) / np.sqrt(2.0 * np.pi)
        curvature = np.bincount(clinic, sd**2 * ratio * (ratio + t)) + 1.0
        u = u + (np.bincount(clinic, sd * sign * ratio) - u) / curvature
    return log_ndtr(t).sum() - 0.5 * (u**2).sum() - 0.5 * np.log(curvature).sum()


grid = np.linspace(0.2, 3.0, 57)
evidence = np.array([laplace(sd) for sd in grid])
print(f"Laplace's maximum {grid[evidence.argmax()]:.2f}, drawn with {truth}")

# %%
# Laplace's maximum is too low
# ----------------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.0), layout="constrained")
left.plot(grid, np.exp(evidence - evidence.max()), "--", label="Laplace, relative evidence")
ends = table["clinic: sd"]
left.hlines(0.5, ends["2.5%"], ends["97.5%"], lw=3, color="#D55E00", label="EP with pairs, 95 %")
left.plot(ends["mean"], 0.5, "o", color="#D55E00")
left.axvline(truth, color="black", linewidth=0.8, label="truth")
left.set(xlabel="standard deviation between clinics", ylabel="relative evidence")
left.legend(fontsize=8, loc="upper left")
CaterpillarDisplay.from_estimator(model, "clinic", ax=right)
right.set(yticks=[], ylabel="clinics, sorted")
plt.show()
