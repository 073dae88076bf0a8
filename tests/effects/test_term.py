"""Blocks beside dense algebra: precisions, determinants, slopes and priors of every kind."""

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad
from scipy.linalg import null_space
from scipy.sparse.linalg import splu
from scipy.special import kv
from sklearn.gaussian_process.kernels import Matern

from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import Areas, Autoregressive, Fixed, Groups, Plane, Product, Walk
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.intrinsic import laplacian_log_det, laplacian_variances
from qpruntime.effects.mesh import Mesh
from qpruntime.effects.spde import ShiftedDeterminant
from qpruntime.effects.term import deviation_prior, range_prior
from tests.tools.cases import every_case, refuses

N = 36
ROWS = np.arange(N)
DATA = DataColumns(
    {
        "x": np.sin(1.7 * ROWS),
        "z": 2.0 + np.cos(2.3 * ROWS),
        "g": ROWS // 4,
        "name": [f"level {i % 5}" for i in range(N)],
        "t": np.sort(np.where(ROWS % 7 == 0, ROWS + 4.0, ROWS)),
        "month": ROWS % 12,
        "age": ROWS % 9,
        "lon": 0.37 * ROWS % 1.0,
        "lat": (0.61 * ROWS + 0.1) % 1.0,
        "area": ROWS % 6,
    }
)
#: Two connected parts, of which one is a path of 3 and one a pair, and an island.
GRAPH = {0: [1, 2], 1: [0], 2: [0], 3: [4], 4: [3], 5: []}
TERMS = {
    "fixed": Fixed("x", "z"),
    "groups": Groups("g"),
    "slopes": Groups("g", slope="x"),
    "three numbers": Groups("g", slope=["x", "z"]),
    "independent slopes": Groups("g", slope="x", correlated=False),
    "rw1": Walk("age"),
    "rw2": Walk("age", 2),
    "season": Walk("t", season=4),
    "cycle": Walk("month", cyclic=True),
    "ar1": Autoregressive("t"),
    "icar": Areas("area", GRAPH, model="icar"),
    "bym2": Areas("area", GRAPH),
    "plane": Plane("lon", "lat", spacing=0.25),
    "product": Product(Autoregressive("age"), Plane("lon", "lat", spacing=0.5)),
}


def bound():
    """Every block, and a theta inside its bounds."""
    for name, term in TERMS.items():
        block = term.bind(DATA)
        yield name, block, block.start + 0.3 * np.cos(1.0 + np.arange(len(block.start)))


def free(block):
    """Basis of what the constraint leaves."""
    return np.eye(block.size) if block.constraint is None else null_space(block.constraint)


@every_case("name, block, theta", list(bound()))
def test_precisions_determinants_priors_and_their_slopes(name, block, theta):
    Q, N0 = block.precision(theta).toarray(), free(block)
    np.testing.assert_allclose(Q, Q.T, rtol=0, atol=1e-13 * np.abs(Q).max())
    inside = N0.T @ Q @ N0
    value, slope = block.log_det(theta)
    assert abs(value - np.linalg.slogdet(inside)[1]) < 1e-7 * block.size
    own = [block.pattern.matrix(slope) for slope in block.entries(theta)[1]]
    assert len(own) == len(theta) == len(block.parameters) == len(block.bounds)
    for k, dQ in enumerate(own):
        step = 1e-5 * np.eye(len(theta))[k]
        high, low = (block.precision(theta + s).toarray() for s in (step, -step))
        wanted = (high - low) / 2e-5
        np.testing.assert_allclose(dQ.toarray(), wanted, rtol=1e-7, atol=1e-8 * np.abs(dQ).max())
        trace = np.trace(np.linalg.solve(inside, N0.T @ dQ @ N0))
        assert abs(slope[k] - trace) < 1e-6 * block.size, k
        np.testing.assert_array_equal(dQ.indices, block.pattern.indices)
        np.testing.assert_array_equal(dQ.indptr, block.pattern.indptr)
        change = (block.log_prior(theta + step)[0] - block.log_prior(theta - step)[0]) / 2e-5
        assert abs(change - block.log_prior(theta)[1][k]) < 1e-8


