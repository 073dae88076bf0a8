"""Sparse power EP and QP: reference values, the dense engine where the two meet, gradients."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import ConvergenceWarning, QPError, infer, infer_sparse
from tests.tools.cases import every_case, refuses

X = np.linspace(-3.0, 3.0, 40)[:, None]
LABELS = np.sign(np.sin(1.7 * X[:, 0]) + 0.3 * np.cos(5.0 * X[:, 0]))
COUNTS = np.round(np.exp(1.0 + np.sin(1.3 * X[:, 0])))
Z = np.linspace(-3.0, 3.0, 7)[:, None]
Z_FEW = np.linspace(-0.9, 0.9, 4)[:, None]
KERNEL = ConstantKernel(2.0) * RBF(0.9)
EXACT = {"jitter": 0.0, "tol": 1e-12}
FOURTH = np.where(np.arange(40) % 4 == 0, 2.0, 1.0)

# Method, power; evidence, sum of leave-one-out densities, mean and variance at 0.4: made by other
# code, a prototype in NumPy; they hold to all digits printed.
PROBIT = [
    ("ep", 1.0, (-15.2778517304, -9.2336083860, 1.7171401498, 0.3907366564)),
    ("qp", 1.0, (-15.2778540573, -9.2311857868, 1.7170156237, 0.3903605681)),
    ("ep", 0.5, (-15.3074752560, -9.2052550705, 1.7180038844, 0.3886641829)),
    ("qp", 0.5, (-15.3074759525, -9.2040993003, 1.7179366353, 0.3884764287)),
]
POISSON = [
    ("ep", 1.0, None, (-70.5568389278, 1.4492180254, None)),
    ("qp", 1.0, None, (-70.5568399458, None, 0.0658134615)),
    ("ep", 0.5, None, (-70.6938947101, None, None)),
    ("ep", 1.0, FOURTH, (-86.1135617903, None, None)),
]


@every_case("method, power, expected", PROBIT)
def test_reference_values_of_probit(method, power, expected):
    options = {"method": method, "power": power, **EXACT}
    looked = infer_sparse(X, LABELS, KERNEL, Z, **options)
    # The table of the power 1/2 is certified to 1e-8; without it nothing is lost.
    post = infer_sparse(X, LABELS, KERNEL, Z, table=None if power == 1.0 else "exact", **options)
    assert abs(looked.log_evidence - post.log_evidence) < 4e-8
    mean, variance = post.predict([[0.4]])
    found = [post.log_evidence, post.loo().sum(), mean[0], variance[0]]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=6e-11)
    assert post.converged
    assert post._solution.least() == (post.loo().min(), post.loo().argmin())


@every_case("method, power, weights, expected", POISSON)
def test_reference_values_of_counts(method, power, weights, expected):
    options = {"method": method, "power": power, "weights": weights, "mean": 0.5, **EXACT}
    post = infer_sparse(X, COUNTS, KERNEL, Z, "poisson-exp", **options)
    mean, variance = post.predict([[0.4]])
    found = [post.log_evidence, mean[0], variance[0]]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=0.0, atol=6e-11)


def lifted(kernel, z, jitter):
    square = kernel(z, z)
    return square + jitter * np.mean(np.diag(square)) * np.eye(len(z))


def fitc(kernel, x, z, jitter=0.0):
    """FITC's covariance: low rank, and the variances of the kernel."""
    K = kernel(x, z) @ np.linalg.solve(lifted(kernel, z, jitter), kernel(z, x))
    K = 0.5 * (K + K.T)
    np.fill_diagonal(K, kernel.diag(x))
    return K


def agree(post, dense, s=1.0, within=1e-9):
    """Results are those of the dense engine on S K S, told of f."""
    for one, two in (
        (post.sites.tau, dense.sites.tau * s**2),
        (post.sites.nu, dense.sites.nu * s),
        (post.loo(), dense.loo()),
        (post.log_evidence, dense.log_evidence),
        (post.mean, dense.mean / s),
        (post.variance, dense.variance / s**2),
    ):
        # What the tolerance of the fixed points leaves; rounding is below it.
        np.testing.assert_allclose(one, two, rtol=within, atol=within * (1 + np.abs(two).min()))


