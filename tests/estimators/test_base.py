"""Manners that estimators share: contract, weights, draws, words for newcomers, printed results."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.utils.estimator_checks import check_fit2d_1sample

import qpruntime as qp
from qpruntime.inference.markov.infer import infer_series
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.predictive.counts import LINKS
from qpruntime.predictive.density import PREDICTIVES
from tests.tools.cases import every_case, refuses
from tests.tools.contract import check_contract

RNG = np.random.default_rng(8)
X = np.sort(RNG.uniform(0.0, 8.0, 40))[:, None]
F = 2.0 * np.sin(X[:, 0])
REALS = F + 0.15 * RNG.standard_normal(40)
REALS[[5, 17, 30]] += [6.0, -9.0, 4.0]
COUNTS = RNG.poisson((1.5 + np.sin(X[:, 0])) ** 2)
LABELS = F + RNG.standard_normal(40) > 0.0
Y = LABELS.astype(int)
NEW = np.array([[0.5], [3.0], [5.5], [11.0], [3.2]])
EXPOSURE = {"exposure": np.linspace(0.5, 2.0, 40)}
KERNEL = ConstantKernel(0.8, "fixed") * Matern(1.3, "fixed", nu=1.5)

MODELS = [
    (qp.GPClassifier(method="ep"), LABELS),
    (qp.GPPoissonRegressor(method="ep"), COUNTS),
    (qp.GPRobustRegressor(method="ep"), REALS),
]
VARIATIONAL = qp.GPPoissonRegressor(method="vb")


class Rounded(qp.GPPoissonRegressor):
    """Takes any target, so that scikit-learn's generic checks run to their ends."""

    def fit(self, X, y, exposure=None, sample_weight=None):
        if np.asarray(y).dtype.kind in "fiu":
            y = np.abs(np.round(np.asarray(y)))
        return super().fit(X, y, exposure, sample_weight)


TWO_SITES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight of 2 is one site with the squared likelihood, two equal rows are two sites on "
        "one latent value: EP approximates the second less well, and the evidence differs"
    )
}
WEIGHTS_OF_JOINT_CLASSES = dict.fromkeys(
    ["check_sample_weights_list", "check_sample_weight_equivalence_on_dense_data"],
    "weights other than 0 and 1 are refused",
)
FEW = qp.Search(max_iter=5)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (qp.GPClassifier(optimize=FEW), TWO_SITES),
        pytest.param(Rounded(optimize=FEW), TWO_SITES, marks=SLOW),
        pytest.param(
            qp.GPRobustRegressor(method="ep", optimize=qp.Search(max_iter=1)), TWO_SITES, marks=SLOW
        ),
        pytest.param(Rounded(link="exp", optimize=FEW), TWO_SITES, marks=SLOW),
        pytest.param(qp.GPRegressor(method="ep", optimize=False), {}, marks=SLOW),
        pytest.param(qp.GPOrdinal(method="ep", optimize=False), TWO_SITES, marks=SLOW),
        pytest.param(
            qp.GPClassifier(ConstantKernel(4.0) * RBF(1.0), multi_class="joint"),
            WEIGHTS_OF_JOINT_CLASSES,
            marks=SLOW,
        ),
    ],
)
def test_scikit_learn_contract(estimator, expected):
    check_contract(estimator, expected)


@every_case(
    ("model", "y", "given"),
    [
        (qp.GPClassifier(method="ep"), LABELS, {}),
        (qp.GPClassifier(method="qp"), LABELS, {}),
        (qp.GPPoissonRegressor(link="square"), COUNTS, EXPOSURE),
        (qp.GPPoissonRegressor(link="exp"), COUNTS, EXPOSURE),
        (qp.GPRobustRegressor(method="ep", noise_bounds={"nu": (1.0, 30.0)}), REALS, {}),
    ],
)
@every_case("objective", ["evidence", "loo"])
@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
def test_rows_of_weight_0_are_not_learnt_from(model, y, given, objective):
    """Bit by bit, so the first steps tell."""
    keep = np.arange(40) % 5 != 0  # two of the outliers go
    model.set_params(optimize=qp.Search(objective, max_iter=3))
    model.fit(X, y, sample_weight=keep.astype(float), **given)
    theta, latent = model.optimum_.theta, model.latent(NEW)
    if given:
        np.testing.assert_array_equal(model.exposure_, given["exposure"][keep])
    model.fit(X[keep], y[keep], **{name: value[keep] for name, value in given.items()})
    np.testing.assert_array_equal(theta, model.optimum_.theta)
    np.testing.assert_array_equal(latent, model.latent(NEW))