def test_priors_put_the_tails_where_they_say():
    sd, reach = deviation_prior((3.0, 0.01)), range_prior((0.1, 0.05))
    assert quad(lambda t: np.exp(sd(t)[0]), np.log(3.0), 6.0)[0] == pytest.approx(0.01, rel=1e-9)
    assert quad(lambda t: np.exp(sd(t)[0]), -40.0, 6.0)[0] == pytest.approx(1.0, rel=1e-9)
    below = quad(lambda t: np.exp(reach(t)[0]), -10.0, np.log(0.1))[0]
    assert below == pytest.approx(0.05, rel=1e-9)


def covariance(block, theta):
    """Prior covariance of the effects with the constraint."""
    N0 = free(block)
    return N0 @ np.linalg.solve(N0.T @ block.precision(theta) @ N0, N0.T)


def test_a_series_is_matern_one_half_over_gaps():
    block = Autoregressive("t").bind(DATA)
    rho, sd = 0.7, 1.3
    found = covariance(block, np.array([np.log(sd), np.arctanh(rho)]))
    kernel = Matern(-1.0 / np.log(rho), nu=0.5)(block.times[:, None])
    np.testing.assert_allclose(found, sd**2 * kernel, rtol=1e-11)
    turned = covariance(block, np.array([np.log(sd), -np.arctanh(rho)]))
    sign = (-1.0) ** np.abs(block.times[:, None] - block.times)
    np.testing.assert_allclose(turned, sd**2 * sign * kernel, rtol=1e-10)


def test_new_times_are_as_joint_ones():
    block, theta = Autoregressive("t").bind(DATA), np.array([0.2, 0.9])
    new = DataColumns({"t": [-2.0, 0.5, 3.0, 8.25, 50.0]})
    design, variance = block.ahead(new, theta)
    rho, times = np.tanh(theta[1]), np.array([-2.0, 0.5, 3.0, 8.25, 50.0])
    kernel = Matern(-1.0 / np.log(rho), nu=0.5)
    own = block.times[:, None]
    weights = np.linalg.solve(kernel(own), kernel(own, times[:, None])).T
    np.testing.assert_allclose(design.toarray(), weights, atol=1e-11)
    rest = 1.0 - (weights * kernel(times[:, None], own)).sum(axis=1)
    np.testing.assert_allclose(variance, np.exp(0.4) * rest, atol=1e-11)
    refuses("negative correlation", block.ahead, new, np.array([0.2, -0.9]))


def test_groups_with_slopes_have_one_covariance_each():
    block, theta = Groups("g", slope="x").bind(DATA), np.array([0.3, -0.5, 0.2])
    rho = np.tanh(0.2)
    sd = np.exp([0.3, -0.5])
    S = np.outer(sd, sd) * [[1.0, rho], [rho, 1.0]]
    np.testing.assert_allclose(covariance(block, theta), np.kron(np.eye(9), S), atol=1e-13)
    # The slope's column is centred and scaled; what is reported is at x = 0.
    x = DATA.numbers("x")
    size, centre = x.std(), x.mean()
    found = block.deviations(theta)
    assert found["sd x"] == pytest.approx(sd[1] / size)
    back = np.array([[1.0, -centre / size], [0.0, 1.0 / size]])
    at_zero = back @ S @ back.T
    correlation = at_zero[0, 1] / np.sqrt(at_zero[0, 0] * at_zero[1, 1])
    assert found["correlation x, intercept"] == pytest.approx(correlation)
    A = block.columns(DATA).toarray()
    np.testing.assert_allclose(A[7, 2:4], [1.0, (x[7] - centre) / size])
    assert np.count_nonzero(A) == 2 * N


