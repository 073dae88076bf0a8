"""Series against the dense engine and reference values, and where digits are lost elsewhere."""

import pickle

import mpmath as mp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import kernels as sk
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    Matern,
    WhiteKernel,
)

from qpruntime import InputError, Likelihood, QPError, infer, infer_series, likelihoods
from qpruntime.inference.markov.data import SortedSeries
from qpruntime.inference.markov.passes import Rows, noise_slope
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import NotMarkov, state_space
from qpruntime.projection.projector import Projector
from tests.tools.cases import refuses
from tests.tools.oracle import slopes
from tests.tools.series_cases import KERNELS, series, worst

TIGHT = {"tol": 1e-11, "max_sweeps": 500}


def both(t, y, kernel, likelihood, dense_options=None, **options):
    options = {**TIGHT, **options}
    post = infer_series(t, y, kernel, likelihood, **options)
    return post, infer(kernel(t[:, None]), y, likelihood, **options, **(dense_options or {}))


def check_predictions(post, dense, kernel, t, mean, tolerance):
    new = np.array([t.min() - 3.0, t.min(), np.median(t), 7.77, t.max() + 0.3, t.max() + 50.0])
    expected = dense.predict(kernel(new[:, None], t[:, None]), kernel.diag(new[:, None]), mean=mean)
    for found, right in zip(post.predict(new, mean=mean), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance)


def test_every_kernel_has_the_fixed_point_of_the_dense_engine():
    """The two engines share the projection alone; 1e-8 is the series' cut at 1e-10, enlarged."""
    t, data = series(150)
    for name, kernel in KERNELS.items():
        post, dense = both(t, data["signs"], kernel, "probit", method="ep")
        assert worst(post, dense) < 1e-8, name
        assert post.converged
        check_predictions(post, dense, kernel, t, 0.0, 1e-7)
        slopes = dense.evidence_gradient(kernel(t[:, None], eval_gradient=True)[1])
        # scikit-learn takes the derivative by a period to 6e-8.
        np.testing.assert_allclose(post.evidence_gradient(), slopes, rtol=1e-6, atol=1e-7)


#: EP's log evidence, sum of leave-one-out log densities, latent mean and variance at 2.35, gradient
#: by the log parameters: from dense algebra and differences, by a program of its own.
REFERENCE = {
    "probit": [-21.4279324760, -17.4129290891, -1.0350890011, 0.3744704120, 1.0488603, -2.3143943],
    "poisson-exp": [
        *(-82.9890807188, -74.6379974420, 1.0448259462, 0.2240300037),
        *(-3.6037965, 6.3488005, -1.0574218, 0.7101349, -3.3744980),
    ],
    "student-t(nu=3, scale=0.2)": [
        *(-30.0037941915, -12.7386069039, 0.7096677835, 0.0229441890, -9.3391483, 17.6315613),
    ],
    "periodic": [
        *(-28.3192879691, -25.7446661254, 0.0813413959, 0.2942298032),
        *(-0.3228888, -2.9624274, 2.7810167, -0.8664983),
    ],
}


def test_reference_values():
    t = np.linspace(0.0, 6.0, 40)
    t[11] = t[10]
    t[30:] += 1e4
    signs = np.sign(np.sin(1.7 * t) + 0.3 * np.cos(5.0 * t))
    signs[[4, 17]] *= -1.0
    counts, reals = np.round(np.exp(1.0 + np.sin(1.3 * t))), np.sin(t)
    reals[[7, 22]] += 4.0
    first = 2.0 * sk.Matern(0.9, nu=1.5)
    cases = {
        "probit": (first, signs, 0.0),
        "poisson-exp": (KERNELS["sum"], counts, 0.5),
        "student-t(nu=3, scale=0.2)": (first, reals, 0.0),
        "periodic": (2.0 * sk.Matern(6.0, nu=1.5) * sk.ExpSineSquared(0.9, 1.9), signs, 0.0),
    }
    for name, (kernel, y, mean) in cases.items():
        likelihood = "probit" if name == "periodic" else name
        post = infer_series(t, y, kernel, likelihood, "ep", mean=mean, **TIGHT)
        at = np.ravel(post.predict([2.35], mean=mean))
        values, slopes = np.split(REFERENCE[name], [4])
        # Ten digits are printed; the Fourier series is cut at 1e-10 of the variance.
        limit = 1e-8 if name == "periodic" else 2e-10
        found = [post.log_evidence, post.loo().sum(), *at]
        np.testing.assert_allclose(found, values, rtol=limit, atol=1e-10, err_msg=name)
        got = post.evidence_gradient()
        np.testing.assert_allclose(got, slopes, rtol=2e-7, atol=1e-7, err_msg=name)


