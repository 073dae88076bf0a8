"""What data may be like at the edges: each case fits, warns or is refused in words."""

import datetime

import numpy as np
import pytest

from qpruntime import effects
from qpruntime.dataframes.readers import DataColumns
from tests.tools.cases import every_case, refuses

ROWS = np.arange(40)
X = np.sin(1.7 * ROWS)
LABELS = np.where(np.cos(2.3 * ROWS) + 0.8 * X > 0.1, 1, -1)
DATA = {"x": X, "g": ROWS // 4, "row": ROWS, "u": 0.37 * ROWS % 1.0, "v": 0.61 * ROWS % 1.0}


def model(*terms, family="logistic", **options):
    return effects.EffectsModel(list(terms), family, integrate="mode", **options)


def test_one_row_a_level_warns():
    with pytest.warns(UserWarning, match="no level of row has two rows"):
        found = model(effects.Fixed("x"), effects.Groups("row")).fit(DATA, LABELS)
    assert any("no level of row has two rows" in one for one in found.check())


def test_a_fixed_effect_of_dates_is_of_days():
    days = np.datetime64("2024-01-01") + 3 * ROWS.astype("timedelta64[D]")
    found = model(effects.Fixed("day")).fit({"day": days}, LABELS)
    numbers = model(effects.Fixed("day")).fit({"day": 3.0 * ROWS}, LABELS)
    assert found.summary()["day"]["mean"] == pytest.approx(numbers.summary()["day"]["mean"])


def test_dependent_columns_share_the_effect():
    data = {**DATA, "twice": 2.0 * X + 1.0}
    found = model(effects.Fixed("x", "twice")).fit(data, LABELS)
    alone = model(effects.Fixed("x")).fit(data, LABELS)
    both = found.summary()
    shared = both["x"]["mean"] + 2.0 * both["twice"]["mean"]
    assert shared == pytest.approx(alone.summary()["x"]["mean"], rel=5e-3)
    assert any("follows from the others" in one for one in found.check())


def test_a_deviation_that_nothing_asks_for():
    y = np.random.default_rng(1).poisson(3.0, 40)
    found = model(effects.Groups("g"), family="poisson").fit(DATA, y)
    assert any("do not ask for g" in one for one in found.check())
    strong = np.random.default_rng(1).poisson(np.exp(2.0 * np.cos(3.0 * (ROWS // 4)) + 1.0))
    assert model(effects.Groups("g"), family="poisson").fit(DATA, strong).check() == ()


def test_empty_areas_and_islands_have_their_prior():
    ring = {k: [(k + 1) % 8, (k - 1) % 8] for k in range(8)} | {8: [], 9: []}
    data = {"area": ROWS % 8, "x": X}
    found = model(effects.Areas("area", ring), family="poisson").fit(data, ROWS % 4)
    table = found.effects("area")
    sd = np.exp(found.theta_[0])
    for name in ("8", "9"):
        assert table[name]["mean"] == pytest.approx(0.0, abs=1e-9)
        assert table[name]["sd"] == pytest.approx(sd, rel=1e-9)
    assert effects.Graph(ring).islands.tolist() == [8, 9]
    icar = model(effects.Areas("area", ring, model="icar"), family="poisson").fit(data, ROWS % 4)
    assert len(icar.effects("area")) == 8
    np.testing.assert_allclose(icar.effects("area").column("mean").sum(), 0.0, atol=1e-6)


def column(values):
    return {**DATA, "bad": values}


MISSING = np.where(ROWS == 7, np.nan, 1.0 * ROWS)
TEXT = np.array(["a", "b"] * 20, dtype=object)
HOLE = TEXT.copy()
HOLE[3] = None
RING, PLANE = {0: [1], 1: [0, 2], 2: [1]}, effects.Plane("u", "v")


@every_case(
    "terms, data, words",
    [
        ([effects.Groups("bad")], column(MISSING), "no level in row 7"),
        ([effects.Groups("bad")], column(HOLE), "no level in row 3"),
        ([effects.Fixed("bad")], column(MISSING), "has nan in row 7"),
        ([effects.Fixed("bad")], column(np.ones(40)), "one value in all rows"),
        ([effects.Fixed("bad")], column(np.array(["one"] * 40)), "has one level"),
        ([effects.Fixed("x"), effects.Fixed("x")], DATA, "fixed effect twice"),
        ([effects.Groups("g"), effects.Groups("g")], DATA, "two terms are 'g'"),
        ([effects.Groups()], DATA, "needs a column"),
        ([effects.Groups("g", intercept=False)], DATA, "needs slope"),
        ([effects.Groups("g", slope="bad")], column(np.zeros(40)), "0 in all rows"),
        ([effects.Groups("g", prior=(3.0, 2.0))], DATA, "probability of prior"),
        ([effects.Groups("gg")], DATA, "no column 'gg'"),
        ([effects.Walk("g", 3)], DATA, "order of Walk must be 1 or 2"),
        ([effects.Walk("bad")], column(np.ones(40)), "has one value"),
        ([effects.Walk("bad")], column(ROWS % 2), "at least 3 knots"),
        ([effects.Walk("g", season=3, cyclic=True)], DATA, "say the same"),
        ([effects.Autoregressive("bad")], column(np.ones(40)), "one time"),
        ([effects.Autoregressive("g", "ar2")], DATA, "kind of Autoregressive"),
        ([effects.Areas("g", RING)], DATA, "is not in the graph"),
        ([effects.Areas("g", {k: [] for k in range(10)})], DATA, "no two areas"),
        ([effects.Plane("bad", "bad")], column(np.ones(40)), "all one place"),
        ([effects.Plane("row", "row")], DATA, "outside the mesh|on a line|nothing is left|no area"),
        ([effects.Product(effects.Groups("g"), PLANE)], DATA, "an Autoregressive and a Plane"),
        (["x"], DATA, "terms must be of qpruntime.effects"),
    ],
)
def test_terms_that_cannot_be_are_refused(terms, data, words):
    if words.startswith("outside"):
        model(*terms).fit(data, LABELS)  # on a line there is a plane around it
        return
    refuses(words, model(*terms).fit, data, LABELS)


@every_case(
    "options, y, words",
    [
        ({"exposure": "g"}, LABELS, "exposure is for counts"),
        ({"family_bounds": {"nu": (1, 2)}, "family": "poisson"}, ROWS, "has no parameter 'nu'"),
        ({"family": "student-t", "family_bounds": {"scale": 3}}, X, "two positive numbers"),
        ({}, ROWS, "labels must be of two kinds"),
        ({}, LABELS[:5], "y must have 40 rows"),
        ({"intercept": False}, LABELS, "no terms and no intercept"),
        ({"family": "no"}, LABELS, "unknown likelihood"),
        ({"offset": "bad"}, LABELS, "column 'bad' has nan in row 7"),
    ],
)
def test_options_that_cannot_be_are_refused(options, y, words):
    refuses(words, effects.EffectsModel([], **options).fit, column(MISSING), y)


@every_case(
    "make, given, words",
    [
        (effects.Graph, [np.array([[0.0, 1.0], [0.0, 0.0]])], "neighbours one way only"),
        (effects.Graph, [np.ones((2, 3))], "matrix must be square|pairs"),
        (effects.Graph, [np.ones((3, 3)), ["a", "b"]], "levels must name each"),
        (effects.Graph, [-np.ones((3, 3))], "at least 0"),
        (effects.Graph, [{0: [5]}], "which the graph lacks"),
        (effects.Graph, [3.0], "graph must be"),
        (effects.Mesh, [[[0, 0], [1, 0], [0, 1]], [[0, 1, 3]]], "beyond the 3 nodes"),
        (effects.Mesh, [[[0, 0], [1, 0], [0, 1], [5, 5]], [[0, 1, 2]]], "node 3 is in no triangle"),
        (effects.Mesh, [[[0, 0], [1, 0], [2, 0]], [[0, 1, 2]]], "has no area"),
        (effects.Mesh, [[[0, 0, 0]], [[0, 0, 0]]], "nodes must have shape"),
    ],
)
def test_graphs_and_meshes_that_cannot_be_are_refused(make, given, words):
    refuses(words, make, *given)


def test_graphs_of_all_kinds_are_the_same():
    one = effects.Graph({"a": ["b"], "b": ["a", "c"], "c": ["b"], "d": []})
    two = effects.Graph([("a", "b"), ("c", "b")], levels=["d"])
    W = np.zeros((4, 4))
    W[0, 1] = W[1, 0] = W[1, 2] = W[2, 1] = 1.0
    for other in (two, effects.Graph(W, levels=["a", "b", "c", "d"])):
        assert other.levels.tolist() == one.levels.tolist()
        np.testing.assert_array_equal(other.weights.toarray(), one.weights.toarray())


COAST = np.array([[0, 0], [4, 0], [4, 1], [1.5, 1], [1.5, 2], [4, 2], [4, 3], [0, 3]], float)
LAKE = np.array([[0.4, 1.2], [0.9, 1.2], [0.9, 1.8], [0.4, 1.8]])


def test_meshes_keep_to_coasts_which_part_what_is_near():
    """Two shores of an inlet are further apart than their distance says."""
    points = np.random.default_rng(0).uniform(0.0, 1.0, (30, 2))
    mesh = effects.mesh_over(points, spacing=0.2, boundary=COAST, holes=[LAKE])
    # Triangles cover the land, 12 less an inlet of 2.5 and a lake of .3, and nothing but the land.
    assert mesh.areas.sum() == pytest.approx(9.2, rel=1e-9)
    assert mesh.mass().sum() == pytest.approx(mesh.areas.sum(), rel=1e-12)
    inlet, lake, land = [2.5, 1.5], [0.65, 1.5], [3.0, 0.5]
    found, inside = mesh.located(np.array([inlet, lake, land]))
    assert found[0] == found[1] == -1 < found[2]
    np.testing.assert_allclose(inside[2] @ mesh.nodes[mesh.triangles[found[2]]], land)
    assert np.median(mesh.angles) > 40.0
    assert mesh.angles.min() > 5.0
    data = DataColumns({"u": [3.5, 3.5, 3.5], "v": [0.9, 2.1, 0.1]})
    block = effects.Plane("u", "v", spacing=0.15, boundary=COAST).bind(data)
    A = block.columns(data).toarray()
    Q = block.precision(np.log([1.0, 1.5])).toarray()
    S = A @ np.linalg.solve(Q, A.T)
    assert S[0, 1] < 0.3 * S[0, 2]


def test_points_outside_a_mesh():
    mesh = effects.Mesh([[0, 0], [1, 0], [1, 1], [0, 1]], [[0, 1, 2], [0, 2, 3]])
    data = {"u": [0.2, 0.5, 3.0], "v": [0.3, 0.4, 3.0]}
    data = DataColumns(data)
    block = effects.Plane("u", "v", mesh=mesh).bind(data)
    refuses(r"1 of 3 points are outside .* \(3, 3\) in row 2", block.columns, data)
    block = effects.Plane("u", "v", mesh=mesh, outside="nearest").bind(data)
    assert block.columns(data).toarray()[2].tolist() == [0.0, 0.0, 1.0, 0.0]


@every_case(
    "options, words",
    [
        ({"boundary": [[0, 0], [1, 1]]}, "3 corners"),
        ({"boundary": [[0, 0], [0, 0], [1, 1], [1, 0]]}, "same corner twice"),
        ({"spacing": 1e-5}, "use a larger spacing"),
        ({"spacing": -1.0}, "spacing must be positive"),
        ({"boundary": COAST, "holes": [COAST]}, "cross or touch"),
        ({"boundary": COAST, "holes": [[[-1, -1], [5, -1], [5, 5], [-1, 5]]]}, "nothing is left"),
    ],
)
def test_coasts_that_cannot_be_are_refused(options, words):
    refuses(words, effects.mesh_over, np.array([[0.0, 0.0], [1.0, 1.0]]), **options)


def test_many_counts_of_walks_that_overlap():
    """Precisions of rows far above 1, and three walks beside an intercept."""
    t = np.arange(4000.0)
    day, week = 2.0 * np.pi * t / 24.0, 2.0 * np.pi * t / 168.0
    eta = 1.0 + 0.6 * np.sin(day) + 0.3 * np.cos(week) + 0.3 * np.sin(t / 500.0)
    y = np.random.default_rng(0).poisson(np.exp(eta))
    seasons = [effects.Walk(name, order=2, cyclic=True) for name in ("hour", "place")]
    terms = [effects.Walk("t", order=2, knots=50), *seasons]
    data = {"t": t, "hour": t % 24.0, "place": t % 168.0}
    model = effects.EffectsModel(terms, "poisson", integrate="mode").fit(data, y)
    assert model.converged_
    mean, variance = model.latent(data)
    error = mean - eta
    assert np.sqrt(np.mean(error**2)) < 0.1
    assert 0.5 < np.mean(error**2 / variance) < 2.0


def test_categories_of_numbers_are_levels_and_the_first_declared_is_the_reference():
    """Means of each level, not a slope: with a wide prior those of least squares."""
    pd = pytest.importorskip("pandas")
    code = np.tile([3, 1, 2], 20)
    y = np.array([0.0, 8.6, 19.9, 9.1])[code] + 0.1 * np.cos(5.0 * np.arange(60))
    frame = pd.DataFrame({"g": pd.Categorical(code, [2, 1, 3])})
    found = effects.EffectsModel([effects.Fixed("g")], "gaussian").fit(frame, y)
    summary = found.summary()
    means = {k: y[code == k].mean() for k in (1, 2, 3)}
    for k in (1, 3):
        assert summary[f"g[{k}]"]["mean"] == pytest.approx(means[k] - means[2], abs=0.02)
    centre = np.asarray(found.latent({"g": np.array([1.0, 2.0, 3.0])})[0])
    np.testing.assert_allclose(centre, [means[1], means[2], means[3]], atol=0.02)


@every_case(
    "option, column, words",
    [
        ("offset", ["0"] * 40, "column 'o' must be a column of numbers, and has"),
        ("exposure", ["1"] * 40, "column 'o' must be a column of numbers, and has"),
        ("offset", np.full(40, "2020", dtype="M8[D]"), "column 'o' holds times"),
        ("exposure", [datetime.date(2020, 1, 1)] * 40, "column 'o' holds times"),
        ("exposure", np.ma.array(np.ones(40), mask=np.arange(40) == 2), "masked entries"),
        ("offset", np.full(40, np.nan), "column 'o' has nan in row 0"),
        ("offset", np.full(40, np.inf), "column 'o' has inf in row 0"),
    ],
)
def test_offsets_and_exposures_are_numbers(option, column, words):
    own = model(effects.Fixed("x"), family="poisson", **{option: "o"})
    refuses(words, own.fit, DATA | {"o": column}, ROWS % 3)


@every_case("kind", ["text", "bytes", "boolean"])
def test_labels_are_known_by_value_and_missing_ones_refused(kind):
    pd = pytest.importorskip("pandas")
    words = np.where(LABELS > 0, "yes", "no")
    y = {
        "text": pd.Series(words, dtype="string"),
        "bytes": words.astype(bytes),
        "boolean": pd.Series(LABELS > 0, dtype="boolean"),
    }[kind]
    wanted = model(effects.Fixed("x")).fit(DATA, LABELS).log_evidence_
    assert model(effects.Fixed("x")).fit(DATA, y).log_evidence_ == pytest.approx(wanted, rel=1e-9)
    gone = pd.Series(y).astype(object)
    gone[3] = pd.NA
    for missing in (gone, gone.where(gone.notna(), None)):
        refuses("y has labels that are nan", model(effects.Fixed("x")).fit, DATA, missing)
