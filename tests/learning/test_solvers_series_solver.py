"""Estimators on one column: fits by states are those of the dense engine."""

import pickle

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

import qpruntime as qp
from qpruntime.learning.solvers import SeriesFamily, SeriesObjective
from qpruntime.projection.projector import Projector
from tests.tools.cases import refuses


def data(n):
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0.0, n / 20.0, n))[rng.permutation(n), None]
    f = 2.0 * np.sin(X[:, 0]) + np.cos(0.31 * X[:, 0])
    labels = np.where(f + rng.standard_normal(n) > 0.0, "yes", "no")
    exposure = rng.uniform(0.5, 2.0, n)
    return X, labels, rng.poisson(exposure * np.exp(0.5 * f)), exposure, f


KERNEL, SMOOTH = (ConstantKernel(2.0) * Matern(1.0, nu=nu) for nu in (1.5, 2.5))
# Its variance ends at the bound: nothing would be known of its length-scale.
ROUGH = ConstantKernel(2.0) * Matern(5.0, "fixed", nu=0.5)
RESTARTED = {"optimize": qp.Search(ftol=1e-13, restarts=1), "method": "qp"}
LOGS, EP = {"link": "exp"}, {"method": "ep"}
ROBUST = (qp.GPRobustRegressor, KERNEL + WhiteKernel(0.01, "fixed"), "reals", EP, ())
SOME = [
    (qp.GPClassifier, None, "labels", {}, ()),
    (qp.GPClassifier, KERNEL, "labels", RESTARTED, ("sample_weight",)),
    (qp.GPPoissonRegressor, KERNEL, "counts", {}, ("exposure",)),
    (qp.GPPoissonRegressor, None, "counts", LOGS, ("exposure",)),
    (qp.GPPoissonRegressor, KERNEL, "counts", LOGS | EP, ("exposure",)),
    ROBUST,
]
MANY = [
    (qp.GPClassifier, KERNEL, "labels", EP, ()),
    (qp.GPClassifier, SMOOTH + ROUGH, "labels", EP, ()),
    (qp.GPPoissonRegressor, SMOOTH, "counts", LOGS | EP, ("exposure",)),
    ROBUST,
]


@pytest.mark.parametrize(
    ("n", "cases"), [(200, SOME), pytest.param(1500, MANY, marks=pytest.mark.slow)]
)
def test_fits_are_those_of_the_dense_engine(n, cases):
    """Fits by states and by the dense engine, of sites to 1e-9 and optima to 1e-13."""
    X, labels, counts, exposure, f = data(n)
    reals = f + 0.2 * np.random.default_rng(1).standard_t(4, n)
    observed = {"labels": labels, "counts": counts, "reals": reals}
    columns = {"exposure": exposure, "sample_weight": 1.0 + (np.arange(n) % 3 == 0)}
    new = np.linspace(-1.0, 0.06 * n, 20)[:, None]
    for estimator, kernel, kind, own, names in cases:
        options = {"tol": 1e-9, "optimize": qp.Search(ftol=1e-13), "random_state": 0} | own
        given = {name: columns[name] for name in names}
        fits = [
            estimator(kernel, solver=solver, **options).fit(X, observed[kind], **given)
            for solver in ("markov", "dense")
        ]
        ours, dense = fits
        case = f"{estimator.__name__}, {kernel}, N = {n}"
        assert isinstance(ours.posterior_, qp.SeriesPosterior), case
        # An optimiser that ends at slopes of 1e-5 is 1e-5 from the optimum where curvatures are 1.
        for found, right in zip(*((m.kernel_.theta, m.optimum_.theta) for m in fits), strict=True):
            np.testing.assert_allclose(found, right, rtol=0.0, atol=1e-4, err_msg=case)
        found, right = (fit.log_marginal_likelihood_value_ for fit in fits)
        assert found == pytest.approx(right, rel=1e-6), case
        for found, right in zip(ours.latent(new), dense.latent(new), strict=True):
            np.testing.assert_allclose(found, right, rtol=2e-3, atol=1e-4, err_msg=case)
        again = pickle.loads(pickle.dumps(ours))
        np.testing.assert_array_equal(again.latent(new)[0], ours.latent(new)[0])
        if kind == "counts":
            np.testing.assert_array_equal(ours.predict_quantiles(new), dense.predict_quantiles(new))


