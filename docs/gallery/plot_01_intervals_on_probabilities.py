"""
A probability and its interval
==============================

How sure is the model of the probability itself? Labels thin out to the right, and the interval on
the probability widens there.
"""

import matplotlib.pyplot as plt
import numpy as np

from qpruntime import GPClassifier

rng = np.random.default_rng(0)
x = np.sort(4.0 * rng.beta(1.0, 2.5, 120))
truth = 0.5 + 0.45 * np.sin(2.0 * x)
y = rng.uniform(size=120) < truth
model = GPClassifier().fit(x[:, None], y)

at = np.linspace(0.0, 4.0, 200)[:, None]
low, high = model.predict_interval(at, level=0.9).T
plt.fill_between(at[:, 0], low, high, alpha=0.25, label="90 % interval")
plt.plot(at[:, 0], model.predict_proba(at)[:, 1], label="p(y = 1)")
plt.plot(x, np.where(y, 1.02, -0.02), "|", color="0.3")
plt.legend()
plt.show()
