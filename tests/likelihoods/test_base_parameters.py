"""Parameters of likelihoods: spelling, limits, identity, and where they travel."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from qpruntime import TableError, likelihoods, open_table, project
from qpruntime._formatting import spell
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.problem import Problem
from qpruntime.learning.objective import parameter_slopes
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen.grid.plan import make_plan
from tests.tools.cases import every_case, refuses

pytestmark = pytest.mark.interpreted


def test_one_object_for_one_spelling():
    ours = get("student-t", nu=7, scale=0.1 + 0.2)
    assert ours.spelt == "student-t(nu=7, scale=0.30000000000000004)"
    assert ours.name == "student-t"
    for same in (
        get("student-t( scale = 0.30000000000000004,nu=7.0 )"),
        get("student-t(nu=7)", scale=0.1 + 0.2),
        get(ours),
        get(get("student-t", nu=7), scale=0.1 + 0.2),
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
    ):
        assert same.spelt == ours.spelt
        assert same.parameters == {"nu": 7.0, "scale": 0.1 + 0.2}
        np.testing.assert_array_equal(same.theta, ours.theta)
    assert get(ours.spelt) is ours
    assert get("student-t()") is get("student-t") is get("student-t", nu=4)
    assert pickle.loads(pickle.dumps(ours)) is ours
    assert get("probit").spelt == "probit"
    assert pickle.loads(pickle.dumps(get("probit"))) is get("probit")
    assert pickle.loads(pickle.dumps(replace(get("probit"), name="mine"))).name == "mine"
    # Metadata spell the likelihood.
    axes = (Axis("mu", 0.0, 1.0, 2), Axis("log10_sigma", 0.0, 1.0, 2))
    given = "student-t", [0.0], axes, "float64", "direct", "test"
    document = Metadata(*given, parameters={"nu": 3.0, "scale": 0.5})
    again = Metadata.from_json(document.to_json(), "here")
    assert get(again.spelt) is get("student-t", nu=3, scale=0.5)


@pytest.mark.parametrize("parameters", [{"nu": 1.0, "scale": 0.3}, {"nu": 80.0, "scale": 25.0}])
def test_parameters_reach_the_density(parameters):
    f, y = np.linspace(-9.0, 9.0, 7), 1.3
    expected = stats.t.logpdf(y - f, parameters["nu"], scale=parameters["scale"])
    np.testing.assert_allclose(get("student-t", **parameters).log_prob(f, y), expected, rtol=1e-13)
    spelt = project(spell("student-t", parameters), f, 2.0, y, method="ep")
    np.testing.assert_array_equal(spelt, project(get("student-t", **parameters), f, 2.0, y, "ep"))
    assert not np.array_equal(spelt, project("student-t", f, 2.0, y, method="ep"))


@every_case(
    ("text", "words"),
    [
        ("student-t(nu=0)", r"nu of likelihood 'student-t' must be a number from 0.1 to 1e\+06"),
        ("student-t(scale=-1)", "scale of likelihood"),
        ("student-t(nu=nan)", "got nan"),
        ("student-t(df=3)", "no parameter 'df'; its parameters: nu, scale"),
        ("student-t(3)", "cannot read '3' in"),
        ("student-t(nu=3, nu=4)", "cannot read 'nu=4'"),
        ("student-t(nu=three)", "cannot read 'nu=three'"),
        ("probit(nu=3)", "no parameter 'nu'; its parameters: it has none"),
        ("student-s(nu=3)", "unknown likelihood"),
        ("student-t(nu=3", "unknown likelihood"),
    ],
)
def test_refuses(text, words):
    refuses(words, get, text)


def test_refuses_values_and_tables(tmp_path, monkeypatch):
    for value in (None, "3", [1.0], np.inf, 1j):
        refuses("must be a number", get, "student-t", nu=value)
    refuses("given twice", get, "student-t(nu=3)", nu=3)
    refuses("real numbers: a grid has one slab per observation", make_plan, "student-t(nu=3)")
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    # What is behind the dot is no suffix.
    words = r"no table 'student-t\(scale=0.3\)' in"
    refuses(words, open_table, "student-t(scale=0.3)", error=TableError)


def test_every_parameter_has_limits_starts_and_bounds():
    for name in likelihoods.names():
        likelihood = get(name)
        assert set(likelihood.limits) == set(likelihood.parameters)
        for parameter, value in likelihood.parameters.items():
            low, high = likelihood.limits[parameter]
            assert 0.0 < low < value < high
            for end in (low, high):
                assert np.isfinite(get(name, **{parameter: end}).theta).all()

    def starts(name, spread=1.0):
        made = get(name)
        return {parameter: made.default_start(parameter, spread) for parameter in made.parameters}

    assert starts("student-t", 5.0) == {"nu": 4.0, "scale": 1.5}
    assert starts("hurdle") == {"dispersion": 1.0, "zeros": 0.2}
    assert starts("gamma") == {"shape": 2.0}
    # Under a kernel a scale has bounds in spreads of y, or follows from its start, as others do.
    assert get("laplace").default_bounds("scale", 5.0) == pytest.approx((0.01, 500.0))
    assert get("laplace").default_bounds("scale") == pytest.approx((1e-4, 1e4))
    assert get("gaussian").default_bounds("scale", 5.0) == pytest.approx((5e-5, 500.0))
    assert get("gaussian", scale=1e9).default_bounds("scale", 5.0) == pytest.approx((5e-5, 1e9))
    assert get("zero-inflated").default_bounds("zeros") == (1e-4, 0.99)
    assert get("noisy-probit").default_bounds("flip") == (1e-4, 0.4)
    # The least shape is the limit of the likelihood.
    assert get("gamma").default_bounds("shape") == pytest.approx((1e-3, 2e4))
    # Effects keep shares of zeros as they are, and N zeros bound a rate.
    assert get("gaussian").effect_bounds("scale", 5.0, 30) == pytest.approx((5e-4, 500.0))
    assert get("hurdle").effect_bounds("dispersion", 5.0, 30) == pytest.approx((2.0 / 30.0, 1e6))
    assert get("hurdle").effect_bounds("zeros", 5.0, 30) is None


@pytest.mark.parametrize("end", [0, 1])
def test_slopes_at_a_limit(end):
    # There central differences have nowhere to go; one-sided ones of second order say the slope.
    name, sign = ("dispersion", 1.0) if end == 0 else ("nu", -1.0)
    likelihood, y = (get("negative-binomial"), 3.0) if end == 0 else (get("student-t"), 6.0)
    limit, h = likelihood.limits[name][end], 1e-2 * sign
    mu, sigma = np.array([0.5]), np.array([1.2])
    values = [
        project_arrays(get(likelihood, **{name: limit * np.exp(k * h)}), mu, sigma, y, "ep").log_z
        for k in range(3)
    ]
    expected = (4.0 * values[1] - 3.0 * values[0] - values[2]) / (2.0 * h)
    projector = Projector(get(likelihood, **{name: limit}), "ep")
    problem = Problem(DensePrior(np.eye(1), np.zeros(1)), np.array([y]), projector)
    slope = parameter_slopes(problem, [name], mu, sigma)[0][0]
    # It changes by a percent over the two steps inside.
    np.testing.assert_allclose(slope, expected, rtol=0.02)


def test_slopes_of_normal_noise_are_those_of_differences():
    rng = np.random.default_rng(4)
    mu, sigma, y = rng.standard_normal(6), rng.uniform(0.1, 3.0, 6), 2.0 * rng.standard_normal(6)
    own, slopes = get("gaussian", scale=0.7), []
    for weights in (None, np.ones(6)):
        # Weights, even of 1, take the general way, by differences of projections.
        prior, projector = DensePrior(np.eye(6), np.zeros(6)), Projector(own, "ep")
        problem = Problem(prior, y, projector, weights=weights)
        slopes.append(parameter_slopes(problem, ["scale"], mu, sigma))
    np.testing.assert_allclose(slopes[0][0], slopes[1][0], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(slopes[0][1], slopes[1][1], rtol=1e-8, atol=1e-8)
