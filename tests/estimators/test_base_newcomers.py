"""What a newcomer hands over, and what is said of it: intervals, text, parts, kernels, help."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.utils.estimator_checks import check_fit2d_1sample

import qpruntime as qp
from qpruntime.inference.markov.infer import infer_series
from tests.tools.cases import every_case, refuses

MODELS = (qp.GPClassifier, qp.GPPoissonRegressor, qp.GPRobustRegressor)
FIXED = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
X = np.linspace(0.0, 3.0, 12)[:, None]
Y = (X[:, 0] > 1.4).astype(int)


@pytest.fixture(scope="module")
def separable():
    """Classes that are nearly separable, with an amplitude as it is learnt there; and new rows."""
    inputs, labels = load_breast_cancer(return_X_y=True)
    inputs = inputs / inputs.std(axis=0)
    kernel = ConstantKernel(2500.0, "fixed") * Matern(10.0, "fixed", nu=2.5)
    fits = {
        name: qp.GPClassifier(kernel, likelihood=name).fit(inputs[:80], labels[:80])
        for name in ("probit", "logistic")
    }
    return fits, inputs[80:200]


@every_case("likelihood, link", [("probit", norm.cdf), ("logistic", expit)])
def test_intervals_hold_the_prediction_and_their_probability(separable, likelihood, link):
    fits, new = separable
    model = fits[likelihood]
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


def test_corrected_intervals_hold_the_prediction(separable):
    fits, new = separable
    model = fits["probit"].set_params(correction="blend")
    p, (low, high) = model.predict_proba(new[:12])[:, 1], model.predict_interval(new[:12]).T
    model.set_params(correction=None)
    assert ((low <= p) & (p <= high)).all()
    assert ((low == p) | (p == high)).any()


TEXTS = (X.astype(str), X.astype(str).astype(object), X.astype("S8"))
OF_TEXT = [
    *((model, text, "X") for model in MODELS for text in TEXTS),
    *((model, text, "y") for model in MODELS[1:] for text in TEXTS),  # of classes it is a label
    *((model, TEXTS[0], "new") for model in MODELS),
]


@every_case("model, text, where", OF_TEXT)
def test_text_is_not_taken_for_numbers(model, text, where):
    name = "y" if where == "y" else "X"
    fit = model(FIXED, optimize=False).fit
    if where == "new":
        call, given = fit(X, Y).predict, (text,)
    else:
        call, given = fit, (X, text[:, 0]) if where == "y" else (text, Y)
    refuses(f"{name} must be numbers, and there is text in it", call, *given)


@every_case("model", MODELS)
def test_one_row_is_too_few_for_inducing_points(model):
    check_fit2d_1sample(model.__name__, model(inducing=3, random_state=0))


@every_case("model", MODELS)
def test_parts_without_inducing_points(model):
    """As scikit-learn has it the method is not there; whoever calls it learns why."""
    assert not hasattr(model(), "partial_fit")
    assert hasattr(model(inducing=3), "partial_fit")
    assert callable(model.partial_fit)
    for kind in (AttributeError, qp.InputError):
        words = rf"needs inducing points: use {model.__name__}\(inducing=200\)"
        refuses(words, lambda: model().partial_fit(X, Y), error=kind)


def test_classes_of_parts_stay():
    model = qp.GPClassifier(FIXED, inducing=3, random_state=0, optimize=False)
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
    qp.GPPoissonRegressor(FIXED).fit(t, counts).predict([[9.0]])


def test_largest_rates_of_parts():
    model = qp.GPPoissonRegressor(FIXED, link="exp", inducing=3, random_state=0, optimize=False)
    model.partial_fit(X, Y, exposure=4.0)
    assert model._largest_rate_ == 0.25
    model.partial_fit(X, Y + 2, exposure=0.5)
    assert model._largest_rate_ == 6.0
    model.partial_fit(X, Y)
    assert model._largest_rate_ == 6.0


@every_case("given", ["rbf", RBF, 3.0])
def test_what_is_no_kernel_is_told_one(given):
    calls = [lambda model=model: model(given).fit(X, Y) for model in MODELS]
    calls += [
        lambda: infer_series(X[:, 0], Y == 1, given),
        lambda: qp.infer_sparse(X, Y == 1, given, X),
    ]
    for call in calls:
        refuses(r"kernel must be .*, for example 1.0 \* RBF\(length", call)
