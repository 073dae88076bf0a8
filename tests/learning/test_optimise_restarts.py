"""Restarts that end at the same parameters have the same value, or a warning says otherwise."""

import numpy as np
import pytest

from qpruntime import ConvergenceWarning, GPPoissonRegressor, Search
from qpruntime.learning import optimise
from qpruntime.learning.optimise import Optimum, several_fixed_points
from tests.tools.cases import every_case


def run(theta, value, slope=0.0, success=True):
    theta = np.array(theta)
    return Optimum(theta, value, 5, 9, success, "", theta, slope=np.full(theta.size, slope))


@every_case(
    ("other", "said"),
    [
        (run([0.1, 1.001], -48.94), True),
        (run([0.1, 1.001], -48.381), False),  # the same value
        (run([0.1, 2.0], -48.94), False),  # another optimum
        (run([0.1, 1.009], -48.94, slope=100.0), False),  # steep: the distance explains it
        (run([0.1, 1.001], -48.94, success=False), False),
    ],
)
def test_what_is_said(other, said):
    first = run([0.1, 1.0], -48.38)
    assert several_fixed_points([first]) == []
    advice = several_fixed_points([first, other])
    assert bool(advice) == said
    assert not said or "-48.38 and -48.94" in advice[0]


def test_a_fit_warns(monkeypatch):
    """The second run is given another value where it ends at the same parameters."""
    whole, seen = optimise.maximise, []

    def shifted(*args, **kwargs):
        optimum, sites = whole(*args, **kwargs)
        seen.append(optimum)
        first = seen[0]
        if len(seen) > 1:
            optimum = run(first.theta, first.value - 0.5)
        return optimum, sites

    monkeypatch.setattr(optimise, "maximise", shifted)
    X = np.linspace(0.0, 6.0, 25)[:, None]
    counts = np.random.default_rng(4).poisson((1.5 + np.sin(X[:, 0])) ** 2)
    with pytest.warns(ConvergenceWarning, match="several fixed points there"):
        GPPoissonRegressor(optimize=Search(restarts=1), random_state=0, n_jobs=1).fit(X, counts)
