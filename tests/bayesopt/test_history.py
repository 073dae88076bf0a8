"""Evaluations that fail: the search goes on elsewhere, and what is told partly stays awaited."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from qpruntime.bayesopt import Optimizer
from qpruntime.bayesopt.history import Failing, failing
from qpruntime.bayesopt.surrogate import Surrogate
from tests.tools.cases import refuses


def apart(fails, count, **options):
    """Points of a decoupled search of x0 + x1 with x0 >= .2, each function failing by itself."""
    options = {"n_samples": 2, "noise": 0.0, "random_state": 0, **options}
    opt = Optimizer([(0, 1)] * 2, 1, **options)
    asked = []
    for _ in range(count):
        x, which = opt.ask(decoupled=True)
        value = [x[0] + x[1], x[0] - 0.2][which]
        value = np.nan if fails(x, which) else value
        opt.tell(x, f=value if which == 0 else None, c=[value] if which == 1 else None)
        asked.append((*x, which))
    return opt, np.array(asked)


def test_the_design_goes_on_after_failures():
    opt, asked = apart(lambda x, which: True, 6)
    assert len(np.unique(asked, axis=0)) == 6
    assert len(np.unique(asked[:, :2], axis=0)) == 3
    assert not opt.pending
    assert opt.columns()["failed"] == ["f", "c1"] * 3
    refuses("nothing is observed", opt.recommend)


def test_where_evaluations_fail_none_is_asked_for_long():
    """Everything above x0 = .5 fails: once .754 was asked from the third call to the last."""
    opt, asked = apart(lambda x, which: x[0] > 0.5, 13)
    assert len(np.unique(asked, axis=0)) == 13
    # The design has four of the points that fail; the rest looks for their edge, once or twice.
    assert (asked[6:, 0] > 0.5).sum() <= 2
    assert opt.recommend()[0] <= 0.5
    assert opt.probability([[0.9, 0.2]])[0] < 0.5


def test_points_asked_together_fail_together():
    opt = Optimizer([(0, 1)], 1, noise=0.0, n_samples=2, random_state=0, n_initial=3)
    asked = []
    for _ in range(8):
        x = opt.ask()
        bad = x[0] > 0.5
        opt.tell(x, f=np.nan if bad else -x[0], c=[np.nan] if bad else [1.0])
        asked.append(x[0])
    assert len(set(asked)) == 8
    # Both functions fail at once: one constraint of success, not two.
    found = failing(opt._history)
    assert found.of == [0, 0]
    assert [len(y) for _, _, y in found.data] == [8]
    # The best point that succeeds is at .5, which is not known, and .9 is known to fail.
    assert 0.3 < opt.recommend()[0] < 0.55


def test_what_an_evaluation_is_expected_to_tell():
    """P(success) times the gain, plus the gain of knowing whether it succeeds."""
    U = np.array([[0.0], [9.0]])
    s = Surrogate(RBF(0.1), [[0.0]], [0.8], noise=1.0)
    mean, variance = 0.4, 0.5  # at 0, by hand; at 9, the prior
    chance = np.array([0.7141961776, 0.5])  # Phi(.4/sqrt(.5)) by mpmath
    assert s.predict(U)[0][0] == pytest.approx(mean)
    assert s.predict(U)[1][0] == pytest.approx(variance)
    gains = np.array([[1.0, 2.0], [3.0, 4.0], [0.1, 0.2]])
    failing = Failing([(1, np.zeros((1, 1)), np.ones(1))], [None, 0])
    both = failing.expected([[s, s, s]], gains, U, apart=True)
    want = [[1.0, 2.0], [0.1 + 3.0 * chance[0], 0.2 + 4.0 * chance[1]]]
    np.testing.assert_allclose(both, want, rtol=1e-9)
    together = failing.expected([[s, s, s]], gains, U, apart=False)
    np.testing.assert_allclose(together, both.sum(axis=0, keepdims=True), rtol=1e-14)
    assert failing.rows({0}) == {0}
    assert failing.rows({0, 1}) == {0, 1, 2}


def test_what_is_told_in_parts():
    opt = Optimizer([(0, 1)], 2, random_state=0)
    x = opt.ask()
    opt.tell(x, c=[1.0, None])  # f and c2 are still to come
    assert opt.columns()["awaited"] == ["f c2"]
    opt.tell(x, f=np.nan, c=[None, 2.0])
    assert not opt.pending
    assert opt.columns()["failed"] == ["f"]
    opt.tell(x, f=0.5)  # tried again
    assert "failed" not in opt.columns()
    assert opt.columns()["f"] == [0.5]
    opt.tell([0.5], f=1.0, c=[2.0, np.nan], id=np.int64(7))  # not asked for: c2 not evaluated
    assert "failed" not in opt.columns()
    opt.tell([0.6], f=np.nan)
    opt.forget(2)
    assert opt.columns()["failed"] == ["", "", "f"]
    x = opt.ask()
    opt.tell(x)
    assert opt.columns()["failed"][3] == "f c1 c2"
    for wrong in (1.5, [1], True):
        refuses("id must be", opt.tell, [0.5], f=1.0, id=wrong)


def test_a_number_is_the_value_of_one_constraint():
    for value in (0.25, np.float64(0.25), np.array(0.25), [0.25]):
        opt = Optimizer([(0, 1)], 1, random_state=0)
        opt.tell([0.5], c=value)
        assert opt.columns()["c1"] == [0.25]
    opt.tell([0.5], f=np.nan)
    opt.ask()
    assert repr(opt) == (
        "<Optimizer: minimises over 1 variable; 1 constraint, 3 evaluations, 1 pending, 1 failed; "
        "method='ep', random_state=0>"
    )
    for constraints, words in ((0, "there are no constraints"), (2, "list of 2 values")):
        refuses(words, Optimizer([(0, 1)], constraints).tell, [0.5], c=0.25)


def test_values_whose_squares_are_nothing():
    """Values of 1e-200 lead where those of 1 do; so does a noise that is far above them."""
    found = []
    for size in (1.0, 1e-200, 1e90):
        opt = Optimizer([(0, 1)], 1, noise=0.0, n_samples=2, random_state=0)
        for x in (0.1, 0.4, 0.8):
            opt.tell([x], f=size * (x - 0.5) ** 2, c=[size * (x - 0.2)])
        found.append([opt.ask()[0], opt.recommend()[0], *(opt.predict([[0.3]])[0].ravel() / size)])
    # Roundings differ in the last digit, which a search amplifies.
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-3)
    opt = Optimizer([(0, 1)], noise=1e-4, n_samples=2, random_state=0)
    for x in (0.1, 0.4):
        opt.tell([x], f=1e-200 * x)
    assert 0.0 <= opt.ask()[0] <= 1.0
    assert np.isfinite(opt.predict([[0.3]])).all()
