"""Files of an optimisation: loaded, it goes on as the live object; damage is found on loading."""

import json

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from qpruntime.bayesopt import Category, Integer, Optimizer, Real, persistence
from tests.tools.cases import every_case, refuses

SPACE = {
    "rate": Real(1e-5, 0.1, log=True),
    "layers": Integer(1, 8),
    "wide": Category(["no", None, 2.5]),
}


def told(options, count=6):
    """A search with a failure, of each function alone at last."""
    opt = Optimizer(space=SPACE, constraints=1, n_samples=2, n_initial=3, **options)
    for n in range(count):
        x, which = opt.ask(decoupled=True) if n >= 4 else (opt.ask(), None)
        f = (np.log10(x["rate"]) + 3.0) ** 2 + 0.1 * x["layers"] + (x["wide"] is None)
        f, c = (np.nan, [np.nan]) if n == 1 else (f, [4.0 - x["layers"]])
        opt.tell(x, f=f if which in (None, 0) else None, c=c if which in (None, 1) else None)
    return opt


@pytest.mark.slow
@every_case(
    "options",
    [
        {"random_state": 0},
        {"random_state": 1, "hyper": 2},
        {"random_state": 2, "maximise": True, "noise": [0.0, None]},
    ],
)
def test_what_is_loaded_goes_on_as_the_live_object(options, tmp_path):
    opt = told(options)
    opt.ask(2)
    opt.recommend()
    opt.save(tmp_path / "run")
    again = Optimizer.load(tmp_path / "run")
    assert str(again.__dict__.keys()) == str(opt.__dict__.keys())
    assert repr(again) == repr(opt)
    assert str(again.columns()) == str(opt.columns())
    for j, (key, parameters) in again._models._fitted.items():
        assert opt._models._fitted[j][0] == key
        np.testing.assert_array_equal(opt._models._fitted[j][1], parameters)
    assert again._models._fitted.keys() == opt._models._fitted.keys() == {0, 1, 2}
    assert (again.infeasible_draws, again.unsettled) == (opt.infeasible_draws, opt.unsettled)
    assert again.ask(decoupled=True) == opt.ask(decoupled=True)
    assert again.recommend() == opt.recommend()
    for one in (opt, again):
        one.save(tmp_path / str(id(one)))
    assert (tmp_path / str(id(opt))).read_text() == (tmp_path / str(id(again))).read_text()


