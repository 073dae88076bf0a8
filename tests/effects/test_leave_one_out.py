"""Rows and groups left out, and observations yet to come, beside integrals over one effect.

Where groups are all there is, equal rows are one site and the cavity of a group is its prior: what
the model says is exact.
"""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from scipy.stats import binom, norm, poisson, t as student

from qpruntime.effects import EffectsModel, Fixed, Groups
from tests.tools.cases import refuses

G = np.arange(36) // 4
LABELS = np.array([0, 1, 1, 0, 1, 1, 1, 0, 0] * 4)
COUNTS = np.array([0, 2, 1, 5, 1, 0, 3, 2, 9] * 4)
PAIRS = np.column_stack([COUNTS % 4, np.full(36, 3 + G % 2)])
X = np.sin(1.7 * np.arange(36))
REALS = 0.5 * np.cos(2.1 * G) + 0.7 * X + 0.2 * np.tan(1.3 * np.cos(3.3 * np.arange(36)))


FAMILIES = {
    "logistic": (LABELS, lambda k, f, row: expit(f if k > 0 else -f), 1),
    "poisson": (COUNTS, lambda k, f, row: poisson.pmf(k, np.exp(f)), 40),
    "binomial": (PAIRS, lambda k, f, row: binom.pmf(k, PAIRS[row, 1], expit(f)), 4),
}
#: The trapezoid rule for smooth functions of a standard normal number: right to 1e-12.
Z = np.linspace(-9.0, 9.0, 1201)
W = norm.pdf(Z) * (Z[1] - Z[0])


