"""The registry and every registered likelihood; probit in its extremes; values of GPy."""

import json

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, log_ndtr

from qpruntime import infer, likelihoods
from qpruntime._numba import INTERPRETED
from qpruntime.projection.projector import project_arrays
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import REFERENCE, RBFData, check_fixed_point, poisson, tilted


def student_t(f, y):
    # nu = 4, scale = 1: Gamma(5/2)/(Gamma(2) sqrt(4 pi)) = 3/8.
    return np.log(3.0 / 8.0) - 2.5 * np.log1p((y - f) ** 2 / 4.0)


def binomial(f, y):
    k, n = y
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + k * f - n * np.logaddexp(0.0, f)


NO_LABELS, NO_COUNTS = (0, 2, 0.5, np.nan, np.inf, "a", None), (-1, 0.5, np.nan, np.inf, "a", None)
NO_NUMBERS = (np.nan, np.inf, "a", None)
# Name: log p(y|f) written again, outcomes to try, and what is no outcome. What holds of every
# likelihood, these or new ones, is in `test_base`.
CASES = {
    "probit": (lambda f, y: log_ndtr(y * f), (1.0, -1.0), NO_LABELS),
    "heaviside": (lambda f, y: np.where(y * f > 0, 0.0, -np.inf), (1.0, -1.0), NO_LABELS),
    "poisson": (poisson, (0.0, 1.0, 4.0), NO_COUNTS),
    "logistic": (lambda f, y: -np.logaddexp(0.0, -y * f), (1.0, -1.0), NO_LABELS),
    "laplace": (lambda f, y: -abs(y - f) - np.log(2.0), (0.0, 1.5, -40.0), (*NO_NUMBERS, -1e101)),
    "poisson-exp": (
        lambda f, y: y * f - np.exp(np.minimum(f, 700.0)) - gammaln(y + 1),
        (0.0, 1.0, 40.0),
        NO_COUNTS,
    ),
    # dispersion = 1: the geometric distribution of mean e^f.
    "negative-binomial": (
        lambda f, y: y * f - (y + 1) * np.logaddexp(0.0, f),
        (0.0, 1.0, 40.0),
        NO_COUNTS,
    ),
    "binomial": (
        binomial,
        ((0, 1), (1, 1), (3, 4), (50, 1000), (200, 200)),
        (*NO_COUNTS, 3, (2, 1), (0, 0), (0, 2**26), (0.5, 1), (0, 1, 2)),
    ),
    "step": (
        lambda f, y: np.where(y * f < 0, -abs(y), 0.0),
        (0.0, 2.0, -0.3, 60.0),
        (np.nan, 1j, "a", None),
    ),
    "student-t": (student_t, (0.0, 1.5, -40.0), (*NO_NUMBERS, 1e101, 1j)),
}
NAMES = [name for name in likelihoods.names() if name in CASES]
# Observations are places of f.
REAL = {"laplace", "student-t"}
# Stored values of tests/reference; parameters other than the default ones are in the file's name.
FILES = {path.stem: path.stem.split("(")[0] for path in REFERENCE.glob("*.csv")}
CLOSED_FORMS = {"probit", "heaviside", "poisson"}
REFERENCES = sorted(f for f, name in FILES.items() if name in set(NAMES) - CLOSED_FORMS)
# Narrow and wide cavities, with the likelihood and against it.
CAVITIES = [(0.0, 1.0), (-3.0, 0.5), (2.0, 3.0), (0.02, 1e-3), (-8.0, 8.0), (5.0, 50.0)]


@pytest.mark.interpreted
@every_case("name", NAMES)
def test_contract(name):
    likelihood, (log_p, outcomes, wrong) = likelihoods.get(name), CASES[name]
    assert likelihood.validate(outcomes).dtype == np.float64
    f = np.array([-30.0, -4.0, -1.0, -0.2, 0.3, 1.0, 7.0])
    for y in outcomes:
        # Two writings of the same formula: rounding alone.
        np.testing.assert_allclose(likelihood.log_prob(f, y), log_p(f, y), rtol=1e-13, atol=1e-15)
    for y in wrong:
        refuses(".", likelihood.validate, [y])


@pytest.mark.interpreted
@every_case("name", NAMES)
@every_case(("mu", "sigma"), CAVITIES[:: 2 if INTERPRETED else 1])
def test_moments_and_sigma_star_are_those_of_the_density(name, mu, sigma):
    log_p, outcomes, _ = CASES[name]
    for y in outcomes:
        marks = (y,) if name in REAL else ()
        log_z, mean, variance, star = tilted(lambda f, y=y: log_p(f, y), mu, sigma, marks)
        qp, ep = (project_arrays(name, mu, sigma, y, method=m, table="exact") for m in ("qp", "ep"))
        # Exponents of up to 1e3 cancel in the oracle.
        limit = 1e-12
        np.testing.assert_allclose(qp.log_z, log_z, rtol=limit, atol=limit)
        np.testing.assert_allclose(qp.mean, mean, rtol=limit, atol=limit * sigma)
        np.testing.assert_allclose(ep.std, np.sqrt(variance), rtol=limit)
        np.testing.assert_allclose(qp.std, star, rtol=limit)
        assert ep.mean == qp.mean
        assert qp.std <= ep.std


