"""Every engine, and one of independent sites, keep the contract: the same names and words."""

import pickle
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from qpruntime import ConvergenceWarning, InputError, infer, infer_series, infer_sparse
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.fixed_point import variational
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.problem import Problem
from qpruntime.inference.solution_protocol import Solution
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.optimise import maximise
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses
from tests.tools.diagonal import DiagonalFamily, DiagonalPrior
from tests.tools.oracle import slopes

RNG = np.random.default_rng(0)
T = np.sort(RNG.uniform(0.0, 8.0, 40))
F = np.sin(T)
KERNEL = ConstantKernel(2.0) * Matern(1.3, nu=1.5) + WhiteKernel(0.05)
NEW = np.array([-1.0, 0.7, 4.0, 30.0])
Y = {
    "probit": np.where(F + 0.4 * RNG.standard_normal(40) > 0.0, 1.0, -1.0),
    "poisson-exp": RNG.poisson(np.exp(F)).astype(float),
    "student-t(nu=4, scale=0.4)": F + 0.3 * RNG.standard_t(4, 40),
}
ENGINES = ("dense", "series", "sparse", "nearest", "operator")


def posterior(engine, likelihood="probit", y=None, kernel=KERNEL, **options):
    """Of the same rows by each engine; inducing inputs are all rows, and so are the nearest."""
    y = Y[likelihood] if y is None else y
    options = {"method": "ep", "likelihood": likelihood, "tol": 1e-9, **options}
    if engine == "dense":
        return infer(kernel(T[:, None]), y, **options)
    if engine == "operator":
        return infer(kernel(T[:, None]), y, operator=np.eye(40), **options)
    if engine == "series":
        return infer_series(T, y, kernel, **options)
    few = {"nearest": 40} if engine == "nearest" else {}
    Z = T[::2, None] if engine == "nearest" else T[:, None]
    return infer_sparse(T[:, None], y, kernel, Z, power=1.0, jitter=1e-13, **few, **options)


def at(engine, points=NEW):
    if engine in ("dense", "operator"):
        points = points[:, None]
        return KERNEL(points, T[:, None]), KERNEL.diag(points)
    return (points,) if engine == "series" else (points[:, None],)


@every_case("likelihood", list(Y))
@every_case("method", ["ep", "qp"])
def test_engines_that_must_agree_do(likelihood, method):
    """All have the dense posterior, but the nearest rows take sites of fewer inducing inputs."""
    dense = posterior("dense", likelihood, method=method)
    expected = dense.predict(*at("dense"))
    # Inducing inputs at white noise are of f without it, so that noisy kernels are not FITC's.
    smooth = KERNEL.k1
    plain = posterior("dense", likelihood, method=method, kernel=smooth)
    for engine in ("series", "sparse", "operator"):
        own = smooth if engine == "sparse" else KERNEL
        right = plain if engine == "sparse" else dense
        post = posterior(engine, likelihood, method=method, kernel=own)
        assert post.log_evidence == pytest.approx(right.log_evidence, abs=2e-8)
        for name in ("mean", "variance"):
            np.testing.assert_allclose(getattr(post, name), getattr(right, name), atol=5e-7)
        np.testing.assert_allclose(post.loo(), right.loo(), atol=5e-7)
        np.testing.assert_allclose(post.loo([3, 0, 3]), right.loo([3, 0, 3]), atol=5e-7)
        if engine != "sparse":
            np.testing.assert_allclose(post.predict(*at(engine)), expected, atol=5e-7)
        if method == "ep":
            slopes = own(T[:, None], eval_gradient=True)[1]
            gradient = right.evidence_gradient(slopes)
            known = () if engine != "operator" else (slopes,)
            np.testing.assert_allclose(post.evidence_gradient(*known), gradient, atol=2e-6)


def independent(likelihood, method, max_sweeps=100, order="parallel"):
    """By the least engine there can be: latent values that know nothing of each other."""
    prior = DiagonalPrior(np.linspace(0.5, 3.0, 40), np.linspace(-0.5, 0.5, 40))
    problem = Problem(prior, Y[likelihood], Projector(likelihood, method))
    return prior, summarise(problem, settle(problem, Limits(1e-9, max_sweeps), order=order))


