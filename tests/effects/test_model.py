"""The estimator: beside reference values and dense algebra, saved, cloned, refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, log_expit, log_ndtr, logsumexp
from scipy.stats import norm
from sklearn.base import clone

import qpruntime
from qpruntime import infer
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import (
    Areas,
    Autoregressive,
    EffectsModel,
    Fixed,
    Groups,
    Mesh,
    Plane,
    Product,
    Walk,
)
from qpruntime.effects.families import family_of
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.groups import covariance_of
from qpruntime.effects.objective import Assembly, EffectsObjective
from qpruntime.effects.results import profiled_numbers, weighted_quantiles
from qpruntime.predictive.mixtures import Mixture
from tests.tools.cases import refuses
from tests.tools.oracle import slopes, unit_normal

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
ROWS = np.arange(40)
X = np.sin(1.7 * ROWS)
LABELS = np.sign(1.5 * np.sin(3.1 * (ROWS // 4) + 1) + 0.8 * X + 0.9 * np.cos(2.3 * ROWS) + 0.2)
COUNTS = np.round(np.exp(0.8 * np.sin(0.3 * ROWS) + 0.3 * X))
DATA = {
    "x": X,
    "g": ROWS // 4,
    "h": 7 * ROWS % 10,
    "pair": ROWS // 2,
    "lon": 0.37 * ROWS % 1.0,
    "lat": (0.61 * ROWS + 0.1) % 1.0,
}


def lattice():
    t = np.linspace(-0.3, 1.3, 17)
    x, y = np.meshgrid(t, t)
    corner = (17 * np.arange(16)[:, None] + np.arange(16)).ravel()
    upper = np.column_stack([corner, corner + 1, corner + 18])
    lower = np.column_stack([corner, corner + 18, corner + 17])
    return Mesh(np.column_stack([x.ravel(), y.ravel()]), np.vstack([upper, lower]))


def inside(theta):
    """Hyper-parameters of a centred column of unit spread, of those of the column as it is."""
    units = np.array([[1.0, np.mean(X)], [0.0, np.std(X)]])
    S = units @ covariance_of(theta, 2) @ units.T
    std = np.sqrt(S.diagonal())
    return np.append(np.log(std), np.arctanh(S[0, 1] / std.prod()))


CASES = {
    "groups probit": ([Groups("g")], "probit", 0.0),
    "groups logistic": ([Groups("g")], "logistic", 0.0),
    "crossed logistic": ([Groups("g"), Groups("h")], "logistic", 0.0),
    "rw1 poisson": ([Walk("pair")], "poisson", 0.1),
    "ar1 poisson": ([Autoregressive("pair")], "poisson", 0.1),
    "spde poisson": ([Plane("lon", "lat", mesh=lattice())], "poisson", 0.0),
    "intercept and slope": ([Groups("g", slope="x")], "probit", 0.0),
}


def objective(terms, family, offset, tol=1e-10):
    data = DataColumns(DATA)
    fixed = FixedBlock([Fixed("x", standardise=False)], data, 10.0)
    assembly = Assembly([fixed, *(one.bind(data) for one in terms)])
    own, y = family_of(family, COUNTS if family == "poisson" else LABELS, None)
    A = assembly.columns(data)
    return EffectsObjective(assembly, A, y, np.full(40, offset), None, own, tol)


def test_names_of_columns_may_hold_any_words():
    columns = {"g": np.arange(40) % 5, "x: log sd": np.arange(40.0)}
    model = EffectsModel([Groups("g", slope="x: log sd")], "gaussian", integrate="mode")
    own = model.fit(columns, np.cos(np.arange(40.0))).state_.objective()
    assert dict(zip(own.parameters, own.scaled, strict=True)) == {
        "log sd intercept": True,
        "log sd x: log sd": True,
        "atanh x: log sd, intercept": False,
        "log scale": True,
    }


@pytest.mark.parametrize("name", CASES)
def test_reference_values(name):
    """Evidence, its slopes and the coefficients, as dense algebra and differences have found."""
    terms, family, offset = CASES[name]
    known = REFERENCE[name]
    theta = np.array(known["theta"])
    jacobian = np.eye(len(theta))
    if name == "intercept and slope":
        step = 1e-5
        moved = [inside(theta + s * step * e) for e in np.eye(3) for s in (1.0, -1.0)]
        jacobian = np.array([a - b for a, b in zip(moved[::2], moved[1::2], strict=True)]) / 2e-5
        theta = inside(theta)
    found = objective(terms, family, offset)(theta)
    # The reference of the random walk has lost digits to an improper prior.
    loose = 100.0 if name.startswith("rw1") else 1.0
    assert abs(found.evidence - known["log_evidence"]) < 1e-8 * loose
    slope = jacobian @ found.evidence_slope
    np.testing.assert_allclose(slope, known["gradient"], atol=5e-8 * loose)
    np.testing.assert_allclose(found.posterior.latent()[0][:2], known["fixed"], atol=1e-8)


@pytest.mark.parametrize(
    "terms",
    [
        [Walk("pair", 2), Groups("h")],
        [Areas("h", {k: [(k + 1) % 10, (k + 9) % 10] for k in range(10)})],
        [Product(Autoregressive("h"), Plane("lon", "lat", spacing=0.4))],
    ],
)
def test_slopes_by_differences_and_dense_algebra(terms):
    own = objective(terms, "poisson", 0.1)
    theta = own.start + 0.2 * np.cos(np.arange(own.size))
    found = own(theta)
    by_difference = slopes(lambda at: own(at).evidence, theta, 1e-4)
    assert found.evidence_slope == pytest.approx(by_difference, rel=1e-6, abs=1e-6)
    Q, C = own.assembly.precision(theta)[0].toarray(), own.assembly.constraint
    K = np.linalg.inv(Q)
    if C is not None:
        K = K - K @ C.T @ np.linalg.solve(C @ K @ C.T, C @ K)
    K = own.A @ K @ own.A.T
    dense = infer(0.5 * (K + K.T), own.y, "poisson-exp", "ep", mean=own.offset, tol=1e-10)
    # Intrinsic priors have their null space at 1e-9 of the diagonal.
    assert abs(dense.log_evidence - found.evidence) < 1e-5
    np.testing.assert_allclose(found.posterior.mean, dense.mean, atol=1e-6)
    np.testing.assert_allclose(found.posterior.variance, dense.variance, rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "y"),
    [
        ("negative-binomial", COUNTS + 3 * (ROWS % 5 == 0)),
        pytest.param("student-t", X + np.cos(ROWS), marks=pytest.mark.slow),
    ],
)
def test_learnt_parameters_have_their_slopes(family, y):
    data = DataColumns(DATA)
    assembly = Assembly([FixedBlock([], data, 10.0), Groups("g").bind(data)])
    own, seen = family_of(family, y, None)
    found = EffectsObjective(assembly, assembly.columns(data), seen, np.zeros(40), None, own, 1e-10)
    theta = found.start + np.array([0.1, 0.2])
    at = found(theta)
    by_difference = slopes(lambda t: np.array([found(t).evidence, found(t).log_prior]), theta)
    assert [at.evidence_slope[1], at.prior_slope[1]] == pytest.approx(by_difference[1], abs=1e-7)


@pytest.fixture(scope="module")
def fitted():
    terms = [Fixed("x"), Groups("g")]
    model = EffectsModel(terms, "logistic", integrate="grid", correction=None, tol=1e-9)
    return model.fit(DATA, LABELS)


def test_the_posterior_is_that_of_quadrature(fitted):
    """Deviation and coefficients, beside EP's evidence integrated on a fine line."""
    state = fitted.state_
    given = state.assembly, state.A, state.y, np.zeros(40), None, fitted.family_, 1e-9
    own = EffectsObjective(*given)
    t = np.linspace(np.log(1e-3), np.log(30.0), 120)
    at = [own(np.array([one])) for one in t]
    value = np.array([one.value for one in at])
    w = np.exp(value - value.max())
    w /= w.sum()
    sd = np.exp(t)
    table = fitted.summary(profile=False)
    row = table["g: sd"]
    mean = w @ sd
    assert row["mean"] == pytest.approx(mean, rel=5e-3)
    assert row["sd"] == pytest.approx(np.sqrt(w @ (sd - mean) ** 2), rel=1e-2)
    quantiles = np.exp(np.interp([0.025, 0.5, 0.975], np.cumsum(w) - 0.5 * w, t))
    found = [row[name] for name in ("2.5%", "50%", "97.5%")]
    np.testing.assert_allclose(found, quantiles, rtol=0.02)
    raw = fitted.blocks_[0].raw
    effects = np.array([raw @ one.posterior.latent()[0][:2] for one in at])
    np.testing.assert_allclose(table.column("mean")[:2], w @ effects, atol=3e-3)


