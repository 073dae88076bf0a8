"""Functions with bands and forecasts: what is drawn is what the model predicts, and rows are."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier
from qpruntime.plotting import ForecastDisplay, FunctionDisplay

#: Of predictions in another order of rows: rounding.
RTOL = 1e-9


def test_a_probability(line, band_ends):
    model, X, y = line
    display = FunctionDisplay.from_estimator(model, X, y, level=0.8, grid=40)
    x = display.line_.get_xdata()
    assert x.shape == (40,)
    assert x[0] < X.min() < X.max() < x[-1]
    # By the closed form of the probit: a second way to the same numbers.
    mean, variance = model.latent(x[:, None])
    p = stats.norm.cdf(mean / np.sqrt(1.0 + variance))
    assert_allclose(display.line_.get_ydata(), p, rtol=RTOL)
    ends = stats.norm.cdf(mean + np.array([[-1], [1]]) * stats.norm.ppf(0.9) * np.sqrt(variance))
    at, low, high = band_ends(display.band_)
    assert_allclose(at, x)
    assert_allclose(low, np.minimum(ends[0], p), rtol=RTOL)
    assert_allclose(high, np.maximum(ends[1], p), rtol=RTOL)
    for k, drawn in enumerate(display.points_):
        assert drawn.get_xdata().tolist() == X[y == k, 0].tolist()
        assert set(drawn.get_ydata()) == {float(k)}
    assert display.ax_.get_ylabel() == "P(y = 1)"
    assert "80 % interval" in [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_a_latent_function_in_a_slice(labels, band_ends):
    model, X, y = labels
    frame = pd.DataFrame(X, columns=["dose", "age"])
    named = GPClassifier(model.kernel, optimize=False).fit(frame, y)
    for given, own, feature in ((X, model, 1), (frame, named, "age")):
        display = FunctionDisplay.from_estimator(
            own, given, y, feature=feature, quantity="latent", at=[0.7, 0.0], grid=20
        )
        x = display.line_.get_xdata()
        mean, variance = model.latent(np.column_stack([np.full(20, 0.7), x]))
        assert_allclose(display.line_.get_ydata(), mean, rtol=RTOL)
        half = stats.norm.ppf(0.95) * np.sqrt(variance)
        _, low, high = band_ends(display.band_)
        assert_allclose(low, mean - half, rtol=RTOL)
        assert_allclose(high, mean + half, rtol=RTOL)
        # Rows of other doses are ticks: they do not lie on this slice.
        assert display.points_y.size == 0
        assert sum(len(p.get_xdata()) for p in display.points_) == len(X)
        assert display.ax_.get_xlabel() == ("age" if given is frame else "x1")


def test_medians_are_where_other_features_are_held(labels):
    model, X, y = labels
    display = FunctionDisplay.from_estimator(model, X, y, grid=10)
    points = np.column_stack([display.x, np.full(10, np.median(X[:, 1]))])
    assert_allclose(display.line_.get_ydata(), model.predict_proba(points)[:, 1], rtol=RTOL)


def rate_ends(model, mean, variance, tail):
    """Quantiles of e^f or f^2, the latter by the noncentral chi-square distribution."""
    std = np.sqrt(variance)
    if model.link_ == "exp":
        return np.exp(mean + stats.norm.ppf([[tail], [1.0 - tail]]) * std)
    chi = stats.ncx2(1, (mean / std) ** 2)
    return std**2 * np.array([chi.ppf(tail), chi.ppf(1.0 - tail)])


def test_a_rate(counts, band_ends):
    model, t, y, hours = counts
    display = FunctionDisplay.from_estimator(model, t, y, exposure=hours, grid=25)
    points = display.x[:, None]
    assert_allclose(display.line_.get_ydata(), model.predict(points), rtol=RTOL)
    _, low, high = band_ends(display.band_)
    truth = rate_ends(model, *model.latent(points), 0.05)
    assert_allclose([low, high], truth, rtol=1e-8)  # that of scipy's quantiles
    (dots,) = display.points_
    assert_allclose(dots.get_ydata(), y / hours)


def test_observations_and_numbers(outliers, band_ends):
    model, x, y = outliers
    display = FunctionDisplay.from_estimator(model, x, y, quantity="observation", grid=15)
    points = display.x[:, None]
    _, low, high = band_ends(display.band_)
    assert_allclose(np.transpose([low, high]), model.predict_quantiles(points, [0.05, 0.95]))
    inner = FunctionDisplay.from_estimator(model, x, y, grid=15)
    assert_allclose(inner.line_.get_ydata(), model.predict(points))
    _, std = model.predict(points, return_std=True)
    assert_allclose(inner.high - inner.low, 2.0 * stats.norm.ppf(0.95) * std)
    assert inner.points_[0].get_ydata().tolist() == y.tolist()


def test_it_is_drawn_again(line, closed):
    model, X, y = line
    from matplotlib import pyplot

    display = FunctionDisplay.from_estimator(model, X, y, grid=10)
    first, before = display.line_, display.ax_
    _, ax = pyplot.subplots()
    assert display.plot(ax, color="black", name="model", points=False) is display
    assert display.ax_ is ax is not before
    assert display.line_ is not first
    assert display.line_.get_ydata().tolist() == first.get_ydata().tolist()
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["model, 90 % interval", "model"]
    assert display.points_ == []
    assert len(closed()) == 2


def test_a_forecast_of_counts(counts, band_ends):
    model, t, y, hours = counts
    later = np.arange(30.0, 36.0)[:, None]
    longer = np.full(6, 2.0)
    ends = model.predict_quantiles(later, [0.05, 0.95], exposure=longer)
    # On either edge of the band, and a count beyond it.
    seen = ends[:, 1] + [0, 1, 0, 0, 70, 0]
    seen[2:4] = ends[2:4, 0] - [0, 1]
    display = ForecastDisplay.from_estimator(
        model, t, y, later=(later, seen), exposure=hours, later_exposure=longer, grid=30
    )
    times = display.line_.get_xdata()
    assert (times[0], times[-1], display.last) == (0.0, 35.0, 29.0)
    points = times[:, None]
    assert_allclose(display.line_.get_ydata(), model.predict(points), rtol=RTOL)
    _, low, high = band_ends(display.outer_)
    assert_allclose(np.transpose([low, high]), model.predict_quantiles(points, [0.05, 0.95]))
    _, low, high = band_ends(display.band_)
    assert_allclose([low, high], rate_ends(model, *model.latent(points), 0.05), rtol=1e-8)
    assert display.covered.tolist() == [True, False, True, False, False, True]
    assert_allclose(display.points_[1].get_ydata(), seen / 2.0)
    words = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert "observed later, 3 of 6 in the band" in words


def test_forecasts_of_other_models(outliers, line, band_ends):
    model, x, y = outliers
    display = ForecastDisplay.from_estimator(model, x, y, grid=12)
    assert display.t[-1] == pytest.approx(7.5)  # a quarter more
    points = display.t[:, None]
    assert_allclose(display.function.middle, model.predict(points))
    _, low, high = band_ends(display.outer_)
    assert_allclose(np.transpose([low, high]), model.predict_quantiles(points, [0.05, 0.95]))
    classes, X, labels = line
    display = ForecastDisplay.from_estimator(classes, X, labels, until=5.0, grid=12)
    assert display.t[-1] == 5.0
    assert_allclose(display.function.middle, classes.predict_proba(display.t[:, None])[:, 1])
    assert display.outer_ is display.observation is None
    # A single feature that is given as a frame makes no warning.
    _, X, y = line
    frame = pd.DataFrame({"hour": X[:, 0]})
    model = GPClassifier(1.0 * RBF(1.0), optimize=False).fit(frame, y)
    assert ForecastDisplay.from_estimator(model, frame, y, grid=5).ax_.get_xlabel() == "hour"
