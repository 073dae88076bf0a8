"""
Clinics with few patients
=========================

Two to four labels a clinic say little each, and are strongly correlated: there the normal
approximation of Laplace makes clinics too much alike. The exact evidence is one integral a clinic.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

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
# Laplace beside: the evidence of the deviation, the coefficients held at their posterior means
# ---------------------------------------------------------------------------------------------

table = model.summary()
eta0 = table["intercept"]["mean"] + table["dose"]["mean"] * dose
sign = np.where(cured, 1.0, -1.0)
z, w = np.polynomial.hermite_e.hermegauss(60)


def exact(sd):
    """Log evidence by 60 nodes a clinic."""
    rows = log_ndtr(sign[:, None] * (eta0[:, None] + sd * z))
    each = np.add.reduceat(rows, np.arange(0, clinic.size, 3), axis=0)
    return logsumexp(each + np.log(w / w.sum()), axis=1).sum()


def laplace(sd):
    """The same by a normal at the mode of each clinic."""
    u = np.zeros(clinics)
    for _ in range(50):
        t = sign * (eta0 + sd * u[clinic])
        ratio = np.exp(-0.5 * t**2 - log_ndtr(t)) / np.sqrt(2.0 * np.pi)
        slope = np.bincount(clinic, sd * sign * ratio) - u
        bend = np.bincount(clinic, sd**2 * ratio * (ratio + t)) + 1.0
        u = u + slope / bend
    t = sign * (eta0 + sd * u[clinic])
    return log_ndtr(t).sum() - 0.5 * (u**2).sum() - 0.5 * np.log(bend).sum()


grid = np.linspace(0.2, 3.0, 57)
curves = {
    "exact": [exact(sd) for sd in grid],
    "Laplace": [laplace(sd) for sd in grid],
}

# %%
# What they say of the deviation
# ------------------------------

figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.0), layout="constrained")
for name, values in curves.items():
    left.plot(grid, np.array(values) - np.max(values), label=f"log evidence, {name}")
draws = np.exp(model.state_.nodes.draws[:, 0])
density, edges = np.histogram(
    draws, bins=grid[::2], weights=model.state_.nodes.draw_weights, density=True
)
left.stairs(
    np.log(np.maximum(density / density.max(), 1e-9)), edges, label="log posterior, EP with pairs"
)
left.axvline(truth, color="black", linewidth=0.8, label="truth")
left.set(xlabel="standard deviation between clinics", ylim=(-6.0, 0.3))
left.legend(fontsize=8, loc="lower right")
CaterpillarDisplay.from_estimator(model, "clinic", ax=right)
plt.show()

# %%
# Laplace's maximum is too low; the exact one is where the posterior is.

best = {name: grid[int(np.argmax(values))] for name, values in curves.items()}
print({name: round(float(sd), 2) for name, sd in best.items()})
assert best["Laplace"] < best["exact"]