@every_case("likelihood", list(Y))
@every_case("method", ["ep", "qp"])
@every_case("order", ["parallel", "sequential"])
def test_an_engine_of_forty_lines_agrees(likelihood, method, order):
    prior, post = independent(likelihood, method, order=order)
    options = {"mean": prior.mean, "tol": 1e-9}
    dense = infer(np.diag(prior.variance), Y[likelihood], likelihood, method, **options)
    assert (post.status, post.n, post.n_negative) == ("converged", 40, dense.n_negative)
    assert post.log_evidence == pytest.approx(dense.log_evidence, abs=1e-8)
    for name in ("mean", "variance"):
        np.testing.assert_allclose(getattr(post, name), getattr(dense, name), atol=1e-7)
    np.testing.assert_allclose(post.loo([3, 0, 3]), dense.loo([3, 0, 3]), atol=1e-7)
    assert set(post.summary()) == set(dense.summary())
    assert repr(post).startswith("<Posterior of 40 sites")
    for name in (n for n in dir(Solution) if not n.startswith("_")):
        assert hasattr(solution_of(post), name), name
    copy = pickle.loads(pickle.dumps(post))
    at_rows = np.array([4, 7]), prior.variance[[4, 7]]
    np.testing.assert_allclose(copy.predict(*at_rows, mean=0.0), post.predict(*at_rows, mean=0.0))
    refuses("differs between rows: pass mean=", post.predict, *at_rows)


@every_case("engine", ENGINES)
def test_everything_is_there_and_a_copy_predicts(engine):
    post = posterior(engine)
    assert isinstance(post, Posterior)
    assert post.converged
    assert (post.status, post.n, post.held, post.skipped) == ("converged", 40, 0, 0)
    assert post.fixed_points == (post.log_evidence,)
    assert "\n" not in repr(post)
    assert repr(post).startswith(f"<{type(post).__name__} of 40 sites")
    assert len(str(post).splitlines()) in (5, 6)
    mean, variance = post.predict(*at(engine))
    assert mean.shape == variance.shape == (4,)
    for values in (post.mean, post.variance, post.loo(), *post.sites):
        assert values.shape == (40,)
    found = post.summary()
    assert set(posterior("dense").summary()) - {"n_negative"} <= set(found)
    assert found["least_log_density"] == pytest.approx(post.loo().min(), abs=0.05)
    assert isinstance(post.check(), tuple)
    assert solution_of(post).held_rows == 40
    for name in (n for n in dir(Solution) if not n.startswith("_")):
        assert hasattr(solution_of(post), name), name
    copy = pickle.loads(pickle.dumps(post))
    np.testing.assert_array_equal(copy.predict(*at(engine)), post.predict(*at(engine)))
    assert copy.log_evidence == post.log_evidence
    assert copy.summary() == post.summary()
    assert str(copy) == str(post)
    if engine == "sparse":
        refuses("without its rows", copy.loo)


@every_case("engine", [*ENGINES, "forty lines"])
def test_what_is_not_settled_is_said_alike(engine):
    if engine == "forty lines":
        post = independent("probit", "ep", max_sweeps=1)[1]
    else:
        words = r"not converged after 1 sweeps: the sites still change by .* \(tol 1e-09\), most of"
        with pytest.warns(ConvergenceWarning, match=words) as said:
            post = posterior(engine, max_sweeps=1)
        assert all(len(str(one.message)) < 400 for one in said)
        assert post.check()[0].startswith("the sites are not converged")
    assert (post.status, post.n_sweeps, post.converged) == ("not converged", 1, False)
    assert "NOT CONVERGED after 1 sweeps" in str(post)


@every_case("engine", ENGINES)
def test_what_is_held_is_said_alike(engine):
    """Two heavy-tailed observations of one value that contradict each other."""
    y = np.where(np.arange(40) % 2, 6.0, -6.0)
    with warnings.catch_warnings(record=True, action="always") as said:
        post = posterior(engine, "student-t(nu=4, scale=0.4)", y=y, max_sweeps=400)
    if post.held:
        assert post.status == "held"
        assert any("of 40 site precisions are held at zero" in str(one.message) for one in said)
    else:
        assert post.status == "converged"
        assert "n_negative" not in post.summary() or post.n_negative > 0