def test_order_unit_and_kind_of_times_do_not_matter():
    t, data = series(60, seed=3)
    y = data["signs"]
    kernel = KERNELS["three halves"]
    post = infer_series(t, y, kernel, **TIGHT)
    new = np.array([-1.0, 2.5, 30.0])
    turn = np.random.default_rng(0).permutation(t.size)
    shuffled = infer_series(t[turn], y[turn], kernel, **TIGHT)
    np.testing.assert_allclose(shuffled.mean, post.mean[turn], atol=1e-10)
    # Times in hundredths: exact as dates, and to 2^-53 1e9 as offsets.
    dates = np.datetime64("2020-01-01T00:00:00.00") + np.round(100 * t).astype("m8[10ms]")
    later = infer_series(dates, y, kernel, **TIGHT)
    assert later.log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
    at = dates.min() + np.round(100 * (new - t.min())).astype("m8[10ms]")
    np.testing.assert_allclose(later.predict(at), post.predict(new), atol=1e-9)
    far = infer_series(t + 1e9, y, kernel, **TIGHT)
    assert far.log_evidence == pytest.approx(post.log_evidence, rel=1e-6)
    hundredths = np.round(100 * t).astype(np.int64) + 2**60
    whole = infer_series(hundredths, y, 2.0 * sk.Matern(90.0, nu=1.5))
    assert whole.log_evidence == pytest.approx(post.log_evidence, rel=1e-6)
    refuses("must be dates", later.predict, new)


def test_missing_rows_and_pickles():
    t, data = series(50, seed=4)
    y = data["counts"].copy()
    kernel = KERNELS["sum"]
    seen = np.ones(t.size, bool)
    seen[[0, 7, 31]] = False
    without = infer_series(t[seen], y[seen], kernel, "poisson-exp")
    y[~seen] = np.nan
    post = pickle.loads(pickle.dumps(infer_series(t, y, kernel, "poisson-exp")))
    np.testing.assert_array_equal(post.mean, without.mean)
    np.testing.assert_array_equal(post.rows, np.flatnonzero(seen))
    assert post.log_evidence == without.log_evidence
    np.testing.assert_array_equal(post.predict([1.0])[0], without.predict([1.0])[0])
    assert len(pickle.dumps(post)) < 600 * t.size + 10_000
    assert infer_series(t[seen], y[seen], kernel, "poisson-exp", sites=post.sites).n_sweeps <= 2


def test_one_observation_is_closed():
    """One probit label: Z = 1/2 and the moments of a skew normal (Azzalini, 1985)."""
    post = infer_series([3.0], [1.0], 4.0 * sk.Matern(2.0, nu=2.5), "probit", "ep", tol=1e-12)
    assert post.log_evidence == pytest.approx(-np.log(2.0), rel=1e-13)
    delta = 2.0 / np.sqrt(5.0)
    assert post.mean[0] == pytest.approx(2.0 * delta * np.sqrt(2.0 / np.pi), rel=1e-12)
    assert post.variance[0] == pytest.approx(4.0 * (1.0 - 2.0 * delta**2 / np.pi), rel=1e-12)


