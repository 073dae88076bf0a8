"""What columns are worth, and how predictions depend on one: against loops over rows and draws."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import inspection
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, GPPoissonRegressor, GPRegressor
from qpruntime.criticism import check_calibration, partial_dependence, permutation_importance
from qpruntime.kernels import Categories, On
from tests.tools.cases import every_case, refuses

pd = pytest.importorskip("pandas")

SIMILAR = Categories(["kind"], 0.8, "fixed")
KERNEL = ConstantKernel(1.0, "fixed") * (SIMILAR * On(RBF(1.0, "fixed"), ["size", "noise"]))


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    size, kind, noise = rng.normal(size=n), rng.choice(["a", "b", "c"], n), rng.normal(size=n)
    frame = pd.DataFrame({"size": size, "kind": kind, "noise": noise})
    level = frame["kind"].map({"a": 0.0, "b": 1.0, "c": -1.0}).to_numpy()
    return frame, np.sin(frame["size"].to_numpy()) + level + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module")
def numbers():
    frame, y = table()
    return GPRegressor(KERNEL, method="ep").fit(frame, y), *table(50, 1)


@pytest.fixture(scope="module")
def labels():
    frame, y = table()
    return GPClassifier(KERNEL, method="ep").fit(frame, y > 0.0), table(12, 1)[0]


def test_importance_is_what_permuted_rows_lose(numbers):
    """One permutation by hand, of the normal density of each row; its standard error by rows."""
    model, new, y = numbers
    found = permutation_importance(model, new, y, columns=["kind"], n_repeats=1, random_state=3)
    order = np.random.default_rng(3).permutation(len(y))
    moved = new.assign(kind=new["kind"].to_numpy()[order])

    def density(rows):
        mean, deviation = model.predict(rows, return_std=True)
        return norm(mean, deviation).logpdf(y)

    lost = density(new) - density(moved)
    np.testing.assert_allclose(found.loss, [lost.mean()], rtol=1e-9)
    np.testing.assert_allclose(found.se, [lost.std(ddof=1) / np.sqrt(len(y))], rtol=1e-9)
    refuses("give two at least", permutation_importance, model, new[:1], y[:1])


def test_every_frame_and_arrays_alike(numbers):
    model, new, y = numbers
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    columns = new.to_dict("list")
    losses, curves = [], []
    for rows in (new, pl.DataFrame(columns), pa.table(columns)):
        losses.append(permutation_importance(model, rows, y, n_repeats=2, random_state=1).loss)
        curves.append([partial_dependence(model, rows, k, n_rows=9).low for k in new.columns])
    np.testing.assert_array_equal(losses[1:], [losses[0]] * 2)
    for other in curves[1:]:
        np.testing.assert_array_equal(np.concatenate(other), np.concatenate(curves[0]))


def test_curves_are_those_of_scikit_learn(numbers):
    """Averages are; and its functions take these models as they are."""
    model, new, y = numbers
    theirs = inspection.partial_dependence(model, new, ["kind"], categorical_features=["kind"])
    ours = partial_dependence(model, new, "kind")
    assert ours.values.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(ours.middle, theirs["average"][0], rtol=1e-12)
    grid = {"size": np.linspace(-1.0, 1.0, 5)}
    theirs = inspection.partial_dependence(model, new, ["size"], custom_values=grid)
    ours = partial_dependence(model, new, "size", values=grid["size"])
    np.testing.assert_allclose(ours.middle, theirs["average"][0], rtol=1e-12)
    score = inspection.permutation_importance(model, new, y, n_repeats=2, random_state=0)
    assert score.importances_mean.shape == (3,)


def test_band_of_the_latent_average(numbers):
    """The variance of an average is that of all pairs: by the kernel and linear algebra."""
    model, new, _ = numbers
    found = partial_dependence(model, new, "kind", kind="latent", level=0.8)
    rows = model.validate_points(new.assign(kind="b"))
    train, own = model.X_train_, model.likelihood_.parameters["scale"]
    K = model.kernel_(train) + own**2 * np.eye(len(train))
    crossed = model.kernel_(rows, train)
    covariance = model.kernel_(rows) - crossed @ np.linalg.solve(K, crossed.T)
    reach = norm.ppf(0.9) * model._unit_ * np.sqrt(covariance.mean())
    assert found.high[1] - found.middle[1] == pytest.approx(reach, rel=1e-7)
    assert found.middle[1] - found.low[1] == pytest.approx(reach, rel=1e-7)
    # Noise about f changes no mean: draws say the same to their own error.
    drawn = partial_dependence(model, new, "kind", level=0.8, n_draws=4000)
    np.testing.assert_allclose(drawn.high - drawn.low, found.high - found.low, rtol=0.08)


def test_band_of_a_probability(labels):
    """Averages of Phi(f) over rows, by draws of our own from the joint posterior."""
    model, new = labels
    found = partial_dependence(model, new, "size", values=[-1.0, 1.0], n_draws=4000)
    for k, value in enumerate((-1.0, 1.0)):
        rows = new.assign(size=value)
        mean, covariance = model.latent(rows, full_covariance=True)
        f = np.random.default_rng(5).multivariate_normal(mean, covariance, 4000)
        ends = np.quantile(norm.cdf(f).mean(axis=1), [0.05, 0.95])
        np.testing.assert_allclose([found.low[k], found.high[k]], ends, atol=0.015)
        assert found.middle[k] == pytest.approx(model.predict_proba(rows)[:, 1].mean(), rel=1e-12)


def test_counts():
    frame, y = table()
    counts = np.random.default_rng(0).poisson(np.exp(0.5 * y))
    model = GPPoissonRegressor(KERNEL, link="exp", method="ep").fit(frame, counts)
    found = partial_dependence(model, frame, "noise", values=[0.0], n_draws=2000, n_rows=15)
    assert found.low[0] < found.middle[0] < found.high[0]
    exposure = np.ones(len(y))
    lost = permutation_importance(model, frame, counts, columns=[1], n_repeats=1, exposure=exposure)
    assert lost.names == ("kind",)


def test_simulations_of_tables(numbers):
    """Ranks at the parameters of the fit; nothing is fitted again to codes of levels."""
    model, _, _ = numbers
    found = check_calibration(model, 10, random_state=0)
    assert abs(found.spread - 1.0) < 4.0 * found.spread_se + 0.1
    words = "columns of levels or missing values: use learn=False"
    refuses(words, check_calibration, model, 10, learn=True)


def test_missing_values_are_places(labels):
    model, new = labels
    gone = new.assign(kind=[None, *new["kind"][1:]])
    found = partial_dependence(model, gone, "kind", kind="latent")
    assert found.values.tolist() == ["a", "b", "c", None]
    assert found.high[3] - found.low[3] > found.high[0] - found.low[0]


@every_case(
    "function, options, words",
    [
        (partial_dependence, {"column": "width"}, "X has no column 'width'"),
        (partial_dependence, {"column": 3}, "X has no column 3"),
        (partial_dependence, {"column": 0, "kind": "median"}, "kind must be one of"),
        (partial_dependence, {"column": 0, "level": 1.0}, "level must be between 0 and 1"),
        (permutation_importance, {"y": np.zeros(12), "columns": ["width"]}, "has no column"),
        (permutation_importance, {"y": np.full(12, 7)}, "y has the label 7"),
        (permutation_importance, {"y": np.zeros(12), "n_repeats": 0}, "n_repeats must be"),
    ],
)
def test_what_is_refused(labels, function, options, words):
    model, new = labels
    refuses(words, function, model, new, **options)