@every_case("engine", ENGINES)
def test_prior_means(engine):
    """One number is that of new points too; numbers that differ have to be given there."""
    far = np.array([1e4])
    post = posterior(engine, mean=0.7)
    assert post.predict(*at(engine, far))[0] == pytest.approx([0.7])
    assert post.predict(*at(engine, far), mean=-2.0)[0] == pytest.approx([-2.0])
    with pytest.raises(InputError, match=r"mean must .*have shape \(1,\), got \(2,\)"):
        post.predict(*at(engine, far), mean=[1.0, 2.0])
    differing = posterior(engine, mean=np.linspace(0.0, 1.0, 40))
    refuses("differs between rows: pass mean=", differing.predict, *at(engine))
    moved = [differing.predict(*at(engine), mean=m)[0] for m in (0.0, 1.0)]
    np.testing.assert_allclose(moved[1] - moved[0], 1.0, rtol=1e-12)


@every_case("engine", ENGINES)
def test_new_points_may_be_named_and_what_is_missing_is(engine):
    post = posterior(engine)
    names = post._solution.where
    named = dict(zip(names, at(engine), strict=True))
    for one, other in zip(post.predict(**named), post.predict(*at(engine)), strict=True):
        np.testing.assert_array_equal(one, other)
    refuses("unexpected argument 'means'", post.predict, *at(engine), error=TypeError, means=0.3)
    refuses(f"at most {len(names)} positional", post.predict, *at(engine), 0.3, error=TypeError)
    with pytest.raises(TypeError, match=f"multiple values for argument '{names[0]}'"):
        post.predict(at(engine)[0], **named)
    refuses("go together", post.predict)
    refuses("from 0 to 39, got 40 to 40", post.loo, [40])
    refuses("whole numbers", post.loo, [0.5])
    with pytest.raises(InputError, match=r"evidence_gradient takes dK|takes no dK"):
        post.evidence_gradient(*([] if engine in ("dense", "operator") else [np.eye(40)]))


def test_corrections_of_a_series_are_those_of_its_covariance():
    dense, series = posterior("dense"), posterior("series")
    exact = dense.marginals(*at("dense"))
    found = series.marginals(*at("series"))
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-7)
    np.testing.assert_allclose(found.variance, exact.variance, atol=1e-7)
    np.testing.assert_allclose(series.marginals().mean, dense.marginals().mean, atol=1e-7)
    got = series.corrected_evidence().value
    assert got == pytest.approx(dense.corrected_evidence().value, abs=1e-7)
    assert series.check() == dense.check()
    long = infer_series(np.arange(3001.0), np.ones(3001), KERNEL, "probit", "ep")
    refuses("N = 3001 rows, more than 3000: infer a part", long.marginals)
    assert any("corrections were not looked at" in word for word in long.check())


@every_case("engine", ["sparse", "nearest"])
def test_what_inducing_inputs_cannot_do_names_what_can(engine):
    post = posterior(engine)
    for ask in (post.marginals, post.corrected_evidence):
        refuses(r"infer\(kernel\(X\), y\) has them", ask)
    assert any("corrections were not looked at" in word for word in post.check())
    refuses("knows its kernel", post.with_covariance, np.eye(40))


def test_joint_draws():
    """Means and covariances of 40 000 draws, within five of their standard errors."""
    points = np.array([0.7, 0.9, 4.0, 30.0])
    smooth = KERNEL.k1
    K, cross = smooth(T[:, None]), smooth(points[:, None], T[:, None])
    dense = posterior("dense", kernel=smooth)
    inner = np.linalg.inv(K + np.diag(1.0 / dense.sites.tau))
    exact = smooth(points[:, None]) - cross @ inner @ cross.T
    mean = cross @ np.linalg.solve(K, dense.mean)
    wanted = {
        "dense": (cross, smooth(points[:, None])), "series": (points,), "sparse": (points[:, None],)
    }  # fmt: skip
    for engine, where in wanted.items():
        post = posterior(engine, kernel=smooth)
        draws = post.sample(*where, n_samples=40_000, random_state=1)
        assert draws.shape == (40_000, 4)
        width = np.sqrt(exact.diagonal())
        error = 5.0 / np.sqrt(40_000)
        assert np.abs((draws.mean(axis=0) - mean) / width).max() < error
        gap = (np.cov(draws.T) - exact) / np.outer(width, width)
        assert np.abs(gap).max() < np.sqrt(2.0) * error
        again = post.sample(*where, n_samples=2, random_state=1)
        np.testing.assert_array_equal(again, post.sample(*where, n_samples=2, random_state=1))
    rows = dense.sample(n_samples=40_000, random_state=2)
    assert np.abs(rows.mean(axis=0) - dense.mean).max() < 5.0 * np.sqrt(dense.variance.max()) / 200
    refuses(r"post\.sparse, without them, has sample", posterior("nearest").sample, points[:, None])


