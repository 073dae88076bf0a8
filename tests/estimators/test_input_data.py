"""Data frames in estimators: by name, with levels and gaps, as brute force has it."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.compose import make_column_transformer
from sklearn.gaussian_process.kernels import RBF
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import qpruntime as qp
from qpruntime.estimators.input_data import group_codes
from qpruntime.kernels import Categories, On
from tests.tools.cases import every_case, refuses

pd = pytest.importorskip("pandas")

NAMES = ["size", "city", "old"]
KERNEL = On(RBF(1.2, "fixed"), ["size", "old"]) * Categories(["city"], 0.5, "fixed")


def raw(n=40, seed=0):
    """A newcomer's table: numbers, text, booleans, and some of all missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n).round(2),
            "city": rng.choice(["Rome", "Oslo", "Bern"], n),
            "old": rng.random(n) > 0.5,
        }
    )
    level = frame["city"].map({"Rome": 1.5, "Oslo": -1.0, "Bern": 0.0}).to_numpy()
    y = level + np.sin(2.0 * frame["size"].to_numpy()) + 0.1 * rng.normal(size=n)
    return frame, y


def test_rows_of_a_dask_data_frame_are_counted():
    """By default few of them are read at once, and with inducing points none are."""
    dask_frames = pytest.importorskip("dask.dataframe")
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    y, stored = X["a"].to_numpy() > 0.0, dask_frames.from_pandas(X, npartitions=3)
    options = {"kernel": RBF(), "optimize": False}
    for inducing, engine in (("auto", "dense"), (None, "dense"), (10, "inducing")):
        model = qp.GPClassifier(**options, inducing=inducing, random_state=0).fit(stored, y)
        assert model.engine_ == engine
        assert (model.columns_ is None) == (engine == "inducing")
    refuses("real numbers in all columns", qp.GPClassifier().fit, stored.assign(a="text"), y)


def covariance(one, other, length=1.2, unlike=0.5):
    K = np.empty((len(one), len(other)))
    for i, a in enumerate(one.itertuples(index=False)):
        for j, b in enumerate(other.itertuples(index=False)):
            square = (a.size_ - b.size_) ** 2 + (float(a.old) - float(b.old)) ** 2
            K[i, j] = np.exp(-0.5 * square / length**2 - unlike * (a.city != b.city))
    return K


def renamed(frame):
    return frame.rename(columns={"size": "size_"})


@pytest.fixture(scope="module")
def fitted():
    frame, y = raw()
    return frame, y, qp.GPRegressor(KERNEL, method="ep").fit(frame, y)


def test_levels_as_brute_force_has_them(fitted):
    """Normal noise: means, variances and evidence are those of linear algebra."""
    frame, y, model = fitted
    new, _ = raw(15, 1)
    new.loc[3, "city"] = "Lima"  # which is like none of the others
    z, scale = (y - model._centre_) / model._unit_, model.likelihood_.parameters["scale"]
    K = covariance(renamed(frame), renamed(frame)) + scale**2 * np.eye(len(y))
    crossed = covariance(renamed(new), renamed(frame))
    mean = model._centre_ + model._unit_ * crossed @ np.linalg.solve(K, z)
    variance = 1.0 - np.einsum("tn,nt->t", crossed, np.linalg.solve(K, crossed.T))
    found = model.latent(new)
    np.testing.assert_allclose(found[0], mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[1], model._unit_**2 * variance, rtol=1e-8)
    evidence = multivariate_normal(np.zeros(len(y)), K).logpdf(z)
    assert model.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-9)


def test_other_frames(fitted):
    frame, y, model = fitted
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    columns = {name: frame[name].tolist() for name in NAMES}
    for other in (pl.DataFrame(columns), pa.table(columns), frame.astype({"city": "category"})):
        np.testing.assert_array_equal(model.predict(other), model.predict(frame))
        again = qp.GPRegressor(KERNEL, method="ep").fit(other, y)
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
        assert again.feature_names_in_.tolist() == NAMES


