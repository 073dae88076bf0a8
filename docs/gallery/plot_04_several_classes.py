"""
One-against-the-rest probabilities are joined to sum to one
===========================================================

``GPClassifier`` fits one Gaussian process for each class against the rest. Their probabilities p
need not sum to 1, so ``predict_proba`` takes shares of p/(1 - p)^b. The exponent b between 0 and 1
is learnt from leave-one-out probabilities. The data are two columns of Fisher's irises.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_iris

from qpruntime import GPClassifier

iris = load_iris()
X, y = iris.data[:, :2], iris.target
model = GPClassifier().fit(X, y)

side = 70
x0, x1 = (np.linspace(X[:, j].min() - 0.4, X[:, j].max() + 0.4, side) for j in (0, 1))
points = np.stack(np.meshgrid(x0, x1), axis=-1).reshape(-1, 2)

# %%
# Probabilities before and after
# ------------------------------
# ``latent`` has mean and variance of all three functions. Under the probit likelihood each gives p
# = Phi(mean / sqrt(1 + variance)) for its class against the rest.

mean, variance = model.latent(points)
alone = norm.cdf(mean / np.sqrt(1.0 + variance))
total = alone.sum(axis=1)
weighed = alone / (1.0 - alone) ** model.coupling_
shares = weighed / weighed.sum(axis=1, keepdims=True)
print("largest difference:", np.abs(shares - model.predict_proba(points)).max())
print(f"sums of the three lie between {total.min():.2f} and {total.max():.2f}")
print(f"b is {model.coupling_:.2f}: where classes overlap, the three say much the same thing")

# %%
# The sum is far from 1 between classes
# -------------------------------------
# The three panels on the left are the probabilities after joining. The sum before it is on the
# right. Amid the rows of one class it is near 1, and joining changes little. It falls to 0.55 and
# rises to 1.36 between classes and far from the data. There the three models disagree, and the
# joined probability is a compromise, not a posterior.

figure, panels = plt.subplots(1, 4, figsize=(13.0, 3.9), sharey=True, layout="constrained")
colours, markers = ("#0072B2", "#D55E00", "#009E73"), ("o", "^", "s")
maps = [*model.predict_proba(points).T, total]
titles = [f"P({name})" for name in iris.target_names] + ["sum before"]
for k, (ax, values, title) in enumerate(zip(panels, maps, titles, strict=True)):
    last = k == 3
    levels = np.linspace(0.4, 1.6, 13) if last else np.linspace(0.0, 1.0, 11)
    filled = ax.contourf(
        x0, x1, values.reshape(side, side), levels, cmap="PuOr" if last else "Blues", extend="both"
    )
    figure.colorbar(filled, ax=ax, location="bottom")
    for c in range(3):
        style = {"linestyle": "none", "markersize": 4.5, "markeredgecolor": "white", "mew": 0.6}
        style["label"] = iris.target_names[c]
        ax.plot(*X[y == c].T, marker=markers[c], color=colours[c], **style)
    ax.set(title=title, xlabel=iris.feature_names[0])
panels[0].set_ylabel(iris.feature_names[1])
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

# %%
# Each of the three has its own kernel, evidence and posterior, as a tuple.

for name, posterior in zip(iris.target_names, model.posterior_, strict=True):
    print(f"{name:10} against the rest: log evidence {posterior.log_evidence:.1f}")

plt.show()
