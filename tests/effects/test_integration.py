"""How hyper-parameters are integrated by default: nodes, weights, and deviations near zero."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.stats import halfnorm

from qpruntime.effects import EffectsModel, Groups, integration
from qpruntime.effects.integration import _Coordinates, integrate
from qpruntime.effects.model import fit_from
from qpruntime.effects.objective import ObjectiveValue
from qpruntime.effects.optimise import Mode, curvature
from qpruntime.effects.results import weighted_quantiles

N = 2400
A, B = np.arange(N) % 240, np.arange(N) // 15
FEW = np.arange(N) % 5
ROWS = {"a": A, "b": B, "few": FEW}


def counts(*effects):
    rng = np.random.default_rng(3)
    own = sum(rng.normal(0.0, 0.7, levels.max() + 1)[levels] for levels in effects)
    return rng.poisson(np.exp(1.0 + own))


def fitted(names, y, rows=N, **options):
    columns = {name: ROWS[name][:rows] for name in names}
    terms = [Groups(name) for name in names]
    return EffectsModel(terms, "poisson", correction=None, **options).fit(columns, y[:rows])


def test_two_that_are_well_known_take_a_design_that_says_what_the_grid_says():
    y = counts(A, B)
    quick, grid = fitted("ab", y), fitted("ab", y, integrate="grid")
    assert quick.state_.count < 12 < 30 < grid.state_.count
    assert fitted(("few", "a"), counts(FEW, A)).state_.count > 20  # few levels keep the grid
    own, other = quick.summary(), grid.summary()
    for name in ("a: sd", "b: sd", "intercept"):
        spread = other[name]["sd"]
        assert own[name]["mean"] == pytest.approx(other[name]["mean"], abs=0.05 * spread)
        assert own[name]["sd"] == pytest.approx(spread, rel=0.02)
        assert own[name]["97.5%"] == pytest.approx(other[name]["97.5%"], abs=0.1 * spread)
    at = {"a": A[:50], "b": B[:50]}
    for mine, theirs in zip(quick.latent(at), grid.latent(at), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


#: A half-normal deviation, and two other hyper-parameters whose means are linear in its square.
SPREAD, SHIFTS = 0.4, np.array([0.2, -0.1])
COVARIANCE = np.array([[0.04, 0.012], [0.012, 0.09]])
PRECISION = np.linalg.inv(COVARIANCE)


class HalfNormal:
    """Log density of (log s, t): s is half-normal, and t normal around shifts * s^2."""

    size, tol = 3, 1e-9
    bounds = np.tile([-12.0, 12.0], (3, 1))
    assembly = SimpleNamespace(names=("a: log sd", "b: log range", "c: log range"))
    nearby = SimpleNamespace(add=lambda *_: None)

    def __init__(self, shifts):
        self.shifts = shifts

    def __call__(self, theta, tol=None, with_slope=True):
        square = np.exp(2.0 * theta[0])
        away = theta[1:] - self.shifts * square
        pull = PRECISION @ away
        evidence = -0.5 * square / SPREAD**2 - 0.5 * away @ pull
        slope = np.append(-square / SPREAD**2 + 2.0 * square * self.shifts @ pull, -pull)
        posterior = SimpleNamespace(sites=None)
        # The density of log s has the Jacobian s.
        jacobian = np.array([1.0, 0.0, 0.0])
        return ObjectiveValue(theta, posterior, evidence, slope, theta[0], jacobian, 1e-9)


def nodes_of(shifts):
    objective = HalfNormal(shifts)
    centre = objective(np.append(np.log(SPREAD), shifts * SPREAD**2))
    np.testing.assert_allclose(centre.slope, 0.0, atol=1e-12)
    return integrate(objective, Mode(centre, 1, True, ""), "auto", lambda one: one.value)[0]


def test_coordinates_near_zero_carry_their_jacobian():
    mode, spreads = np.array([-1.3, 0.2, 0.5]), np.array([0.7, 0.3, 0.4])
    scale = _Coordinates(mode, np.diag(spreads**-2.0), spreads, np.array([0, 2]))
    steps = np.array([[-2.0, 1.0], [-1.0, -2.0], [3.0, 2.0]])

    def slope(at, k):
        step = 1e-5 * np.eye(2)[k]
        ends = [scale.log_deviations(at + sign * step)[0][..., k] for sign in (1.0, -1.0)]
        return (ends[0] - ends[1]) / 2e-5

    at_mode = np.zeros(2)
    jacobian = [slope(steps, k) / slope(at_mode, k) for k in (0, 1)]
    expected = jacobian[0] * jacobian[1]
    np.testing.assert_allclose(np.exp(scale.log_deviations(steps)[1]), expected, rtol=1e-7)
    # The lattice is even in s: half a step below its last node is 0.
    assert np.exp(scale.log_deviations(-scale.below)[0]) == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize(("drop", "thin"), [(4.0, 0), (3.0, 1)])
def test_weights_along_the_lattice_are_those_of_the_marginal_density(monkeypatch, drop, thin):
    """The last node of the lattice has the others at their mode alone if it is below the drop."""
    monkeypatch.setattr(integration, "_LATTICE_DROP", drop)
    nodes = nodes_of(np.zeros(2))
    logs, place = np.unique(nodes.theta[:, 0].round(9), return_inverse=True)
    assert len(logs) > 4
    s, sums = np.exp(logs), np.bincount(place, nodes.weights)
    # s = c sinh v with 2 c at most the mode: d s / d v = sqrt(s^2 + c^2).
    exact = halfnorm.pdf(s, scale=SPREAD) * np.sqrt(s**2 + (SPREAD / 2.0) ** 2)
    np.testing.assert_allclose(sums, exact / exact.sum(), rtol=1e-6)
    full = np.flatnonzero(np.bincount(place) > 1)
    assert len(full) == len(logs) - thin
    for k in full:
        inner = nodes.weights * (place == k) / sums[k]
        np.testing.assert_allclose(inner @ nodes.theta[:, 1:], 0.0, atol=1e-9)
        spread = (nodes.theta[:, 1:].T * inner) @ nodes.theta[:, 1:]
        np.testing.assert_allclose(spread, COVARIANCE, rtol=1e-5)


@pytest.mark.parametrize(
    ("shifts", "tolerance"), [(np.zeros(2), 0.01), (SHIFTS, 0.05)], ids=["independent", "dependent"]
)
def test_half_normal_deviations_keep_their_moments_and_quantiles(shifts, tolerance):
    nodes = nodes_of(shifts)
    q = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
    quantiles = weighted_quantiles(np.exp(nodes.draws[:, 0]), nodes.draw_weights, q)
    std = halfnorm.std(scale=SPREAD)
    np.testing.assert_allclose(quantiles, halfnorm.ppf(q, scale=SPREAD), atol=tolerance * std)
    for values, weights, limit in (
        (nodes.draws, nodes.draw_weights, 0.01),
        (nodes.theta, nodes.weights, 0.02),
    ):
        s = np.exp(values[:, 0])
        assert weights @ s == pytest.approx(halfnorm.mean(scale=SPREAD), abs=limit * std)
        assert weights @ s**2 == pytest.approx(SPREAD**2, rel=2.0 * limit)
        others = weights @ values[:, 1:]
        spreads = np.sqrt(COVARIANCE.diagonal() + 2.0 * shifts**2 * SPREAD**4)
        np.testing.assert_allclose(others, shifts * SPREAD**2, atol=2.0 * limit * spreads.min())
        within = np.sqrt(weights @ (values[:, 1:] - others) ** 2)
        np.testing.assert_allclose(within, spreads, rtol=2.0 * limit)


def crossed(family, seed, rows=240):
    """Return three crossed groups of which the last one has no effects, and y."""
    rng = np.random.default_rng(seed)
    sizes = {"a": 20, "b": 15, "c": 12}
    data = {name: rng.integers(0, size, rows) for name, size in sizes.items()}
    eta = rng.normal(0.0, 0.7, 20)[data["a"]] + rng.normal(0.0, 0.5, 15)[data["b"]]
    if family == "poisson":
        return data, rng.poisson(np.exp(1.0 + eta))
    if family == "gaussian":
        return data, 2.0 + eta + rng.normal(size=rows)
    return data, (rng.logistic(size=rows) + eta > 0.0).astype(int)


def three_groups(family, **options):
    return EffectsModel([Groups(name) for name in "abc"], family, **options)


def tensor_grid(model, low=-6.9, step=0.35):
    """Return means, deviations and quantiles of standard deviations by a grid of log s (3,).

    The nodes of the last one reach from the bound on, those of the others over 4 deviations.
    """
    objective = model.state_.objective()
    centre = objective(model.theta_)
    spreads = np.sqrt(np.diag(np.linalg.inv(curvature(objective, centre))))
    around = [t + s * np.arange(-4.0, 4.1, 1.0) for t, s in zip(model.theta_, spreads, strict=True)]
    axes = [*around[:2], np.arange(low, model.theta_[2] + 2.2, step)]
    points = list(itertools.product(*axes))
    logs = np.array([objective(point, 1e-5, with_slope=False).value for point in points])
    logs = logs.reshape([len(axis) for axis in axes])
    density = np.exp(logs - logs.max())
    rows = []
    for k, axis in enumerate(axes):
        marginal = density.sum(axis=tuple({0, 1, 2} - {k}))
        t = np.linspace(axis[0], axis[-1], 4001)
        w = np.exp(CubicSpline(axis, np.log(marginal))(t))
        w, s = w / w.sum(), np.exp(t)
        mean = w @ s
        quantiles = np.interp((0.025, 0.5, 0.975), np.cumsum(w), s)
        rows.append([mean, np.sqrt(w @ (s - mean) ** 2), *quantiles])
    return np.array(rows)


@pytest.mark.slow
def test_three_deviations_of_which_one_is_zero_beside_a_fine_grid():
    model = three_groups("poisson", correction=None).fit(*crossed("poisson", 2, rows=120))
    values, exact = model.summary(profile=False).values[-3:], tensor_grid(model)
    assert exact[2, 2] < 0.1 * exact[2, 3] < 0.02
    away = (values - exact) / exact[:, 1:2]
    # The deviation near zero, then those whose logarithms are nearly normal.
    np.testing.assert_allclose(away[2], 0.0, atol=0.01)
    np.testing.assert_allclose(away[:2], 0.0, atol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "gaussian", "logistic"])
def test_deviations_of_no_effects_reach_zero(family):
    quantiles = []
    for seed in range(20):
        row = three_groups(family).fit(*crossed(family, seed)).summary(profile=False)["c: sd"]
        quantiles.append([row["2.5%"], row["50%"]])
    low, middle = np.median(quantiles, axis=0)
    # The noise of the predictor is about 1 in the Gaussian and logistic models.
    assert low < 0.1
    # A density that is flat towards 0 has a twentieth of the median there, or a little more.
    assert 0.03 * middle < low < 0.1 * middle


def test_no_lattice_where_no_deviation_is_near_zero():
    model = three_groups("poisson", correction=None)
    rng = np.random.default_rng(1)
    data = {"a": A, "b": B, "c": rng.integers(0, 100, N)}
    eta = 1.0 + sum(rng.normal(0.0, 0.6, 240)[levels] for levels in data.values())
    y = rng.poisson(np.exp(eta))
    nodes = model.fit(data, y).state_.nodes
    assert len(nodes.weights) == 15
    without = fit_from(model, data, y, towards_zero=False).state_.nodes
    for name in ("theta", "weights", "draws"):
        np.testing.assert_array_equal(getattr(nodes, name), getattr(without, name))


def test_correlations_out_of_bounds_leave_a_density_between_the_nodes():
    rng = np.random.default_rng(0)
    data = {"a": np.arange(60) % 12, "x": rng.normal(size=60)}
    y = rng.normal(size=60)
    nodes = EffectsModel([Groups("a", slope="x")], "gaussian").fit(data, y).state_.nodes
    assert np.isfinite(nodes.draws).all()
    assert nodes.draw_weights.sum() == pytest.approx(1.0)
    assert (nodes.draws[:, 0] < np.log(0.03)).any()
