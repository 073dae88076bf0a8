"""Caterpillars and maps hold what the model says, and draw it."""

import numpy as np
import pytest

from qpruntime.effects import Areas, EffectsModel, Groups, Plane, Walk
from qpruntime.plotting import CaterpillarDisplay, EffectMapDisplay
from tests.tools.cases import refuses

ROWS = np.arange(60)
DATA = {
    "g": ROWS % 6,
    "area": ROWS % 4,
    "age": ROWS % 10,
    "u": 0.37 * ROWS % 1.0,
    "v": 0.61 * ROWS % 1.0,
}


@pytest.fixture(scope="module")
def model():
    ring = {k: [(k + 1) % 4, (k + 3) % 4] for k in range(4)}
    terms = [Groups("g"), Areas("area", ring), Walk("age", 2), Plane("u", "v", spacing=0.4)]
    return EffectsModel(terms, "poisson", integrate="mode").fit(DATA, ROWS % 5)


def test_caterpillars(model):
    shown = CaterpillarDisplay.from_estimator(model, "g", level=0.8)
    table = model.effects("g", (0.1, 0.9))
    np.testing.assert_array_equal(shown.lower, table.column("10%"))
    drawn = [segment[:, 0].tolist() for segment in shown.intervals_.get_segments()]
    order = np.argsort(shown.mean)
    np.testing.assert_allclose(drawn, np.column_stack([shown.lower, shown.upper])[order])
    names = [label.get_text() for label in shown.ax_.get_yticklabels()]
    assert names == [table.names[k] for k in order]
    band = CaterpillarDisplay.from_estimator(model, "age", band=True)
    np.testing.assert_array_equal(band.ax_.lines[0].get_xdata(), np.arange(10))


def test_maps(model):
    shapes = {k: [[k, 0], [k + 1, 0], [k + 1, 1]] for k in range(4)}
    shown = EffectMapDisplay.from_estimator(model, "area", what="exceedance", shapes=shapes)
    expected = model.effects("area", above=0.0).column("P(>0)")
    np.testing.assert_array_equal(shown.surface_.get_array(), expected)
    assert len(shown.surface_.get_paths()) == 4
    plane = EffectMapDisplay.from_estimator(model, "plane(u, v)", what="sd", colorbar=False)
    assert len(plane.values) == plane.mesh.size
    assert plane.colorbar_ is None


def test_what_cannot_be_drawn(model):
    refuses("takes shapes=", EffectMapDisplay.from_estimator, model, "area")
    refuses("there is no term", CaterpillarDisplay.from_estimator, model, "no")
    shown = CaterpillarDisplay(
        names=("a",), mean=np.zeros(1), lower=-np.ones(1), upper=np.ones(1), level=0.9, term="g"
    )
    refuses("along a number", shown.plot, band=True)
