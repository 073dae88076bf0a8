"""How hyper-parameters are integrated by default: on a grid, or by fewer nodes if these suffice."""

import numpy as np
import pytest

from qpruntime.effects import EffectsModel, Groups

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
    own, other = quick.summary(), grid.summary()
    for name in ("a: sd", "b: sd", "intercept"):
        spread = other[name]["sd"]
        assert own[name]["mean"] == pytest.approx(other[name]["mean"], abs=0.05 * spread)
        assert own[name]["sd"] == pytest.approx(spread, rel=0.02)
        assert own[name]["97.5%"] == pytest.approx(other[name]["97.5%"], abs=0.1 * spread)
    at = {"a": A[:50], "b": B[:50]}
    for mine, theirs in zip(quick.latent(at), grid.latent(at), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_few_levels_keep_the_grid():
    y = counts(FEW, A)
    assert fitted(("few", "a"), y).state_.count > 20