HEAVY = np.sin(X[:, 0]) + np.where(np.arange(40) % 9 == 0, 4.0, 0.0)
TRIALS = np.column_stack([COUNTS, np.full(40, 12.0)])
T4 = "student-t(nu=4, scale=0.3)"
NOISY = KERNEL + WhiteKernel(0.2)
RNG = np.random.default_rng(11)
S = np.sqrt(RNG.uniform(0.05, 8.0, 40))
SCALED = RNG.poisson(S**2 * (1.2 + 0.8 * np.sin(1.3 * X[:, 0])) ** 2).astype(float)
#: Exposures of 1e-6, 1 and 1e6: events of none to nearly the most there may be.
EXTREME = np.array([1e-3, 1e3, 1e-3, 1.0])[np.arange(40) % 4]
EVENTS = RNG.poisson((EXTREME * (0.8 + 0.15 * np.sin(1.3 * X[:, 0]))) ** 2).astype(float)
#: Under these f has one sign.
MILD, NARROW = ConstantKernel(0.2) * RBF(0.9), ConstantKernel(0.04) * RBF(0.9)
FAR = {"scale": EXTREME, "mean": 0.8, "tol": 1e-9}
FEW = [
    (KERNEL, LABELS, "probit", "qp", {"mean": np.cos(X[:, 0])}),
    (KERNEL, COUNTS, "poisson", "qp", {"mean": 1.5}),
    (NOISY, HEAVY, T4, "ep", {"weights": FOURTH}),
    (MILD, SCALED, "poisson", "qp", {"scale": S, "mean": 1.2 + 0.1 * np.cos(X[:, 0])}),
    (MILD, SCALED, "poisson", "ep", {"scale": S, "mean": 1.2, "weights": FOURTH}),
    (NOISY, HEAVY, T4, "ep", {"scale": S, "weights": FOURTH, "mean": 0.1}),
    (NOISY, LABELS, "probit", "qp", {"scale": S}),
    (NARROW, EVENTS, "poisson", "ep", FAR),
    (NARROW, EVENTS, "poisson", "qp", FAR),
]
MORE = [
    (NOISY, LABELS, "probit", "ep", {}),
    (NOISY, LABELS, "logistic", "qp", {"weights": FOURTH}),
    (NOISY, LABELS, "probit", "wp", {"p": 1.5}),
    (KERNEL, LABELS, "heaviside", "ep", {}),
    (KERNEL, LABELS, "step", "qp", {}),
    (KERNEL, COUNTS, "poisson-exp", "qp", {"mean": np.linspace(0.0, 1.0, 40)}),
    (KERNEL, COUNTS, "negative-binomial(dispersion=0.4)", "ep", {"mean": 0.5}),
    (KERNEL, TRIALS, "binomial", "qp", {}),
    (KERNEL, HEAVY, T4, "qp", {}),
    (KERNEL, HEAVY, "laplace(scale=0.5)", "qp", {}),
]


@pytest.mark.parametrize("cases", [FEW, pytest.param(MORE, marks=pytest.mark.slow)])
def test_of_power_one_it_is_the_dense_engine_on_fitc(cases):
    for kernel, y, likelihood, method, options in cases:
        both = {"method": method, "tol": 1e-12, "max_sweeps": 300, **options}
        post = infer_sparse(X, y, kernel, Z, likelihood, power=1.0, jitter=0.0, **both)
        s = both.pop("scale", 1.0)
        K, centre = fitc(kernel, X, Z) * np.outer(s, s), s * both.pop("mean", 0.0)
        dense = infer(K, y, likelihood, order="parallel", mean=centre, **both)
        assert post.converged
        agree(post, dense, s)
        # Observations in the tails of Student's t push others' precisions below zero, and stay
        # there.
        assert (likelihood is T4) == bool((post.sites.tau < -1e-3).any())


