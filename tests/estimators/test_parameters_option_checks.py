"""Options of one engine as one value, and options that cannot act."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.model_selection import GridSearchCV

import qpruntime
from qpruntime import (
    GPClassifier,
    GPPoissonRegressor,
    GPRobustRegressor,
    Inducing,
    InputError,
    Integrate,
    Search,
    Series,
    open_table,
)
from tests.tools.cases import every_case, refuses

MODELS = [GPClassifier, GPPoissonRegressor, GPRobustRegressor]
KERNEL = ConstantKernel(2.0) * Matern(1.0, nu=1.5)
FIXED = ConstantKernel(2.0, "fixed") * Matern(1.0, "fixed", nu=1.5)
RNG = np.random.default_rng(4)
X = RNG.uniform(-2.0, 2.0, (60, 2))
LABELS = X[:, 0] + 0.3 * RNG.standard_normal(60) > 0.0
COUNTS = RNG.poisson(np.exp(X[:, 0]))
REALS = X[:, 0] + 0.1 * RNG.standard_normal(60)
TARGET = {GPClassifier: LABELS, GPPoissonRegressor: COUNTS, GPRobustRegressor: REALS}


@every_case(
    ("value", "text"),
    [
        (Inducing(), "Inducing()"),
        (Inducing("judged", nearest=3, budget=5), "Inducing('judged', nearest=3, budget=5.0)"),
        (Inducing(200, power=0.25, learn=False), "Inducing(200, power=0.25, learn=False)"),
        (Inducing([[1.0, 2.0]], dtype="float64"), "Inducing(array([[1., 2.]]), dtype='float64')"),
        (Integrate("importance", n=16), "Integrate('importance', n=16)"),
        (Search(), "Search()"),
        (Search("loo", restarts=2), "Search('loo', restarts=2)"),
        (Series(0.001), "Series(0.001)"),
        (Series(required=False), "Series(required=False)"),
    ],
)
def test_values_show_what_differs_and_survive(value, text):
    assert repr(value) == text
    model = GPClassifier(inducing=value) if isinstance(value, Inducing) else GPClassifier()
    for other in (pickle.loads(pickle.dumps(value)), eval(text, vars(qpruntime), vars(np))):
        assert (other, hash(other)) == (value, hash(value))
    assert clone(model).inducing == model.inducing
    assert value != Inducing(7)
    with pytest.raises(AttributeError):
        value.power = 1.0  # frozen


@every_case(
    ("make", "words"),
    [
        (lambda: Inducing(200.5), "inducing must be a whole number"),
        (lambda: Inducing(None), "inducing=None is the dense engine"),
        (lambda: Inducing("some"), "'auto', 'judged', 'variance' or inputs"),
        (lambda: Inducing(9, power=0.0), r"power must be in \(0, 1\]"),
        (lambda: Inducing(9, learn=1), "learn must be True or False"),
        (lambda: Inducing(9, subsample=0), "subsample must be"),
        (lambda: Inducing(9, dtype="half"), "dtype must be"),
        (lambda: Inducing(9, memory="lots"), "memory must be"),
        (lambda: Inducing(nearest=-1), "nearest must be"),
        (lambda: Inducing(nearest=10**6), "at most 1000 rows"),
        (lambda: Inducing(budget=0.0), "budget must be"),
        (lambda: Inducing(9, checkpoint=""), "checkpoint must be a path"),
        (lambda: Inducing(9, resume=True), "resume=True needs checkpoint="),
        (lambda: Inducing(9, nearest=3), "nearest=3 cannot act with inducing=9: give ind"),
        (lambda: Inducing("variance", budget=3), "budget=3.0 cannot act with inducing='variance'"),
        (lambda: Inducing(subsample=5), "subsample=5 cannot act with inducing='auto': give induc"),
        (lambda: Inducing("judged", learn=False), "learn=False cannot act with inducing='judged'"),
        (lambda: Inducing(checkpoint="x"), "checkpoint='x' cannot act with inducing='auto'"),
        (lambda: Search("bound"), "objective must be one of"),
        (lambda: Search(restarts=-1), "restarts must be"),
        (lambda: Search(restarts=10**9), "restarts must be at most"),
        (lambda: Search(max_iter=1.5), "max_iter must be"),
        (lambda: Search(ftol=0.0), "ftol must be"),
        (lambda: Search(callback=3), "callback must be None or a function"),
        (lambda: Series(-1.0), "approximate must be"),
        (lambda: Series(required="yes"), "required must be True or False"),
        (lambda: Integrate("mesh"), "design must be one of"),
        (lambda: Integrate(n=2), "n must be"),
        (lambda: Integrate(n=10**6), "n must be at most 10000"),
        (lambda: Integrate("grid", n=99), "n=99 cannot act with design='grid'"),
        (lambda: Integrate(evidence="loo"), "evidence must be one of"),
    ],
)
def test_values_are_checked_when_they_are_made(make, words):
    refuses(words, make)


def test_fields_are_set_and_searched_by_their_names():
    model = GPClassifier(KERNEL, inducing=12, optimize=False, method="ep", random_state=0)
    model.set_params(inducing__power=1.0, inducing__learn=False)
    assert model.inducing == Inducing(12, power=1.0, learn=False)
    assert model.get_params()["inducing__power"] == 1.0
    assert "inducing__power" not in model.get_params(deep=False)
    grid = GridSearchCV(model, {"inducing__power": [0.3, 1.0], "inducing__points": [12, 14]}, cv=2)
    found = grid.fit(X, LABELS).best_estimator_
    assert isinstance(found.inducing, Inducing)
    assert not found.inducing.learn
    assert found.inducing.points in (12, 14)
    words = r"option of Inducing must be one of .*'points', 'power'"
    refuses(words, model.set_params, inducing__pover=1.0)
    words = "optimize__restarts cannot act with optimize=False"
    refuses(words, model.set_params, optimize__restarts=1)


#: Parameters that always act, or are only a limit.
ALWAYS = [
    *("kernel", "likelihood", "method", "tol", "max_sweeps", "multi_class", "prior_mean"),
    *("n_jobs", "random_state", "verbose", "link", "nu", "normalize_y"),
]
#: Of every other one a value that cannot act, with the rest that makes it so.
IDLE = {
    "p": {"p": 3.0},
    "table": {"table": "probit-compact", "method": "ep", "likelihood": "probit"},
    "optimize": {"optimize": Search(max_iter=3), "kernel": FIXED},
    "correction": {"correction": "fact", "inducing": 9},
    "inducing": {"inducing": Inducing(power=1.0), "kernel": KERNEL},
    "solver": {"solver": Series(1e-3)},
    "monotone": {"monotone": {0: 1}, "inducing": 9},
    "hyperparameters": {"hyperparameters": "integrate", "optimize": False},
    "dispersion": {"dispersion": 2.0, "link": "square"},
    "mean": {"mean": 1.0, "prior_mean": DummyRegressor()},
    "noise_bounds": {"noise_bounds": {"nu": (1.0, 9.0)}, "optimize": False},
}
FURTHER = [
    {"inducing": Inducing(scheduler="tcp://127.0.0.1:1"), "kernel": KERNEL},
    {"inducing": "judged", "kernel": KERNEL},
    {"inducing": Inducing(nearest=3), "optimize": "loo"},
    {"inducing": Inducing(budget=9.0), "optimize": Search(restarts=1)},
    {"inducing": Inducing(dtype="float64"), "optimize": False},
    {"inducing": Inducing(memory=1e6), "correction": "fact"},
    {"inducing": Inducing(memory=1e6), "solver": "dense"},
    {"inducing": 9, "solver": "dense"},
    {"inducing": 9, "solver": Series(1e-3, required=False)},
    {"inducing": 9, "optimize": Search(restarts=1)},
    {"inducing": 9, "optimize": "loo"},
    {"solver": Series(1e-3, required=False), "kernel": RBF(1.0)},
    {"solver": Series(1e-3), "correction": "fact"},
    {"optimize": "loo", "kernel": FIXED},
]


def test_every_parameter_is_tried_and_a_table_of_noise_that_is_learnt_refused():
    refuses("table", GPRobustRegressor(KERNEL, table=open_table("probit-compact")).fit, X, REALS)
    assert {*ALWAYS, *IDLE} == {name for model in MODELS for name in model().get_params(deep=False)}


@every_case("options", [*IDLE.values(), *FURTHER])
def test_what_cannot_act_is_refused(options):
    """With the name of the option in the message, and something else to do."""
    tried = 0
    for model in MODELS:
        names = model().get_params(deep=False)
        if set(options) <= set(names):
            tried += 1
            fixed = {"noise_bounds": {"scale": "fixed"}} if model is GPRobustRegressor else {}
            with pytest.raises(InputError, match=next(iter(options))) as caught:
                model(**fixed | options).fit(X, TARGET[model])
            assert any(sign in str(caught.value) for sign in (";", ":")), str(caught.value)
    assert tried


@every_case(
    ("options", "words"),
    [
        ({"correction": "fact"}, "corrections take a covariance matrix"),
        ({"optimize": "loo"}, '"loo" takes a covariance matrix'),
        ({"method": "vb"}, '"vb" takes a covariance matrix'),
        ({"kernel": KERNEL}, "no squared exponential"),
    ],
)
def test_what_no_series_has_is_not_approximated(options, words):
    given = {"solver": Series(1e-3, required=False), "kernel": 2.0 * RBF(1.0)} | options
    refuses(words, GPClassifier(**given).fit, X[:, :1], LABELS)


@every_case("model", MODELS)
def test_seeds_may_be_generators(model):
    options = {"inducing": 6, "optimize": False, "method": "ep"}
    one, same, other = (
        model(random_state=np.random.default_rng(seed), **options).fit(X, TARGET[model])
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.inducing_points_, same.inducing_points_)
    assert not np.array_equal(one.inducing_points_, other.inducing_points_)


def test_what_acts_from_more_rows_on_is_no_mistake():
    model = GPClassifier(inducing=Inducing(power=1.0, nearest=3, budget=9.0), random_state=0)
    plain = GPClassifier(random_state=0).fit(X, LABELS)
    np.testing.assert_array_equal(model.fit(X, LABELS).predict_proba(X), plain.predict_proba(X))
