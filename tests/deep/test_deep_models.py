"""The deep estimators: what depth gains on a step, draws, seeds, pickles, manners, bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri

pytest.importorskip("jax", reason="the extra deep is not installed")

from cases import every_case
from contract import check_contract
from qpruntime import ConvergenceWarning, InputError, Likelihood, NumericalError
from qpruntime.deep import DeepGPClassifier, DeepGPRegressor
from qpruntime.deep.start import first_layers

#: Small, and of few sizes: every size of a batch and of layers is compiled.
QUICK = {"inducing": 6, "max_iter": 60, "batch_size": 16, "random_state": 0}


def step(rows, seed, noise=0.1):
    """A step at 0; noise is a standard deviation."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, rows)
    return x[:, None], np.sign(x) + noise * rng.standard_normal(rows)


@pytest.fixture(scope="module")
def data():
    return step(40, 5)


@pytest.fixture(scope="module")
def fitted(data):
    return DeepGPRegressor((2,), **QUICK).fit(*data)


@pytest.fixture(scope="module")
def classes(data):
    return DeepGPClassifier((2,), **QUICK).fit(data[0], np.where(data[1] > 0, "up", "down"))


def test_a_hidden_layer_gains_on_a_step():
    """A stationary prior cannot both jump and lie flat; at least .25 nats a point are asked."""
    X, y = step(100, 0, 0.01)
    new = step(1000, 100, 0.01)
    scores = {}
    for hidden in ((), (1,)):
        model = DeepGPRegressor(hidden, inducing=20, max_iter=2000, tol=-0.5, random_state=0)
        scores[hidden] = model.fit(X, y).predict_log_density(*new).mean()
    assert scores[1,] > scores[()] + 0.25
    # No model of this noise has more than E log N = 3.19.
    assert scores[1,] < 3.2


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [DeepGPRegressor, DeepGPClassifier])
def test_scikit_learn_contract(estimator):
    failures = {
        "check_sample_weight_equivalence_on_dense_data": (
            "rows are drawn into batches and clusters: repeated rows are drawn otherwise"
        )
    }
    options = {"inducing": 4, "max_iter": 150, "batch_size": 10, "learning_rate": 0.05}
    check_contract(estimator((1,), random_state=0, **options), failures)


def test_same_seed_same_bits(data, fitted):
    again = DeepGPRegressor((2,), **QUICK).fit(*data)
    np.testing.assert_array_equal(again.history_, fitted.history_)
    np.testing.assert_array_equal(again.predict(data[0]), fitted.predict(data[0]))
    other = DeepGPRegressor((2,), **{**QUICK, "random_state": 1}).fit(*data)
    assert (other.history_ != fitted.history_).any()


def test_pickles_hold_no_arrays_of_jax(data, fitted, classes):
    for model in (fitted, classes):
        text = pickle.dumps(model)
        assert b"jaxlib" not in text
        again = pickle.loads(text)
        np.testing.assert_array_equal(again.predict(data[0]), model.predict(data[0]))


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
    mixed = fitted.predict_quantiles(X, q, n_samples=200)
    assert (np.diff(mixed, axis=1) > 0.0).all()
    wanted = -0.5 * np.log(2.0 * np.pi * total**2) - 0.5 * ((data[1][:8] - mean) / total) ** 2
    np.testing.assert_allclose(fitted.predict_log_density(X, data[1][:8]), wanted, rtol=1e-12)


def test_units_of_the_data_do_not_matter(data, fitted):
    X, y = data
    moved = DeepGPRegressor((2,), **QUICK).fit(1e3 * X + 7.0, 1e-2 * y - 3.0)
    # Rounding grows over 60 steps of Adam.
    np.testing.assert_allclose(
        moved.predict(1e3 * X + 7.0), 1e-2 * fitted.predict(X) - 3.0, rtol=1e-7
    )


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
    with pytest.raises(InputError, match="student-t"):
        robust.predict_quantiles(X)


def test_a_likelihood_that_fails_says_so(data):
    def broken(f, y, theta):
        if abs(f) > 3.0:
            raise RuntimeError("no density there")
        return -abs(f - y)

    own = Likelihood.from_log_prob(broken, name="mine")
    model = DeepGPRegressor((2,), likelihood=own, **QUICK)
    with pytest.raises(NumericalError, match="mine"):
        model.fit(*data)
    assert not hasattr(model, "layers_")