@every_case("name, options", [("rw1", {}), ("rw2", {"order": 2}), ("cycle", {"cyclic": True})])
def test_walks_have_variance_one_on_the_whole(name, options):
    block = Walk("age", **options).bind(DATA)
    count = len(block.knots)
    own = covariance(block, np.zeros(1))[:count, :count]
    assert np.exp(np.log(np.diagonal(own)).mean()) == pytest.approx(1.0, rel=1e-7)
    taps = {"rw1": [-1, 1], "rw2": [1, -2, 1], "cycle": [-1, 1]}[name]
    steps = np.array([np.roll(np.pad(taps, (0, count - len(taps))), k) for k in range(count)])
    steps = steps[: count if name == "cycle" else count + 1 - len(taps)]
    moved = steps @ own @ steps.T
    if name != "cycle":
        square = block.innovation**2
        np.testing.assert_allclose(moved, square * np.eye(len(steps)), atol=1e-7 * square)


@every_case("name, options", [("rw1", {}), ("rw2", {"order": 2}), ("season", {"season": 3})])
def test_walks_go_on_beyond_their_knots(name, options):
    """As a walk of more knots has it, given the first ones."""
    block = Walk("age", **options).bind(DATA)
    new = np.array([9.0, 11.0, 10.25, -1.0, -2.5, 3.5])
    design, variance = block.ahead(DataColumns({"age": new}), np.array([0.4]))
    taps, more, count = block.filter, 3, len(block.knots)
    size = count + 2 * more
    padded = np.pad(taps, (0, size - len(taps)))
    D = np.array([np.roll(padded, k) for k in range(size + 1 - len(taps))])
    Q = D.T @ D / (np.exp(0.8) * block.innovation**2)
    known = slice(more, more + count)
    unknown = np.r_[0:more, more + count : size]
    inner = Q[np.ix_(unknown, unknown)]
    weights = np.zeros((size, count))
    weights[known] = np.eye(count)
    weights[unknown] = -np.linalg.solve(inner, Q[unknown, known])
    spread = np.zeros((size, size))
    spread[np.ix_(unknown, unknown)] = np.linalg.inv(inner)
    # Between two knots a walk is straight.
    B = np.maximum(0.0, 1.0 - np.abs((new + more)[:, None] - np.arange(size)))
    np.testing.assert_allclose(design.toarray()[:, :count], B @ weights, atol=1e-9)
    np.testing.assert_allclose(variance, np.diagonal(B @ spread @ B.T), rtol=1e-9, atol=1e-12)