def test_what_is_refused():
    t, y = np.arange(4.0), np.array([1.0, -1.0, 1.0, 1.0])
    good = sk.Matern(1.0, nu=1.5)
    for kernel, words in [
        (good + sk.RBF(1.0), "RBF.*dense solver"),
        (sk.RationalQuadratic(), "RationalQuadratic"),
        (sk.Matern(1.0, nu=0.7), "nu = 0.5, 1.5 and 2.5"),
        (sk.Matern([1.0, 2.0], nu=1.5), "2 length-scales"),
        (good * sk.DotProduct(), "DotProduct times"),
        (sk.WhiteKernel(), "white noise alone"),
        (good * sk.ExpSineSquared(0.05, 1.0), "state of|harmonics"),
    ]:
        refuses(words, infer_series, t, y, kernel, error=NotMarkov)
    for args, words in [
        ((np.array([0.0, np.inf, 1.0, 2.0]), y, good), r"t\[1\] is inf"),
        ((t[:3], y, good), "y must have shape"),
        ((t[:0], y[:0], good), "empty"),
        ((t, np.full(4, np.nan), good), "NaN everywhere"),
        ((t, 2.0 * y, good), "labels"),
        ((t, y, "matern"), "kernel must be"),
        ((t + 1e9, y, sk.DotProduct()), "subtract"),
        ((np.array([1e308, -1e308, 0.0, 1.0]), y, good), "double precision"),
    ]:
        refuses(words, infer_series, *args)
    refuses("dense", infer_series, t, y, good, method="vb")


def test_extending_is_inference_from_all_rows():
    t, data = series(90, seed=6)
    y, kernel = data["counts"], KERNELS["three halves"]
    options = {"mean": 0.3, "tol": 1e-9}
    fresh = infer_series(t, y, kernel, "poisson-exp", **options)
    post = infer_series(t[:60], y[:60], kernel, "poisson-exp", **options)
    post = pickle.loads(pickle.dumps(post)).extend(t[60:75], y[60:75], 0.3)
    post = post.extend(np.append(t[75:], 0.0), np.append(y[75:], np.nan), 0.3)
    # Both have settled to 1e-9.
    assert worst(post, fresh) < 1e-7
    np.testing.assert_array_equal(post.rows, np.arange(90))
    new = [2.5, -3.0, t.max() + 1.0]
    np.testing.assert_allclose(post.predict(new), fresh.predict(new), atol=1e-7)
    refuses("shape", post.extend, t[:2], y[:3])
    refuses("counts", post.extend, [1.0], [-1.0])


def test_draws_have_the_moments_of_the_dense_posterior():
    """Means and covariances of 20 000 draws: five standard errors, of about 300 numbers."""
    t, data = series(40, seed=8)
    new = np.array([t.min() - 0.5, t.min(), 0.7, 0.7, 1.9, 2.0, t.max() + 1.0, 1e4])
    for name in ("three halves", "products", "trend"):
        kernel = KERNELS[name] + sk.WhiteKernel(0.05)
        post = infer_series(t, data["signs"], kernel, **TIGHT)
        found = post.sample(new, n_samples=20_000, random_state=0, mean=0.3)
        assert found.shape == (20_000, new.size)
        cross = (kernel)(new[:, None], t[:, None])
        K = kernel(t[:, None])
        tau, nu = post.sites
        S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
        weights = np.linalg.solve(K, cross.T)
        mean = weights.T @ S @ nu + 0.3
        # Times that are repeated share f, and not its noise.
        smooth = KERNELS[name](new[:, None]) + 0.05 * np.eye(new.size)
        variance = smooth - cross @ weights + weights.T @ S @ weights
        scale = np.sqrt(np.diag(variance))
        assert (np.abs(found.mean(axis=0) - mean) / scale).max() < 5.0 / np.sqrt(20_000), name
        ratio = (np.cov(found.T) - variance) / np.outer(scale, scale)
        assert np.abs(ratio).max() < 5.0 * np.sqrt(2.0 / 20_000), name


