"""Boundaries, calibration, tables and optimisers: numbers drawn against models and closed forms."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.testing import assert_allclose
from scipy import special, stats
from scipy.interpolate import RegularGridInterpolator
from sklearn.linear_model import LogisticRegression

import qpruntime
from qpruntime import open_table
from qpruntime.bayesopt import Optimizer
from qpruntime.plotting import (
    BoundaryDisplay,
    CalibrationDisplay,
    ForecastDisplay,
    FunctionDisplay,
    ProgressDisplay,
    RatioDisplay,
)
from tests.tools.cases import every_case


def crossings(display, values, sets):
    """Values on drawn lines, linearly between points of the grid as lines are drawn."""
    between = RegularGridInterpolator(
        (display.y, display.x), values, bounds_error=False, fill_value=None
    )
    return between(np.concatenate([p.vertices for one in sets for p in one.get_paths()])[:, ::-1])


def test_a_boundary_and_its_interval(labels):
    model, X, y = labels
    display = BoundaryDisplay.from_estimator(model, X, y, grid=30, level=0.7)
    gx, gy = np.meshgrid(display.x, display.y)
    points = np.column_stack([gx.ravel(), gy.ravel()])
    assert_allclose(display.probability.ravel(), model.predict_proba(points)[:, 1], rtol=1e-9)
    low, high = model.predict_interval(points, level=0.7).T
    assert_allclose(display.low.ravel(), low, rtol=1e-9, atol=1e-12)
    assert_allclose(display.high.ravel(), high, rtol=1e-9, atol=1e-12)
    assert_allclose(crossings(display, display.probability, display.boundary_), 0.5, atol=1e-9)
    assert_allclose(crossings(display, display.low, display.interval_[:1]), 0.5, atol=1e-9)
    assert_allclose(crossings(display, display.high, display.interval_[1:]), 0.5, atol=1e-9)
    for drawn, label in zip(display.points_, ("down", "up"), strict=True):
        assert np.column_stack(drawn.get_data()).tolist() == X[y == label].tolist()
    assert display.colorbar_.ax.get_ylabel() == "P(y = up)"
    # Colours are of the probability or of the width.
    display = BoundaryDisplay.from_estimator(model, X, y, grid=12)
    p = display.probability
    assert (display.surface_.zmin, display.surface_.zmax) == (p.min(), p.max())
    display.plot(show="width", bar=False)
    width = display.high - display.low
    assert (display.surface_.zmin, display.surface_.zmax) == (width.min(), width.max())
    assert display.colorbar_ is None


def test_a_classifier_without_intervals_and_a_slice():
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] > X[:, 2]
    model, place = LogisticRegression().fit(X, y), {"features": (2, 0), "at": [9.0, 1.0, 9.0]}
    display = BoundaryDisplay.from_estimator(model, X, y, grid=9, **place)
    assert np.isnan(display.low).all()
    assert display.interval_ == []
    assert display.features == ("x2", "x0")
    z, x = display.x[4], display.y[7]
    assert_allclose(display.probability[7, 4], model.predict_proba([[x, 1.0, z]])[0, 1])
    # A line that is not on the map is not drawn, and makes no warning.
    place = {"features": (0, 2), "limits": ((5, 6), (-6, -5))}
    display = BoundaryDisplay.from_estimator(model, X, y, grid=5, **place)
    assert display.boundary_ == []


@every_case("strategy", ["uniform", "quantile"])
def test_calibration_by_brute_force(strategy):
    rng = np.random.default_rng(0)
    p = rng.beta(0.6, 0.8, 300)
    y = rng.random(300) < p**1.5
    display = CalibrationDisplay.from_predictions(y, p, n_bins=7, strategy=strategy, level=0.8)
    edges = display.edges
    assert (edges[0], edges[-1], edges.size) == (0.0, 1.0, 8)
    at, share, low, high, count = [], [], [], [], []
    for a, b in pairwise(edges):
        mine = (a <= p) & ((p < b) | (b == 1.0))
        n, k = mine.sum(), y[mine].sum()
        at.append(p[mine].mean())
        share.append(k / n)
        posterior = stats.beta(k + 0.5, n - k + 0.5)
        low.append(min(posterior.ppf(0.1), k / n))
        high.append(max(posterior.ppf(0.9), k / n))
        count.append(n)
    points, _, (bars,) = display.line_.lines
    assert_allclose(points.get_data(), [at, share], rtol=1e-12)
    drawn = np.array([[s[0, 1], s[1, 1]] for s in bars.get_segments()])
    assert_allclose(drawn, np.transpose([low, high]), rtol=1e-9)
    assert display.counts_.get_data().values.tolist() == count
    assert sum(count) == 300


def test_empty_bins_and_sure_ones():
    display = CalibrationDisplay.from_predictions([1, 1, 1, 0], [1.0, 1.0, 1.0, 0.0], n_bins=4)
    assert display.counts.tolist() == [1, 3]
    assert display.counts_.get_data().values.tolist() == [1, 0, 0, 3]
    assert display.observed.tolist() == [0.0, 1.0]
    # The share itself is in its interval.
    assert (display.low[0], display.high[1]) == (0.0, 1.0)
    assert_allclose(display.low[1], stats.beta.ppf(0.05, 3.5, 0.5))


def test_several_models_in_one_diagram(labels):
    model, X, y = labels
    first = CalibrationDisplay.from_estimator(model, X, y, n_bins=3)
    other = LogisticRegression().fit(X, y)
    options = {"n_bins": 3, "positive": "down", "name": "linear", "ax": first.ax_}
    second = CalibrationDisplay.from_estimator(other, X, y, **options)
    assert second.counts_ax_ is first.counts_ax_
    assert len(first.ax_.child_axes) == 1
    p = other.predict_proba(X)[:, 0]
    mine = p < 1.0 / 3.0
    assert_allclose(second.predicted[0], p[mine].mean())
    assert_allclose(second.observed[0], (y[mine] == "down").mean())
    p = model.predict_proba(X)[:, 1]
    assert_allclose(first.predicted[-1], p[p >= 2.0 / 3.0].mean())
    assert_allclose(first.observed[-1], (y[p >= 2.0 / 3.0] == "up").mean())
    words = [text.get_text() for text in first.ax_.get_legend().get_texts()]
    assert words == ["GPClassifier, 90 % intervals", "linear, 90 % intervals"]


def probit_ep(mu, sigma):
    """EP's standard deviation for the label 1: Rasmussen and Williams, Eq. 3.58."""
    z = mu / np.sqrt(1.0 + sigma**2)
    r = stats.norm.pdf(z) / stats.norm.cdf(z)
    return np.sqrt(sigma**2 - sigma**4 * r * (z + r) / (1.0 + sigma**2))