def test_areas_of_every_part():
    block = Areas("area", GRAPH).bind(DATA)
    theta = np.array([0.3, 0.7])
    phi, sd = 1.0 / (1.0 + np.exp(-0.7)), np.exp(0.3)
    A = block.columns(DATA)[:6].toarray()
    found = A @ covariance(block, theta) @ A.T
    inverse = np.linalg.pinv(np.array([[2.0, -1.0, -1.0], [-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]))
    inverse /= np.exp(np.log(np.diagonal(inverse)).mean())
    expected = (1.0 - phi) * np.eye(6)
    expected[:3, :3] += phi * inverse
    expected[3:5, 3:5] += phi * np.array([[1.0, -1.0], [-1.0, 1.0]])
    expected[5, 5] = 1.0
    np.testing.assert_allclose(found, sd**2 * expected, atol=1e-7)
    assert block.deviations(theta) == pytest.approx({"sd": sd, "phi": phi})


def test_large_graphs_are_scaled_without_eigenvalues():
    R = Areas("area", {k: [(k + 1) % 40, (k - 1) % 40] for k in range(40)}).bind(DATA)
    assert R.parts[0].eigenvalues is not None
    W = np.roll(np.eye(40), 1, axis=1)
    W[3, 17] = 2.0
    W = W + W.T
    L = sparse.csc_array(np.diag(W.sum(axis=1)) - W)
    got = laplacian_variances(L)
    np.testing.assert_allclose(got, np.diagonal(np.linalg.pinv(L.toarray())), rtol=1e-10)
    values = np.linalg.eigvalsh(L.toarray())[1:]
    assert laplacian_log_det(L) == pytest.approx(np.log(values).sum(), rel=1e-12)


def test_the_plane_is_a_matern_field():
    """Far from the edge, within what linear triangles leave."""
    data = DataColumns({"lon": [0.0, 1.0, 0.5], "lat": [0.0, 1.0, 0.5]})
    block = Plane("lon", "lat", spacing=0.03, extension=0.6).bind(data)
    reach, sd = 0.4, 1.4
    centre = np.array([[0.5, 0.5], [0.6, 0.5], [0.5, 0.7], [0.8, 0.6]])
    A = block.columns(DataColumns({"lon": centre[:, 0], "lat": centre[:, 1]})).toarray()
    Q = block.precision(np.log([sd, reach]))
    found = A @ splu(Q).solve(A.T)
    h = np.sqrt(8.0) / reach * np.hypot(*(centre - centre[0]).T)[1:]
    np.testing.assert_allclose(found[0, 0], sd**2, rtol=0.03)
    np.testing.assert_allclose(found[0, 1:], sd**2 * h * kv(1, h), rtol=0.03)


def test_elements_on_a_square():
    """Closed: a unit square of two triangles."""
    mesh = Mesh([[0, 0], [1, 0], [1, 1], [0, 1]], [[0, 1, 2], [0, 2, 3]])
    np.testing.assert_allclose(mesh.mass(), np.array([2, 1, 2, 1]) / 6.0)
    stiffness = np.array([[2, -1, 0, -1], [-1, 2, -1, 0], [0, -1, 2, -1], [-1, 0, -1, 2]]) / 2.0
    np.testing.assert_allclose(mesh.stiffness().toarray(), stiffness, atol=1e-15)


def test_determinants_of_large_meshes(monkeypatch):
    """By the sparse factor, as by eigenvalues."""
    mesh = TERMS["plane"].bind(DATA).mesh
    exact = ShiftedDeterminant(mesh.mass(), mesh.stiffness())
    monkeypatch.setattr("qpruntime.effects.spde._DENSE_NODE_LIMIT", 0)
    other = ShiftedDeterminant(mesh.mass(), mesh.stiffness())
    assert other.values is None
    for k in (0.5, 30.0):
        np.testing.assert_allclose(other(k), exact(k), rtol=1e-11)


def test_products_are_kronecker():
    block = TERMS["product"].bind(DATA)
    theta = block.start + 0.1
    time, place = Autoregressive("age").bind(DATA), Plane("lon", "lat", spacing=0.5).bind(DATA)
    along = time.precision(np.array([0.0, theta[0]])).toarray()
    Q = np.kron(along, place.precision(theta[1:]).toarray())
    np.testing.assert_allclose(block.precision(theta).toarray(), Q, rtol=1e-12, atol=1e-14)
    one, two = time.columns(DATA).toarray(), place.columns(DATA).toarray()
    both = (one[:, :, None] * two[:, None, :]).reshape(N, -1)
    np.testing.assert_allclose(block.columns(DATA).toarray(), both, atol=1e-15)
    new = DataColumns({"age": [9.5], "lon": [0.4], "lat": [0.4]})
    design, variance = block.ahead(new, theta)
    S = np.linalg.inv(place.precision(theta[1:]).toarray())
    at = place.columns(new).toarray()
    gap = np.tanh(theta[0]) ** 1.5
    assert variance[0] == pytest.approx((1.0 - gap**2) * float((at @ S @ at.T)[0, 0]), rel=1e-10)
    assert design.sum() == pytest.approx(gap, rel=1e-12)


def test_coefficients_are_those_of_raw_columns():
    block = FixedBlock([Fixed("x", "z"), Fixed("name")], DATA, 100.0)
    A = block.columns(DATA).toarray()
    np.testing.assert_allclose(A[:, 1:].std(axis=0), 1.0)
    effects = np.random.default_rng(0).standard_normal(block.size)
    raw = block.raw @ effects
    levels = np.array([[ROWS[i] % 5 == k for k in range(1, 5)] for i in range(N)], dtype=float)
    X = np.column_stack([np.ones(N), DATA.numbers("x"), DATA.numbers("z"), levels])
    np.testing.assert_allclose(X @ raw, A @ effects, atol=1e-12)
    assert list(block.labels[3:5]) == ["name[level 1]", "name[level 2]"]
