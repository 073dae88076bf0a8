"""The deep estimators: what depth gains on a step, draws, seeds, pickles, manners, bad input."""

import pickle

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri
from sklearn.exceptions import NotFittedError

pytest.importorskip("jax", reason="the extra deep is not installed")

from qpruntime import ConvergenceWarning, Likelihood, NumericalError
from qpruntime.deep import DeepGPClassifier, DeepGPRegressor, predictive, training
from qpruntime.deep.base import first_layers
from qpruntime.deep.layers import Batch, energy
from qpruntime.deep.predictive import evidence, quantiles_of
from qpruntime.likelihoods import get
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import every_case, refuses
from tests.tools.contract import check_contract

#: Small, and of few sizes: every size of a batch and of layers is compiled.
QUICK = {"inducing": 6, "max_iter": 60, "batch_size": 16, "random_state": 0}


def step(rows, seed, noise=0.1):
    """A step at 0; noise is a standard deviation."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, rows)
    return x[:, None], np.sign(x) + noise * rng.standard_normal(rows)


@pytest.fixture(scope="module")
def classes(data):
    return DeepGPClassifier((2,), **QUICK).fit(data[0], np.where(data[1] > 0, "up", "down"))


def test_a_hidden_layer_gains_on_a_step():
    """A stationary prior cannot both jump and lie flat; at least .25 nats a point are asked."""
    X, y = step(100, 0, 0.01)
    new = step(1000, 100, 0.01)
    scores = {}
    for hidden in ((), (1,)):
        model = DeepGPRegressor(hidden, inducing=20, max_iter=2000, least_gain=-0.5, random_state=0)
        scores[hidden] = model.fit(X, y).predict_log_density(*new).mean()
    assert scores[1,] > scores[()] + 0.25
    # No model of this noise has more than E log N = 3.19.
    assert scores[1,] < 3.2


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [DeepGPRegressor, DeepGPClassifier])
def test_scikit_learn_contract(estimator):
    why = "rows are drawn into batches and clusters: repeated rows are drawn otherwise"
    failures = {"check_sample_weight_equivalence_on_dense_data": why}
    options = {"inducing": 4, "max_iter": 150, "batch_size": 10, "learning_rate": 0.05}
    check_contract(estimator((1,), random_state=0, **options), failures)


def test_same_seed_same_bits_also_with_rows_of_weight_zero(data, fitted, classes):
    again = DeepGPRegressor((2,), **QUICK).fit(*data)
    np.testing.assert_array_equal(again.history_, fitted.history_)
    np.testing.assert_array_equal(again.predict(data[0]), fitted.predict(data[0]))
    other = DeepGPRegressor((2,), **{**QUICK, "random_state": 1}).fit(*data)
    assert (other.history_ != fitted.history_).any()
    X, y = data
    more = np.vstack([X, X[:3] + 9.0]), np.append(y, [50.0, 50.0, 50.0])
    weight = np.append(np.ones(40), np.zeros(3))
    model = DeepGPRegressor((2,), **QUICK).fit(*more, sample_weight=weight)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
    # Pickles hold no arrays of JAX.
    for model in (fitted, classes):
        text = pickle.dumps(model)
        assert b"jaxlib" not in text
        np.testing.assert_array_equal(pickle.loads(text).predict(data[0]), model.predict(data[0]))


def test_draws_through_the_layers_agree(data, fitted):
    """2000 draws; they and the pass of normals differ by what is not normal, small here."""
    X = data[0][:8]
    mean, std = fitted.predict(X, return_std=True)
    drawn, drawn_std = fitted.predict(X, return_std=True, n_samples=2000)
    # Moments of two layers are exact: what is left is the error of draws.
    assert (np.abs(drawn - mean) < 5.0 * std / np.sqrt(2000.0)).all()
    np.testing.assert_allclose(drawn_std, std, rtol=0.1)
    sample = fitted.sample(X, 2000)
    assert sample.shape == (8, 2000)
    assert (np.abs(sample.mean(axis=1) - mean) < 5.0 * std / np.sqrt(2000.0)).all()
    np.testing.assert_array_equal(sample, fitted.sample(X, 2000))
    density = fitted.predict_log_density(X, data[1][:8], n_samples=500)
    assert np.abs(density - fitted.predict_log_density(X, data[1][:8])).max() < 1.0


def test_quantiles_and_densities(data, fitted):
    X = data[0][:8]
    mean, std = fitted.predict(X, return_std=True)
    total = np.hypot(std, fitted.noise_)
    q = np.array([0.05, 0.5, 0.9])
    found = fitted.predict_quantiles(X, q)
    np.testing.assert_allclose(found, mean[:, None] + total[:, None] * ndtri(q), rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict_quantiles(X, 0.5), found[:, 1])
    assert (np.diff(fitted.predict_quantiles(X, q, n_samples=200), axis=1) > 0.0).all()
    wanted = -0.5 * np.log(2.0 * np.pi * total**2) - 0.5 * ((data[1][:8] - mean) / total) ** 2
    np.testing.assert_allclose(fitted.predict_log_density(X, data[1][:8]), wanted, rtol=1e-12)
    # Units of the data do not matter.
    X, y = data
    moved = DeepGPRegressor((2,), **QUICK).fit(1e3 * X + 7.0, 1e-2 * y - 3.0)
    # Rounding grows over 60 steps of Adam.
    expected = 1e-2 * fitted.predict(X) - 3.0
    np.testing.assert_allclose(moved.predict(1e3 * X + 7.0), expected, rtol=1e-7)
    # No unit is made of rounding: the mean of 40 times 0.1 is another number.
    models = [DeepGPRegressor((2,), **QUICK).fit(data[0], np.full(40, c)) for c in (0.1, 7)]
    for model, c in zip(models, (0.1, 7.0), strict=True):
        np.testing.assert_allclose(model.predict(data[0]), c, atol=0.02)
    assert models[0].noise_ == models[1].noise_


def test_what_is_not_fitted_says_so(data):
    for name in ("predict", "latent", "hidden_layers", "plot_layers", "sample"):
        with pytest.raises(NotFittedError):
            getattr(DeepGPRegressor(), name)(data[0])


def test_classes(data, classes):
    X = data[0]
    mean, variance = classes.latent(X)
    score = mean / np.sqrt(1.0 + variance)
    np.testing.assert_allclose(classes.decision_function(X), score, rtol=1e-14)
    wanted = np.column_stack([log_ndtr(-score), log_ndtr(score)])
    np.testing.assert_allclose(classes.predict_log_proba(X), wanted, rtol=1e-12)
    np.testing.assert_array_equal(classes.predict(X), np.where(score > 0, "up", "down"))
    assert np.mean(classes.predict(X) == np.where(data[1] > 0, "up", "down")) > 0.9
    three = DeepGPClassifier((2,), **QUICK).fit(X, np.digitize(X[:, 0], [-0.3, 0.3]))
    proba = three.predict_proba(X)
    assert proba.shape == (40, 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-14)
    assert len(three.layers_) == len(three.history_) == 3


@pytest.mark.slow  # compiles Student-t kernels; counts below are the one of every run
def test_any_likelihood(data):
    """Student-t noise by its kernel: outliers lose their pull, which Gaussian noise gives them."""
    X, y = data
    spoilt = y.copy()
    spoilt[::10] += 30.0
    robust = DeepGPRegressor((2,), likelihood="student-t(nu=4, scale=0.1)", **QUICK)
    mean = robust.set_params(max_iter=400).fit(X, spoilt).predict(X)
    rest = np.arange(40) % 10 != 0
    assert np.abs(mean - y)[rest].mean() < 0.5
    assert np.abs(DeepGPRegressor((2,), **QUICK).fit(X, spoilt).predict(X) - y)[rest].mean() > 1.0
    assert np.isnan(robust.noise_)
    assert np.isfinite(robust.predict_log_density(X, y)).all()
    mean, variance = robust.latent(X[:5])
    rng = np.random.default_rng(0)
    size = 200_000, 5
    drawn = rng.normal(mean, np.sqrt(variance), size) + 0.1 * rng.standard_t(4, size)
    found = robust.predict_quantiles(X[:5], (0.1, 0.5, 0.9))
    for column, q in zip(found.T, (0.1, 0.5, 0.9), strict=True):
        # Five standard errors of a share of 200 000 draws.
        np.testing.assert_allclose((drawn < column).mean(axis=0), q, atol=0.006)
    refuses("leave n_samples out", robust.predict_quantiles, X, n_samples=10)


def test_counts(data):
    """Means and quantiles of counts, beside draws; what no quantiles are known of says so."""
    X, y = data
    rate = np.where(y > 0.0, 8.0, 1.0)
    counts = np.random.default_rng(1).poisson(rate)
    model = DeepGPRegressor((), likelihood="poisson-exp", **QUICK).set_params(max_iter=300)
    mean, std = model.fit(X, counts).predict(X, return_std=True)
    assert np.abs(np.log(mean / rate)).mean() < 0.5
    assert model.score(X, counts) > 0.5
    f, variance = model.latent(X)
    # Of log-normal rates.
    np.testing.assert_allclose(mean, np.exp(f + 0.5 * variance), rtol=1e-10)
    np.testing.assert_allclose(std, mean * np.sqrt(np.expm1(variance)), rtol=1e-8)
    drawn = np.random.default_rng(2).normal(f, np.sqrt(variance), (50_000, 40))
    drawn = np.random.default_rng(3).poisson(np.exp(drawn))
    found = model.predict_quantiles(X, 0.9)
    assert found.dtype.kind == "i"
    assert ((drawn <= found).mean(axis=0) > 0.89).all()
    assert ((drawn < found).mean(axis=0) < 0.91).all()
    message = r"known of Gaussian and Student-t .* 'laplace' use latent"
    refuses(message, quantiles_of, get("laplace"), f, variance, np.array([0.5]))


def test_a_kernel_that_fails_ends_training(data, monkeypatch):
    """In the middle of it; the likelihood is that of counts, whose step is compiled."""
    model = DeepGPRegressor((), likelihood="poisson-exp", **QUICK)
    calls = []

    def failing(*given):
        calls.append(given)
        if len(calls) > 35:
            raise NumericalError("no density there")
        return project_many(*given)

    monkeypatch.setattr(predictive, "project_many", failing)
    counts = (data[1] > 0.0).astype(int)
    refuses("no density there", model.fit, data[0], counts, error=NumericalError)
    assert not hasattr(model, "layers_")


@pytest.mark.slow  # compiles kernels of its own
def test_a_likelihood_that_fails_says_so(data):
    def broken(f, y, theta):
        if abs(f) > 3.0:
            raise RuntimeError("no density there")
        return -abs(f - y)

    model = DeepGPRegressor((), likelihood=Likelihood.from_log_prob(broken, name="mine"), **QUICK)
    refuses("mine", model.fit, *data, error=NumericalError)
    assert not hasattr(model, "layers_")


@pytest.mark.slow  # each compiles a model of its own
@pytest.mark.parametrize("options", [{"hidden": (2, 2)}, {"hidden": ()}, {"linear_mean": True}])
def test_other_depths(options, data):
    model = DeepGPRegressor(**{"hidden": (2,), **QUICK, **options}).fit(*data)
    assert len(model.layers_[0]) == len(model.hidden) + 1
    assert model.score(*data) > 0.3
    assert model.history_[-10:].mean() > model.history_[:10].mean()


@pytest.mark.parametrize("rate", [1e4, 10.0])
def test_divergence_keeps_the_best_and_warns(rate, data, fitted):
    """Out of the finite numbers at once, or far below where it began."""
    model = DeepGPRegressor((2,), **{**QUICK, "learning_rate": rate, "max_iter": 200})
    words = "diverged after .* the model is as it began: lower learning_rate"
    with pytest.warns(ConvergenceWarning, match=words) as caught:
        model.fit(*data)
    assert caught[0].filename == __file__
    assert not model.converged_
    # It begins with the mean of the targets, nearly.
    assert np.abs(model.predict(data[0]) - data[1].mean()).max() < 0.1
    assert model.n_iter_ <= 100


def test_divergence_later_keeps_what_was_best(data, monkeypatch):
    """Rates that jump after 150 steps: the best average is of about these."""

    def rates(plan, at):
        return np.where(at < 150, 0.01, 1e3)

    monkeypatch.setattr(training, "_rates", rates)
    model = DeepGPRegressor((2,), **{**QUICK, "max_iter": 400, "dtype": "mixed"})
    words = 'of its best average energy, .*, or take dtype="float64"'
    with pytest.warns(ConvergenceWarning, match=words):
        model.fit(*data)
    assert 150 < model.n_iter_ <= 300
    assert model.score(*data) > 0.5


def test_progress_is_told_and_training_stops_where_nothing_is_gained(data, capsys):
    seen = []
    model = DeepGPRegressor((2,), verbose=2, callback=lambda *a: seen.append(a), **QUICK)
    model.fit(*data)
    assert "step 60 of 60, energy" in capsys.readouterr().err
    assert [done for done, _ in seen] == [10, 20, 30, 40, 50, 60]
    assert seen[0][1] == pytest.approx(model.history_[:10].mean())
    model = DeepGPRegressor((2,), **{**QUICK, "max_iter": 2000, "least_gain": 10.0}).fit(*data)
    assert model.n_iter_ == 600  # the first average is a gain, the next five are none


def test_polish_raises_the_energy_of_all_rows(monkeypatch):
    """From where Adam ends, by the energy of all rows; in blocks of any size it is the same."""
    X, y = step(40, 5)
    plain = DeepGPRegressor((), **QUICK).fit(X, y)
    model = DeepGPRegressor((), **QUICK, polish=30).fit(X, y)
    np.testing.assert_array_equal(model.history_[:60], plain.history_)
    later = model.history_[60:]
    assert 0 < len(later) <= 30
    assert model.n_iter_ == 60 + len(later)
    assert (np.diff(later) > 0.0).all()
    batch = Batch(model._units_.scaled(X), (y - y.mean()) / y.std(), np.ones(40))
    import jax

    with jax.enable_x64(True):
        of = jax.jit(lambda layers: energy(layers, batch, 40.0, 1.0, evidence(None, 1.0)))
        before, after = (float(of(one.layers_[0])) for one in (plain, model))
    assert after > before + 1.0
    assert later[-1] == pytest.approx(after, rel=1e-10)
    monkeypatch.setattr(training, "_BLOCK", 15)  # three of 14, the last with two of weight 0
    again = DeepGPRegressor((), **QUICK, polish=3).fit(X, y)
    np.testing.assert_allclose(again.history_[60:], later[:3], rtol=1e-8)


@every_case(
    ("options", "words"),
    [
        ({"hidden": (0,)}, "every width in hidden must be a whole number of at least 1, got 0"),
        ({"hidden": 2}, r"sequence of widths such as \(2,\)"),
        ({"inducing": 41}, "X has 40 different rows: take inducing=40 or fewer"),
        ({"inducing": 0}, "inducing must be"),
        ({"power": 0.0}, "power must be"),
        ({"power": 1.5}, "power must be"),
        ({"max_iter": 0}, "max_iter"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"dtype": "float16"}, "dtype"),
        ({"linear_mean": 1}, "linear_mean"),
        ({"polish": -1}, "polish must be"),
        ({"likelihood": "gausian"}, 'unknown likelihood .*, and here "gaussian"'),
        ({"likelihood": "student-t(nu=-1)"}, "nu"),
        ({"likelihood": "binomial"}, "one number an observation"),
    ],
)
def test_refuses_options(options, words, data):
    refuses(words, DeepGPRegressor(**{**QUICK, **options}).fit, *data)


@every_case(
    ("change", "words"),
    [
        (lambda X, y: (np.where(X > 0.9, np.nan, X), y), "NaN"),
        (lambda X, y: (np.ones_like(X), y), "1 different rows"),
        (lambda X, y: (X, np.where(y > 0, np.inf, y)), "infinity"),
        (lambda X, y: (X[:1], y[:1]), "minimum of 2"),
        (lambda X, y: (X, 1e-160 * y), "y reaches 1.* use other units"),
        (lambda X, y: (X, 1e160 * y), "use other units"),
        (lambda X, y: (np.repeat(X[:3], 10, axis=0), np.arange(30.0)), "3 different rows"),
    ],
)
def test_refuses_data(change, words, data):
    refuses(words, DeepGPRegressor(**QUICK).fit, *change(*data), error=ValueError)


def test_a_failed_fit_changes_nothing(data):
    model = DeepGPRegressor((2,), **QUICK).fit(*data)
    before = model.predict(data[0])
    words = r"weights sum to 0.04: they count rows"
    refuses(words, model.fit, *data, sample_weight=np.full(40, 1e-3))
    refuses("inducing=40", model.set_params(inducing=41).fit, *data)
    np.testing.assert_array_equal(model.predict(data[0]), before)


def test_start_has_scores_for_its_hidden_means():
    """Hidden outputs begin as principal scores of variance 1, more than there are of them too."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) * [2.0, 1.0, 0.5]
    X -= X.mean(axis=0)
    first, _ = first_layers(X, (5,), 40, False, rng)
    assert first.eta.shape == (5, 40)
    K = np.exp(-0.5 * (((first.Z[:, None] - first.Z) / np.exp(first.log_scale)) ** 2).sum(2))
    L = np.linalg.cholesky(K + 1e-6 * np.eye(40))
    scores = L @ first.eta.T / 101.0
    axes = np.linalg.svd(X, full_matrices=False)[2]
    for k in range(3):
        wanted = first.Z @ axes[k] / (X @ axes[k]).std()
        np.testing.assert_allclose(np.sign(wanted @ scores[:, k]) * scores[:, k], wanted, atol=0.01)


