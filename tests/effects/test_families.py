"""Observations in any unit, from any origin: the same model, reported in the units of y."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import qpruntime
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import (
    Areas,
    Autoregressive,
    EffectsModel,
    Fixed,
    Groups,
    Plane,
    Product,
    Walk,
    families,
)
from qpruntime.effects.families import _scale_of, family_of
from qpruntime.effects.fixed import FixedBlock
from tests.tools.cases import refuses

LEVEL, DAY = np.repeat(np.arange(18), 10), np.tile(np.arange(10.0), 18)
RNG = np.random.default_rng(1)
PARTS = RNG.normal(size=(18, 2)) * [25.0, 6.0]
Y = 250.0 + 10.5 * DAY + PARTS[LEVEL, 0] + PARTS[LEVEL, 1] * DAY + 25.0 * RNG.normal(size=180)
DATA = {"day": DAY, "level": LEVEL}
TERMS = [Fixed("day"), Groups("level", slope="day")]


def reported(model, data, y, unit, centre):
    """Return what a fit reports, brought to one unit and origin."""
    table, n = model.summary(), len(y)
    names = np.array(table.names)
    lengths = [n == "scale" or ": sd" in n or not (":" in n or n == "nu") for n in table.names]
    moved = np.outer(names == "intercept", np.array(table.columns) != "sd")
    return {
        "summary": table.values / np.where(lengths, unit, 1.0)[:, None] - centre / unit * moved,
        "evidence": model.log_evidence_ + n * np.log(unit),
        "loo": model.loo() + np.log(unit),
        "pit": model.pit(),
        "mean": (model.predict(data) - centre) / unit,
        "latent": model.latent(data)[1] / unit**2,
        "quantiles": (model.predict_quantiles(data, kind="observation") - centre) / unit,
        "density": model.predict_log_density(data, y) + np.log(unit),
        "above": model.exceedance(data, 260.0 * unit + centre),
        "groups": model.loo_groups(np.arange(n) // 10)[1] + 10.0 * np.log(unit),
        "draws": (model.sample(3, 0)["fixed"][:, 0] - centre) / unit,
    }


@pytest.mark.parametrize(
    "family",
    ["gaussian", *(pytest.param(f, marks=pytest.mark.slow) for f in ("student-t", "laplace"))],
)
def test_units_and_origin_of_y_change_nothing(family, tmp_path):
    options = {"integrate": "mode", "correction": None, "tol": 1e-10}
    base = reported(EffectsModel(TERMS, family, **options).fit(DATA, Y), DATA, Y, 1.0, 0.0)
    for unit, centre in ((1e-6, 0.0), (1e9, 0.0), (1e3, 1.5e8)):
        y = unit * Y + centre
        model = EffectsModel(TERMS, family, **options).fit(DATA, y)
        model.save(tmp_path / f"{unit}.qpr")
        own = reported(qpruntime.load(tmp_path / f"{unit}.qpr"), DATA, y, unit, centre)
        for name, value in base.items():
            np.testing.assert_allclose(own[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("terms", "family"),
    [
        ([Walk("day", 2)], "gaussian"),
        ([Autoregressive("day")], "gaussian"),
        ([Plane("day", "level", spacing=5.0)], "gaussian"),
        ([Fixed("day"), Areas("level", [(k, k + 1) for k in range(17)])], "gaussian"),
        ([Areas("level", [(k, k + 1) for k in range(17)], model="icar")], "laplace"),
        ([Product(Autoregressive("day"), Plane("day", "level", spacing=6.0))], "student-t"),
        (TERMS, "gamma"),
    ],
)
def test_units_of_y_change_no_block(terms, family):
    y, positive = (np.exp(0.01 * Y), True) if family == "gamma" else (Y, False)
    unit, shift = 1e6, 0.0 if positive else -4e7
    base = EffectsModel(terms, family, integrate="mode").fit(DATA, y)
    model = EffectsModel(terms, family, integrate="mode").fit(DATA, unit * y + shift)
    evidence = model.log_evidence_ + 180.0 * np.log(unit)
    assert evidence == pytest.approx(base.log_evidence_, abs=1e-4)
    if positive:
        latent = model.latent(DATA)[0] - np.log(unit)
        np.testing.assert_allclose(latent, base.latent(DATA)[0], atol=1e-5)
        return
    np.testing.assert_allclose(model.predict(DATA), unit * base.predict(DATA) + shift, rtol=1e-5)
    for name, row in base.summary():
        if ": sd" in name or name == "scale":
            assert model.summary()[name]["mean"] == pytest.approx(unit * row["mean"], rel=1e-4)


def test_maximum_likelihood_of_milliseconds():
    """Deviations of intercepts and slopes, beside the exact likelihood of a normal model."""
    Z = np.zeros((180, 36))
    Z[np.arange(180), 2 * LEVEL], Z[np.arange(180), 2 * LEVEL + 1] = 1.0, DAY
    X = np.column_stack([np.ones(180), DAY])

    def loss(at):
        L = np.array([[np.exp(at[0]), 0.0], [at[1], np.exp(at[2])]])
        V = Z @ np.kron(np.eye(18), L @ L.T) @ Z.T + np.exp(2.0 * at[3]) * np.eye(180)
        inner = np.linalg.solve(V, X)
        beta = np.linalg.solve(X.T @ inner, inner.T @ Y)
        return -multivariate_normal(X @ beta, V).logpdf(Y)

    found = minimize(loss, [3.0, 0.0, 1.5, 3.0], method="L-BFGS-B").x
    L = np.array([[np.exp(found[0]), 0.0], [found[1], np.exp(found[2])]])
    std = np.sqrt(np.diag(L @ L.T))
    model = EffectsModel(TERMS, "gaussian", estimate="ml").fit(DATA, 1e3 * Y)
    table = model.summary(profile=False)
    assert table["level(1 + day): sd intercept"]["mean"] == pytest.approx(1e3 * std[0], rel=5e-3)
    assert table["level(1 + day): sd day"]["mean"] == pytest.approx(1e3 * std[1], rel=5e-3)
    assert table["scale"]["mean"] == pytest.approx(1e3 * np.exp(found[3]), rel=2e-3)


def test_given_scales_and_bounds_are_in_the_units_of_y():
    likelihood = qpruntime.likelihoods.get("gaussian", scale=25e3)
    model = EffectsModel(TERMS, likelihood, integrate="mode").fit(DATA, 1e3 * Y)
    assert "scale" not in model.summary().names
    wide = model.predict_quantiles(DATA, [0.5, 0.975], kind="observation")
    variance = model.latent(DATA)[1] + 25e3**2
    np.testing.assert_allclose(wide[:, 1] - wide[:, 0], 1.959964 * np.sqrt(variance), rtol=1e-5)
    bounds = {"scale": (30e3, 60e3)}
    model = EffectsModel(TERMS, "gaussian", family_bounds=bounds, integrate="mode")
    model.fit(DATA, 1e3 * Y)
    assert model.summary()["scale"]["mean"] == pytest.approx(30e3, rel=1e-6)
    assert any("scale is at its lower bound" in one for one in model.check())


def test_a_likelihood_of_a_user_keeps_its_numbers_unless_bounds_are_given():
    own = qpruntime.Likelihood.from_log_prob(
        lambda f, y, theta: -0.5 * ((y - f) / theta[0]) ** 2 - np.log(theta[0]),
        name="own",
        theta={"scale": 2.0},
    )
    family, y = family_of(own, Y, None)
    assert family.likelihood is own
    assert not family.learn
    np.testing.assert_array_equal(y, Y)
    assert family_of(own, Y, {"scale": (0.5, 9.0)})[0].learn == {"scale": (0.5, 9.0)}
    refuses("has no parameter 'flip'", family_of, "logistic", Y > 0.0, {"flip": "fixed"})
    # Observations that are all equal have a unit.
    for value, unit in ((7.0, 7.0), (-3.0, 3.0), (0.0, 1.0)):
        assert _scale_of(np.full(5, value), True, None) == (value, unit)


def test_means_of_a_gaussian_and_of_normal_log_rates():
    model = EffectsModel([Fixed("day")], "gaussian").fit(DATA, Y)
    slope, start = np.polyfit(DAY, Y, 1)
    np.testing.assert_allclose(model.predict(DATA), start + slope * DAY, rtol=1e-5)
    family, _ = family_of("poisson", np.array([0.0, 2.0, 5.0]), None)
    variance = np.array([0.1, 1.0])
    found = family.mean(family.likelihood, np.array([0.3, 0.3]), variance)
    np.testing.assert_allclose(found, np.exp(0.3 + variance / 2.0), rtol=1e-14)


COUNTED = RNG.integers(1, 4, size=180)
#: Weights, and rows that are repeated as often: the same data.
WEIGHTED = {
    "whole weights": (COUNTED.astype(float), np.repeat(np.arange(180), COUNTED)),
    "weight 0.3 for every row": (np.full(180, 0.3), np.arange(180)),
}


@pytest.mark.parametrize("case", WEIGHTED)
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("family", ["gaussian", "student-t", "gamma"])
def test_units_of_weighted_observations_are_those_of_repeated_ones(family, centred, case):
    weights, rows = WEIGHTED[case]
    y = np.exp(0.01 * Y) if family == "gamma" else Y
    weighted, _ = family_of(family, y, None, centred=centred, weights=weights)
    repeated, _ = family_of(family, y[rows], None, centred=centred)
    plain, _ = family_of(family, y, None, centred=centred)
    assert weighted.centre == pytest.approx(repeated.centre, rel=1e-12)
    assert weighted.unit == pytest.approx(repeated.unit, rel=1e-12)
    if case == "whole weights" and (centred or family != "gamma"):
        assert (plain.centre, plain.unit) != (repeated.centre, repeated.unit)


@pytest.mark.parametrize("case", WEIGHTED)
def test_units_of_weighted_columns_are_those_of_repeated_ones(case):
    weights, rows = WEIGHTED[case]
    data = DataColumns(DATA)
    fixed, groups = FixedBlock(TERMS[:1], data, 10.0, weights), TERMS[1].bind(data, weights)
    plain = FixedBlock(TERMS[:1], data.take(rows), 10.0), TERMS[1].bind(data.take(rows))
    for weighted, repeated in zip((fixed, groups), plain, strict=True):
        np.testing.assert_allclose(weighted.centre, repeated.centre, rtol=1e-12)
        np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-12)


def test_rows_of_one_predictor_are_searched_once_and_in_any_order(monkeypatch):
    model = EffectsModel(TERMS, "gaussian", integrate="mode").fit(DATA, Y)
    asked, search = [], families._searched

    def counted(mixture, *rest):
        asked.append(mixture.mean.shape[1])
        return search(mixture, *rest)

    monkeypatch.setattr(families, "_searched", counted)
    whole = model.predict_quantiles(DATA, kind="observation")
    rows = np.array([7, 170, 7, 0, 170, 3])
    some = {name: column[rows] for name, column in DATA.items()}
    # The search goes on until it has ended for all rows.
    found = model.predict_quantiles(some, kind="observation")
    np.testing.assert_allclose(found, whole[rows], rtol=1e-12)
    assert asked == [180, 4]