def test_the_ratio_of_a_table():
    display = RatioDisplay.from_table("probit-compact", grid=21, log10_sigma_range=(-1.0, 1.0))
    assert display.ratio.shape == (21, 21)
    # sigma* by multiple precision at (mu, sigma) = (0, 1), (0, 10), (10, 10), (-10, 0.1).
    for i, j, star in (
        (10, 10, 0.825215532323065547),
        (20, 10, 5.88787129847448),
        (20, 20, 7.8362110373253746),
        (0, 0, 0.0995084625737426),
    ):
        mu, sigma = display.mu[j], 10.0 ** display.log10_sigma[i]
        assert_allclose(display.ratio[i, j], star / probit_ep(mu, sigma), rtol=1e-8)
    assert_allclose(display.surface_.get_array().reshape(21, 21), display.ratio)
    assert ((display.lines_.levels > display.ratio.min()) & (display.lines_.levels < 1.0)).all()


def test_other_tables():
    path = Path(qpruntime.__file__).parent / "data" / "logistic-power-0_5.h5"
    display = RatioDisplay.from_table(path, -1, grid=5)
    assert_allclose(display.mu, np.linspace(-10.0, 10.0, 5))
    assert_allclose(display.log10_sigma, np.linspace(-2.0, 3.0, 5))
    assert display.outcome == -1.0
    # The definition, for the square root of a logistic likelihood: Eq. 8 by sums over a fine grid.
    f = np.linspace(-45.0, 35.0, 400_001)
    density = np.sqrt(special.expit(-f)) * stats.norm.pdf(f, -5.0, 10**0.5)
    mass = np.cumsum(density)
    mass = (mass - 0.5 * density) / mass[-1]
    ep = np.sqrt(np.average((f - np.average(f, weights=density)) ** 2, weights=density))
    star = np.sum(stats.norm.pdf(stats.norm.ppf(mass))) * (f[1] - f[0])
    assert_allclose([display.mu[1], display.log10_sigma[2]], [-5.0, 0.5], rtol=1e-8)
    assert_allclose(display.ratio[2, 1], star / ep, rtol=1e-6)
    opened = open_table("heaviside-compact")
    display = RatioDisplay.from_table(opened, mu_range=(-1, -0.5), log10_sigma_range=(-3, -2.9))
    # Far on the other side the tilted density is exponential.
    assert_allclose(display.ratio[0, 0], 0.90319728556863, rtol=1e-5)