def test_figures(data, fitted, classes):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed").use("Agg")
    import matplotlib.pyplot as plt

    axes = fitted.plot_history()
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), fitted.history_)
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(fitted.history_.mean())
    figure = fitted.plot_layers(data[0])
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == ["layer 1, output 1", "layer 1, output 2", "function"]
    x, y = figure.axes[0].lines[0].get_data()
    np.testing.assert_allclose(y, fitted.hidden_layers(x[:, None])[0][0][:, 0], rtol=1e-12)
    wide = np.hstack([data[0], data[0] ** 2])
    flat = DeepGPRegressor((), **QUICK).fit(wide, data[1]).plot_layers(wide)
    assert flat.axes[0].get_title() == "function"
    refuses("process is 1, of 1", classes.plot_layers, data[0], process=1)
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(wide, columns=["a", "b"])
    DeepGPRegressor((), **QUICK).fit(frame, data[1]).plot_layers(frame)
    plt.close("all")


def test_the_page(monkeypatch, tmp_path):
    """Its Python runs and draws both models: deep ones have the steeper step."""
    plt = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    from tests.test_docs import TOP, run

    assert run(TOP / "docs" / "deep.md", tmp_path, monkeypatch) == [""]
    _, shallow, deep = plt.gca().get_lines()
    steepest = [np.diff(line.get_ydata()).max() for line in (shallow, deep)]
    assert steepest[1] > 1.5 * steepest[0]
    plt.close("all")