@every_case(
    "model, y, weights, words",
    [
        *((*case, -np.ones(40), "[Nn]egative") for case in MODELS),
        *((*case, np.zeros(40), "zero") for case in MODELS),
        *((*case, np.full(40, np.nan), "NaN") for case in MODELS),
        (VARIATIONAL, COUNTS, np.full(40, 2.0), '"vb" takes neither weights'),
    ],
)
def test_weights_that_are_refused(model, y, weights, words):
    refuses(words, model.fit, X, y, error=ValueError, sample_weight=weights)


@every_case("model, y", MODELS)
def test_running_out_warns_the_caller(model, y):
    own = type(model)
    words = r"evidence was not maximised.*max_iter"
    with pytest.warns(qp.ConvergenceWarning, match=words) as caught:
        searched = own(method="ep", optimize=qp.Search(max_iter=1)).fit(X, y)
    assert caught[0].filename == __file__
    assert searched.optimum_.n_iterations == 1
    with pytest.warns(qp.ConvergenceWarning, match="not converged after [12] sweeps") as caught:
        settled = own(KERNEL, method="ep", optimize=False, max_sweeps=1).fit(X, y)
    assert caught[0].filename == __file__
    assert not any(getattr(one, "converged_", False) for one in (searched, settled))


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@every_case("model, y", MODELS[1:])
def test_restarts_are_sorted_and_each_evaluation_is_told(model, y, capsys):
    seen = []
    search = qp.Search(
        restarts=2, max_iter=6, callback=lambda theta, value: seen.append(theta.size)
    )
    own = type(model)(method="ep", optimize=search, n_jobs=2, random_state=1, verbose=1).fit(X, y)
    scores = [optimum.score for optimum in own.optima_]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert own.optimum_ is own.optima_[0]
    assert len(seen) == sum(optimum.n_evaluations for optimum in own.optima_)
    assert set(seen) == {own.optimum_.theta.size}
    assert capsys.readouterr().err.count("evidence") == len(seen)


FIXED = {"optimize": False, "method": "ep", "tol": 1e-10}
ENGINES = [{"solver": "dense"}, {"solver": "markov"}, {"inducing": X}]
CASES = [
    (qp.GPRegressor(KERNEL + WhiteKernel(0.05, "fixed"), likelihood="gaussian", **FIXED), REALS),
    (qp.GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, **FIXED), REALS),
    (qp.GPPoissonRegressor(KERNEL, link="exp", dispersion=np.inf, **FIXED), COUNTS),
    (qp.GPClassifier(KERNEL, **FIXED), F > 0.0),
]


def by_algebra(model):
    """Covariance at new points from the sites, in units of the posterior."""
    kernel, tau = model.kernel_, model.posterior_.sites.tau
    K, K_star = kernel(X), kernel(NEW, X)
    return kernel(NEW) - K_star @ np.linalg.solve(np.eye(40) + tau[:, None] * K, (tau * K_star).T)


@every_case("options", ENGINES)
@every_case(("model", "y"), CASES)
def test_covariances_are_those_of_the_sites(model, y, options):
    if "inducing" in options and isinstance(model, qp.GPRegressor):
        return  # inducing points have no white noise: it is a test of the others
    own = type(model)(**{**model.get_params(deep=False), **options}).fit(X, y)
    mean, covariance = own.latent(NEW, full_covariance=True)
    once, variance = own.latent(NEW)
    np.testing.assert_allclose(mean, once, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-7)
    wanted = own.latent_units()[1] ** 2 * by_algebra(own)
    # Inducing inputs at all rows leave what jitter does.
    atol = 1e-6 if "inducing" in options else 1e-9
    np.testing.assert_allclose(covariance, wanted, atol=atol * np.abs(wanted).max())


@every_case("options", ENGINES)
def test_draws_have_mean_and_covariance(options):
    model = qp.GPPoissonRegressor(KERNEL, link="exp", dispersion=np.inf, **FIXED, **options)
    model.fit(X, COUNTS)
    count = 4_000
    found = model.sample_latent(NEW, count, random_state=0)
    mean, covariance = model.latent(NEW, full_covariance=True)
    variance = np.diag(covariance)
    # Five standard errors of means and of covariances.
    assert np.all(np.abs(found.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / count))
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / count)
    assert np.all(np.abs(np.cov(found.T) - covariance) < 5.0 * error)
    np.testing.assert_array_equal(found, model.sample_latent(NEW, count, random_state=0))