def test_noise_of_any_small_scale():
    """Sites dominate their marginals: evidence was off by 1e-7, and sweeps went on for ever."""
    x = np.linspace(-1.0, 1.0, 12)[:, None]
    kernel, y = RBF(0.5), np.sin(2.0 * x[:, 0]) + 0.3
    scales = (1e-6, 1e-8, 1e-10)
    for z in (Z_FEW, x[::3]):
        K = fitc(kernel, x, z, 1e-8)
        for name in ("laplace(scale={})", "student-t(nu=4, scale={})"):
            for scale in scales:
                given = {"likelihood": name.format(scale), "method": "ep"}
                post = infer_sparse(x, y, kernel, z, power=1.0, **given)
                dense = infer(K, y, order="parallel", **given)
                assert post.converged, (name, scale)
                # Rounding of r, which is 1e-8 where rows are inducing, in both.
                assert abs(post.log_evidence - dense.log_evidence) < 2e-10
                np.testing.assert_allclose(post.loo(), dense.loo(), rtol=0.0, atol=1e-8)
                np.testing.assert_allclose(post.mean, dense.mean, rtol=0.0, atol=1e-14)
                np.testing.assert_allclose(post.variance, dense.variance, rtol=1e-9)
    # Half a Laplace is a normal of variance 8 s^2 there; power EP of normal noise of half that has
    # a closed form (Bui, Yan & Turner 2017, Eq. 22), and of mass there is this ratio.
    for scale in scales:
        square, half = 4.0 * scale**2, 4.0 * scale / np.sqrt(2.0 * scale)
        own = np.sqrt(4.0 * np.pi * square) / (2.0 * np.pi * square) ** 0.25
        low = kernel(x, Z_FEW) @ np.linalg.solve(lifted(kernel, Z_FEW, 1e-8), kernel(Z_FEW, x))
        r = 1.0 - np.diag(low)
        expected = multivariate_normal.logpdf(y, None, low + np.diag(0.5 * r + square))
        expected += 24.0 * np.log(half / own) - 0.5 * np.log1p(0.5 * r / square).sum()
        post = infer_sparse(x, y, kernel, Z_FEW, f"laplace(scale={scale})", "ep")
        assert abs(post.log_evidence - expected) < 1e-11


@every_case(
    "method, options",
    [("ep", {}), ("qp", {"weights": FOURTH, "mean": 0.3}), ("ep", {"scale": S, "mean": 0.2})],
)
def test_with_all_inputs_inducing_it_is_the_dense_engine(method, options):
    kernel, x, y = ConstantKernel(2.0) * RBF(0.3), X[::2], COUNTS[::2]
    options = {name: value[::2] if np.ndim(value) else value for name, value in options.items()}
    both = {"method": method, "power": 0.5, "tol": 1e-12, **options}
    post = infer_sparse(x, y, kernel, x, "poisson-exp", jitter=0.0, **both)
    s, mean = both.pop("scale", 1.0), both.pop("mean", 0.0)
    dense = infer(kernel(x) * np.outer(s, s), y, "poisson-exp", mean=mean * s, **both)
    # r, which is nothing but rounding here, is added to variances.
    agree(post, dense, s, 1e-8)
    new = np.array([[0.1], [7.0]])
    expected = dense.predict(kernel(new, x) * s, [2.0, 2.0], mean=mean)
    for one, two in zip(post.predict(new), expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-8)


