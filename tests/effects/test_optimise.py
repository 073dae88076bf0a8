"""The search for hyper-parameters: where sites start, its units, windows, and where it ends."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import (
    EffectsModel,
    Fixed,
    Groups,
    Plane,
    Walk,
    mesh,
    mesh_over,
    optimise as places,
)
from qpruntime.effects.families import family_of
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.objective import Assembly, EffectsObjective
from qpruntime.effects.optimise import climb, curvatures, maximise, most_likely
from qpruntime.inference.precision.iterate import Nearby
from tests.tools.cases import refuses

ROWS = np.arange(60)
DATA = {"x": np.sin(1.7 * ROWS), "g": ROWS // 3, "h": 7 * ROWS % 12}
LABELS = np.sign(np.sin(3.1 * (ROWS // 3)) + 0.8 * DATA["x"] + 0.9 * np.cos(2.3 * ROWS))


def objective(tol=1e-6):
    data = DataColumns(DATA)
    terms = [Groups("g"), Groups("h")]
    assembly = Assembly([FixedBlock([Fixed("x")], data, 10.0), *(one.bind(data) for one in terms)])
    family, y = family_of("probit", LABELS, None)
    return EffectsObjective(assembly, assembly.columns(data), y, np.zeros(60), None, family, tol)


def plane_of_sites(theta):
    """Sites that are linear in two hyper-parameters."""
    tau = 2.0 + np.array([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]]) @ theta
    return tau, np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]]) @ theta - 1.0


def test_sites_on_a_plane_are_found_and_of_the_nearest_elsewhere():
    known = Nearby(3)
    assert known.at([0.0, 0.0]) is None
    assert known.distance([0.0, 0.0]) == np.inf
    for theta in ([5.0, 5.0], [0.0, 0.0], [1.0, 0.2], [0.3, 1.0]):
        known.add(theta, plane_of_sites(np.array(theta)))
    assert len(known) == 3  # the first is forgotten
    at = np.array([0.8, -0.4])
    # The ridge of the least squares leaves 1e-8.
    np.testing.assert_allclose(known.at(at), plane_of_sites(at), rtol=1e-6, atol=1e-7)
    assert abs(known.distance(at) - 0.6) < 1e-15
    known.add([1.0, 0.2], plane_of_sites(np.array([1.0, 0.3])))
    assert len(known) == 3  # another one in its place
    known.clear()
    assert len(known) == 0
    known = Nearby(2)
    known.add([0.0], ([1.0, 1.0], [0.5, 0.5]))
    assert known.at([9.0]).tau.tolist() == [1.0, 1.0]
    known.add([1.0], ([2.0, 0.4], [1.0, 0.2]))
    # Twice the step from the nearest is followed, but a precision at most halves.
    tau, nu = known.at([2.0])
    np.testing.assert_allclose((tau, nu), ([3.0, 0.4], [1.5, 0.2]), rtol=1e-6)
    assert known.at([6.0]).tau.tolist() == [2.0, 0.4]  # too far
    known.add([1.0], ([2.0, -0.1], [1.0, 0.2]))
    assert known.at([1.5]).tau.tolist() == [2.0, -0.1]


def test_units_of_deviations_by_dense_algebra():
    own = objective(1e-9)
    theta = np.array([0.1, -0.3])
    one = own(theta)
    variance = one.posterior.latent()[1]
    wanted = []
    for k, place in enumerate(own.assembly.places[1:]):
        told = 1.0 - variance[place] * np.exp(-2.0 * theta[k])
        wanted.append(max(2.0 * (told**2).sum(), abs(one.slope[k]), 1.0))
    np.testing.assert_allclose(curvatures(own, one), wanted, rtol=1e-9)


def test_a_loose_search_ends_at_the_mode():
    loose, tight = objective(), objective(1e-10)
    found = maximise(loose)
    assert found.converged
    assert found.evaluation.tol <= 1e-6
    # At the end of the search the slope is that of sites at rest, and small in posterior units.
    at = tight(found.evaluation.theta)
    assert abs(at.evidence - found.evaluation.evidence) < 1e-8
    assert (np.abs(at.slope) / np.sqrt(curvatures(tight, at)) < 5e-3).all()
    best = maximise(tight).evaluation
    np.testing.assert_allclose(found.evaluation.theta, best.theta, atol=5e-3)
    assert abs(best.value - at.value) < 1e-5


def test_maximum_likelihood_beside_an_integral():
    """An intercept and groups of equal rows, whose evidence is exact."""
    g = np.arange(200) // 5
    rng = np.random.default_rng(0)
    eta = 0.4 + 1.2 * rng.standard_normal(40)[g]
    y = (rng.uniform(size=200) < expit(eta)).astype(int)
    z = np.linspace(-9.0, 9.0, 1201)
    weights = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (z[1] - z[0])
    successes = np.bincount(g, y)

    def less(at):
        f = at[1] + np.exp(at[0]) * z
        logs = successes[:, None] * log_expit(f) + (5 - successes[:, None]) * log_expit(-f)
        return -np.log(np.exp(logs) @ weights).sum()

    best = minimize(less, [-0.5, 0.4], method="BFGS", options={"gtol": 1e-8}).x
    model = EffectsModel([Groups("g")], "logistic", estimate="ml").fit({"g": g}, y)
    assert model.converged_
    # The search ends within .005 posterior standard deviations, which are .3 here.
    assert abs(model.theta_[0] - best[0]) < 1e-3
    assert model.state_.count == 1
    # Integrating the intercept asks for a larger deviation, and a prior for a smaller one.
    other = EffectsModel([Groups("g")], "logistic", integrate="mode").fit({"g": g}, y)
    assert abs(other.theta_[0] - best[0]) > 5e-3


def test_maximum_likelihood_of_coefficients_has_no_slope():
    own = objective(1e-8)
    rng = np.random.default_rng(0)
    eta = 1.5 * rng.standard_normal(20)[DATA["g"]] + 1.5 * rng.standard_normal(12)[DATA["h"]]
    own.y = np.where(eta + 0.5 * DATA["x"] + rng.standard_normal(60) > 0.0, 1.0, -1.0)
    found = most_likely(own)
    assert found.converged
    at = own(found.evaluation.theta).theta
    place = own.assembly.places[0]
    A = own.A.tocsr()
    inner = Assembly(own.assembly.blocks[1:])

    def profile(theta):
        """The likelihood at theta, coefficients by Newton steps on differences of slopes."""
        X, rest = A[:, place].toarray(), A[:, place.stop :]
        b = np.zeros(X.shape[1])
        for _ in range(30):
            of = EffectsObjective(inner, rest, own.y, X @ b, None, own.family, 1e-9)
            post = of(theta).posterior
            V = np.linalg.inv(np.diag(1.0 / np.maximum(post.sites.tau, 1e-9)) + covariance(theta))
            step = np.linalg.solve(X.T @ V @ X, X.T @ post.weights)
            b = b + step
            if np.abs(step).max() < 1e-9:
                return post.log_evidence
        raise AssertionError("coefficients have not settled")

    def covariance(theta):
        rest = A[:, place.stop :].toarray()
        return rest @ np.linalg.inv(inner.precision(theta)[0].toarray()) @ rest.T

    best = profile(at)
    for k in range(2):
        for step in (-0.02, 0.02):
            other = at.copy()
            other[k] += step
            assert profile(other) < best


def test_what_maximum_likelihood_refuses():
    data, y = {"x": np.arange(6.0)}, [0, 1, 0, 1, 1, 0]
    for term, options, words in (
        (Fixed("x"), {"estimate": "ml"}, "for models with effects beside fixed ones"),
        (Groups("x"), {"estimate": "ml", "integrate": "grid"}, "integrates no hyper-parameters"),
        (Groups("x"), {"estimate": "reml"}, "estimate must be"),
    ):
        refuses(words, EffectsModel([term], **options).fit, data, y)


def test_large_counts_whose_dispersion_is_far_from_its_start():
    """The end is that of a search from the dispersion that was drawn."""
    rng = np.random.default_rng(9)
    t = np.arange(120)
    dispersion, mean = np.exp(rng.uniform(np.log([3.0, 300.0]), np.log([300.0, 20_000.0])))
    step = rng.choice([0.003, 0.03, 0.1])
    f = np.log(mean) + np.cumsum(step * rng.standard_normal(120))
    f += 0.3 * np.cos(2.0 * np.pi * t / 7)
    y = rng.poisson(np.exp(f) * rng.gamma(dispersion, 1.0 / dispersion, 120)).astype(float)
    data = {"t": t.astype(float), "day": (t % 7).astype(float)}
    terms = [Walk("t", 1, knots=60), Walk("day", 2, cyclic=7)]
    model = EffectsModel(terms, "negative-binomial", integrate="mode", correction=None)
    model.fit(data, y)
    objective = model.state_.objective()
    objective.start[-1] = np.log(dispersion)
    assert model.log_evidence_ == pytest.approx(maximise(objective).evaluation.evidence, abs=0.01)
    assert model.converged_


def test_what_lies_far_off_is_not_asked():
    """A cliff and a false summit beyond it; the true one is two steps away."""
    seen = []

    def function(at):
        seen.append(at.copy())
        x = at[0]
        if x > 4.5:
            return 1e6, np.array([1e4])
        return -0.5 * (x - 4.0) ** 2, np.array([4.0 - x])

    bounds = np.array([[-10.0, 10.0]])
    climb(function, np.zeros(1), bounds, function(np.zeros(1)), np.array([0.5]), 50)
    assert max(at[0] for at in seen) <= 4.5
    assert min(abs(at[0] - 4.0) for at in seen) < 1e-3


RNG = np.random.default_rng(3)
N = 1500
AT = RNG.uniform(size=(N, 2))
WAVES = RNG.standard_normal((2, 60)) / 0.12
F = 0.9 * np.sqrt(2.0 / 60.0) * np.cos(AT @ WAVES + RNG.uniform(0.0, 6.3, 60)).sum(axis=1)
FIELD = {"x": AT[:, 0], "y": AT[:, 1], "dose": RNG.standard_normal(N)}
Y = RNG.poisson(np.exp(0.5 + F + 0.2 * FIELD["dose"]))
TERMS = [Fixed("dose"), Plane("x", "y", spacing=0.05, extension=0.1)]


def small(monkeypatch):
    monkeypatch.setattr(places, "_MANY", 300)
    monkeypatch.setattr(places, "_NODES", 200)
    monkeypatch.setattr(places, "_ROWS", (400, 600))


def test_a_window_is_next_to_each_other_and_as_fine(monkeypatch):
    data = DataColumns(FIELD)
    blocks = [one.bind(data) for one in TERMS[1:]]
    assert places.window(TERMS, blocks, data) is None  # few nodes
    small(monkeypatch)
    found = places.window(TERMS, blocks, data)
    far = np.square(AT - np.median(AT, axis=0)).sum(axis=1)
    inside = np.isin(np.arange(N), found.rows)
    assert 400 <= inside.sum() <= 600
    assert far[inside].max() <= far[~inside].min()
    own = found.terms[1].bind(data.take(found.rows))
    assert np.median(own.mesh.areas) == pytest.approx(np.median(blocks[0].mesh.areas), rel=0.1)
    assert found.terms[0] is TERMS[0]
    theta = np.array([-0.2, -1.5])
    assert own.log_prior(theta)[0] == pytest.approx(blocks[0].log_prior(theta)[0], rel=1e-12)


def test_the_mode_is_the_same_after_fewer_evaluations(monkeypatch):
    numbers, plain = [], EffectsObjective.__call__

    def call(self, *args, **more):
        if len(self.y) == N:
            numbers[-1] += 1
        return plain(self, *args, **more)

    monkeypatch.setattr(EffectsObjective, "__call__", call)
    found = []
    for start in (lambda _: None, small):
        start(monkeypatch)
        numbers.append(0)
        model = EffectsModel(TERMS, "poisson", integrate="mode", correction=None)
        found.append(model.fit(FIELD, Y))
    assert numbers[1] <= 0.7 * numbers[0]
    np.testing.assert_allclose(found[1].theta_, found[0].theta_, atol=2e-3)
    assert found[1].log_evidence_ == pytest.approx(found[0].log_evidence_, abs=1e-3)


def test_a_known_curvature_is_newtons_first_step():
    """A quadratic with a narrow ridge: its maximum is the second point."""
    H, top = np.array([[400.0, 380.0], [380.0, 400.0]]), np.array([0.3, -0.8])
    seen = []

    def function(at):
        seen.append(at)
        return -0.5 * float((at - top) @ H @ (at - top)), -H @ (at - top)

    climb(function, np.zeros(2), np.tile([-5.0, 5.0], (2, 1)), function(np.zeros(2)), H, 50)
    np.testing.assert_allclose(seen[1], top, rtol=1e-9)
    assert len(seen) <= 3


def test_coasts_are_found_among_near_nodes_alone(monkeypatch):
    """The mesh is that of all nodes joined in every round."""
    lake = [[0.5, 0.5], [0.9, 0.501], [0.52, 0.52]]
    numbers, found = [], []
    plain = mesh.Delaunay

    def joined(nodes):
        numbers[-1].append(len(nodes))
        return plain(nodes)

    monkeypatch.setattr(mesh, "Delaunay", joined)
    for large in (10**9, 500):
        monkeypatch.setattr(mesh, "_LARGE", large)
        numbers.append([])
        found.append(mesh_over(AT, spacing=0.02, extension=0.1, holes=[lake]))
    one, two = found
    np.testing.assert_array_equal(one.nodes, two.nodes)
    np.testing.assert_array_equal(*(np.sort(each.triangles, axis=1) for each in found))
    most = max(numbers[0])
    assert numbers[1].count(most) < len(numbers[0])
    assert min(numbers[1]) < 0.7 * most