def test_classes_have_a_process_each():
    labels = np.digitize(F, [-0.5, 0.5])
    model = qp.GPClassifier(KERNEL, **FIXED).fit(X, labels)
    assert model.sample_latent(NEW, 7, 0).shape == (7, 5, 3)
    mean, covariance = model.latent(NEW, full_covariance=True)
    assert mean.shape == (5, 3)
    assert covariance.shape == (3, 5, 5)
    np.testing.assert_allclose(np.diagonal(covariance, 0, 1, 2).T, model.latent(NEW)[1], rtol=1e-9)
    model = qp.GPClassifier(KERNEL, multi_class="joint", optimize=False, method="ep").fit(X, labels)
    refuses("has no joint draws", model.sample_latent, NEW)


def test_observations_have_the_quantiles_that_are_predicted():
    """Counts with exposure, reals and positive numbers: five standard errors of a share."""
    count = 20_000
    model = qp.GPPoissonRegressor(KERNEL, link="exp", dispersion=3.0, **FIXED).fit(X, COUNTS)
    exposure = np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    drawn = model.sample(NEW, count, 0, exposure)
    for k in (1, 4):
        below = np.broadcast_to(np.arange(k + 1), (5, k + 1))
        wanted = np.exp(model.predict_log_pmf(NEW, below, exposure)).sum(axis=1)
        np.testing.assert_allclose((drawn <= k).mean(axis=0), wanted, atol=0.018)
    robust = qp.GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, **FIXED).fit(X, REALS)
    gamma = qp.GPRegressor(KERNEL, likelihood="gamma(shape=8)", **FIXED).fit(X, np.exp(F))
    for own in (robust, gamma):
        drawn = own.sample(NEW, count, 0)
        for level in (0.1, 0.7):
            share = (drawn <= own.predict_quantiles(NEW, level)).mean(axis=0)
            np.testing.assert_allclose(share, level, atol=0.018)
        np.testing.assert_array_equal(drawn, own.sample(NEW, count, 0))


def test_trials():
    trials = np.full(40, 12)
    successes = RNG.binomial(trials, expit(F))
    pairs = np.column_stack([successes, trials])
    model = qp.GPRegressor(KERNEL, likelihood="binomial", **FIXED).fit(X, pairs)
    seen = successes / trials
    rest = ((seen - model.predict(X)) ** 2).sum() / ((seen - seen.mean()) ** 2).sum()
    assert model.score(X, pairs) == pytest.approx(1.0 - rest, rel=1e-12)
    mean, variance = model.latent(NEW)
    z = np.linspace(-9.0, 9.0, 20_001)
    w = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    share = expit(mean[:, None] + np.sqrt(variance)[:, None] * z)
    np.testing.assert_allclose(model.predict(NEW), share @ w, rtol=1e-9)


CLASSES = (qp.GPClassifier, qp.GPPoissonRegressor, qp.GPRobustRegressor)