def test_small_powers_tend_to_the_bound():
    """Linearly, to the dense engine's variational bound where all inputs are inducing."""
    x = X[::2]
    kernel, y = ConstantKernel(2.0) * RBF(0.5), LABELS[::2]
    bound = infer(kernel(x), y, method="vb", tol=1e-10).log_evidence
    powers = [0.1, 0.01, 0.001]
    given = {"method": "ep", "tol": 1e-10}
    found = [infer_sparse(x, y, kernel, x, power=p, **given).log_evidence for p in powers]
    gaps = (np.array(found) - bound) / powers
    # Of second order in the power, and jitter.
    np.testing.assert_allclose(gaps, gaps[1], rtol=0.05)


def test_what_must_not_matter():
    """Order of rows, rows of weight 0, equal and faraway inducing inputs; few rows are legal."""

    def run(x=X, y=LABELS, z=Z, **options):
        return infer_sparse(x, y, KERNEL, z, tol=1e-11, **options)

    plain = run()
    back = np.random.default_rng(2).permutation(40)
    more, counted = (np.vstack([X, X[:5]]), np.r_[LABELS, -LABELS[:5]]), np.arange(45) < 40
    with_more = run(*more, weights=counted.astype(float))
    others = [
        (run(X[back], LABELS[back]), 1e-11),
        (with_more, 1e-8),  # weights are integrated
        (run(z=np.vstack([Z, Z[:2]])), 1e-6),  # jitter of 1e-8 is shared by two
        (run(z=np.vstack([Z, [[1e6], [-1e200]]])), 1e-8),
    ]
    for post, within in others:
        np.testing.assert_allclose(post.log_evidence, plain.log_evidence, rtol=0.0, atol=within)
        for one, two in zip(post.predict(X), plain.predict(X), strict=True):
            np.testing.assert_allclose(one, two, rtol=0.0, atol=10.0 * within)
    np.testing.assert_allclose(others[0][0].loo(), plain.loo()[back], rtol=0.0, atol=1e-10)
    few = run(X[:3], LABELS[:3], power=1.0)
    dense = infer(fitc(KERNEL, X[:3], Z, 1e-8), LABELS[:3], tol=1e-11)
    assert abs(few.log_evidence - dense.log_evidence) < 1e-6
    np.testing.assert_allclose(run(z=np.array([[1e5]])).loo(), np.log(0.5), rtol=1e-12)


@every_case("mean, scale", [(1.5, None), (np.linspace(-1.0, 2.0, 40), None), (1.5, S)])
def test_sites_of_a_fixed_point_stay_under_a_prior_mean(mean, scale):
    options = {"likelihood": "poisson-exp", "method": "ep", "mean": mean, "scale": scale}
    settled = infer_sparse(X, COUNTS, KERNEL, Z, tol=1e-10, **options)
    again = infer_sparse(X, COUNTS, KERNEL, Z, tol=1e-6, sites=settled.sites, **options)
    assert again.n_sweeps == 1
    assert again.history[0] < 1e-8
    assert again.log_evidence == pytest.approx(settled.log_evidence, abs=1e-9)


@every_case(
    "change, words",
    [
        ({"Z": [[np.nan]]}, "Z.* nan"),
        ({"Z": [[1.0, 2.0]]}, "Z must have 1 columns"),
        ({"Z": []}, "Z must have shape"),
        ({"X": X[:, 0]}, "X must have shape"),
        ({"y": LABELS[:3]}, "y must have shape"),
        ({"method": "vb"}, "dense only"),
        ({"power": 0.0}, "power must be"),
        ({"jitter": 0.1}, "jitter must be"),
        ({"mean": np.zeros(3)}, "mean must be"),
        ({"weights": -np.ones(40)}, "weights must not be negative"),
        ({"sites": (-np.ones(40), np.ones(40))}, "must not be negative"),
    ],
)
def test_bad_arguments(change, words):
    refuses(words, infer_sparse, kernel=KERNEL, **{"X": X, "y": LABELS, "Z": Z, **change})


TWICE = np.concatenate([Z, Z[:1]])
MANY = np.linspace(-3.0, 3.0, 50)[:, None]
WEIGHTS = np.random.default_rng(1).uniform(0.0, 2.0, 40)
STEP = 1e-4