def test_a_fit_that_was_kept_is_not_begun_anew(tmp_path):
    """Parameters beside the optimum stay where the live object has them."""
    opt = Optimizer([(0, 1)], noise=0.0, n_samples=2, random_state=0, n_initial=2)
    for x in (0.1, 0.4, 0.9):
        opt.tell([x], f=x * x)
    opt.ask()
    key, parameters = opt._models._fitted[0]
    opt._models._fitted[0] = key, parameters + 0.01
    opt.save(tmp_path / "run")
    again = Optimizer.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict([[0.6]]), opt.predict([[0.6]]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run"
    told({"random_state": 0}).save(path)
    return path.read_text()


def changed(change):
    """Return how a file is damaged, and sealed again as if it had been written so."""

    def damage(text):
        state = json.loads(text)
        change(state)
        state["seal"] = persistence._seal(state)
        return json.dumps(state)

    return damage


def entry(name, value):
    return changed(lambda state: state.__setitem__(name, value))


def row(name, value, n=0):
    return changed(lambda state: state["evaluations"][n].__setitem__(name, value))


@every_case(
    "damage, words",
    [
        (lambda text: "", "or damaged: "),
        (lambda text: b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}", "or damaged: "),
        (lambda text: text[: len(text) // 2], "or damaged: "),
        (lambda text: "[" * 100_000 + "]" * 100_000, "nesting without end"),
        (lambda text: '{"a":' * 100_000, "nesting without end"),
        (lambda text: "[]", "a JSON list"),
        (lambda text: "{}", "its format is"),
        (lambda text: '{"format": "qpruntime-bayesopt-2"}', "there is no 'constraints'"),
        (lambda text: '{"format": "qpruntime-bayesopt-1"}', "its format is"),
        (lambda text: text.replace('"asked": 6', '"asked": 6, "asked": 7'), "a repeated key"),
        (lambda text: text.replace('"asked": 6', '"asked": NaN'), "the number NaN"),
        (lambda text: text.replace('"asked": 6', '"asked": 5'), "its seal is of other contents"),
        (entry("asked", "6"), "asked must be a whole number"),
        (entry("asked", True), "asked must be a whole number"),
        (entry("seed", 0), "seed must be digits"),
        (entry("seed", "-1"), "seed must be digits"),
        (entry("constraints", 10**15), "must be a list of"),
        (entry("n_initial", 10**15), "n_initial must be at most"),
        (entry("n_samples", 0), "n_samples must be"),
        (entry("method", "vb"), "method must be one of"),
        (entry("method", None), "method must be text"),
        (entry("noise", [0.0, -1.0]), "must not be negative"),
        (entry("noise", "none"), "noise must be a list"),
        (entry("kernels", [0, 1]), "kernels must be text"),
        (entry("maximise", 1), "maximise must be True or False"),
        (entry("space", 3), "is there for an object"),
        (entry("space", {"names": ["a"], "variables": [{"kind": "x"}]}), "there is no 'x'"),
        (entry("space", {"names": None, "variables": []}), "must be a box of reals"),
        (entry("models", []), "is there for an object"),
        (entry("models", {"last": [], "fitted": []}), "last must be a list of 4"),
        (changed(lambda s: s["models"]["last"][0].append(0.0)), "last must have shape"),
        (changed(lambda s: s["models"]["last"][0].__setitem__(0, 99.0)), "outside its bounds"),
        (entry("evaluations", {}), "evaluations must be a list"),
        (entry("evaluations", [1]), "is there for an object"),
        (row("id", "1"), "the id '1' is there twice"),
        (row("id", 1), "an id must be text"),
        (row("x", [1.0, 2.0, 0.0]), "outside the box"),
        (row("x", [1e-3, 2.5, 0.0]), "outside the box or not whole"),
        (row("x", [1e-3, 2.0]), "must be a list of 3"),
        (row("values", [1.0]), "must be a list of 2"),
        (row("values", [1.0, "1"]), "a value of evaluation '0' must be a finite number"),
        (row("values", [1e101, 1.0]), "beyond 1e100"),
        (row("awaited", [2]), "different functions below 2"),
        (row("awaited", [0]), "at once"),
        (row("failed", [0, 0], 1), "different functions below 2"),
    ],
)
def test_damage_is_found_on_loading(damage, words, whole, tmp_path):
    path = tmp_path / "run.json"
    text = damage(whole)
    assert text != whole, "nothing is damaged"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refuses(rf"run\.json is no saved .*{words}", Optimizer.load, path)


def test_every_entry_is_missed(whole, tmp_path):
    """Any one left out, or of another type, is an `InputError` that names the file."""
    for name in [name for name in json.loads(whole) if name != "seal"]:
        for value in (None, -1, "x", [[]], {"a": 1}, 0.5, True):
            path = tmp_path / "run.json"
            state = json.loads(whole)
            if value is None:
                del state[name]
            elif type(state[name]) is type(value):
                continue
            else:
                state[name] = value
            path.write_text(json.dumps(state))
            refuses(r"run\.json", Optimizer.load, path)


def test_kernels_are_compared_to_the_last_digit(tmp_path):
    """What `repr` shows has three digits, and no bounds."""
    kernel = ConstantKernel(2.0) * RBF([0.3, 0.2], (0.01, 10.0)) + WhiteKernel(0.1)
    Optimizer([(0, 1)] * 2, kernel=kernel, random_state=0).save(tmp_path / "run")
    assert Optimizer.load(tmp_path / "run", kernel=kernel).d == 2
    for other in (
        ConstantKernel(2.0) * RBF([0.3, 0.2001], (0.01, 10.0)) + WhiteKernel(0.1),
        ConstantKernel(2.0) * RBF([0.3, 0.2], (0.01, 20.0)) + WhiteKernel(0.1),
        ConstantKernel(2.0, "fixed") * RBF([0.3, 0.2], (0.01, 10.0)) + WhiteKernel(0.1),
        None,
    ):
        refuses("same kernel", Optimizer.load, tmp_path / "run", kernel=other)
