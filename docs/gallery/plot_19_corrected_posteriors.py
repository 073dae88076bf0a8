"""
Corrected marginals find the skewness that a normal misses
==========================================================

EP and QP give a normal for every latent value. If labels are separable, the true posterior is
skewed, and wider than that. ``Posterior.check`` says so in sentences, and ``Posterior.marginals``
returns corrected densities.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer

x = np.linspace(-2.0, 2.0, 12)
y = np.where(x > 0.0, 1, -1)
K = (50.0 * RBF(1.5))(x[:, None])
post = infer(K, y, method="ep")

# %%
# Ask first
# ---------

for sentence in post.check():
    print("-", sentence)

# %%
# Three answers at one row
# ------------------------
# Chains of elliptical slice sampling are the truth here, up to their own error. EP's normal is too
# narrow, and it is symmetric, which the truth is not. The corrected density is beside the chains'.

corrected = post.marginals()
sampled = post.marginals(correction="sample", random_state=0)
row = 11
f = np.linspace(-10.0, 40.0, 300)
mean, std = post.mean[row], np.sqrt(post.variance[row])
figure, panel = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
panel.fill_between(f, sampled.density(f[None])[row], color="0.8", label="long chains")
panel.plot(f, norm.pdf(f, mean, std), "--", color="#D55E00", label="EP")
panel.plot(f, corrected.density(f[None])[row], color="#0072B2", label="corrected")
panel.set(xlabel=f"f at x = {x[row]:.1f}", ylabel="density", ylim=(0.0, None))
panel.legend(frameon=False)
plt.show()

# %%
# All rows
# --------
# The 90 % intervals of all rows. EP's are drawn towards 0: they stop short of the
# far end, and begin before the near one.

figure, panel = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
tails = post.mean + np.array([[-1.645], [1.645]]) * np.sqrt(post.variance)
for k, (name, ends, colour, width) in enumerate(
    (
        ("long chains", sampled.interval(0.9).T, "0.75", 7.0),
        ("EP", tails, "#D55E00", 1.6),
        ("corrected", corrected.interval(0.9).T, "#0072B2", 1.6),
    )
):
    panel.vlines(x + 0.05 * (k - 1), *ends, color=colour, linewidth=width, label=name)
    width_of = np.mean((ends[1] - ends[0]) / (sampled.interval(0.9) @ [-1.0, 1.0]))
    print(f"{name:11} width of 90 % intervals, by those of the chains: {width_of:.3f}")
panel.set(xlabel="x", ylabel="90 % interval of f")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
print("R-hat of the chains at most", round(float(sampled.rhat.max()), 4))

plt.show()