SITES = 40
DRAWS = np.random.default_rng(7)
VARIANCE, MEAN = 10.0 ** DRAWS.uniform(-2, 3, SITES), DRAWS.normal(0.0, 2.0, SITES)
LABELS = np.where(np.arange(SITES) % 3, 1.0, -1.0)


def test_the_variational_bound_and_damped_weighted_powers_agree_with_the_dense_solver():
    prior, K = DiagonalPrior(VARIANCE, MEAN), np.diag(VARIANCE)
    problem = Problem(prior, LABELS, Projector("logistic", "vb"))
    bound = summarise(problem, variational.settle(problem, tol=1e-9, max_sweeps=500))
    dense = infer(K, LABELS, "logistic", "vb", mean=MEAN, tol=1e-9, max_sweeps=500)
    assert bound.log_evidence == pytest.approx(dense.log_evidence, rel=1e-12)
    weights = DRAWS.integers(0, 3, SITES).astype(float)
    problem = Problem(prior, LABELS, Projector("logistic", "ep"), power=0.5, weights=weights)
    post = summarise(problem, settle(problem, Limits(1e-9, damping=0.7)))
    options = {"tol": 1e-9, "damping": 0.7, "power": 0.5, "weights": weights}
    dense = infer(K, LABELS, "logistic", "ep", mean=MEAN, **options)
    assert post.log_evidence == pytest.approx(dense.log_evidence, rel=1e-10)
    np.testing.assert_allclose(post.mean, dense.mean, rtol=1e-7, atol=1e-7)


def test_fixed_points_of_a_likelihood_with_two_peaks_are_searched():
    counts = np.full(6, 9.0)
    problem = Problem(DiagonalPrior(np.full(6, 4.0), np.zeros(6)), counts, Projector("poisson"))
    post = summarise(problem, settle(problem, restarts=np.random.default_rng(2).spawn(3)))
    dense = infer(4.0 * np.eye(6), counts, "poisson", n_restarts=3, random_state=2)
    assert post.status == dense.status
    assert post.log_evidence == pytest.approx(dense.log_evidence, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_hyper_parameter_is_learnt(objective):
    """The evidence is sum log Z_i, and so is the leave-one-out density of independent sites."""
    profile = 10.0 ** DRAWS.uniform(-1, 1, SITES)
    y = np.where(DRAWS.random(SITES) < norm.cdf(MEAN / np.sqrt(1.0 + 3.0 * profile)), 1.0, -1.0)
    family, projector = DiagonalFamily(profile, MEAN), Projector("probit", "ep")

    def value(theta):
        return norm.logcdf(y * MEAN / np.sqrt(1.0 + np.exp(theta) * profile)).sum()

    found, slope = OBJECTIVES[objective](family, y, projector, 1e-9, 200)(np.array([0.3]))
    assert -found == pytest.approx(value(0.3), rel=1e-10)
    assert -slope[0] == pytest.approx(float(slopes(value, 0.3)), rel=1e-7)
    best = minimize_scalar(lambda t: -value(t), bounds=family.bounds[0], method="bounded")
    start = OBJECTIVES[objective](family, y, projector, 1e-6, 100)
    optimum, _ = maximise(start, family.theta, family.bounds)
    assert optimum.success
    assert optimum.value == pytest.approx(-best.fun, rel=1e-8)
    assert optimum.theta[0] == pytest.approx(best.x, abs=1e-3)