def test_profiled_coefficients():
    """At one theta those of the engine; over two, draws from both."""
    model = EffectsModel([Fixed("x"), Groups("g")], "logistic", integrate="mode")
    model.fit(DATA, LABELS)
    post = model.state_.objective()(model.theta_).posterior
    own, scale = post.coefficient(1), model.blocks_[0].scale[0]
    q = np.array([0.025, 0.5, 0.975])
    row = model.summary()["x"]
    assert row["mean"] == pytest.approx(own.mean / scale, rel=1e-5)
    assert row["sd"] == pytest.approx(own.std / scale, rel=1e-5)
    wanted = own.quantile(q) / scale
    np.testing.assert_allclose([row[f"{100 * v:g}%"] for v in q], wanted, rtol=2e-3)
    # Not the normal that EP has: its mean is too far out.
    assert abs(model.summary(profile=False)["x"]["mean"] - row["mean"]) > 1e-4
    latent, variance = post.latent()
    m, s = latent[1], np.sqrt(variance[1])
    squares = np.array([[s**2], [4.0 * s**2]])
    two = Mixture(np.array([[m], [2.0 * m]]), squares, np.array([0.7, 0.3]))
    draws = own.quantile((np.arange(200_000) + 0.5) / 200_000)
    both, weights = np.concatenate([draws, 2.0 * draws]), np.repeat([0.7, 0.3], 200_000) / 200_000
    found = profiled_numbers(own, (m, s), two, q)
    mean = weights @ both
    expected = [mean, np.sqrt(weights @ (both - mean) ** 2), *weighted_quantiles(both, weights, q)]
    np.testing.assert_allclose(found, expected, rtol=5e-3)