def test_names(fitted):
    frame, _, model = fitted
    assert model.feature_names_in_.tolist() == NAMES
    assert model.n_features_in_ == 3
    for other, words in (
        (frame[["size", "old"]], "yet now missing:\n- city"),
        (frame.rename(columns={"size": "width"}), "unseen at fit time:\n- width"),
        (frame[["city", "size", "old"]], "must be in the same order"),
    ):
        refuses(words, model.predict, other)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        found = model.predict(frame.to_numpy())
    np.testing.assert_array_equal(found, model.predict(frame))
    refuses("column 'city' has levels that are text", model.predict, frame.assign(city=1.0))


@every_case(
    "model",
    [
        qp.GPClassifier(KERNEL),
        qp.GPPoissonRegressor(KERNEL),
        qp.GPRobustRegressor(KERNEL),
        qp.GPOrdinal(KERNEL),
    ],
)
def test_every_estimator_takes_tables(model):
    """As the same rows with codes, under the same kernel of numbers of columns."""
    frame, y = raw()
    labels = (y > 0.0).astype(int)
    codes = np.unique(frame["city"], return_inverse=True)[1]
    rows = np.column_stack([frame["size"], codes, frame["old"]]).astype(float)
    plain = On(RBF(1.2, "fixed"), [0, 2]) * Categories([1], 0.5, "fixed")
    found = model.fit(frame, labels).predict(frame)
    np.testing.assert_array_equal(
        model.set_params(kernel=plain).fit(rows, labels).predict(rows), found
    )


def test_default_kernel_learns_levels():
    frame, y = raw(80)
    model = qp.GPRegressor(method="ep").fit(frame, y)
    assert isinstance(model.kernel_.k2.k2.k1, Categories)
    blind = qp.GPRegressor(method="ep").fit(frame[["size", "old"]], y)
    gain = model.log_marginal_likelihood_value_ - blind.log_marginal_likelihood_value_
    assert gain > 20.0
    new, truth = raw(60, 5)
    assert np.mean((model.predict(new) - truth) ** 2) < 0.25 * np.var(truth)
    unseen = new.assign(city="Lima")
    assert (model.latent(unseen)[1] > model.latent(new)[1]).all()