@pytest.mark.slow  # each compiles a model of its own
@pytest.mark.parametrize("options", [{"hidden": (2, 2)}, {"hidden": ()}, {"linear_mean": True}])
def test_other_depths(options, data):
    model = DeepGPRegressor(**{"hidden": (2,), **QUICK, **options}).fit(*data)
    assert len(model.layers_[0]) == len(model.hidden) + 1
    assert model.score(*data) > 0.3
    assert model.history_[-10:].mean() > model.history_[:10].mean()


def test_divergence_keeps_the_best_and_warns(data, fitted):
    model = DeepGPRegressor((2,), **{**QUICK, "learning_rate": 1e4})
    with pytest.warns(ConvergenceWarning, match="diverged after .* lower learning_rate") as caught:
        model.fit(*data)
    assert caught[0].filename == __file__
    assert not model.converged_
    assert np.isfinite(model.predict(data[0])).all()
    assert model.n_iter_ < 60


def test_training_stops_where_nothing_is_gained(data):
    model = DeepGPRegressor((2,), **{**QUICK, "max_iter": 2000, "tol": 10.0}).fit(*data)
    assert model.n_iter_ == 600  # the first average is a gain, the next five are none


def test_progress(data, capsys):
    seen = []
    model = DeepGPRegressor((2,), verbose=2, callback=lambda *a: seen.append(a), **QUICK)
    model.fit(*data)
    err = capsys.readouterr().err
    assert "step 60 of 60, energy" in err
    assert [done for done, _ in seen] == [10, 20, 30, 40, 50, 60]
    assert seen[0][1] == pytest.approx(model.history_[:10].mean())


def test_weights_of_zero_are_rows_left_out(data, fitted):
    X, y = data
    more = np.vstack([X, X[:3] + 9.0]), np.append(y, [50.0, 50.0, 50.0])
    weight = np.append(np.ones(40), np.zeros(3))
    model = DeepGPRegressor((2,), **QUICK).fit(*more, sample_weight=weight)
    np.testing.assert_array_equal(model.predict(X), fitted.predict(X))


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
        ({"likelihood": "gausian"}, "unknown likelihood"),
        ({"likelihood": "binomial"}, "one number an observation"),
    ],
)
def test_refuses_options(options, words, data):
    with pytest.raises(InputError, match=words):
        DeepGPRegressor(**{**QUICK, **options}).fit(*data)


@every_case(
    ("change", "words"),
    [
        (lambda X, y: (np.where(X > 0.9, np.nan, X), y), "NaN"),
        (lambda X, y: (np.hstack([X, np.ones_like(X)]), y), "every row of column 1"),
        (lambda X, y: (X, np.where(y > 0, np.inf, y)), "infinity"),
        (lambda X, y: (X[:1], y[:1]), "minimum of 2"),
        (lambda X, y: (np.repeat(X[:3], 10, axis=0), np.arange(30.0)), "3 different rows"),
    ],
)
def test_refuses_data(change, words, data):
    with pytest.raises(ValueError, match=words):
        DeepGPRegressor(**QUICK).fit(*change(*data))


def test_refuses_weights(data):
    with pytest.raises(InputError, match=r"weights sum to 0.04: they count rows"):
        DeepGPRegressor(**QUICK).fit(*data, sample_weight=np.full(40, 1e-3))


def test_a_failed_fit_changes_nothing(data):
    model = DeepGPRegressor((2,), **QUICK).fit(*data)
    before = model.predict(data[0])
    model.set_params(inducing=41)
    with pytest.raises(InputError):
        model.fit(*data)
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
        turned = np.sign(wanted @ scores[:, k])
        np.testing.assert_allclose(turned * scores[:, k], wanted, atol=0.01)


def test_figures(data, fitted, classes):
    matplotlib = pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = fitted.plot_history()
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), fitted.history_)
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(fitted.history_.mean())
    figure = fitted.plot_layers(data[0])
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == ["layer 1, output 1", "layer 1, output 2", "function"]
    x, y = figure.axes[0].lines[0].get_data()
    hidden = fitted.hidden_layers(x[:, None])[0][0]
    np.testing.assert_allclose(y, hidden[:, 0], rtol=1e-12)
    wide = np.hstack([data[0], data[0] ** 2])
    flat = DeepGPRegressor((1,), **QUICK).fit(wide, data[1]).plot_layers(wide)
    assert [axes.get_title() for axes in flat.axes[:2]] == ["layer 1, output 1", "function"]
    with pytest.raises(InputError, match="process is 1, of 1"):
        classes.plot_layers(data[0], process=1)
    plt.close("all")


def test_the_page(monkeypatch, tmp_path):
    """Its Python runs, and what it prints is true."""
    from test_docs import TOP, run

    printed = run(TOP / "docs" / "deep.md", tmp_path, monkeypatch)
    assert printed == ["True\n"]