@every_case("likelihood, link", [("probit", norm.cdf), ("logistic", expit)])
def test_intervals_hold_the_prediction_and_their_probability(likelihood, link):
    """Classes that are nearly separable, with an amplitude as it is learnt there."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = inputs / inputs.std(axis=0)
    kernel, new = ConstantKernel(2500.0, "fixed") * Matern(10.0, "fixed", nu=2.5), inputs[80:200]
    model = qp.GPClassifier(kernel, likelihood=likelihood).fit(inputs[:80], labels[:80])
    p, ends = model.predict_proba(new)[:, 1], model.predict_interval(new, 0.9)
    mean, variance = model.latent(new)
    central = link(norm.interval(0.9, mean, np.sqrt(variance)))
    outside = (p < central[0]) | (p > central[1])
    assert outside.mean() > 0.3, "nothing is tested where quantiles hold the mean anyway"
    # Both are the same formula; a factor of 1.001 on the reach is 1e-3 of it.
    np.testing.assert_allclose(ends[~outside].T, central[:, ~outside], rtol=1e-9)
    # The prediction is an end where it is outside, and the other end stays.
    wanted = np.minimum(central[0], p), np.maximum(central[1], p)
    np.testing.assert_allclose(ends.T, wanted, rtol=1e-9, atol=1e-300)
    assert ((ends[:, 0] <= p) & (p <= ends[:, 1])).all()
    if likelihood == "probit":
        model.set_params(correction="blend")
        p, (low, high) = model.predict_proba(new[:12])[:, 1], model.predict_interval(new[:12]).T
        assert ((low <= p) & (p <= high)).all()
        assert ((low == p) | (p == high)).any()


TEXTS = (X.astype(str), X.astype(str).astype(object), X.astype("S8"))
OF_TEXT = [
    *((model, text, "X") for model in CLASSES for text in TEXTS),
    *((model, text, "y") for model in CLASSES[1:] for text in TEXTS),  # of classes it is a label
    *((model, TEXTS[0], "new") for model in CLASSES),
]


@every_case("model, text, where", OF_TEXT)
def test_text_is_not_taken_for_numbers(model, text, where):
    name = "y" if where == "y" else "X"
    fit = model(KERNEL, optimize=False).fit
    if where == "new":
        call, given = fit(X, Y).predict, (text,)
    else:
        call, given = fit, (X, text[:, 0]) if where == "y" else (text, Y)
    refuses(f"{name} must be numbers, and there is text in it", call, *given)


@every_case("model", CLASSES)
def test_parts_need_inducing_points_and_those_two_rows(model):
    """As scikit-learn has it the method is not there; whoever calls it learns why."""
    check_fit2d_1sample(model.__name__, model(inducing=3, random_state=0))
    assert not hasattr(model(), "partial_fit")
    assert hasattr(model(inducing=3), "partial_fit")
    assert callable(model.partial_fit)
    for kind in (AttributeError, qp.InputError):
        words = rf"needs inducing points: use {model.__name__}\(inducing=200\)"
        refuses(words, lambda: model().partial_fit(X, Y), error=kind)


def test_parts_keep_their_classes_and_the_largest_rate():
    model = qp.GPClassifier(KERNEL, inducing=3, random_state=0, optimize=False)
    with pytest.raises(qp.InputError, match=r"y has labels \[1\] that are not in classes=\[0\]"):
        model.partial_fit(X, Y, classes=[0])
    refuses(r"no rows of \[2\]", model.partial_fit, X, Y, classes=[0, 1, 2])
    model.partial_fit(X, Y, classes=[1, 0])
    before = model.posterior_
    for other in ([0, 1, 2], [0], ["0", "1"]):
        with pytest.raises(qp.InputError, match=r"are not those of the first part, \[0, 1\]"):
            model.partial_fit(X, Y, classes=other)
    assert model.posterior_ is before
    model.partial_fit(X, Y, classes=np.array([0.0, 1.0]))


def test_means_that_only_a_tail_makes():
    """59 zeros and one count of 1e6: the mean of e^f is 1e91 times too large, and says so."""
    counts = np.zeros(60)
    counts[40] = 1e6
    t = np.linspace(0.0, 6.0, 60)[:, None]
    model = qp.GPPoissonRegressor(200.0 * Matern(0.05, nu=2.5), link="exp", optimize=False)
    model.fit(t, counts, exposure=2.0)
    words = r"times the largest observed rate, 5e\+05: .*predict_quantiles.*variance"
    for asked in ({}, {"return_std": False, "exposure": 3.0}, {"return_std": True}):
        with pytest.warns(UserWarning, match=words):
            model.predict([[9.0]], **asked)
    # Nothing is said where data are, nor of an exposure that is large.
    model.predict(t[30:35], exposure=1e9)
    qp.GPPoissonRegressor(KERNEL).fit(t, counts).predict([[9.0]])
    model = qp.GPPoissonRegressor(KERNEL, link="exp", inducing=3, random_state=0, optimize=False)
    for counts, exposure, largest in ((Y, 4.0, 0.25), (Y + 2, 0.5, 6.0), (Y, None, 6.0)):
        model.partial_fit(X, counts, exposure=exposure)
        assert model._largest_rate_ == largest


@every_case("given", ["rbf", RBF, 3.0])
def test_what_is_no_kernel_is_told_one(given):
    calls = [lambda model=model: model(given).fit(X, Y) for model in CLASSES]
    calls += [
        lambda: infer_series(X[:, 0], Y == 1, given),
        lambda: qp.infer_sparse(X, Y == 1, given, X),
    ]
    for call in calls:
        refuses(r"kernel must be .*, for example 1.0 \* RBF\(length", call)


def test_results_are_printed_in_five_lines_and_summarised():
    K, signs = KERNEL(X), np.where(LABELS, 1, -1)
    post = qp.infer(K, signs)
    lines = str(post).splitlines()
    assert len(lines) == 5
    assert lines[0] == "Posterior of 40 sites: probit, method qp"
    assert f"converged after {post.n_sweeps} sweeps" in lines[1]
    assert f"log evidence {post.log_evidence:.6f}" in lines[2]
    assert f"least expected is observation {np.argmin(post.loo())}," in lines[2]
    assert lines[3].endswith("0 negative precisions, 0 held at zero, 0 updates skipped, 0 damped")
    assert lines[4] == f"lookups    {post.lookups.inside} inside the grid, 0 outside"
    assert post.lookups.inside >= 40
    assert max(map(len, lines)) < 120
    assert repr(post).count("\n") == 0
    assert len(repr(post)) < 100
    assert "probit, qp" in repr(post)
    post = qp.infer(K, signs, method="ep", damping=0.9)
    found = post.summary()
    assert json.loads(json.dumps(found)) == found
    assert found["n"] == 40
    assert found["status"] == "converged"
    assert found["log_evidence"] == post.log_evidence
    assert found["last_change"] == post.history[-1]
    assert (found["inside"], found["outside"]) == tuple(post.lookups)
    assert found["least_log_density"] == post.loo().min() == post.loo()[found["least_expected"]]
    assert 0 <= found["worst"] < 40


def test_log_marginal_likelihood():
    two = qp.GPClassifier(optimize=False).fit(X, LABELS)
    assert two.log_marginal_likelihood_value_ == two.posterior_.log_evidence
    three = qp.GPClassifier(optimize=False).fit(X, np.digitize(F, [-1.0, 1.0]))
    each = [post.log_evidence for post in three.posterior_]
    assert three.log_marginal_likelihood_value_ == pytest.approx(np.mean(each), rel=1e-15)
    for model in (qp.GPPoissonRegressor(optimize=False), qp.GPRobustRegressor(optimize=False)):
        model.fit(X, COUNTS)
        assert model.log_marginal_likelihood_value_ == model.posterior_.log_evidence


def test_words_of_options_are_those_that_are_checked():
    assert set(get_args(get_type_hints(qp.GPPoissonRegressor.__init__)["link"])) == {*LINKS, "auto"}
    assert set(get_args(get_type_hints(qp.Search)["objective"])) == set(OBJECTIVES)
    hints = get_type_hints(qp.GPPoissonRegressor.predict_log_pmf)
    assert set(get_args(hints["predictive"])) == set(PREDICTIVES)


USER = """
from typing import Any
import numpy as np
from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Posterior, infer

