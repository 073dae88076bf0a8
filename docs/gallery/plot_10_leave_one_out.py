"""
One fit gives all leave-one-out densities
=========================================

The direct way to the probability of each observation given all others takes N more fits. EP and QP
have the answer when they end: the cavity of a row is the posterior without it, and log Z of that
cavity is the leave-one-out log density. ``Posterior.loo`` returns it.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier, infer
from qpruntime.plotting import FunctionDisplay

rng = np.random.default_rng(6)
x = np.sort(rng.uniform(0.0, 6.0, 60))
y = np.where(rng.random(60) < 0.5 + 0.45 * np.sin(1.5 * x), 1, -1)
wrong = [int(np.argmin(np.abs(x - place))) for place in (1.05, 3.15)]
y[wrong] = -1, 1  # two labels that were noted wrongly, where the others are nearly certain

# %%
# Against N fits
# --------------
# Every row is left out, all others are fitted, and the row that was left out is predicted. The
# kernel is the same in all of them.

K = (4.0 * RBF(1.0))(x[:, None])
post = infer(K, y, method="ep")
quick = post.loo()
slow = []
for i in range(60):
    others = np.delete(np.arange(60), i)
    fewer = infer(K[np.ix_(others, others)], y[others], method="ep")
    mean, variance = fewer.predict(K[i, others][None], K[i, i][None])
    slow.append(norm.logcdf(y[i] * mean[0] / np.sqrt(1.0 + variance[0])))
slow = np.array(slow)
print(f"largest difference of the log densities: {np.abs(quick - slow).max():.3f}")
print(f"sums: {quick.sum():.2f} by one fit, {slow.sum():.2f} by {len(x)}")

# %%
# The two differ a little: sites of the other rows were settled with the row among them. On the
# right are the rows on the curve that was fitted. The marked ones are those that the others
# contradict most.

worst = np.argsort(quick)[:4]
figure, panels = plt.subplots(1, 2, figsize=(11.0, 4.3), layout="constrained")
panels[0].plot(slow, quick, "o", color="#0072B2", markersize=5.0, alpha=0.7)
panels[0].axline((0.0, 0.0), slope=1.0, color="0.4", linestyle=":", linewidth=1.0)
panels[0].set(xlabel="log density by 60 fits", ylabel="log density by one fit")
model = GPClassifier(4.0 * RBF(1.0), optimize=False, method="ep").fit(x[:, None], y)
FunctionDisplay.from_estimator(model, x[:, None], y, ax=panels[1])
panels[1].plot(x[worst], (y[worst] + 1) / 2, "o", ms=12, mfc="none", color="black", mew=1.4)
panels[1].set_xlabel("x; circles: least probable by leave-one-out")
print("least probable rows:", sorted(worst.tolist()), "of which were noted wrongly:", wrong)

# %%
# Leave-one-out also chooses hyper-parameters: ``optimize="loo"`` maximises the sum of these log
# densities instead of the evidence.

for what in ("evidence", "loo"):
    fitted = GPClassifier(4.0 * RBF(1.0), method="ep", optimize=what).fit(x[:, None], y)
    print(f"{what:9} {fitted.kernel_}, sum of log densities {fitted.posterior_.loo().sum():.2f}")

plt.show()
