"""Every kernel with every likelihood: the fixed point of the dense engine, at 120 to 1500 points.

The two engines share the projection alone. Differences are 1e-8 at most, of numbers of order 1:
sites of both have settled to 1e-10 rms, which at the slowest (contraction by 0.9 a sweep) leaves
1e-9, and the dense engine's own changes stall near 1e-11 where sites dominate their marginals.
"""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared, WhiteKernel

from qpruntime import Likelihood, infer, infer_series, likelihoods
from qpruntime.kernels.state_space import state_space
from tests.tools.series_cases import KERNELS, series, worst

STEEP = Likelihood.from_log_prob(
    lambda f, y, theta: -0.5 * (y - f) ** 2 / 0.3 - 0.1 * abs(y - f) ** 3,
    name="steep",
    log_concave=True,
    location=True,
)
#: All rows of the table on the page; noise keeps the dense matrices definite.
EVERY = {
    **KERNELS,
    "period": ConstantKernel(0.5) + 1.5 * ExpSineSquared(1.3, 1.9),
    "squared exponential": 2.0 * RBF(0.8),
}
#: Their Fourier series leave 5e-11 of the variance out. So many observations of precision 1 move it
#: by up to 1500 times that.
CUT = ("quasi-periodic", "period")
#: Of every likelihood observations, more noise where it has none of its own, and options.
OBSERVED = {
    "probit": ("signs", 0.0, {"table": "exact"}),
    "logistic": ("signs", 0.0, {"weighted": True}),
    "heaviside": ("signs", 0.5, {}),
    "step": ("signs", 0.5, {"mean": 0.2}),
    "binomial": ("trials", 0.0, {"power": 0.5}),
    "poisson": ("squares", 0.0, {"mean": 3.0}),
    "poisson-exp": ("counts", 0.0, {"mean": 0.3, "weighted": True}),
    "negative-binomial": ("counts", 0.0, {"damping": 0.9}),
    "laplace": ("reals", 0.0, {}),
    "student-t": ("reals", 0.0, {}),
    "steep": ("reals", 0.0, {}),
}
OWN = {"student-t": likelihoods.get("student-t", nu=3.0, scale=0.5), "steep": STEEP}
#: Likelihoods that every kernel takes, and kernels that every likelihood does.
SOME = {120: 2, 300: len(OBSERVED), 1500: 3}


def covariance(kernel, t):
    """Of the rows; of a squared exponential the one its states have, from their poles."""
    if type(getattr(kernel, "k2", None)) is not RBF:  # of which Matern is a subclass
        return kernel(t[:, None])
    (term,) = state_space(kernel, 3e-3).terms
    (factor,) = term.factors
    poles, vectors = np.linalg.eig(factor.generator)
    shares = vectors[0] * np.linalg.solve(vectors, factor.stationary[:, 0])
    apart = np.abs(np.subtract.outer(t, t))
    return term.variance * sum(
        (c * np.exp(pole * apart)).real for c, pole in zip(shares, poles, strict=True)
    )


def compared(n, kernel_name, likelihood, method, t, data):
    kind, noise, options = OBSERVED[likelihood]
    options = {"method": method, "tol": 1e-10, "max_sweeps": 300, **options}
    if options.pop("weighted", False):
        options["weights"] = (np.arange(n) % 3 + (n > 120)) / 2.0
    given = OWN.get(likelihood, likelihood)
    smooth = EVERY[kernel_name]
    noise = WhiteKernel(1e-3 + noise)
    how = {"approximate": 3e-3} if kernel_name == "squared exponential" else {}
    post = infer_series(t, data[kind], smooth + noise, given, **options, **how)
    K = covariance(smooth, t) + noise(t[:, None])
    dense = infer(K, data[kind], given, order="parallel", **options)
    case = f"{kernel_name}, {likelihood}, {method}, N = {n}"
    assert (post.status, dense.status) == ("converged", "converged"), case
    assert worst(post, dense) < (1e-7 if kernel_name in CUT else 1e-8), case


def test_all_likelihoods_are_here():
    assert set(OBSERVED) == {*likelihoods.names(), "steep"}


@pytest.mark.parametrize(
    "n", [120, *(pytest.param(n, marks=pytest.mark.slow) for n in (300, 1500))]
)
def test_every_pair_has_the_fixed_point_of_the_dense_engine(n):
    """Methods alternate; but at 300 points every kernel takes some of the likelihoods in turn."""
    t, data = series(n, seed=5)
    for i, name in enumerate(EVERY):
        for j, likelihood in enumerate(OBSERVED):
            if (j - i) % len(OBSERVED) < SOME[n]:
                compared(n, name, likelihood, ("ep", "qp")[(i + j) % 2], t, data)