def test_noise_is_learnt_with_the_gradient_of_the_evidence():
    X, _, _, _, f = data(80)
    y = f + 0.2 * np.random.default_rng(1).standard_t(4, f.size)
    kernel = ConstantKernel(2.0) * Matern(1.0, nu=2.5) + WhiteKernel(0.01)
    family = SeriesFamily(kernel, X, np.zeros(80))
    projector = Projector("student-t(nu=6, scale=0.4)", "ep")
    objective = SeriesObjective(family, y, projector, 1e-11, 500, None, ("scale",), None)
    objective.tolerance = lambda: 1e-11
    theta = np.append(kernel.theta, np.log(0.4))
    slope = objective(theta)[1]
    off = check_grad(lambda x: objective(x)[0], lambda x: objective(x)[1], theta, epsilon=1e-5)
    # One-sided differences: 1e-5 times half a second derivative.
    assert off < 1e-4 * np.abs(slope).max() + 1e-3
    model = qp.GPRobustRegressor(solver="markov", method="ep").fit(X, y)
    assert isinstance(model.posterior_, qp.SeriesPosterior)
    expected = qp.GPRobustRegressor(method="ep").fit(X, y).scale_
    assert model.scale_ == pytest.approx(expected, rel=1e-3)


def test_predictions_pass_over_the_rows_once(monkeypatch):
    """In blocks of points, which the dense engine takes, they would take N times N/500."""
    X, labels, counts, exposure, _ = data(3000)
    passes, predict = [], qp.SeriesPosterior.predict

    def counted(self, *new, **rest):
        passes.append(0)
        return predict(self, *new, **rest)

    monkeypatch.setattr(qp.SeriesPosterior, "predict", counted)
    new = np.linspace(-1.0, 160.0, 4000)[:, None]
    fixed = {"optimize": False, "method": "ep"}
    model = qp.GPClassifier(KERNEL, **fixed).fit(X, labels)
    found = model.predict_proba(new)
    assert len(passes) == 1
    # More rows are merged: steps are parted elsewhere.
    np.testing.assert_allclose(found[:7], model.predict_proba(new[:7]), rtol=1e-12)
    rates = qp.GPPoissonRegressor(KERNEL, link="exp", **fixed).fit(X, counts, exposure=exposure)
    passes.clear()
    rates.predict_quantiles(new[:, :1], [0.05, 0.95])
    assert len(passes) == 1


def test_the_solver_is_chosen():
    X, labels, _, _, _ = data(300)
    fixed = {"optimize": False, "method": "ep"}
    model = qp.GPClassifier(KERNEL, **fixed).fit(X, labels)
    assert isinstance(model.posterior_, qp.SeriesPosterior)
    for model, rows in [
        (qp.GPClassifier(KERNEL, solver="dense", **fixed), 300),
        (qp.GPClassifier(RBF(1.0), **fixed), 300),
        (qp.GPClassifier(KERNEL, **fixed), 100),
    ]:
        model.fit(X[:rows], labels[:rows])
        assert not isinstance(model.posterior_, qp.SeriesPosterior)
    two = np.hstack([X, X])
    for model, given, words in [
        (qp.GPClassifier(RBF(1.0), solver="markov"), X, "RBF"),
        (qp.GPClassifier(KERNEL, solver="markov"), two, "one column"),
        (qp.GPClassifier(KERNEL, solver="markov", optimize="loo"), X, "loo"),
        (qp.GPClassifier(KERNEL, solver="markov", method="vb"), X, "vb"),
        (qp.GPClassifier(KERNEL, solver="markov", correction="fact"), X, "corrections"),
        (qp.GPClassifier(KERNEL, solver="markov", inducing=9), X, "used with inducing points"),
        (qp.GPClassifier(KERNEL, solver=qp.Series(1e-3)), X, "no squared exponential"),
        (qp.GPClassifier(RBF(1.0), solver=qp.Series(1e-3)), two, "one column, this one has 2"),
        (qp.GPClassifier(KERNEL, solver=qp.Series(), inducing=9), X, "used with inducing points"),
        (qp.GPClassifier(KERNEL, solver="dense", inducing=9), X, "one of the two out"),
        (qp.GPClassifier(RBF(1.0), solver=qp.Series(1e-9)), X, r"1\.3e-05 at least"),
        (qp.GPClassifier(KERNEL, solver="fast"), X, "solver must be"),
    ]:
        refuses(words, model.fit, given, labels)


