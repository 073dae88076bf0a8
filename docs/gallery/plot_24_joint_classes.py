"""
Classes jointly, and how sure their probabilities are
=====================================================

``GPClassifier(multi_class="joint")`` is one model of all classes: a latent function for each, unit
noise on each, and the label of the largest. Its probabilities are those of one posterior, and have
intervals; those of one class against the rest are joined to sum to 1.

This example shows both on two columns of Fisher's irises, along a line through the classes.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris

from qpruntime import GPClassifier

iris = load_iris()
X, y = iris.data[:, 2:], iris.target
joint = GPClassifier(multi_class="joint").fit(X, y)
apart = GPClassifier().fit(X, y)
print(f"joint log evidence {joint.log_marginal_likelihood_value_:.1f}, kernel {joint.kernel_}")

# %%
# Along a line
# ------------
# From the smallest petals to the largest and a little beyond. Bands are central 90 % intervals of
# p(class | latent values): how sure the model is of each probability, not of a label. They are
# narrow amid the rows of a class, and wide between classes and beyond the last row.

way = np.linspace(-0.2, 1.3, 160)[:, None]
line = X.min(axis=0) * (1.0 - way) + X.max(axis=0) * way
p, bands, apart_p = (
    joint.predict_proba(line),
    joint.predict_interval(line),
    apart.predict_proba(line),
)

figure, panel = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
colours = ("#0072B2", "#D55E00", "#009E73")
for c, (name, colour) in enumerate(zip(iris.target_names, colours, strict=True)):
    panel.fill_between(line[:, 0], *bands[:, c].T, color=colour, alpha=0.2, linewidth=0.0)
    panel.plot(line[:, 0], p[:, c], color=colour, label=name)
    panel.plot(line[:, 0], apart_p[:, c], color=colour, linestyle=":")
panel.set(
    xlabel=iris.feature_names[2], ylabel="probability", title="joint; dotted: one against the rest"
)
panel.legend(loc="center left")
plt.show()

# %%
# What the classes share
# ----------------------
# The latent values of a point are correlated: a label says which is larger, not how large it is.
# Probabilities count the whole covariance. By its diagonal alone they would be off by as much as
# the figure shows.

mean, variance = joint.latent(line)
rng = np.random.default_rng(0)
noise = rng.standard_normal((4000, 3))
alone = np.array(
    [
        np.bincount(np.argmax(m + np.sqrt(v + 1.0) * noise, axis=1), minlength=3) / len(noise)
        for m, v in zip(mean, variance, strict=True)
    ]
)
figure, panel = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for c, colour in enumerate(colours):
    panel.plot(line[:, 0], alone[:, c] - p[:, c], color=colour)
panel.set(xlabel=iris.feature_names[2], ylabel="difference", title="error of the diagonal alone")
print(f"largest error of the diagonal alone: {np.abs(alone - p).max():.2f}")

plt.show()