post: Posterior = infer(np.eye(2), [1, -1], method="qp", order="parallel")
counts = GPPoissonRegressor(link="exp", optimize="loo").fit([[0.0], [1.0]], [1, 2])
reveal_type(counts.posterior_.log_evidence)
reveal_type(counts.mean_)
reveal_type(counts.predict([[0.0]]))
reveal_type(counts.predict([[0.0]], return_std=True))
reveal_type(GPRobustRegressor().scale_)
reveal_type(GPClassifier().posterior_)
infer(np.eye(2), [1, -1], method="pq")
infer(np.eye(2), [1, -1], order="paralel")
GPClassifier(method="laplace")
GPPoissonRegressor(optimize="evidense")
"""


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(USER))
    run = subprocess.run(
        # In the checkout, whose cache holds what the packages and NumPy say of types.
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", script],
        capture_output=True,
        text=True,
        cwd=Path(qp.__file__).parents[1],
    )
    lines = [line for line in run.stdout.splitlines() if "script.py" in line]
    revealed = [line.split('"')[1] for line in lines if "Revealed" in line]
    assert len(revealed) == 6, run.stdout + run.stderr
    assert [name.endswith("float") for name in revealed[:2]] == [True, True]
    assert "ndarray" in revealed[2]
    assert revealed[3].startswith("tuple[")
    assert revealed[4].endswith("float")
    assert "Posterior" in revealed[5]
    errors = [line for line in lines if ": error:" in line]
    assert len(errors) == 4
    for error, word in zip(errors, ("pq", "paralel", "laplace", "evidense"), strict=True):
        assert word in error