def test_progress_of_an_optimiser():
    opt = Optimizer([(0.0, 1.0)], constraints=2, random_state=0)
    told = [
        *((0.9, 5.0, [1.0, 1.0]), (0.8, 1.0, [-0.1, 1.0]), (0.7, 4.0, [0.0, 0.0])),
        *((0.6, np.nan, [np.nan, np.nan]), (0.5, 4.5, [2.0, 1.0]), (0.4, 2.0, [None, 1.0])),
    ]
    for x, f, c in told:
        opt.tell([x], f=f, c=c)
    display = ProgressDisplay.from_optimizer(opt, optimum=3.5)
    assert display.feasible.tolist() == [True, False, True, False, True, False]
    assert display.line_.get_data()[0].tolist() == [1, 2, 3, 4, 5, 6]
    assert display.line_.get_data()[1].tolist() == [5.0, 5.0, 4.0, 4.0, 4.0, 4.0]
    good, bad, failed = display.points_
    assert good.get_data()[1].tolist() == [5.0, 4.0, 4.5]
    assert bad.get_data()[0].tolist() == [2, 6]
    assert failed.get_data()[0].tolist() == [4]
    assert set(display.optimum_.get_ydata()) == {3.5}


def test_progress_upwards_and_without_constraints():
    opt = Optimizer([(0.0, 1.0)], maximise=True, random_state=0)
    for x, f in ((0.1, -3.0), (0.2, 1.0), (0.3, 0.0)):
        opt.tell([x], f=f)
    display = ProgressDisplay.from_optimizer(opt)
    assert display.line_.get_ydata().tolist() == [-3.0, 1.0, 1.0]
    assert display.ax_.get_ylabel() == "objective, maximised"
    # Nothing is feasible yet.
    opt = Optimizer([(0.0, 1.0)], constraints=1, random_state=0)
    opt.tell([0.1], f=1.0, c=[-1.0])
    display = ProgressDisplay.from_optimizer(opt)
    assert display.line_ is None
    assert np.isnan(display.best).all()


def displays(labels, line, counts):
    """One display of every kind, the calibration with three models."""
    model, X, y = labels
    series, t, events, hours = counts
    opt = Optimizer([(0.0, 1.0)], constraints=1, random_state=0)
    for x, c in ((0.1, 1.0), (0.2, -1.0), (0.3, np.nan)):
        opt.tell([x], f=x if c == c else np.nan, c=[c])
    first = CalibrationDisplay.from_estimator(model, X, y, name="a model")
    for name in ("another model", "a model of a long name and many rows"):
        CalibrationDisplay.from_estimator(model, X, y, name=name, ax=first.ax_)
    return [
        first,
        FunctionDisplay.from_estimator(*line, grid=10),
        BoundaryDisplay.from_estimator(model, X, y, grid=10),
        ForecastDisplay.from_estimator(series, t, events, exposure=hours, grid=10),
        RatioDisplay.from_table("probit-compact", grid=10),
        ProgressDisplay.from_optimizer(opt, optimum=0.0),
    ]


def test_legends_are_on_the_figure_and_every_display_draws_again(labels, line, counts, closed):
    for display in displays(labels, line, counts):
        display.figure_.canvas.draw()
        axes = [display.ax_, *display.ax_.child_axes]
        for legend in filter(None, [ax.get_legend() for ax in axes]):
            box, page = legend.get_window_extent(), display.figure_.bbox
            assert not any(box.overlaps(ax.bbox) for ax in axes)
            assert page.x0 <= box.x0 < box.x1 <= page.x1, type(display).__name__
            assert page.y0 <= box.y0 < box.y1 <= page.y1, type(display).__name__
        before = {name: v for name, v in vars(display).items() if not name.endswith("_")}
        old, number = display.ax_, len(closed())
        assert display.plot() is display
        assert len(closed()) == number + 1
        assert display.ax_ is not old
        assert display.figure_ is display.ax_.figure
        # Numbers are those that there were.
        assert all(vars(display)[name] is v for name, v in before.items())