@pytest.fixture(scope="module")
def groups():
    """Groups alone, by family."""
    own = {name: EffectsModel([Groups("g")], name, intercept=False, tol=1e-9) for name in FAMILIES}
    return {name: model.fit({"g": G}, FAMILIES[name][0]) for name, model in own.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_groups_left_out_beside_integrals(name, groups):
    model, (y, pmf, _) = groups[name], FAMILIES[name]
    seen, nodes = y.reshape(36, -1)[:, 0], model.state_.nodes
    rows = [0, 3, 17, 35]
    logs, below, upto = (np.zeros((len(nodes.weights), 4)) for _ in range(3))
    whole = np.zeros((len(nodes.weights), 2))
    for k, (theta,) in enumerate(nodes.theta):
        u = np.exp(theta) * Z
        each = np.array([pmf(seen[j], u, j) for j in range(36)])
        for c, row in enumerate(rows):
            weights = W * each[(G[row] == G) & (np.arange(36) != row)].prod(axis=0)
            mass = [weights @ pmf(value, u, row) / weights.sum() for value in range(seen[row] + 1)]
            below[k, c], upto[k, c] = sum(mass[:-1]), sum(mass)
            logs[k, c] = np.log(mass[-1])
        for c, g in enumerate((0, 5)):
            whole[k, c] = np.log(W @ each[g == G].prod(axis=0))
    weights = nodes.weights[:, None]
    loo = -np.log((weights * np.exp(-logs)).sum(axis=0))
    # Gauss's rules on both sides, and sites to 1e-9.
    np.testing.assert_allclose(model.loo()[rows], loo, atol=1e-7)
    shares = weights * np.exp(-logs) / (weights * np.exp(-logs)).sum(axis=0)
    low, high = (shares * below).sum(axis=0), (shares * upto).sum(axis=0)
    u = np.random.default_rng(3).uniform(size=36)[rows]
    np.testing.assert_allclose(model.pit(3)[rows], low + u * (high - low), atol=1e-6)
    found, densities = model.loo_groups(G)
    assert found.tolist() == list(range(9))
    expected = -np.log((weights * np.exp(-whole)).sum(axis=0))
    # The binomial's evidence has its coefficients, as its rows' probabilities do.
    np.testing.assert_allclose(densities[[0, 5]], expected, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_quantiles_of_observations_beside_sums(name, groups):
    model, (_, pmf, most) = groups[name], FAMILIES[name]
    levels, g = np.array([0.05, 0.4, 0.9]), np.array([2, 77])
    more = {"trials": [4, 3]} if name == "binomial" else {}
    q = model.predict_quantiles({"g": g}, levels, kind="observation", **more)
    effects = [model.state_.node(k).predict for k in range(model.state_.count)]
    for row in range(2):
        trials = more["trials"][row] if more else None
        values = np.arange((trials if trials else most) + 1)
        total = np.zeros(len(values))
        for k, predict in enumerate(effects):
            sd = float(np.exp(model.state_.nodes.theta[k, 0]))
            unit = np.zeros((1, 9))
            unit[0, g[0]] = 1.0
            mean, variance = predict(sparse.csr_array(unit))
            m, s = (mean[0], np.sqrt(variance[0])) if row == 0 else (0.0, sd)
            f = m + s * Z
            p = [W @ (binom.pmf(v, trials, expit(f)) if trials else pmf(v, f, 0)) for v in values]
            total += model.state_.nodes.weights[k] * np.array(p)
        assert q[row].tolist() == values[np.searchsorted(np.cumsum(total), levels)].tolist()


def test_heavy_tails_left_out_and_ahead():
    """Student-t observations with a covariate: cavities by dense algebra, integrals of both."""
    data = {"g": G, "x": X}
    terms = [Fixed("x"), Groups("g")]
    model = EffectsModel(terms, "student-t", integrate="mode", standardise=False)
    model.fit(data, REALS)
    state = model.state_
    own = state.likelihood(0)
    nu, scale = own.parameters["nu"], own.parameters["scale"]
    theta = state.split(state.nodes.theta[0])[0]
    A, Q = state.A.toarray(), state.assembly.precision(theta)[0].toarray()
    tau, pulls = state.sites[0]
    V = np.linalg.inv(Q + A.T @ (tau[:, None] * A))
    mean, variance = A @ V @ (A.T @ pulls), np.einsum("ij,jk,ik->i", A, V, A)
    kept = 1.0 - tau * variance
    m, v = (mean - variance * pulls) / kept, variance / kept
    found = model.pit()

    def upto(y, m, v):
        return W @ student.cdf(y, nu, loc=m + np.sqrt(v) * Z, scale=scale)

    for row in (0, 8, 20):
        assert abs(found[row] - upto(REALS[row], m[row], v[row])) < 1e-8
    q = model.predict_interval(data, 0.8, kind="observation")
    for row in (1, 30):
        ends = [upto(end, mean[row], variance[row]) for end in q[row]]
        np.testing.assert_allclose(ends, [0.1, 0.9], atol=1e-8)
    grid = EffectsModel(terms, "student-t", family_bounds={"scale": "fixed"}, integrate="grid")
    grid.fit(data, REALS)
    q = grid.predict_quantiles({"g": G[:2], "x": X[:2]}, [0.1, 0.7], kind="observation")
    at = grid.state_.at_rows()
    own = grid.state_.likelihood(0)
    nu, scale = own.parameters["nu"], own.parameters["scale"]
    for row in range(2):
        nodes = zip(at.mean, at.variance, strict=True)
        each = [[upto(end, m[row], v[row]) for end in q[row]] for m, v in nodes]
        np.testing.assert_allclose(at.weights @ np.array(each), [0.1, 0.7], atol=1e-8)


def test_what_has_no_quantiles_is_said(groups):
    for name, trials, words in (
        ("logistic", 3, 'trials are for family "binomial", not labels'),
        ("binomial", 1.5, r"whole numbers from 0 on, got 1\.5 in row 0"),
        ("binomial", [1, 2], "trials must be a number or have shape"),
    ):
        given = {"kind": "observation", "trials": trials}
        refuses(words, groups[name].predict_quantiles, {"g": [1]}, 0.5, **given)
    words = 'trials are for kind="observation"'
    refuses(words, groups["binomial"].predict_quantiles, {"g": [1]}, 0.5, trials=3)
    refuses("labels must have shape", groups["poisson"].loo_groups, [1, 2])


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_corrected_effects_beside_integrals(name, groups):
    """Groups alone: the density of an effect is its prior times its rows."""
    model, (y, pmf, _) = groups[name], FAMILIES[name]
    levels, nodes = np.array([0.05, 0.5, 0.95]), model.state_.nodes
    corrected = model.effects("g", levels, above=0.2, correction="fact")
    normal = model.effects("g", levels)
    # Of the quantiles, the largest error in standard deviations.
    errors = np.zeros(2)
    for g in (0, 3, 8):
        f = np.linspace(-12.0, 12.0, 8001) * np.exp(nodes.theta.max())
        density = np.zeros(f.size)
        for (theta,), weight in zip(nodes.theta, nodes.weights, strict=True):
            own = norm.pdf(f, scale=np.exp(theta))
            own *= np.prod([pmf(y[j], f, j) for j in np.flatnonzero(g == G)], axis=0)
            density += weight * own / own.sum()
        mean = density @ f
        std = np.sqrt(density @ (f - mean) ** 2)
        cdf = np.cumsum(density) - 0.5 * density
        right = np.interp(levels, cdf, f)
        row = corrected.values[g]
        # As fine as the grid of `Marginals`.
        np.testing.assert_allclose(row[:2], [mean, std], atol=2e-3 * std)
        assert abs(row[5] - (1.0 - np.interp(0.2, f, cdf))) < 1e-3
        for k, table in enumerate((corrected, normal)):
            errors[k] = max(errors[k], np.abs((table.values[g, 2:5] - right) / std).max())
    assert errors[0] < 3e-3
    assert errors[1] > 5.0 * errors[0]