def test_missing_numbers():
    """Rows that lack a number share a level: what they have in common is learnt."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    gone = rng.random(80) < 0.4
    y = np.where(gone, 3.0, np.sin(2.0 * X[:, 0])) + 0.1 * rng.normal(size=80)
    X[gone, 0] = np.nan
    model = qp.GPRegressor(method="ep").fit(X, y)
    assert model.columns_.gaps == (0,)
    mean, deviation = model.predict([[np.nan, 0.0], [0.5, 0.0]], return_std=True)
    np.testing.assert_allclose(mean, [3.0, np.sin(1.0)], atol=0.25)
    assert (deviation < 0.3).all()
    # As the matrix with the median, and a column that says where, under the same kernel.
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    rows = np.column_stack([filled, gone])
    own = model.likelihood_.with_parameters(**model.parameters_)
    plain = qp.GPRegressor(model.kernel_, likelihood=own, method="ep", optimize=False).fit(rows, y)
    np.testing.assert_allclose(plain.predict(rows), model.predict(X), rtol=1e-6, atol=1e-6)
    # A kernel that is given is multiplied by one of gaps.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    X[:5, 1] = np.nan
    model = qp.GPRegressor(RBF(1.0, "fixed"), optimize=False).fit(X, X[:, 0])
    assert repr(model.kernel_) == (
        "On(RBF(length_scale=1), [0, 1]) * Categories([2], dissimilarity=1.)"
    )


@every_case(
    "model, words",
    [
        (qp.GPRegressor(RBF(1.0)), "measures distances in column 'city', whose values are levels"),
        (
            qp.GPRegressor(On(RBF(1.0), ["width"])),
            "names the column 'width', which X does not have",
        ),
        (qp.GPClassifier(solver="markov"), "takes one column of numbers.* 'city' has levels"),
        (qp.GPClassifier(monotone={"size": 1}), "monotone takes columns of numbers"),
    ],
)
def test_what_levels_are_not_for(model, words):
    frame, y = raw(20)
    refuses(words, model.fit, frame, (y > 0.0).astype(float))


@every_case(
    "X, words",
    [
        ([[1.0, np.inf], [2.0, 1.0]], "column 1 has infinity in row 0"),
        ([[1.0], [np.nan]], "column 0 is the only one, so it has the times of a series.*NaN"),
        ([["a", 1.0], ["b", 2.0]], "there is text in it.* data frame"),
    ],
)
def test_arrays_that_are_refused(X, words):
    refuses(words, qp.GPRegressor().fit, X, [1.0, 2.0])


@pytest.mark.slow
def test_thousands_of_rows_with_nearest_ones():
    frame, y = raw(1700, 3)
    frame.loc[::7, "size"] = np.nan
    options = qp.Inducing("auto", budget=3.0, nearest=20)
    model = qp.GPRegressor(method="ep", inducing=options, random_state=0).fit(frame, y)
    assert model.engine_ == "inducing+nearest"
    assert set(model.inducing_points_[:, 1]) <= {0.0, 1.0, 2.0}
    assert set(model.inducing_points_[:, 3]) <= {0.0, 1.0}
    new, truth = raw(300, 4)
    mean, deviation = model.predict(new, return_std=True)
    # The noise has a deviation of 0.1.
    assert np.mean((mean - truth) ** 2) < 0.012
    # What the size would have said is noise of the rows that lack it, and all share theirs.
    unsaid = np.var(np.sin(2.0 * np.random.default_rng(0).normal(size=10_000))) / 7.0
    assert np.mean(deviation) == pytest.approx(np.sqrt(0.01 + unsaid), rel=0.1)
    level = new["city"].map({"Rome": 1.5, "Oslo": -1.0, "Bern": 0.0})
    gone = model.predict(new.assign(size=None))
    # Each of six groups has 40 such rows, of deviation 0.7: three standard errors.
    np.testing.assert_allclose(gone, level, atol=0.34)


def test_saved_models_know_their_columns(tmp_path):
    frame, y = raw()
    frame.loc[2, "size"], frame.loc[3, "city"] = np.nan, None
    model = qp.GPClassifier(KERNEL).fit(frame, y > 0.0)
    model.save(tmp_path / "model.qpm")
    again = qp.load(tmp_path / "model.qpm")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    refuses("must be in the same order", again.predict, frame[["city", "size", "old"]])


def test_batches():
    frame, y = raw(120)
    model = qp.GPClassifier(KERNEL, inducing=50, optimize=False, method="ep", random_state=0)
    model.partial_fit(frame[:60], y[:60] > 0.0, classes=[False, True])
    model.partial_fit(frame[60:], y[60:] > 0.0)
    whole = qp.GPClassifier(KERNEL, method="ep").fit(frame, y > 0.0)
    np.testing.assert_allclose(model.predict_proba(frame), whole.predict_proba(frame), atol=0.03)


def test_a_pipeline_as_prior_mean_has_the_columns():
    """By name, text and holes as they were: what its folds say of the frame itself is the mean."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(30.0, 150.0, 40),
            "city": rng.choice(["Bern", "Oslo", None], 40),
            "lift": rng.random(40) > 0.5,
            "built": np.where(rng.random(40) < 0.2, np.nan, rng.uniform(1900.0, 2000.0, 40)),
        }
    )
    y = frame["area"] / 50.0 + (frame["city"] == "Bern") + 0.1 * rng.normal(size=40)
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city"]),
        (SimpleImputer(add_indicator=True), ["built", "area", "lift"]),
    )
    mean = make_pipeline(columns, Ridge())
    model = qp.GPRegressor(prior_mean=mean, method="ep", optimize=False).fit(frame, y)
    again = model.columns_.frame(frame.columns, model.validate_points(frame))
    pd.testing.assert_frame_equal(
        again.assign(lift=again["lift"] > 0.0), frame, check_dtype=False, rtol=1e-15
    )
    new = frame[::3].assign(city=["Rome", *frame["city"][3::3]])  # a level that no fold had
    found = model.prior_mean_
    told = np.mean([(one[-1].predict(new) - model._centre_) for one in found.estimators], axis=0)
    expected = found.shift + found.slope * told / model._unit_
    np.testing.assert_allclose(found.at(model.validate_points(new))[:, 0], expected, rtol=1e-12)
    # Others get numbers, and rows of numbers with names the names.
    plain = qp.GPRegressor(prior_mean=Ridge(), method="ep", optimize=False).fit(frame, y)
    assert plain.prior_mean_.estimators[0].n_features_in_ == 5
    named = make_pipeline(make_column_transformer(("passthrough", ["area"])), Ridge())
    one = qp.GPRegressor(prior_mean=named, method="ep", optimize=False).fit(frame[["area"]], y)
    assert one.prior_mean_.estimators[0][-1][-1].n_features_in_ == 1