def test_weights_follow_the_corrected_evidence(fitted):
    """Of logistic rows in groups EP's evidence asks for too small a deviation."""
    corrected = clone(fitted).set_params(correction="pairs").fit(DATA, LABELS)
    own = fitted.state_.objective()
    t = np.linspace(np.log(1e-2), np.log(30.0), 60)
    at = [own(np.array([one])) for one in t]
    value = np.array([one.posterior.corrected_evidence().value + one.log_prior for one in at])
    w = np.exp(value - value.max())
    mean = (w @ np.exp(t)) / w.sum()
    assert corrected.summary()["g: sd"]["mean"] == pytest.approx(mean, rel=5e-3)
    assert mean > 1.005 * fitted.summary()["g: sd"]["mean"]


def test_tables_are_in_users_units(fitted):
    effects = fitted.effects("g", above=0.5)
    assert len(effects) == 10
    assert effects.names[3] == "3"
    state = fitted.state_
    found = np.array([state.node(k).latent[2:] for k in range(state.count)])
    np.testing.assert_allclose(effects.column("mean"), state.nodes.weights @ found, atol=1e-12)
    assert (np.diff(effects.values[:, 2:5], axis=1) > 0.0).all()
    moments = state.at_rows().moments()
    np.testing.assert_allclose(fitted.latent(DATA), moments, rtol=1e-9, atol=1e-10)
    summary = fitted.summary(profile=False)
    x, shift = np.array([-1.0, 2.0]), {"x": [-1.0, 2.0], "g": [0, 0]}
    slope = np.diff(fitted.latent(shift)[0])[0] / np.diff(x)[0]
    assert summary["x"]["mean"] == pytest.approx(slope, rel=1e-9)
    assert "sd" in str(summary).splitlines()[0]


def test_unknown_levels_vary_as_the_prior(fitted):
    new = {"x": [0.3, 0.3], "g": [99, 2]}
    mean, variance = fitted.latent(new)
    state = fitted.state_
    with_group = np.exp(2.0 * state.nodes.theta[:, 0])
    m, v = state.effects(0, fitted.blocks_[0].columns(DataColumns({"x": [0.3]}))).moments()
    assert mean[0] == pytest.approx(m[0], rel=1e-9)
    assert variance[0] == pytest.approx(v[0] + state.nodes.weights @ with_group, rel=1e-9)
    p = fitted.predict(new)
    low, high = fitted.predict_interval(new, 0.8).T
    assert ((low < p) & (p < high)).all()
    # The probability of an event is the mean of that given eta.
    mixture = state.ahead(DataColumns(new), np.zeros(2))
    z = np.linspace(-9.0, 9.0, 2001)
    f = mixture.mean[:, :1] + np.sqrt(mixture.variance[:, :1]) * z
    expected = mixture.weights @ np.average(expit(f), axis=1, weights=norm.pdf(z))
    assert p[0] == pytest.approx(expected, rel=1e-7)


def test_leave_one_out_is_that_of_a_fit_without_the_row(fitted):
    """Beside EP without the row, hyper-parameters integrated on the same nodes."""
    found = fitted.loo()
    state, i = fitted.state_, 7

    def log_integral(rows):
        given = state.A[rows], state.y[rows], np.zeros(len(rows)), None, fitted.family_, 1e-9
        own = EffectsObjective(state.assembly, *given)
        return logsumexp([own(one).value for one in state.nodes.theta])

    # p(y_i | others) = Z/Z_others, each integrated over theta.
    expected = log_integral(ROWS) - log_integral(np.delete(ROWS, i))
    assert found[i] == pytest.approx(expected, abs=0.03)


