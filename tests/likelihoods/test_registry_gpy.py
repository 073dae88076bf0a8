"""Moments and EP with Student-t and Poisson noise against stored values of GPy."""

import json

import numpy as np
import pytest
from scipy import stats

from qpruntime import infer
from qpruntime.projection.projector import project_arrays
from tests.tools.cases import every_case
from tests.tools.oracle import REFERENCE, RBFData, check_fixed_point

VALUES = json.loads((REFERENCE / "gpy_likelihoods.json").read_text())
NAMES = [name for name in VALUES if name not in ("made_with", "x")]
OUTLIERS = "student-t(nu=4, scale=0.3)"


@pytest.mark.parametrize("name", NAMES)
def test_moments(name):
    y, mu, variance, log_z, mean, spread = np.array(VALUES[name]["moments"]).T
    got = project_arrays(name, mu, np.sqrt(variance), y, "ep")
    # GPy's quadrature is asked for 1.5e-8 of the peak, and misses narrow peaks by more.
    np.testing.assert_allclose(got.log_z, log_z, atol=1e-7)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(got.std**2, spread, rtol=2e-4)


def ours(name, case):
    x, y = np.array(VALUES["x"]), np.array(VALUES[name]["y"])
    K = RBFData.kernel(x, x, case["kernel_variance"], case["lengthscale"])
    return y, infer(K, y, name, method="ep", tol=1e-10, max_sweeps=500)


@every_case("i", [0, 1])
@every_case("name", [n for n in NAMES if n != OUTLIERS])
def test_expectation_propagation(name, i):
    case = VALUES[name]["cases"][i]
    _, post = ours(name, case)
    assert case["converged"]
    assert post.converged
    assert post.n_negative == 0
    assert post.log_evidence == pytest.approx(case["log_evidence"], rel=1e-10)
    np.testing.assert_allclose(post.mean, case["mean"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(post.variance, case["variance"], rtol=2e-4)


@pytest.mark.parametrize("i", [0, 1])
def test_outliers_have_negative_precisions(i):
    """GPy clips them; ours is the fixed point: every tilted density has the marginal's moments."""
    case = VALUES[OUTLIERS]["cases"][i]
    y, post = ours(OUTLIERS, case)
    assert post.converged
    assert post.held == 0
    assert post.n_negative >= 6
    check_fixed_point(post, lambda f, i: stats.t.logpdf(y[i] - f, 4.0, scale=0.3), 1e-8, marks=y)
    # The two differ by less than a tenth: clipping is a mild error here.
    assert 0.01 < post.log_evidence - case["log_evidence"] < 0.1
