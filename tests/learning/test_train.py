"""Restarts, objectives, many classes, intervals and progress of the classifier; the LOO slope."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.multiclass import OneVsRestClassifier

import qpruntime as qp
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.problem import Problem
from qpruntime.learning.objective import KernelFamily, LeaveOneOutObjective
from qpruntime.projection.projector import Projector
from tablegen import build
from tablegen.console.cli import main
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import RBFData, slopes

FIXED = ConstantKernel(4.0, "fixed") * RBF(1.0, "fixed")
# The leave-one-out density of the toy still rises with the length-scale where these bounds end.
RISING = "ignore:k2__length_scale ended at its upper bound 100:qpruntime.ConvergenceWarning"


@pytest.fixture(scope="module")
def toy():
    return RBFData(40, seed=3)


def loo_slope(kernel, x, y, pair, tol, mean=0.0, weights=None, step=None):
    """Return value, slope and slope by differences; sites settle to a hundredth of `tol`."""

    def objective(theta):
        args = KernelFamily(kernel, x, np.full(len(y), mean)), y, Projector(*pair), tol, 2000
        return LeaveOneOutObjective(*args, weights=weights)(theta)

    steps = () if step is None else (step,)
    by_difference = slopes(lambda theta: objective(theta)[0], kernel.theta, *steps)
    return *objective(kernel.theta), by_difference


@every_case("method", ["ep", "qp"])
@every_case(
    "kernel",
    [
        ConstantKernel(3.0) * RBF(1.2),
        ConstantKernel(1e4) * RBF([3.0, 5.0]),
        ConstantKernel(1e-3) * RBF(0.5),
        ConstantKernel(2.0) * RBF(1.0) + WhiteKernel(0.1),
    ],
)
def test_loo_slope(toy, kernel, method):
    value, slope, by_difference = loo_slope(kernel, toy.x, toy.y, ("probit", method), 1e-9)
    K = kernel(toy.x)
    wanted = qp.infer(K, toy.y, method=method, tol=1e-11).loo().sum()
    assert -value == pytest.approx(wanted, rel=1e-9)
    # h^4 = 1e-12 of truncation, sites settled to 1e-11 over h.
    assert slope == pytest.approx(by_difference, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_loo_slope_under_a_vast_prior(toy, method):
    # K has a condition of 1e20: what is formed by subtracting from the identity loses all digits.
    kernel = ConstantKernel(1e10) * RBF(30.0, "fixed")
    # K rounds to 1e-6: the value to 1e-4, and the difference to 2e-3.
    found = loo_slope(kernel, toy.x, toy.y, ("probit", method), 1e-9, step=0.05)
    assert found[1] == pytest.approx(found[2], rel=1e-2)


# Fractions, nothing, one, a few times, and so often that the site outweighs the prior by far.
WEIGHTS = np.resize([0.3, 1.0, 0.0, 2.5, 1e-3, 1.7, 400.0], 20)


@pytest.mark.slow
@every_case("method", ["ep", "qp"])
@every_case(
    ("name", "mean"), [("probit", 0.0), ("poisson", 1.5), ("logistic", 0.0), ("poisson-exp", 0.5)]
)
def test_loo_slope_of_weighted_observations(name, mean, method):
    data = RBFData(20, seed=3)
    y = data.y
    if "poisson" in name:
        y = np.random.default_rng(0).poisson(3.0, 20).astype(float)
    kernel = ConstantKernel(0.8) * RBF(1.2) + WhiteKernel(0.1)
    value, slope, by_difference = loo_slope(kernel, data.x, y, (name, method), 1e-8, mean, WEIGHTS)
    options = {"mean": mean, "weights": WEIGHTS, "tol": 1e-10, "max_sweeps": 1000}
    post = qp.infer(kernel(data.x), y, name, method, **options)
    assert -value == pytest.approx(WEIGHTS @ post.loo(), rel=1e-8)
    # The sites settle to 1e-10, over h.
    assert slope == pytest.approx(by_difference, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("mean", [0.5, 1.5])
def test_loo_slope_where_sites_are_held_at_zero(toy, mean):
    kernel = ConstantKernel(100.0) * RBF(1.0, "fixed")
    counts = np.random.default_rng(0).poisson(3.0, len(toy.y)).astype(float)
    prior = DensePrior(kernel(toy.x), np.full(len(counts), mean))
    assert settle(Problem(prior, counts, Projector("poisson", "ep")), seek=False).held > 0
    _, slope, by_difference = loo_slope(kernel, toy.x, counts, ("poisson", "ep"), 1e-9, mean)
    assert slope == pytest.approx(by_difference, rel=1e-6)


@pytest.mark.filterwarnings(RISING)
def test_loo_objective_finds_what_it_maximises(toy):
    kernel = ConstantKernel(1.0, (1e-3, 1e5)) * RBF(1.0, (1e-2, 1e2))
    loo = qp.GPClassifier(kernel, optimize="loo").fit(toy.x, toy.y)
    evidence = qp.GPClassifier(kernel).fit(toy.x, toy.y)
    assert loo.posterior_.loo().sum() >= evidence.posterior_.loo().sum()
    assert loo.optimum_.value == pytest.approx(loo.posterior_.loo().sum(), abs=1e-5)
    assert evidence.optimum_.value >= qp.infer(loo.kernel_(toy.x), toy.y, method="ep").log_evidence


@pytest.mark.filterwarnings(RISING)
@pytest.mark.parametrize("objective", ["evidence", "loo"])
def test_restarts_are_kept_seeded_and_used_and_threads_change_nothing(toy, objective):
    def fit(seed, n_jobs=2):
        kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(20.0, (1e-2, 1e2))
        options = {"optimize": qp.Search(objective, restarts=3), "random_state": seed}
        return qp.GPClassifier(kernel, n_jobs=n_jobs, **options).fit(toy.x, toy.y)

    first, again, other = fit(0), fit(0, None), fit(1)
    starts = np.array([o.start for o in first.optima_])
    assert starts.shape == (4, 2)
    values = [o.value for o in first.optima_]
    assert values == sorted(values, reverse=True)
    np.testing.assert_allclose(first.kernel_.theta, first.optima_[0].theta, rtol=1e-12)
    np.testing.assert_array_equal(starts, [o.start for o in again.optima_])
    for a, b in zip(first.optima_, again.optima_, strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)
    np.testing.assert_array_equal(first.predict_proba(toy.x), again.predict_proba(toy.x))
    assert not np.array_equal(starts, [o.start for o in other.optima_])
    low, high = np.log([[1e-2, 1e-2], [1e4, 1e2]])
    assert ((starts >= low) & (starts <= high)).all()


@pytest.mark.parametrize("form", [str, Path])
def test_a_model_keeps_to_its_table(form, toy, small_table, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "installed"))
    path = tmp_path / "mine.h5"
    path.write_bytes(small_table.read_bytes())
    model = qp.GPClassifier(FIXED, table=form(path)).fit(toy.x, toy.y)
    assert model.table_sha256_ == qp.open_table(path).sha256
    assert model.get_params()["table"] == form(path)
    document, expected = pickle.dumps(model), model.predict_proba(toy.x)
    # Another table under its name: predictions need none, but a fit would not be the same.
    narrow = {"mu_range": (-1.0, 1.0), "mu_step": 0.1}
    narrow |= {"log10_sigma_range": (-1.0, 1.0), "log10_sigma_step": 0.1}
    path.unlink()
    build("probit", path, method="direct", workers=1, **narrow)
    other = qp.open_table(path).sha256
    again = pickle.loads(document)
    np.testing.assert_array_equal(again.predict_proba(toy.x), expected)
    words = rf"likelihood probit, data sha256 {model.table_sha256_}.*another table .*{other}"
    for refitted in (model, again):
        refuses(words + ".*--force.*clone", refitted.fit, toy.x, toy.y, error=qp.TableError)
    # Whoever wants the other table says so.
    assert clone(again).fit(toy.x, toy.y).table_sha256_ == other
    changed = pickle.loads(document).set_params(table=qp.open_table(path))
    assert changed.fit(toy.x, toy.y).table_sha256_ == other
    # A missing table is an error with the very command that makes it.
    path.unlink()
    with pytest.raises(qp.TableError, match=rf"{model.table_sha256_}.*not at .*mine") as caught:
        again.fit(toy.x, toy.y)
    command = str(caught.value).split("build it: tablegen ")[1].split(";")[0]
    assert main([*command.split(), "--workers", "1"]) == 0
    np.testing.assert_array_equal(again.fit(toy.x, toy.y).predict_proba(toy.x), expected)
    # The same data in another place that tables are looked for in.
    (tmp_path / "installed").mkdir()
    path.rename(tmp_path / "installed" / "probit.h5")
    np.testing.assert_array_equal(again.fit(toy.x, toy.y).predict_proba(toy.x), expected)


def test_hash_of_the_shipped_table(toy):
    shipped = qp.open_table("probit-compact").sha256
    for options, wanted in (({}, shipped), ({"method": "ep"}, None), ({"table": "exact"}, None)):
        assert qp.GPClassifier(FIXED, **options).fit(toy.x, toy.y).table_sha256_ == wanted


@pytest.mark.parametrize("n", [60, 90])
def test_a_fitted_model_keeps_one_triangle(n):
    data = RBFData(n, seed=1)
    model = qp.GPClassifier(FIXED).fit(data.x, data.y)
    # Half of N^2 doubles, and less than 30 per point.
    document = pickle.dumps(model)
    assert len(document) < 8 * (n * (n + 1) // 2 + 30 * n)
    again, dK = pickle.loads(document), FIXED(data.x)
    np.testing.assert_array_equal(again.predict_proba(data.x), model.predict_proba(data.x))
    # The inverse is computed when it is asked for, and not kept.
    for post in (model.posterior_, again.posterior_):
        # With noise = diag(1/tau): alpha = (K + noise)^-1 nu/tau.
        inner = np.linalg.inv(dK + np.diag(1.0 / post.sites.tau))
        alpha = inner @ (post.sites.nu / post.sites.tau)
        expected = 0.5 * (alpha @ dK @ alpha - (inner * dK).sum())
        for _ in range(2):
            held = [v for v in vars(post._solution.kept).values() if isinstance(v, np.ndarray)]
            assert sum(array.size >= n * n for array in held) == 1
            assert post.evidence_gradient(dK) == pytest.approx(expected, rel=1e-8)
    # Also of negative sites.
    counts = np.random.default_rng(1).poisson(0.6, n)
    model = qp.GPPoissonRegressor(RBF(1.0), mean=0.6, optimize=False).fit(data.x, counts)
    assert model.posterior_.n_negative > 0
    again, dK = pickle.loads(pickle.dumps(model)), RBF(1.0)(data.x)
    np.testing.assert_array_equal(again.latent(data.x), model.latent(data.x))
    assert again.posterior_.evidence_gradient(dK) == model.posterior_.evidence_gradient(dK)


def test_more_than_two_classes_are_one_against_the_rest():
    X, y = load_iris(return_X_y=True)
    X, y = X[::3], np.array(["a", "b", "c"])[y[::3]]
    model = qp.GPClassifier(FIXED).fit(X, y)
    peer = OneVsRestClassifier(qp.GPClassifier(FIXED)).fit(X, y)
    proba = model.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    alone = np.column_stack([one.predict_proba(X)[:, 1] for one in peer.estimators_])
    weighed = alone / (1.0 - alone) ** model.coupling_
    np.testing.assert_allclose(proba, weighed / weighed.sum(axis=1, keepdims=True), rtol=1e-9)
    assert len(model.kernel_) == len(model.posterior_) == 3
    assert model.decision_function(X).shape == model.latent(X)[0].shape == (50, 3)
    assert model.score(X, y) > 0.9
    refuses("two classes", model.predict_interval, X)


def test_progress_goes_where_it_is_asked_to(toy, capsys):
    seen = []
    kernel = ConstantKernel(1.0) * RBF(1.0)
    optimize = qp.Search(callback=lambda theta, value: seen.append((theta, value)))
    qp.GPClassifier(kernel, optimize=optimize).fit(toy.x, toy.y)
    assert capsys.readouterr() == ("", "")
    model = qp.GPClassifier(kernel, verbose=1).fit(toy.x, toy.y)
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == model.optimum_.n_evaluations == len(seen)
    assert err.startswith("evidence -")
    qp.GPClassifier(kernel, verbose=False).fit(toy.x, toy.y)
    assert capsys.readouterr() == ("", "")
    assert max(value for _, value in seen) == pytest.approx(model.optimum_.value, rel=1e-12)


def test_a_restart_that_fails_is_kept_and_last():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 2))
    y = X[:, 0] + 0.5 * rng.standard_normal(30) > 0.0
    kernel = ConstantKernel(1.0, (1e-6, 1e15)) * RBF(1.0, (1e-6, 1e6))
    with warnings.catch_warnings(action="ignore", category=qp.ConvergenceWarning):
        plain = qp.GPClassifier(kernel, likelihood="heaviside").fit(X, y)
        search = {"optimize": qp.Search(restarts=6), "random_state": 0}
        model = qp.GPClassifier(kernel, likelihood="heaviside", **search).fit(X, y)
    failed = [run for run in model.optima_ if run.value == -np.inf]
    assert failed  # equal points with opposite labels, as far as a vast length-scale can tell
    assert all(run in failed for run in model.optima_[-len(failed) :])
    assert not any(run.success for run in failed)
    assert all("WhiteKernel" in run.message or "jitter" in run.message for run in failed)
    assert len(model.optima_) == 7
    assert model.optimum_.value >= plain.optimum_.value - 1e-9


@pytest.mark.filterwarnings(RISING)
@pytest.mark.parametrize("method", ["ep", "qp"])
def test_sample_weights_in_the_leave_one_out_density(toy, method):
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(1.0, (1e-2, 1e2))
    options = {"method": method, "optimize": "loo"}
    # What weighs ten times as much is what the hyper-parameters are chosen for.
    weights = np.where(np.arange(40) % 5 != 0, 0.3, 3.0)
    tuned = qp.GPClassifier(kernel, **options).fit(toy.x, toy.y, sample_weight=weights)
    assert tuned.optimum_.value == pytest.approx(weights @ tuned.posterior_.loo(), abs=1e-5)
    for other in (kernel, qp.GPClassifier(kernel, **options).fit(toy.x, toy.y).kernel_):
        post = qp.infer(other(toy.x), toy.y, method=method, weights=weights)
        assert tuned.optimum_.value > weights @ post.loo()


def test_weighted_leave_one_out_density_in_closed_form():
    # No events under the square link: p(0|f)^w = exp(-w f^2), a normal site of precision 2 w.
    data = RBFData(9, seed=2)
    kernel, weights = ConstantKernel(0.7) * RBF(1.1), np.resize([0.3, 1.0, 0.0, 2.5, 100.0], 9)

    def exact(theta):
        K, total = kernel.clone_with_theta(theta)(data.x), 0.0
        for i in range(9):
            rest = np.delete(np.arange(9), i)
            noise = np.linalg.inv(np.eye(8) + 2.0 * weights[rest, None] * K[np.ix_(rest, rest)])
            gain = K[i, rest] @ noise * (2.0 * weights[rest])
            mean, v = 1.5 - gain.sum() * 1.5, K[i, i] - gain @ K[rest, i]
            total += weights[i] * (-0.5 * np.log1p(2.0 * v) - mean**2 / (1.0 + 2.0 * v))
        return total

    family = KernelFamily(kernel, data.x, np.full(9, 1.5))
    args = family, np.zeros(9), Projector("poisson", "qp"), 1e-8, 100
    value, slope = LeaveOneOutObjective(*args, weights=weights)(kernel.theta)
    assert -value == pytest.approx(exact(kernel.theta), rel=1e-9)
    assert -slope == pytest.approx(slopes(exact, kernel.theta), rel=1e-7)