def test_saved_models_predict_the_same_bits(tmp_path, fitted):
    ring = {k: [(k + 1) % 10, (k + 9) % 10] for k in range(10)}
    terms = [Walk("pair", 2), Areas("h", ring), Plane("lon", "lat", spacing=0.5)]
    other = EffectsModel(terms, "poisson", integrate="mode").fit(DATA, COUNTS)
    for k, model in enumerate((fitted, other)):
        model.save(tmp_path / f"{k}.npz")
        again = qpruntime.load(tmp_path / f"{k}.npz")
        new = {**DATA, "g": ROWS}
        np.testing.assert_array_equal(again.predict(new), model.predict(new))
        np.testing.assert_array_equal(again.summary().values, model.summary().values)
        assert again.get_params()["family"] == model.family


def test_clones_and_failed_fits(fitted):
    model = EffectsModel([Fixed("x"), Groups("g")], "probit", integrate="mode")
    again = clone(model).fit(DATA, LABELS)
    before = dict(vars(again))
    refuses("no column", again.set_params(terms=[Fixed("no")]).fit, DATA, LABELS)
    assert vars(again)["state_"] is before["state_"]
    assert set(clone(fitted).get_params()) == set(fitted.get_params())


def test_arrays_frames_and_labels_of_any_kind():
    pd = pytest.importorskip("pandas")
    array = np.column_stack([X, ROWS // 4])
    words = np.where(LABELS > 0.0, "yes", "no")
    names = np.array([f"c{k}" for k in ROWS // 4])
    one = EffectsModel([Fixed(0), Groups(1)], "probit", integrate="mode").fit(array, LABELS)
    frame = pd.DataFrame({"x": X, "g": names})
    two = EffectsModel([Fixed("x"), Groups("g")], "probit", integrate="mode").fit(frame, words)
    np.testing.assert_allclose(one.predict(array), two.predict(frame), rtol=1e-9)
    assert two.family_.classes.tolist() == ["no", "yes"]


def test_exposures_and_offsets_say_the_same():
    rate = {**DATA, "hours": 1.0 + ROWS % 3, "log": np.log(1.0 + ROWS % 3)}
    terms = [Fixed("x"), Groups("g")]
    one = EffectsModel(terms, "poisson", exposure="hours", integrate="mode").fit(rate, COUNTS)
    two = EffectsModel(terms, "poisson", offset="log", integrate="mode").fit(rate, COUNTS)
    np.testing.assert_allclose(one.predict(rate), two.predict(rate), rtol=1e-10)
    none = {name: np.append(v, v[:1]) for name, v in rate.items()}
    none["hours"][-1] = 0.0
    zero = EffectsModel(terms, "poisson", exposure="hours", integrate="mode")
    zero.fit(none, np.append(COUNTS, 0.0))
    # A row that cannot have counts says nothing, but for the spread of x.
    np.testing.assert_allclose(zero.predict(rate), one.predict(rate), rtol=2e-3)
    assert zero.predict(none)[-1] == 0.0
    refuses("which cannot be", zero.fit, none, np.append(COUNTS, 2.0))


@pytest.mark.parametrize("family", [pytest.param("logistic", marks=pytest.mark.slow), "probit"])
def test_many_small_groups_are_corrected(family):
    """With 2200 rows in groups of four, beside quadrature over the effect of each group."""
    rng, group = np.random.default_rng(4), np.arange(2200) // 4
    x, effect = rng.normal(size=2200) - 1.0, 2.0 * rng.normal(size=550)
    noise = rng.logistic(size=2200) if family == "logistic" else rng.normal(size=2200)
    y = x + effect[group] + noise > 0.0
    model = EffectsModel([Groups("g")], family, intercept=False, offset="x")
    model.fit({"g": group, "x": x}, y)
    log_share = log_expit if family == "logistic" else log_ndtr
    u, w = unit_normal(120)
    objective = model.state_.objective()
    t = np.linspace(np.log(1.0), np.log(4.0), 80)
    value = np.empty(80)
    for k, one in enumerate(t):
        rows = log_share(np.where(y, 1.0, -1.0)[:, None] * (x[:, None] + np.exp(one) * u))
        shares = np.exp(rows.reshape(550, 4, -1).sum(axis=1)) @ w
        value[k] = np.log(shares).sum() + objective(np.array([one])).log_prior
    weights = np.exp(value - value.max()) / np.exp(value - value.max()).sum()
    mean = weights @ np.exp(t)
    std = np.sqrt(weights @ (np.exp(t) - mean) ** 2)
    plain = clone(model).set_params(correction=None).fit({"g": group, "x": x}, y)
    found, known = model.summary()["g: sd"], plain.summary()["g: sd"]
    assert found["mean"] == pytest.approx(mean, rel=3e-3)
    assert found["sd"] == pytest.approx(std, rel=1e-2)
    # EP's evidence of rows in small groups asks for too small a deviation.
    assert known["mean"] < 0.98 * mean
