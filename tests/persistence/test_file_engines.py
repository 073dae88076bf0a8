"""Every estimator fitted by every engine comes back from its file with the same predictions."""

import re
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

import qpruntime as qp
from qpruntime._restorable import class_of, name_of, restorable
from tests.tools.cases import every_case
from tests.tools.commands import python

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 5.0, (24, 2))
F = np.sin(X[:, 0])
REALS = F + 0.2 * RNG.normal(size=24)
COUNTS = RNG.poisson(np.exp(F)).astype(float)
POSITIVE = RNG.gamma(5.0, np.exp(F) / 5.0)
LEVELS = np.digitize(F, [-0.4, 0.5])
TRIALS = np.column_stack([np.minimum(COUNTS, 9.0), np.full(24, 9.0)])
SMOOTH = ConstantKernel(1.0) * RBF(1.0)
STATES = ConstantKernel(1.0) * Matern(1.0, nu=1.5) + DotProduct()
HELD = {"optimize": False}
COMPOSITE = {"hyperparameters": qp.Integrate("composite"), "random_state": 0}

MODELS = {
    "labels": (qp.GPClassifier, {}, F > 0.0),
    "classes": (qp.GPClassifier, {}, LEVELS),
    "noisy labels": (qp.GPClassifier, {"likelihood": "noisy-probit"}, F > 0.0),
    "labels that are objects": (qp.GPClassifier, {}, np.where(F > 0.0, "up", "down").astype("O")),
    "labels by a table": (qp.GPClassifier, {"method": "qp", "table": "probit"}, F > 0.0),
    "reals": (qp.GPRegressor, {}, REALS),
    "outliers": (qp.GPRobustRegressor, {}, REALS),
    "counts": (qp.GPPoissonRegressor, {"link": "exp"}, COUNTS),
    "squared counts": (qp.GPPoissonRegressor, {}, COUNTS),
    "levels": (qp.GPOrdinal, {}, LEVELS),
    "weibull": (qp.GPSurvival, {}, POSITIVE),
    "log-logistic": (qp.GPSurvival, {"likelihood": "log-logistic"}, POSITIVE),
    "log-normal": (qp.GPSurvival, {"likelihood": "log-normal"}, POSITIVE),
    "gamma": (qp.GPRegressor, {"likelihood": "gamma"}, POSITIVE),
    "beta": (qp.GPRegressor, {"likelihood": "beta"}, 1.0 / (1.0 + np.exp(-REALS))),
    "zeros": (qp.GPRegressor, {"likelihood": "zero-inflated"}, COUNTS),
    "hurdle": (qp.GPRegressor, {"likelihood": "hurdle"}, COUNTS),
    "trials": (qp.GPRegressor, {"likelihood": "binomial"}, TRIALS),
}
ENGINES = {
    "by default": (None, {"optimize": qp.Search(max_iter=2)}),
    "dense": (SMOOTH + WhiteKernel(0.1), HELD),
    "inducing": (SMOOTH, {"inducing": 6, **HELD}),
    "inducing, learnt": (SMOOTH, {"inducing": 6, "optimize": qp.Search(max_iter=2)}),
    "nearest": (None, {"inducing": qp.Inducing("judged", nearest=4), "random_state": 0}),
    "states": (STATES, {"solver": "markov", **HELD}),
    "integrated": (SMOOTH, COMPOSITE),
    "integrated, inducing": (SMOOTH, {"inducing": 6, **COMPOSITE}),
}
#: Those whose kernels other tests compile, and that take a fraction of a second.
CHEAP = [
    *(("labels", engine) for engine in ("inducing", "states", "integrated")),
    *(("labels", "by default"), ("labels", "nearest")),
    *(("labels that are objects", "dense"), ("labels by a table", "dense")),
    *(("reals", engine) for engine in ("dense", "inducing", "inducing, learnt", "states")),
    ("reals", "integrated"),
    ("reals", "integrated, inducing"),
    ("outliers", "inducing, learnt"),
    ("counts", "inducing"),
    ("classes", "dense"),
    ("levels", "dense"),
    ("weibull", "dense"),
    ("gamma", "dense"),
]
REST = [(name, engine) for name in MODELS for engine in ENGINES if (name, engine) not in CHEAP]


