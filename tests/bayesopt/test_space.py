"""Integers, categories, logarithms and names: the unit cube and back, and searches of them."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from qpruntime.bayesopt import Category, Integer, Optimizer, Real, sample_minimisers
from qpruntime.bayesopt.minimisers import draw
from qpruntime.bayesopt.space import Space, space_of
from qpruntime.bayesopt.surrogate import Surrogate
from tests.tools.cases import every_case, refuses

KERNEL = RBF(0.5)
WIDE = Surrogate(KERNEL, np.zeros((0, 21202)), [])
SPACE = {
    "rate": Real(1e-5, 1e-1, log=True),
    "layers": Integer(1, 8),
    "width": Integer(1, 1024, log=True),
    "shape": Category(["a", "b", "c"]),
    "flag": Category([True, False]),
    "x": (-1.0, 3.0),
}


def test_every_value_has_its_place():
    space = space_of(None, SPACE)
    assert space.d == 8
    P = space.take_all(
        [
            {"rate": 1e-3, "layers": 3, "width": 32, "shape": "b", "flag": False, "x": 0.0},
            {"rate": 1e-5, "layers": np.int64(8), "width": 1, "shape": "c", "flag": True, "x": 3},
        ]
    )
    # By hand: layer 3 of 8 has the third cell, 32 lies between .5 and 1024.5 by logarithms.
    want = [
        [0.5, 2.5 / 8.0, np.log(32 / 0.5) / np.log(1024.5 / 0.5), 0.0, 1.0, 0.0, 1.0, 0.25],
        [0.0, 7.5 / 8.0, np.log(1 / 0.5) / np.log(1024.5 / 0.5), 0.0, 0.0, 1.0, 0.0, 1.0],
    ]
    np.testing.assert_allclose(space.to_unit(P), want, atol=1e-15)
    np.testing.assert_array_equal(space.loose, [1, 0, 0, 0, 0, 0, 0, 1])
    U = np.random.default_rng(0).random((4000, 8))
    drawn = space.from_unit(U)
    # Uniform points are uniform values: 4000 / 8 and 4000 / 3, to four standard deviations.
    for column, count in ((1, 8), (3, 3), (4, 2)):
        seen = np.unique(drawn[:, column], return_counts=True)[1]
        assert len(seen) == count
        assert np.abs(seen - 4000 / count).max() < 4.0 * np.sqrt(4000 / count)
    snapped = space.snap(U)
    np.testing.assert_array_equal(space.snap(snapped), snapped)
    np.testing.assert_array_equal(snapped[:, [0, 7]], U[:, [0, 7]])
    np.testing.assert_array_equal(space.from_unit(snapped), drawn)
    # What a user is given is what is kept, to the last bit.
    np.testing.assert_array_equal(space.take_all([space.give(row) for row in drawn]), drawn)
    # The ends of the cube are ends of the box.
    np.testing.assert_array_equal(space.from_unit(np.zeros((1, 8)))[0], [*space.box.low[:4], 0, -1])
    expected = [0.1, 8, 1024, 3]
    np.testing.assert_array_equal(space.from_unit(np.ones((1, 8)))[0, [0, 1, 2, 5]], expected)
    again = Space.from_state(space.state())
    assert (again.names, again.variables) == (space.names, space.variables)


def search(sign, count=22):
    """Of what is least, .1, at 30 units, relu and a rate of 1e-3."""
    levels = {"relu": 0.1, "tanh": 0.6, "sine": 1.1}
    space = {"rate": SPACE["rate"], "units": Integer(1, 64), "act": Category(list(levels))}
    options = {"noise": 0.0, "n_samples": 2, "random_state": 0, "n_initial": 6}
    opt = Optimizer(space=space, maximise=sign < 0, **options)
    for _ in range(count):
        x = opt.ask()
        assert isinstance(x["units"], int)
        square = np.log10(x["rate"] / 1e-3) ** 2 + ((x["units"] - 30) / 20.0) ** 2
        opt.tell(x, f=sign * (square + levels[x["act"]]))
    return opt


def test_a_search_in_its_users_terms():
    """The optimum of three kinds of variables in 22 evaluations; maximised, of the mirror image."""
    plain, mirrored = search(1.0), search(-1.0, 7)
    best = plain.recommend()
    # One in 64 and half a decade at random: a look at 22 of 192 cells and decades finds neither.
    assert best["act"] == "relu"
    assert abs(best["units"] - 30) <= 3
    assert abs(np.log10(best["rate"] / 1e-3)) < 0.3
    columns = plain.columns()
    assert list(columns) == ["id", "rate", "units", "act", "f", "awaited"]
    assert set(columns["act"]) <= {"relu", "tanh", "sine"}
    for name in ("rate", "units", "act"):
        assert mirrored.columns()[name] == columns[name][:7]
    other = search(1.0, 7)
    at = [best, mirrored.ask()]
    mean, std = mirrored.predict(at)
    np.testing.assert_array_equal(other.predict(at), [-mean, std])
    assert other.recommend() == mirrored.recommend()
    assert list(mirrored.pending.values()) == [at[1]]
    frame = pytest.importorskip("pandas").DataFrame(at)
    np.testing.assert_array_equal(other.predict(frame)[0], other.predict(at)[0])


def test_variables_that_are_all_rounded():
    """Twelve points there are; a design of six has no point twice, and the best is found."""
    space = {"n": Integer(1, 4), "kind": Category(["a", "b", "c"])}
    opt = Optimizer(space=space, noise=0.0, n_samples=2, random_state=1, n_initial=6)
    asked = []
    for _ in range(9):
        x = opt.ask()
        asked.append((x["n"], x["kind"]))
        opt.tell(x, f=(x["n"] - 3) ** 2 + (x["kind"] != "b"))
    assert len(set(asked[:6])) == 6
    assert opt.recommend() == {"n": 3, "kind": "b"}


def test_minimisers_that_are_drawn_are_points_of_the_space():
    """Of a bowl that is all but known: the cell beside its centre, and there its real minimiser."""
    space = space_of(None, {"n": Integer(0, 9), "x": (0.0, 1.0), "kind": Category(["ab", "c"])})
    rng = np.random.default_rng(0)
    U = space.snap(rng.random((80, 3)))
    s = Surrogate(KERNEL, U, (U[:, 0] - 0.63) ** 2 + (U[:, 1] - 0.4321) ** 2 + 0.1 * U[:, 2])
    found = draw([[s]], np.zeros(3), np.ones(3), 4, rng, 200, space=space)[0].X_star
    np.testing.assert_array_equal(found[:, [0, 2]], [[0.65, 0.0]] * 4)
    # Points of the first look are .05 apart in this plane.
    np.testing.assert_allclose(found[:, 1], 0.4321, atol=2e-3)


@every_case(
    "make, words",
    [
        (lambda: Real(1.0, 1.0), "low must be below high"),
        (lambda: Real(0.0, 1.0, log=True), "above 0 for a logarithm"),
        (lambda: Real("a", 1.0), "low must be"),
        (lambda: Real(0.0, 1.0, log=2), "log must be True or False"),
        (lambda: Real(-1e308, 1e308), "their difference"),
        (lambda: Integer(0, 2.5), "high must be a whole number"),
        (lambda: Integer(0, 8, log=True), "above 0 for a logarithm"),
        (lambda: Integer(0, 2**60), "at most 2\\^53"),
        (lambda: Category("ab"), "choices must be a list"),
        (lambda: Category(["a"]), "two at least"),
        (lambda: Category(["a", "a"]), "'a' twice"),
        (lambda: Category([1, True]), "True twice"),
        (lambda: Category([1, [2]]), "finite numbers"),
        (lambda: Category([1.0, np.nan]), "finite numbers"),
        (lambda: Optimizer(), "got neither"),
        (lambda: Optimizer([(0, 1)], space={"x": (0, 1)}), "got both"),
        (lambda: Optimizer({"x": (0, 1)}), "space="),
        (lambda: Optimizer(space={}), "dict of named"),
        (lambda: Optimizer(space={1: (0, 1)}), "must be text"),
        (lambda: Optimizer(space={"x": [0, 1]}), "must be a Real"),
        (lambda: Optimizer(space={"x": (1, 0)}), r"space\['x'\]: low"),
        (lambda: Optimizer(space={"f": (0, 1)}), "those of results"),
        (lambda: Optimizer(space={"c1": (0, 1)}, constraints=1), "those of results"),
        (lambda: Optimizer([(0, 1)], maximise="yes"), "maximise must be True or False"),
        (lambda: Optimizer([(0, 1)], n_initial=10**9), "n_initial must be at most"),
        (lambda: Optimizer([(0, 1)] * 21202), "21202 coordinates are more than the 21201"),
        (lambda: Optimizer(space={"a": Category(range(21202))}), "21202 coordinates are more"),
        (lambda: sample_minimisers([WIDE], [(0, 1)] * 21202, 1, features=1), "more than the 21201"),
    ],
)
def test_what_is_refused(make, words):
    refuses(words, make)


@every_case(
    "x, words",
    [
        ([1], "must be a dict of"),
        ({"n": 1}, r"\['kind'\] missing"),
        ({"n": 1, "kind": "a", "m": 2}, r"\['m'\] unknown"),
        ({"n": 1.5, "kind": "a"}, r"x\['n'\] must be a whole number"),
        ({"n": 9, "kind": "a"}, r"x\['n'\] = 9 is outside its bounds \(1, 4\)"),
        ({"n": "1", "kind": "a"}, r"x\['n'\] must be"),
        ({"n": 1, "kind": True}, r"x\['kind'\] must be one of"),
        ({"n": 1, "kind": np.ones(2)}, r"x\['kind'\] must be one of"),
    ],
)
def test_points_that_are_refused(x, words):
    opt = Optimizer(space={"n": Integer(1, 4), "kind": Category(["a", 1])}, random_state=0)
    for call in (lambda: opt.tell(x, f=1.0), lambda: opt.expect(x), lambda: opt.predict([x])):
        refuses(words, call)
    refuses("list of dicts or a data frame", opt.predict, 3)
    assert opt.columns()["id"] == []
