"""The seam of acquisitions: those with a name, and a user's own."""

import json

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF

from qpruntime.bayesopt import Aim, Optimizer, Surrogate
from qpruntime.bayesopt.acquisition import NAMED, least_feasible, log_improvement, log_mean
from tests.tools.cases import every_case, refuses


def searched(acquisition, count, **options):
    """A search whose optimum is (.3, .5), where x0 + x1 >= .8."""
    options = {"noise": 0.0, "random_state": 1, "n_samples": 4, **options}
    opt = Optimizer([(0, 1)] * 2, 1, acquisition=acquisition, **options)
    for _ in range(count):
        x = opt.ask()
        opt.tell(x, f=(x[0] - 0.2) ** 2 + (x[1] - 0.4) ** 2, c=[x[0] + x[1] - 0.8])
    return opt


def distance(known):
    """An acquisition of a user: far from everything observed."""
    X = known.groups[0][0].X
    return lambda U: np.linalg.norm(U[:, None] - X, axis=-1).min(axis=1)


def priced(known):
    """An acquisition of a user that weighs functions: the constraint's uncertainty alone."""
    assert known.prices.tolist() == [2.0, 4.0]
    return lambda U: np.array([np.zeros(len(U)), known.groups[0][1].predict(U)[1]])


def test_an_own_function_and_a_name_are_the_same_thing():
    points = [searched(which, 6).columns()["x0"] for which in ("pesc", NAMED["pesc"])]
    assert points[0] == points[1]
    assert points[0] == searched(lambda known: NAMED["pesc"](known), 6).columns()["x0"]
    assert points[0] != searched("ei", 6).columns()["x0"]


@every_case("acquisition", ["ei", "thompson"])
def test_others_find_the_optimum(acquisition):
    opt = searched(acquisition, 14)
    # The edge x0 + x1 = .8 nearest to (.2, .4); medians of more evaluations come closer.
    np.testing.assert_allclose(opt.recommend(), [0.3, 0.5], atol=0.03)
    assert f"acquisition={acquisition!r}" in repr(opt)
    assert (opt.infeasible_draws, opt.unsettled) == (0, 0)


@every_case("acquisition", ["ei", "thompson"])
def test_others_go_round_what_is_pending_and_what_fails(acquisition):
    opt = searched(acquisition, 6, hyper=2)
    X = opt.ask(3)
    assert (np.linalg.norm(X[:, None] - X, axis=-1) + np.eye(3)).min() > 1e-4
    for x in X:
        opt.tell(x)  # failed
    assert opt.probability(X).max() < 0.5
    assert np.linalg.norm(X - opt.ask(), axis=1).min() > 1e-3


def test_expected_improvement_is_the_integral():
    """By quadrature of max(best - f, 0) under the posterior, times P(c >= 0)."""
    X = np.array([[0.1], [0.5], [0.9]])
    f = Surrogate(RBF(0.3), X, [0.4, -0.2, -0.9], noise=0.01)
    c = Surrogate(RBF(0.4), X, [1.0, 0.5, -0.7], noise=0.01)
    best = least_feasible([f, c])
    assert best == f.posterior_mean(X)[1]  # the last is less, and not feasible
    U = np.array([[0.3], [0.62], [1.4]])
    means, variances = f.predict(U)
    expected = []
    for mean, variance, at in zip(means, variances, U, strict=True):
        law = norm(mean, np.sqrt(variance))
        whole = quad(lambda v, law=law: (best - v) * law.pdf(v), best - 8.0, best, epsabs=1e-13)[0]
        m, v = c.predict(at[None])
        expected.append(np.log(whole) + norm.logcdf(m[0] / np.sqrt(v[0])))
    np.testing.assert_allclose(log_improvement([f, c])(U), expected, rtol=1e-7)
    logs = [np.array([0.0, -800.0]), np.array([np.log(3.0), -800.0])]
    np.testing.assert_allclose(log_mean(logs), [np.log(2.0), -800.0])


def test_before_anything_is_feasible_that_is_what_is_looked_for():
    X = np.array([[0.1], [0.9]])
    pair = [Surrogate(RBF(0.3), X, [0.0, 1.0]), Surrogate(RBF(0.3), X, [-2.0, -1.0])]
    assert least_feasible(pair) is None
    U = np.linspace(0.0, 1.0, 11)[:, None]
    mean, variance = pair[1].predict(U)
    expected = norm.logcdf(mean / np.sqrt(variance + 1e-12))
    np.testing.assert_allclose(log_improvement(pair)(U), expected, rtol=1e-12)
    nothing = Surrogate(RBF(0.3), np.empty((0, 1)), [])
    assert least_feasible([nothing]) is None
    np.testing.assert_array_equal(log_improvement([nothing])(U), 0.0)


def test_an_own_acquisition_chooses_the_point_and_the_function():
    opt = searched(distance, 3)
    X = np.column_stack([opt.columns()["x0"], opt.columns()["x1"]])
    gap = np.linalg.norm(X - opt.ask(), axis=1).min()
    grid = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, 51)] * 2), axis=-1).reshape(-1, 2)
    assert gap >= np.linalg.norm(grid[:, None] - X, axis=-1).min(axis=1).max() - 0.03
    # Points that it names are among those that are looked at.
    corner = np.array([[0.123456789, 1.0]])
    own = searched(lambda known: Aim(lambda U: -np.abs(U - corner).sum(axis=1), corner), 3)
    np.testing.assert_array_equal(own.ask(), corner[0])
    opt = searched(priced, 3)
    _, which = opt.ask(decoupled=True, cost=[2.0, 4.0])
    assert which == 1
    assert opt.columns()["awaited"][-1] == "c1"


def test_files_name_the_acquisition(tmp_path):
    opt = searched("ei", 5)
    opt.save(tmp_path / "ei")
    np.testing.assert_array_equal(Optimizer.load(tmp_path / "ei").ask(), opt.ask())
    own = searched(distance, 5)
    own.save(tmp_path / "own")
    refuses(r"acquisition=\S*distance: pass the same", Optimizer.load, tmp_path / "own")
    refuses("pass the same acquisition", Optimizer.load, tmp_path / "own", acquisition=priced)
    again = Optimizer.load(tmp_path / "own", acquisition=distance)
    np.testing.assert_array_equal(again.ask(), own.ask())
    searched("pesc", 2).save(tmp_path / "pesc")
    assert json.loads((tmp_path / "pesc").read_text())["acquisition"] == "pesc"
    refuses("begun with acquisition=pesc", Optimizer.load, tmp_path / "pesc", acquisition=distance)


@every_case(
    "acquisition, words",
    [
        ("cei", "one of pesc, ei, thompson or a function of what is known, got 'cei'"),
        (None, "one of pesc, ei, thompson"),
        (lambda known: 1.0, r"return a function of points \(T, d\), got 1.0"),
        (lambda known: Aim(len, np.ones((1, 3))), r"aim must have shape \(T, 2\), got \(1, 3\)"),
        (lambda known: lambda U: U, r"shape \(1, T\) or \(T,\) at T = \d+ points, got"),
        (lambda known: lambda U: np.full(len(U), np.nan), "got NaN: -inf is worth nothing"),
    ],
)
def test_what_is_refused(acquisition, words):
    refuses(words, searched, acquisition, 4)


def test_refusals_leave_nothing_pending():
    opt = searched(distance, 3)
    refuses(r"shape \(2, T\), one row a function, as decoupled", opt.ask, decoupled=True)
    assert not opt.pending
    for name in ("ei", "thompson"):
        refuses(f"acquisition '{name}' weighs points", searched(name, 0).ask, decoupled=True)