#: Limits of the moments that have closed forms: log Z, mean and variance, all relative.
CLOSED = {
    "probit": (1e-12, 1e-12, 1e-12),
    # 1 - r (r + z) loses two digits around z = -5, where the continued fraction takes over.
    "heaviside": (1e-12, 1e-13, 1e-12),
    # Measured: 2e-15, 7e-16, 3e-13. In `by_recursion` the variance is what is left of 2 y b R.
    "poisson": (1e-14, 5e-15, 1e-12),
    "poisson_large": (1e-14, 5e-15, 1e-12),
}


@pytest.mark.interpreted
@every_case("file", [*CLOSED, *REFERENCES])
def test_moments_against_reference(file, reference):
    r = reference(file)
    assert len(r.mu) >= 27
    got = project_arrays(file.removesuffix("_large"), r.mu, r.sigma, r.y, method="ep")
    # Of integrals measured 5e-14, 2e-13 and 2e-11, the last for a million counts that contradict
    # the cavity; a mean near zero is as exact as the standard deviation.
    log_z, mean, variance = CLOSED.get(file, (1e-12, 1e-12, 6e-11))
    near = 0.0 if file in CLOSED else 1.0
    np.testing.assert_allclose(got.log_z, r.log_z, rtol=log_z, atol=near * log_z + 1e-300)
    assert (np.abs(got.mean - r.mean) <= mean * (np.abs(r.mean) + near * np.sqrt(r.variance))).all()
    np.testing.assert_allclose(got.std**2, r.variance, rtol=variance)


def test_references_reach_the_limits_of_the_promise(reference):
    r = reference("probit")
    z = np.abs(r.mu) / np.hypot(1.0, r.sigma)
    near = z <= 40.01
    assert near.sum() > 200
    assert z[near].max() > 39.9
    assert r.sigma[near].min() <= 1e-4
    assert r.sigma[near].max() >= 1e6
    r = reference("heaviside")
    z = r.y * r.mu / r.sigma
    assert z.min() <= -1e4
    assert z.max() >= 40.0
    assert set(NAMES) == set(CASES)
    assert set(likelihoods.names()) <= set(FILES.values()), "no reference values"


@every_case("wrong", ["prob", "PROBIT", "", None, 3, ["probit"]])
def test_unknown_name(wrong):
    refuses(r"known are: .*probit", likelihoods.get, wrong)


def test_probit_moments_far_out(reference):
    r = reference("probit_far")
    got = project_arrays("probit", r.mu, r.sigma, r.y, method="ep")
    # z^2 up to 1e24 rounds in z itself: relative error of log Z is that of z^2, 4 eps.
    np.testing.assert_allclose(got.log_z, r.log_z, rtol=1e-12, atol=1e-300)
    # Where mean and std differ in size, the smaller of the two sets what an error means.
    assert np.all(np.abs(got.mean - r.mean) <= 1e-12 * np.abs(r.mean) + 1e-14 * r.sigma_star)
    np.testing.assert_allclose(got.std**2, r.variance, rtol=1e-12)


GPY = json.loads((REFERENCE / "gpy_likelihoods.json").read_text())
OF_GPY = [name for name in GPY if name not in ("made_with", "x")]
OUTLIERS = "student-t(nu=4, scale=0.3)"


@pytest.mark.parametrize("name", OF_GPY)
def test_moments(name):
    y, mu, variance, log_z, mean, spread = np.array(GPY[name]["moments"]).T
    got = project_arrays(name, mu, np.sqrt(variance), y, "ep")
    # GPy's quadrature is asked for 1.5e-8 of the peak, and misses narrow peaks by more.
    np.testing.assert_allclose(got.log_z, log_z, atol=1e-7)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(got.std**2, spread, rtol=2e-4)


def ours(name, case):
    x, y = np.array(GPY["x"]), np.array(GPY[name]["y"])
    K = RBFData.kernel(x, x, case["kernel_variance"], case["lengthscale"])
    return y, infer(K, y, name, method="ep", tol=1e-10, max_sweeps=500)


@every_case("i", [0, 1])
@every_case("name", [n for n in OF_GPY if n != OUTLIERS])
def test_expectation_propagation(name, i):
    case = GPY[name]["cases"][i]
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
    case = GPY[OUTLIERS]["cases"][i]
    y, post = ours(OUTLIERS, case)
    assert post.converged
    assert post.held == 0
    assert post.n_negative >= 6
    check_fixed_point(post, lambda f, i: stats.t.logpdf(y[i] - f, 4.0, scale=0.3), 1e-8, marks=y)
    # The two differ by less than a tenth: clipping is a mild error here.
    assert 0.01 < post.log_evidence - case["log_evidence"] < 0.1