def test_squared_exponentials_on_request():
    """The error stated is that of the kernel; answers are those of the kernel that is meant."""
    t, data = series(70, seed=9)
    y = data["signs"]
    steps = np.linspace(0.0, 30.0, 1001)
    kernel = 2.0 * sk.RBF(0.8)
    for approximate, size, bound in [(3e-3, 4, 2.3e-3), (2e-4, 6, 1.9e-4), (2e-5, 8, 1.3e-5)]:
        space = state_space(kernel, approximate)
        assert (space.dimension, space.error) == (size, bound)
        off = covariance(space, steps) - 2.0 * np.exp(-0.5 * (steps / 0.8) ** 2)
        assert 0.9 * bound < np.abs(off).max() / 2.0 < bound
        post = infer_series(t, y, kernel, "probit", "ep", approximate=approximate, **TIGHT)
        assert post.kernel_error == bound
        # Inference from the covariance of the states themselves, in dense algebra.
        K = covariance(space, np.subtract.outer(t, t))
        dense = infer(K + 1e-9 * np.eye(t.size), y, "probit", "ep", **TIGHT)
        assert worst(post, dense) < 1e-6, size
    meant = infer(kernel(t[:, None]) + 1e-9 * np.eye(t.size), y, "probit", "ep", **TIGHT)
    np.testing.assert_allclose(post.mean, meant.mean, atol=1e-3)
    assert post.log_evidence == pytest.approx(meant.log_evidence, abs=1e-3)
    # Short steps, whose noise is x^15 of the first state, and its gradient.
    near = np.sort(np.concatenate([t, t + 1e-9, t + 1e-4]))
    assert infer_series(near, np.repeat(y, 3), kernel, approximate=1e-3).converged

    def at(theta):
        own = kernel.clone_with_theta(theta)
        return infer_series(t, y, own, "probit", "ep", approximate=1e-3, **TIGHT)

    by_difference = slopes(lambda theta: at(theta).log_evidence, kernel.theta)
    gradient = at(kernel.theta).evidence_gradient()
    np.testing.assert_allclose(gradient, by_difference, rtol=1e-6, atol=1e-6)
    refuses(r"1\.3e-05 at least", infer_series, t, y, kernel, error=NotMarkov, approximate=1e-9)


def covariance(space, steps):
    """Of f over steps, by the poles of the states' generator."""
    term = space.terms[0]
    factor = term.factors[0]
    poles, vectors = np.linalg.eig(factor.generator)
    shares = vectors[0] * np.linalg.solve(vectors, factor.stationary[:, 0])
    return term.variance * (np.exp(np.multiply.outer(np.abs(steps), poles)) @ shares).real


def test_masked_observations_are_missing_and_masked_times_refused():
    t, y = np.arange(5.0), np.array([0.3, -0.2, 1e6, 0.1, 0.4])
    hidden = np.array([False, False, True, False, False])
    kernel, own = 1.0 * sk.Matern(1.5, nu=0.5), "gaussian(scale=0.5)"
    masked = infer_series(t, np.ma.array(y, mask=hidden), kernel, own)
    missing = infer_series(t, np.where(hidden, np.nan, y), kernel, own)
    assert masked.log_evidence == missing.log_evidence
    np.testing.assert_array_equal(masked.predict(t)[0], missing.predict(t)[0])
    with pytest.raises(InputError, match="t has masked entries"):
        infer_series(np.ma.array(t, mask=hidden), np.where(hidden, np.nan, y), kernel, own)


