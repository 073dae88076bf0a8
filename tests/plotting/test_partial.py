"""What columns do and are worth, as drawn: the numbers on the axes are those computed."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPRegressor
from qpruntime.criticism import partial_dependence, permutation_importance
from qpruntime.kernels import Categories, On
from qpruntime.plotting import ImportanceDisplay, PartialDependenceDisplay
from tests.tools.cases import refuses

pd = pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

KERNEL = ConstantKernel(1.0, "fixed") * On(RBF(1.0, "fixed"), ["size"])
KERNEL = KERNEL * Categories(["kind"], 0.8, "fixed")


def test_a_line_with_its_band_levels_with_whiskers_and_bars_in_order():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=30), "kind": rng.choice(["a", "b", None], 30)})
    y = np.sin(frame["size"].to_numpy()) + (frame["kind"] == "a").to_numpy()
    model = GPRegressor(KERNEL, method="ep").fit(frame, y)
    display = PartialDependenceDisplay.from_estimator(model, frame, "size", kind="latent")
    expected = partial_dependence(model, frame, "size", kind="latent")
    np.testing.assert_array_equal(display.line_.get_ydata(), expected.middle)
    corners = display.band_.get_paths()[0].vertices[:, 1]
    assert corners.max() == pytest.approx(expected.high.max(), rel=1e-12)
    assert display.ax_.get_xlabel() == "size"
    assert "latent" in display.ax_.get_ylabel()
    display = PartialDependenceDisplay.from_estimator(model, frame, "kind")
    assert [one.get_text() for one in display.ax_.get_xticklabels()] == ["a", "b", "missing"]
    np.testing.assert_array_equal(display.line_[0].get_ydata(), display.dependence.middle)
    display = ImportanceDisplay.from_estimator(model, frame, y, n_repeats=2, random_state=0)
    expected = permutation_importance(model, frame, y, n_repeats=2, random_state=0)
    widths = [bar.get_width() for bar in display.bars_]
    np.testing.assert_array_equal(widths, np.sort(expected.loss))
    refuses("most must be 1 at least", display.plot, most=0)