def hidden(values, at=3):
    """A masked array whose entries of one row are masked, with a number there that harms."""
    found = np.ma.array(values, copy=True)
    found[at] = 1e6 if found.dtype.kind == "f" else found[at]
    found[at] = np.ma.masked
    return found


POINTS = np.random.default_rng(2).normal(size=(30, 2))
COUNTS = np.arange(30) % 4
FIXED = {"kernel": RBF(), "optimize": False}


@every_case(
    "model, y, given, name",
    [
        (qp.GPRegressor(**FIXED), [np.ma.masked, *POINTS[1:, 0]], {}, "y"),
        (qp.GPSurvival(**FIXED), np.exp(POINTS[:, 0]), {"event": hidden(COUNTS > 1)}, "event"),
        (qp.GPPoissonRegressor(**FIXED), COUNTS, {"exposure": hidden(np.ones(30))}, "exposure"),
        (qp.GPRegressor(**FIXED), COUNTS, {"sample_weight": hidden(np.ones(30))}, "sample_weight"),
        (qp.GPRegressor(**FIXED), COUNTS, {"groups": hidden(COUNTS)}, "groups"),
    ],
)
def test_masked_entries_are_never_data(model, y, given, name):
    refuses(f"{name} .*masked entries", model.fit, POINTS, y, **given)


@every_case(
    "labels",
    [
        pd.Series(["a"] * 29 + [pd.NA], dtype="string"),
        pd.array([True] * 29 + [None], dtype="boolean"),
        pd.Series(["a"] * 29 + [None], dtype="category"),
    ],
)
def test_missing_labels_are_named_by_row(labels):
    for model in (qp.GPClassifier(), qp.GPOrdinal()):
        refuses(r"y has no label in row 29.*leave the 1 rows", model.fit, POINTS, labels)


def test_groups_are_labels_of_any_type_that_compares_by_value():
    want = [0, 1, 0]
    days = np.array(["2020", "2021", "2020"], dtype="datetime64[Y]")
    for groups in (["a", "b", "a"], [b"a", "b", "a"], days, pd.array([1, 2, 1], dtype="Int64")):
        assert group_codes(groups, 3).tolist() == want
    for missing in (["a", None, "a"], pd.array([1, None, 1], dtype="Int64"), [1.0, np.nan, 1.0]):
        refuses("groups has missing labels", group_codes, missing, 3)
    # Nullable booleans are booleans.
    model = qp.GPClassifier(**FIXED).fit(POINTS, pd.array(COUNTS > 1, dtype="boolean"))
    assert model.classes_.tolist() == [False, True]


@every_case("odd", [{"city": "Lima"}, {"size": 1e6}, {"size": np.nan}, {"city": None}])
def test_rows_of_weight_0_teach_nothing(odd):
    """Neither levels, nor medians, nor what was missing: the fit is that of the other rows."""
    frame, y = raw()
    frame["city"] = frame["city"].astype(object)
    for name, value in odd.items():
        frame.loc[5, name] = value
    weights = np.ones(len(y))
    weights[5] = 0.0
    y[5] = 1e6
    rest = np.arange(len(y)) != 5
    model = qp.GPRegressor(method="ep").fit(frame, y, sample_weight=weights)
    alone = qp.GPRegressor(method="ep").fit(frame[rest], y[rest])
    assert model.columns_.levels == alone.columns_.levels
    assert model.columns_.gaps == alone.columns_.gaps == ()
    np.testing.assert_array_equal(model.columns_.middle, alone.columns_.middle)
    assert model.log_marginal_likelihood_value_ == alone.log_marginal_likelihood_value_
    np.testing.assert_array_equal(model.predict(frame[rest]), alone.predict(frame[rest]))
