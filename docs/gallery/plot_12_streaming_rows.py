"""
Extend a posterior row by row at constant cost
==============================================

A monitor reports good or bad about once a second. You want the current probability of bad, with an
interval. ``extend`` adds rows to a posterior. New rows at the end cost a sweep over the rows just
before them, however long the series is.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process.kernels import Matern

from qpruntime import infer_series

rng = np.random.default_rng(0)
t = np.cumsum(rng.exponential(1.0, 6000))


def truth(t):
    """Probability of a bad report: low, but for two incidents."""
    bumps = np.exp(-0.5 * ((t - 2500.0) / 60.0) ** 2) + np.exp(-0.5 * ((t - 4600.0) / 30.0) ** 2)
    return 0.05 + 0.6 * bumps


y = np.where(rng.random(t.size) < truth(t), 1, -1)
kernel = 1.5 * Matern(100.0, nu=1.5)

# %%
# Fifty parts
# -----------
# The first part begins the posterior, the others extend it. After each, the last moment is
# predicted: that is what a monitor would show.

parts = np.array_split(np.arange(t.size), 50)
post = infer_series(t[parts[0]], y[parts[0]], kernel, mean=-1.5)
counts, swept, now = [post.n], [post.swept], [post.predict(t[parts[0]][-1:], mean=-1.5)]
for part in parts[1:]:
    post = post.extend(t[part], y[part], mean=-1.5)
    counts.append(post.n)
    swept.append(post.swept)
    now.append(post.predict(t[part][-1:], mean=-1.5))
whole = infer_series(t, y, kernel, mean=-1.5)
print(f"in parts and at once: means differ by {np.abs(post.mean - whole.mean).max():.1e}")
print(f"log evidence {post.log_evidence:.4f} and {whole.log_evidence:.4f}")

# %%
# Probability at the time, and what each part costs
# -------------------------------------------------
# Whiskers are 90 % intervals of the probability at the time. The lower panel has the number of rows
# that each part updated, which does not grow with the series.

mean, variance = np.array([[m[0], v[0]] for m, v in now]).T
reach = norm.ppf(0.95) * np.sqrt(variance)
ends = [t[part][-1] for part in parts]
p = norm.cdf(mean / np.sqrt(1.0 + variance))
low, high = np.minimum(norm.cdf(mean - reach), p), np.maximum(norm.cdf(mean + reach), p)

figure, (above, below) = plt.subplots(
    2, 1, figsize=(8.0, 5.4), sharex=True, height_ratios=(3, 1), layout="constrained"
)
above.plot(t, truth(t), color="black", linestyle="--", linewidth=1.2, label="truth")
style = {"fmt": "o", "color": "#0072B2", "ms": 4.0, "capsize": 2.0, "lw": 1.2}
above.errorbar(ends, p, [p - low, high - p], label="known at the time", **style)
above.set(ylabel="P(bad)", ylim=(0.0, 1.0))
below.bar(ends, swept, width=80.0, color="#0072B2", label="updated")
below.plot(ends, counts, color="#D55E00", label="seen so far")
below.set(xlabel="time (s)", ylabel="rows", yscale="log")
figure.legend(loc="outside lower center", ncols=4, frameon=False)

plt.show()
