"""The public surface: one word means one thing, and estimators have few parameters."""

import inspect
import re
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern

import qpruntime as qp
from tests.tools.cases import every_case, refuses
from tests.tools.surface import arguments

MODELS = [qp.GPClassifier, qp.GPPoissonRegressor, qp.GPRobustRegressor]
#: What users call. Results are made by functions, and likelihoods have a contract of their own.
CALLED = re.compile(
    r"infer|project|open_table|condition|gains|sample_minimisers|Optimizer|GP\w+$|GP\w+\.(fit|pre)|"
    r"Deep|Inducing|Integrate|Search|Series$|PESC"
)
#: Words whose types differ from place to place, and why each is one thing all the same.
KINDS = {
    "X": "points; of `Optimizer.predict` also dicts of named variables",
    "callback": "of a search it has parameters and value, of deep training steps and energy",
    "inducing": "deep models have the number of inducing inputs alone",
    "kernel": "a kernel, or a word for one of ours",
    "likelihood": "samples take any log density; deep models have Gaussian noise besides",
    "mean": "one number where all rows have one prior mean",
    "method": "every function has those it can",
    "nearest": "`infer_sparse` chooses no number of them",
    "random_state": "of `Optimizer` a number, which is saved; elsewhere also scikit-learn's",
    "table": "what opens tables takes none that is open",
}
#: Words whose defaults differ, and why.
DEFAULTS = {
    "acquisition": "of `Optimizer.load` that of the file",
    "dtype": "a processor gains nothing by single precision in deep models",
    "inducing": "a deep model has inducing inputs in every layer, however few rows there are",
    "likelihood": "deep models have Gaussian noise",
    "max_iter": "steps of Adam, iterations of L-BFGS",
    "max_sweeps": "`condition` moves all sites in parallel",
    "mean": "counts have that of their rates",
    "method": "QP is what is published of infer, EP of the optimiser",
    "n_samples": "of what is sampled",
    "nearest": "chosen by an estimator, none in a function",
    "power": "1/2 with inducing points, where 1 overfits",
    "random_state": "draws of a fitted deep model are the same each time",
    "tol": "`condition` is called for hundreds of minimisers",
}
#: Words that differ by what deep models have.
DEEP = {"callback", "dtype", "inducing", "likelihood", "max_iter", "random_state"}


def kinds_of(text):
    """Members of a union, without modules and None."""
    text = re.sub(r"(?:[A-Za-z_]\w*\.)+(?=\w)", "", text.strip("'\""))
    if found := re.fullmatch(r"(?:Optional|Union)\[(.*)\]", text):
        text = found[1]
    parts = re.split(r" \| |, (?![^\[]*\])", text.replace("ForwardRef", ""))
    names = {re.sub(r"\[.*", "", part.strip("'\" ")) for part in parts}
    return frozenset(names - {"None", "NoneType", ""})


def uses():
    """Arguments that users give, by their names."""
    found = {}
    for argument in arguments():
        if CALLED.match(argument.place):
            found.setdefault(argument.name, []).append(argument)
    return found


def differing(what, reasons):
    """Words of which `what` differs, beyond those with a reason; and reasons for nothing."""
    odd = {}
    for name, own in uses().items():
        found = {what(use): use.place for use in own if what(use) is not None}
        if len(found) > 1:
            odd[name] = found
    unused = set(reasons) - set(odd) - (set() if find_spec("optax") else DEEP)
    return {name: where for name, where in odd.items() if name not in reasons}, unused


def test_a_word_is_of_one_kind():
    assert differing(lambda use: kinds_of(use.annotation) or None, KINDS) == ({}, set())


def test_a_word_has_one_default():
    def default(use):
        return None if use.default is inspect.Parameter.empty else repr(use.default)

    assert differing(default, DEFAULTS) == ({}, set())


def test_data_come_first_and_in_one_order():
    shared = ["y", "kernel", "Z", "likelihood", "method", "table", "mean"]
    for function in (qp.infer, qp.infer_series, qp.infer_sparse):
        parameters = inspect.signature(function).parameters.values()
        named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert named[1:] == [name for name in shared if name in named], function


def test_estimators_have_few_parameters():
    for model in MODELS:
        assert len(inspect.signature(model).parameters) <= 18
        # scikit-learn reads the signature.
        assert set(model().get_params(deep=False)) == set(inspect.signature(model).parameters)


T = np.linspace(-2.0, 2.0, 30)
X = T[:, None]
Y = np.sign(np.sin(2.0 * T) + 0.1)
MATERN = Matern(1.0, nu=1.5)


def test_unknown_arguments_are_type_errors():
    for call in (
        lambda: qp.infer_sparse(X, Y, RBF(1.0), X[::5], workers=1),
        lambda: qp.infer_series(T, Y, MATERN, n_jobs=1),
        lambda: qp.project_sampled("probit", 0.0, 1.0, 1, n=200),
        lambda: qp.GPClassifier(n_restarts=2),
    ):
        refuses("unexpected keyword argument", call, error=TypeError)
    with pytest.raises(ValueError, match="Invalid parameter 'n_restarts'"):
        qp.GPClassifier().set_params(n_restarts=2)


@every_case("n_jobs", [0, 1.5, True, "all", 10**9])
def test_numbers_of_threads_are_checked_alike(n_jobs):
    for call in (
        lambda: qp.infer_sparse(X, Y, RBF(1.0), X[::5], n_jobs=n_jobs),
        lambda: qp.GPClassifier(n_jobs=n_jobs, optimize=False).fit(X, Y),
    ):
        refuses("n_jobs must be", call)


def test_all_threads_but_one():
    one, other = (qp.infer_sparse(X, Y, RBF(1.0), X[::5], n_jobs=n) for n in (1, -2))
    assert one.log_evidence == other.log_evidence


@every_case(
    ("call", "words"),
    [
        (lambda: qp.infer(np.eye(30), Y, method="vb", n_restarts=2), "n_restarts=2 cannot act"),
        (lambda: qp.infer(np.eye(30), Y, method="vb", order="random"), "order='random' cannot act"),
        (lambda: qp.infer(np.eye(30), Y, p=3.0), "p is the order"),
        (lambda: qp.infer_series(T, Y, 2.0 * MATERN, approximate=1e-3), "approximate=0.001 cannot"),
        (lambda: qp.infer_sparse(X, Y, RBF(), X[:5], resume=True), "needs checkpoint="),
    ],
)
def test_functions_refuse_what_cannot_act(call, words):
    refuses(words, call)
