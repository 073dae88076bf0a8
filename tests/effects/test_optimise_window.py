"""Large fields: the search starts from the mode of a window of rows, and ends where others do."""

import numpy as np
import pytest

from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import EffectsModel, Fixed, Plane, mesh, mesh_over
from qpruntime.effects import optimise as places
from qpruntime.effects.objective import EffectsObjective
from qpruntime.effects.optimise import climb

RNG = np.random.default_rng(3)
N = 1500
AT = RNG.uniform(size=(N, 2))
WAVES = RNG.standard_normal((2, 60)) / 0.12
F = 0.9 * np.sqrt(2.0 / 60.0) * np.cos(AT @ WAVES + RNG.uniform(0.0, 6.3, 60)).sum(axis=1)
DATA = {"x": AT[:, 0], "y": AT[:, 1], "dose": RNG.standard_normal(N)}
Y = RNG.poisson(np.exp(0.5 + F + 0.2 * DATA["dose"]))
TERMS = [Fixed("dose"), Plane("x", "y", spacing=0.05, extension=0.1)]


def small(monkeypatch):
    monkeypatch.setattr(places, "_MANY", 300)
    monkeypatch.setattr(places, "_NODES", 200)
    monkeypatch.setattr(places, "_ROWS", (400, 600))


def test_a_window_is_next_to_each_other_and_as_fine(monkeypatch):
    data = DataColumns(DATA)
    blocks = [one.bind(data) for one in TERMS[1:]]
    assert places.window(TERMS, blocks, data) is None  # few nodes
    small(monkeypatch)
    found = places.window(TERMS, blocks, data)
    far = np.square(AT - np.median(AT, axis=0)).sum(axis=1)
    inside = np.isin(np.arange(N), found.rows)
    assert 400 <= inside.sum() <= 600
    assert far[inside].max() <= far[~inside].min()
    own = found.terms[1].bind(
        DataColumns({name: column[found.rows] for name, column in DATA.items()})
    )
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
        found.append(EffectsModel(TERMS, "poisson", integrate="mode", correction=None).fit(DATA, Y))
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