def test_squared_exponentials_are_fitted_by_states_on_request():
    """To what the error of the kernel does to a fit, 1.3e-5 of the variance."""
    X, labels, _, _, _ = data(300)
    kernel = ConstantKernel(2.0) * RBF(1.0) + WhiteKernel(0.1, "fixed")
    ours = qp.GPClassifier(kernel, method="ep", solver=qp.Series(1e-4, required=False))
    ours.fit(X, labels)
    dense = qp.GPClassifier(kernel, method="ep", solver="dense").fit(X, labels)
    assert ours.posterior_.kernel_error == 1.3e-5
    np.testing.assert_allclose(ours.kernel_.theta, dense.kernel_.theta, atol=5e-3)
    wanted = dense.log_marginal_likelihood_value_
    assert ours.log_marginal_likelihood_value_ == pytest.approx(wanted, abs=1e-2)


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")  # after two iterations
def test_of_two_kernels_those_with_states_are_tried():
    X, labels, _, _, _ = data(300)
    short = {"method": "ep", "optimize": qp.Search(max_iter=2)}
    for how, runs in (({}, 1), ({"solver": qp.Series(1e-3, required=False)}, 2)):
        model = qp.GPClassifier("auto", **short, **how).fit(X, labels)
        assert isinstance(model.posterior_, qp.SeriesPosterior), how
        assert len(model.optima_) == runs, how
    assert pickle.loads(pickle.dumps(model)).latent(X[:2])[0].shape == (2,)


def test_one_column_that_varies_among_constants_is_no_series():
    t = np.linspace(0.0, 9.0, 320)
    y = np.sin(2.0 * t) > 0.0
    for X in (np.column_stack([t, np.ones(320)]), np.column_stack([np.full(320, 7.0), t])):
        model = qp.GPClassifier(random_state=0).fit(X, y)
        assert model.engine_ == "dense"
        assert model.score(X, y) > 0.98
        refuses("leave out constant columns", qp.GPClassifier(solver="markov").fit, X, y)
    with pytest.warns(qp.ConvergenceWarning, match="nothing was found"):
        model = qp.GPClassifier(random_state=0).fit(np.ones((320, 3)), y)
    np.testing.assert_allclose(model.predict_proba(np.ones((1, 3)))[0, 1], y.mean(), atol=0.02)


def test_times_are_columns_of_any_kind():
    _, labels, _, _, f = data(40)
    days = np.arange(40)
    kernel = ConstantKernel(2.0) * Matern(5.0, nu=1.5)
    model = qp.GPClassifier(kernel, solver="markov", method="ep", optimize=False)
    right = model.fit(days[:, None].astype(float), labels).predict_proba([[7.5]])
    dates = np.datetime64("2024-02-01") + days.astype("m8[D]")
    for column, new in (
        (days, [[7.5]]),
        (days.astype(np.float32), np.array([[7.5]], np.float32)),
        (dates, [[(dates[0] - np.datetime64("1970-01-01")).astype(int) + 7.5]]),
    ):
        found = model.fit(column[:, None], labels).predict_proba(new)
        np.testing.assert_allclose(found, right, rtol=1e-9)
    model.fit(days[:, None], np.digitize(f, np.quantile(f, [0.3, 0.7])))
    assert [type(post) for post in model.posterior_] == 3 * [qp.SeriesPosterior]
    new = np.array([[3.0], [-5.0], [3.0], [1e6], [39.0]])
    found = pickle.loads(pickle.dumps(model)).predict_proba(new)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[::-1], model.predict_proba(new[::-1]), rtol=1e-12)
    gap = np.where(days == 3, np.nan, 1.0)
    refuses(r"y has no value in row .*, NaN", model.fit, days[:, None], gap)