def scaled(variance=2.0, length=0.9):
    return ConstantKernel(variance, (1e-9, 1e12)) * RBF(length, (1e-9, 1e9))


SLOPES = [
    (scaled(), LABELS, Z, "probit", {"power": 1.0}),
    (scaled() + WhiteKernel(0.3), LABELS, Z, "probit", {"weights": WEIGHTS}),
    (scaled(length=1e-3), LABELS, Z, "probit", {}),
    (scaled(length=1e3), LABELS, Z, "probit", {}),
    (scaled(variance=1e10), LABELS, Z, "probit", {}),
    (scaled(), LABELS, TWICE, "probit", {}),
    (scaled(), LABELS, MANY, "probit", {}),
    (ConstantKernel(2.0) * Matern(0.9, nu=1.5), COUNTS, Z, "poisson-exp", {"power": 0.3}),
    (scaled(), HEAVY, Z, T4, {"power": 0.7}),
    (scaled(), HEAVY, Z, "laplace(scale=1e-7)", {"power": 1.0}),
    (scaled(), HEAVY, Z, "laplace(scale=0.5)", {"power": 1.0, "weights": WEIGHTS}),
    (scaled(), COUNTS, Z, "negative-binomial(dispersion=0.4)", {"power": 1.0}),
    (scaled(0.2), np.round(S**2 * COUNTS / 2.0), Z, "poisson", {"mean": 1.2, "scale": S}),
    (scaled(0.04), EVENTS, Z, "poisson", {"power": 1.0, **FAR}),
    (scaled() + WhiteKernel(0.2), HEAVY, Z, "laplace(scale=0.5)", {"power": 1.0, "scale": S}),
]


@every_case("k, y, z, likelihood, options", SLOPES)
def test_gradients_are_differences(k, y, z, likelihood, options):
    def settled(theta=0.0, move=0.0, mean=0.0, noise=0.0):
        named = likelihood
        if noise:
            stem, value = likelihood[:-1].rsplit("=", 1)
            named = f"{stem}={float(value) * math.exp(noise)!r})"
        at = k.clone_with_theta(k.theta + theta)
        moved = z + move * (np.arange(len(z)) == 1)[:, None]
        given = {"method": "ep", "tol": 1e-10, "n_jobs": 1, "mean": 0.2, **options}
        given["mean"] += mean
        return infer_sparse(X, y, at, moved, named, **given)

    def slope(name, unit=1.0):
        ends = [settled(**{name: sign * STEP * unit}).log_evidence for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]) / (2.0 * STEP)

    names = [likelihood.rsplit("=", 1)[0].split("(")[1].split()[-1]] if "(" in likelihood else []
    found = settled()._solution.engine.evaluate(0, names)
    expected = [slope("theta", unit) for unit in np.eye(k.theta.size)]
    expected += [slope("move"), slope("mean")]
    expected += [slope("noise") for _ in names]
    computed = [*found.by_theta, found.by_Z[1, 0], found.by_mean, *found.by_parameters]
    # Second order in the step leaves some third derivatives times 2e-9.
    scale = 1.0 + np.abs(expected).max()
    np.testing.assert_allclose(computed, expected, rtol=0.0, atol=2e-7 * scale)


def test_reference_gradients():
    for power, theta in ((1.0, [2.8190509, -4.0244329]), (0.5, [2.7988182, -3.8519561])):
        options = {"power": power, "method": "ep", "jitter": 0.0, "tol": 1e-12}
        found = infer_sparse(X, LABELS, scaled(), Z, **options)._solution.engine.evaluate(0)
        np.testing.assert_allclose(found.by_theta, theta, rtol=0.0, atol=6e-8)
        if power == 1.0:
            np.testing.assert_allclose(found.by_Z[1, 0], -0.106075223, rtol=0.0, atol=6e-10)