def predictions(model, points):
    """All that a model says of points, as arrays."""
    names = ("latent", "predict", "predict_proba", "predict_quantiles", "sample_latent")
    if type(model.posterior_).__name__ not in ("Posterior", "SeriesPosterior"):
        names = names[:-1]  # classes jointly and nearest rows have no joint draws
    seeded = {"sample_latent": {"random_state": 0}}
    found = [
        getattr(model, name)(points, **seeded.get(name, {}))
        for name in names
        if hasattr(model, name)
    ]
    return [np.asarray(part) for one in found for part in (one if type(one) is tuple else (one,))]


@contextmanager
def moved():
    """Let every class and function that files name live in a module of another name."""
    homes = {thing: thing.__module__ for thing in qp._restorable._NAMES}
    try:
        for thing in homes:
            thing.__module__ = "qpruntime.moved.elsewhere"
        yield
    finally:
        for thing, home in homes.items():
            thing.__module__ = home


def comes_back(model, points, tmp_path):
    model.save(tmp_path / "model")
    # Names of modules are nowhere in the file, and play no part when it is read.
    with zipfile.ZipFile(tmp_path / "model") as file:
        assert re.search(rb"qpruntime\.[a-z]", file.read("model.json")) is None
    with np.load(tmp_path / "model") as plain:
        assert "model.json" in plain.files
    first = (tmp_path / "model").read_bytes()
    with moved():
        copy, other = qp.load(tmp_path / "model"), type(model).load(tmp_path / "model")
    assert type(copy) is type(other) is type(model)
    for got, want in zip(predictions(copy, points), predictions(model, points), strict=True):
        np.testing.assert_array_equal(got, want)
    assert repr(copy) == repr(other) == repr(model)
    assert copy.get_params().keys() == model.get_params().keys()
    copy._predict_once()  # which a file is tried by, with errors of ours let through
    if getattr(model, "integrated_", None) is None:
        # Again: one model is one file to the bit.
        copy.save(tmp_path / "model")
        assert (tmp_path / "model").read_bytes() == first


def fitted_and_back(name, engine, tmp_path):
    cls, given, y = MODELS[name]
    kernel, options = ENGINES[engine]
    points = X[:, :1] if engine == "states" else X
    model = cls(kernel, **{"method": "ep"} | given, **options).fit(points, y)
    comes_back(model, points[:4] + 0.1, tmp_path)


@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::qpruntime.SamplingWarning")
@every_case(("name", "engine"), CHEAP)
def test_cheap_ones(name, engine, tmp_path):
    fitted_and_back(name, engine, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qpruntime.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::qpruntime.SamplingWarning")
@every_case(("name", "engine"), REST)
def test_all_others(name, engine, tmp_path):
    fitted_and_back(name, engine, tmp_path)


@every_case("inducing", [None, 6])
def test_classes_jointly(inducing, tmp_path):
    model = qp.GPClassifier(SMOOTH, multi_class="joint", inducing=inducing, method="ep", **HELD)
    comes_back(model.fit(X, LEVELS), X[:4] + 0.1, tmp_path)


def test_every_part_of_the_effects_can_be_held():
    """Of all terms and blocks, those of forecasts too."""
    import qpruntime.forecasting  # noqa: F401 - its terms
    from qpruntime.effects.term import EffectBlock, Term

    parts = [Term, EffectBlock]
    for one in parts:
        parts += one.__subclasses__()
    own = [one for one in parts[2:] if one.__module__.startswith("qpruntime")]
    assert len(own) > 15
    assert [one for one in own if class_of(name_of(one)) is not one] == []


def test_names_are_short_numbered_and_given_once():
    assert class_of("gp-classifier/1") is qp.GPClassifier
    names = list(qp._restorable._NAMES.values())
    assert len(names) > 100
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*/[1-9]", name)] == []
    assert len(set(names)) == len(names)
    with pytest.raises(AssertionError, match="'gp-classifier/1' is the name of"):
        restorable("gp-classifier/1")(type("Other", (), {}))


def test_a_posterior_is_read_without_what_estimators_need(tmp_path):
    K = np.exp(-0.5 * (X[:, :1] - X[:, :1].T) ** 2)
    qp.infer(K, np.sign(X[:, 0])).save(tmp_path / "post")
    code = f"import qpruntime, sys; qpruntime.load({str(tmp_path / 'post')!r}); "
    code += "print('sklearn' in sys.modules, 'qpruntime.effects' in sys.modules)"
    assert python("-c", code, timeout=100).stdout.split() == ["False", "False"]