STEEP = Likelihood.from_log_prob(
    lambda f, y, theta: -0.5 * (y - f) ** 2 / 0.3 - 0.1 * abs(y - f) ** 3,
    **{"name": "steep", "log_concave": True, "location": True},
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
    if kernel_name == "squared exponential":
        K = covariance(state_space(smooth, 3e-3), np.subtract.outer(t, t))
    else:
        K = smooth(t[:, None])
    K += noise(t[:, None])
    dense = infer(K, data[kind], given, order="parallel", **options)
    case = f"{kernel_name}, {likelihood}, {method}, N = {n}"
    assert (post.status, dense.status) == ("converged", "converged"), case
    assert worst(post, dense) < (1e-7 if kernel_name in CUT else 1e-8), case


@pytest.mark.parametrize(
    "n", [120, *(pytest.param(n, marks=pytest.mark.slow) for n in (300, 1500))]
)
def test_every_pair_has_the_fixed_point_of_the_dense_engine(n):
    """Methods alternate; but at 300 points every kernel takes some of the likelihoods in turn."""
    assert set(OBSERVED) == {*likelihoods.names(), "steep"}
    t, data = series(n, seed=5)
    for i, name in enumerate(EVERY):
        for j, likelihood in enumerate(OBSERVED):
            if (j - i) % len(OBSERVED) < SOME[n]:
                compared(n, name, likelihood, ("ep", "qp")[(i + j) % 2], t, data)


def correlation(nu, length, step):
    """Matern covariance in the precision of mpmath."""
    x = mp.sqrt(2 * mp.mpf(nu)) * abs(step) / length
    return {0.5: 1, 1.5: 1 + x, 2.5: 1 + x + x * x / 3}[nu] * mp.exp(-x)


def cavities(t, covariance, tau, nu):
    """Cavity means and variances of f, by the inverse of the covariance of y, with 80 digits."""
    n = range(len(t))
    with mp.workdps(80):
        times, tau, nu = ([mp.mpf(float(v)) for v in values] for values in (t, tau, nu))
        S = mp.matrix([[covariance(times[i] - times[j]) for j in n] for i in n])
        inverse = (S + mp.diag([1 / v for v in tau])) ** -1
        weights = inverse * mp.matrix([b / a for a, b in zip(tau, nu, strict=True)])
        # y_i given the others has variance 1/inverse_ii, of which 1/tau_i is its own noise.
        mean = [float(nu[i] / tau[i] - weights[i] / inverse[i, i]) for i in n]
        variance = [float(1 / inverse[i, i] - 1 / tau[i]) for i in n]
    return np.array([mean, variance])


#: Times, variance, and largest site precision: a site outweighs the prior 1e16 times at most.
HARD = {
    "gaps": (np.cumsum([0, 1e6, 0.3, 0, 1e6, 0.2, 1e300, 0.1]), 2.0, 5.0),
    "steps": (np.cumsum([0, 1e-12, 1e-12, 0.5, 1e-12, 0, 1e-6, 0.3]), 2.0, 1e3),
    "steps and precisions": (np.cumsum([0, 1e-12, 1e-12, 0.5, 1e-12, 0, 1e-6, 0.3]), 2.0, 1e10),
    "precisions": (1e-4 * np.arange(8.0), 2.0, 1e16),
    "variance": (np.cumsum([0, 0.1, 0.4, 0.2, 1.0, 0, 0.3, 2.0]), 1e10, 4.0),
    "all": (np.cumsum([0, 1e-12, 1e6, 0.2, 1e-9, 0, 0.3, 5.0]), 1e10, 1.0),
}
#: A few roundings, in standard deviations of a mean and relative to a variance. Means of sums lose
#: more where data contradict each other: rows a step of 1e-12 apart differ by 1e5 deviations.
FACTORED, CONTRADICTED = 1e-13, 1e-7
#: Covariances, which larger states have where sites are below 1e6 times the prior.
PLAIN = 1e-11
PRIORS = {
    "1/2": (Matern(1.0, nu=0.5), lambda x: correlation(0.5, 1, x)),
    "3/2": (Matern(1.0, nu=1.5), lambda x: correlation(1.5, 1, x)),
    "5/2": (Matern(1.0, nu=2.5), lambda x: correlation(2.5, 1, x)),
    "sum": (
        Matern(1.0, nu=2.5) + 0.25 * Matern(4.0, nu=0.5) + ConstantKernel(0.5),
        lambda x: correlation(2.5, 1, x) + correlation(0.5, 4, x) / 4 + mp.mpf(0.5),
    ),
    "product": (
        Matern(1.0, nu=1.5) * Matern(2.0, nu=1.5),
        lambda x: correlation(1.5, 1, x) * correlation(1.5, 2, x),
    ),
}


def test_cavities_at_the_ends_against_80_digits():
    rng = np.random.default_rng(0)
    for name, (t, variance, most) in HARD.items():
        tau = most * rng.uniform(0.1, 1.0, t.size)
        nu = tau * rng.standard_normal(t.size)
        series = SortedSeries(t, np.ones(t.size), Projector("probit", "ep"), np.zeros(t.size))
        for kind, (kernel, covariance) in PRIORS.items():
            space = state_space(ConstantKernel(variance) * kernel)
            rows = Rows(series, space, Sites(tau.copy(), nu.copy()))
            scale = mp.mpf(variance)
            mean, square = cavities(t, lambda x, c=covariance, s=scale: s * c(x), tau, nu)
            own = space.pair is not None or space.trio is not None
            limit = FACTORED if own or most * variance > 1e7 else PLAIN
            before = []
            for ahead in (True, False):
                rows.run(ahead=not ahead)
                report = np.empty((t.size, 4))
                rows.run(ahead=ahead, report=report)
                case = f"{name}, {kind}, ahead = {ahead}"
                np.testing.assert_allclose(report[:, 1], square, rtol=limit, err_msg=case)
                # Means where they are of the size of the data, not of the prior's deviation.
                off = np.abs(report[:, 0] - mean) / (np.sqrt(square) + np.abs(mean))
                assert off.max() < (FACTORED if own else CONTRADICTED), case
                before.append(report[:, 2:])
            # Both passes report what rows before say, the one back of messages that it found.
            (mean_one, one), (mean_other, other) = (found.T for found in before)
            np.testing.assert_allclose(other, one, rtol=limit, err_msg=f"{name}, {kind}")
            off = np.abs(mean_other - mean_one) / (np.sqrt(one) + np.abs(mean_one))
            assert off.max() < (FACTORED if own else CONTRADICTED), (name, kind)


def test_the_gradient_in_white_noise_under_any_noise_against_50_digits():
    """Of log N(nu/tau; 0, K + w I + 1/tau), which EP's evidence is to sites that are given."""
    rng = np.random.default_rng(3)
    t, y = np.sort(rng.uniform(0.0, 3.0, 7)), rng.standard_normal(7)
    for noise, most in [(1e-14, 1e14), (1e-9, 1e3), (0.3, 1e10), (1e12, 2.0)]:
        tau = most * rng.uniform(0.1, 1.0, 7)
        series = SortedSeries(t, y, Projector("probit", "ep"), np.zeros(7))
        space = state_space(2.0 * Matern(1.0, nu=1.5) + WhiteKernel(noise))
        rows = Rows(series, space, Sites(tau.copy(), tau * y))
        rows.refresh()
        with mp.workdps(50):
            times, sites = ([mp.mpf(float(v)) for v in values] for values in (t, tau))
            S = mp.matrix([[2 * correlation(1.5, 1, a - b) for b in times] for a in times])
            inverse = (S + mp.diag([mp.mpf(noise) + 1 / v for v in sites])) ** -1
            beta = inverse * mp.matrix(y.tolist())
            right = sum(beta[i] ** 2 - inverse[i, i] for i in range(7)) / 2
        # Of squares of the data and precisions, which have the size of their sum here.
        assert noise_slope(rows, rows.report()) == pytest.approx(float(right), rel=1e-12), noise


def test_the_gradient_in_white_noise_of_rows_that_observe_multiples():
    """Of log N(nu/tau; 0, H (K + w I) H + 1/tau) by dense algebra, H the diagonal of scales."""
    rng = np.random.default_rng(5)
    t, y, h, tau = np.sort(rng.uniform(0.0, 3.0, 9)), *rng.uniform(0.4, 2.5, (3, 9))
    kernel = 2.0 * Matern(1.0, nu=1.5) + WhiteKernel(0.3)
    series = SortedSeries(t, y, Projector("probit", "ep"), np.zeros(9), scale=h)
    rows = Rows(series, state_space(kernel), Sites(tau.copy(), tau * y))
    rows.refresh()
    inverse = np.linalg.inv(kernel(t[:, None]) * np.outer(h, h) + np.diag(1.0 / tau))
    right = 0.5 * np.sum(h**2 * ((inverse @ y) ** 2 - np.diag(inverse)))
    assert noise_slope(rows, rows.report()) == pytest.approx(right, rel=1e-11)


def drawn(rng):
    """A series of anything that is allowed, and how to infer from it."""
    n = int(rng.integers(1, 40))
    kind = rng.integers(4)
    t = rng.uniform(0.0, 10.0 ** rng.uniform(-3, 4), n)
    if kind == 1:
        t = np.round(t)
    elif kind == 2:
        t += 10.0 ** rng.uniform(3, 9)
    elif kind == 3:
        t = np.cumsum(10.0 ** rng.uniform(-12, 6, n))
    length, variance = 10.0 ** rng.uniform(-2, 3), 10.0 ** rng.uniform(-3, 6)
    kernel = variance * Matern(length, nu=rng.choice([0.5, 1.5, 2.5]))
    if rng.random() < 0.3:
        kernel = kernel + WhiteKernel(10.0 ** rng.uniform(-3, 1))
    if rng.random() < 0.2:
        kernel = kernel + 1.0 * Matern(length * 3.0, nu=0.5)
    if rng.random() < 0.1:
        kernel = kernel * ExpSineSquared(2.0, length)
    likelihood = rng.choice(["probit", "logistic", "poisson-exp", "laplace"])
    y = np.where(rng.random(n) < 0.5, -1.0, 1.0)
    if likelihood == "poisson-exp":
        y = rng.poisson(10.0 ** rng.uniform(-1, 2), n).astype(float)
    if likelihood == "laplace":
        y = rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 2)
    y[rng.random(n) < 0.1] = np.nan
    return t, y, kernel, str(likelihood), str(rng.choice(["ep", "qp"]))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_what_a_message_says_may_underflow(nu):
    """One observation so long after that the precision of its message is subnormal."""
    post = infer_series([0.0], [30.0], Matern(1.0, nu=nu), "poisson-exp")
    mean, variance = np.array(
        [post.predict([-x / np.sqrt(2.0 * nu)]) for x in np.linspace(300.0, 380.0, 161)]
    ).T[0]
    assert (np.abs(mean) < 1e-100).all()
    np.testing.assert_array_equal(variance, 1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
def test_ten_thousand_random_series_are_never_nan():
    # Errors: y of NaN alone, states above 64, and poisson-exp under variances of 1e6.
    rng, count = np.random.default_rng(1), 10_000
    done, settled = 0, 0
    for k in range(count):
        t, y, kernel, likelihood, method = drawn(rng)
        try:
            post = infer_series(t, y, kernel, likelihood, method)
            mean, variance = post.predict(np.concatenate([t, [t.min() - 1.0, t.max() + 1e5]]))
        except QPError:
            continue
        numbers = [post.mean, post.variance, *post.sites, post.loo(), mean, variance]
        assert all(np.isfinite(values).all() for values in (*numbers, post.log_evidence)), k
        assert (post.variance > 0.0).all(), k
        assert (variance >= 0.0).all(), k
        done += 1
        settled += post.converged
    assert done > 0.9 * count
    assert settled > 0.9 * done


@pytest.mark.parametrize("name", ["laplace(scale={})", "student-t(nu=4.0, scale={})"])
def test_evidence_under_noise_far_below_the_prior(name):
    """It tends to that of y under the prior, from which it differs by terms of scale^2."""
    t = np.linspace(-3.0, 3.0, 5)
    y = np.sin(2.0 * t)
    # In factors of two numbers, and in those of any size.
    for kernel in (2.0 * Matern(1.0, nu=1.5), Matern(1.0, nu=2.5) + 0.5 * Matern(2.0, nu=1.5)):
        exact = multivariate_normal(np.zeros(5), kernel(t[:, None])).logpdf(y)
        for scale in (1e-6, 1e-8, 1e-10):
            post = infer_series(t, y, kernel, name.format(scale), "ep")
            assert post.converged
            assert post.log_evidence == pytest.approx(exact, rel=1e-10)