def test_float32_steers():
    """Its gradient is right to a thousandth of its largest entry, its evidence to 1e-6 of it."""
    post = infer_sparse(X, LABELS, scaled(), Z, method="ep", tol=1e-10)
    exact = post._solution.engine.evaluate(0)
    post._solution.engine.move(scaled(), Z, np.float32)
    rough = post._solution.engine.evaluate(0)
    assert abs(rough.value - exact.value) < 1e-5 * abs(exact.value)
    for name in ("by_theta", "by_Z"):
        one, two = getattr(exact, name), getattr(rough, name)
        np.testing.assert_allclose(two, one, rtol=0.0, atol=1e-3 * np.abs(one).max())


LIKELIHOODS = [
    *("probit", "logistic", "heaviside", "poisson-exp", "poisson"),
    *("negative-binomial(dispersion=0.4)", "student-t(nu=4, scale=0.3)", "laplace(scale=0.5)"),
]


def problem(seed):
    """Arguments of a problem with widths, sizes, places and powers over many decades."""
    rng = np.random.default_rng(seed)
    n, m, d = int(rng.integers(1, 25)), int(rng.integers(1, 12)), int(rng.integers(1, 4))
    likelihood = LIKELIHOODS[seed % len(LIKELIHOODS)]
    scale = 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.3 else 1.0
    X = scale * rng.standard_normal((n, d))
    if rng.random() < 0.3:
        X[rng.integers(n)] = X[0]
    Z = X[rng.integers(n, size=m)] if rng.random() < 0.5 else scale * rng.standard_normal((m, d))
    if rng.random() < 0.2:
        Z = Z.copy()
        Z[0] = 10.0 ** rng.uniform(0, 8)
    variance, length = 10.0 ** rng.uniform(-6, 10), 10.0 ** rng.uniform(-3, 3)
    if "poisson" in likelihood or "binomial" in likelihood:
        variance = min(variance, 1e3)
    shape = [RBF(length), Matern(length, nu=0.5), Matern(length, nu=2.5)][int(rng.integers(3))]
    kernel = ConstantKernel(variance, (1e-9, 1e12)) * shape
    if rng.random() < 0.3:
        kernel = kernel + WhiteKernel(10.0 ** rng.uniform(-6, 1))
    if "poisson" in likelihood or "binomial" in likelihood:
        y = rng.poisson(10.0 ** rng.uniform(-1, 3), n).astype(float)
    elif "(" in likelihood:
        y = rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 3)
    else:
        y = rng.choice([-1.0, 1.0], n) if rng.random() < 0.8 else np.ones(n)
    options = {
        "likelihood": likelihood,
        "method": ("ep", "qp")[int(rng.integers(2))],
        "power": float(rng.choice([1.0, 0.5, 0.1, 0.9])),
        "mean": float(rng.normal()) if rng.random() < 0.5 else 0.0,
        "weights": rng.uniform(0.0, 3.0, n) if rng.random() < 0.2 else None,
        "n_jobs": 1,
    }
    return (kernel, X, y, Z), options


def outcome(seed):
    """Whether a problem settled; it raises, or everything that comes out is a number."""
    (kernel, X, y, Z), options = problem(seed)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        try:
            post = infer_sparse(X, y, kernel, Z, **options)
        except QPError:
            return "refused"
        mean, variance = post.predict(np.vstack([X, Z, X * 1e3]))
        slopes = post._solution.engine.evaluate(0)
    slopes = slopes.by_theta, slopes.by_Z
    for values in (post.log_evidence, mean, variance, post.loo(), post.variance, *slopes):
        assert np.isfinite(values).all(), seed
    assert (variance >= 0.0).all(), seed
    assert (post.variance > 0.0).all(), seed
    return "settled" if post.converged else "unsettled"


@pytest.mark.slow
def test_five_thousand():
    found = [outcome(seed) for seed in range(5000)]
    assert found.count("settled") > 4500
    assert found.count("refused") < 250
