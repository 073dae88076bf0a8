"""
Sixty inducing points stand for ten thousand rows
=================================================

A dense Gaussian process costs the cube of the number of rows. M inducing points cost N M².
``GPClassifier`` takes them above 1500 rows by default, and chooses how many. Their number is given
here, to show what it does.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import log_loss

from qpruntime import GPClassifier
from qpruntime.plotting import BoundaryDisplay

rng = np.random.default_rng(0)


def truth(X):
    """Probability of class 1."""
    a, b = X[:, 0], X[:, 1]
    return 1.0 / (1.0 + np.exp(-4.0 * np.sin(2.5 * a) * np.cos(2.0 * b) - 2.0 * np.sin(a * b)))


X, new = rng.uniform(-2.0, 2.0, (10_000, 2)), rng.uniform(-2.0, 2.0, (5000, 2))
y, hidden = ((rng.random(len(a)) < truth(a)).astype(int) for a in (X, new))
print(f"log loss of the truth: {log_loss(hidden, truth(new)):.4f}")

# %%
# More points until the loss stops falling
# ----------------------------------------
# The function needs as many points as it has detail. Too few make the map smooth, and the loss on
# new rows shows it. Beyond some number nothing is gained and time is lost.

figure, panels = plt.subplots(1, 3, figsize=(14.0, 4.8), sharey=True, layout="constrained")
for ax, m in zip(panels, (8, 30, 60), strict=True):
    begun = time.process_time()
    model = GPClassifier(inducing=m, random_state=0).fit(X, y)
    seconds = time.process_time() - begun
    loss = log_loss(hidden, model.predict_proba(new))
    BoundaryDisplay.from_estimator(model, X, y, ax=ax, points=False, bar=m == 60)
    ax.plot(*model.inducing_points_.T, "k+", markersize=6.0)
    ax.set(xlabel="first feature", ylabel="second feature")
    ax.set(title=f"{m} inducing points (+): {loss:.4f}", xlim=(-2, 2), ylim=(-2, 2))
    print(f"M = {m:3}: log loss {loss:.4f}, {seconds:.1f} s of one core")

# %%
# Rows that come later are added by ``partial_fit``, in the time that their number takes, and the
# first ones are not needed again.

more = rng.uniform(-2.0, 2.0, (2000, 2))
place = [[0.5, 0.5]]
before = model.latent(place)[1][0]
model.partial_fit(more, (rng.random(2000) < truth(more)).astype(int))
print(f"variance of f at {place[0]}: {before:.4f}, and {model.latent(place)[1][0]:.4f} with these")

plt.show()
