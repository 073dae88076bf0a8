"""`Likelihood.from_log_prob`: a user's log density, compiled or called back, is projected right."""

import copy
import logging
import math
import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

from qpruntime import NumericalError, infer, likelihoods, project
from qpruntime.likelihoods import Likelihood, user_defined
from qpruntime.projection.projector import project_arrays
from tests.tools.cases import every_case, refuses
from tests.tools.commands import python
from tests.tools.oracle import tilted


def logistic(f, y, theta):
    """Compiles: log(1/(1 + exp(-slope y f)))."""
    t = -theta[0] * y * f
    return -(max(t, 0.0) + math.log1p(math.exp(-abs(t))))


def probit_scipy(f, y):
    """Does not compile: a ufunc of SciPy."""
    return log_ndtr(y * f)


def gaussian_array(f, y):
    """Does not compile and takes arrays of f alone."""
    out = norm.logpdf(f, y, 0.5)
    out[np.isnan(f)] = 0.0
    return out


class Robust:
    """An object that is called."""

    def __init__(self, df):
        self.df = df

    def __call__(self, f, y, theta):
        return -0.5 * (self.df + 1.0) * np.log1p((y - f) ** 2 / self.df)


def robust(f):
    return Robust(4.0)(f, 0.7, None)


def make(log_prob=logistic, **options):
    options = {"name": "mine", "theta": [1.5], "outcomes": [-1, 1], "log_concave": True, **options}
    return Likelihood.from_log_prob(log_prob, **options)


CASES = {
    "compiled": (make, lambda f: logistic(f, 1.0, [1.5]), 1.0, True),
    "jitted": (lambda: make(numba.njit(logistic)), lambda f: logistic(f, 1.0, [1.5]), 1.0, True),
    "lambda": (lambda: make(lambda f, y: -((f - y) ** 4)), lambda f: -((f - 1.0) ** 4), 1.0, True),
    "ufunc": (lambda: make(probit_scipy), log_ndtr, 1.0, False),
    "array": (
        lambda: make(gaussian_array, outcomes=None), lambda f: norm.logpdf(f, 0.7, 0.5), 0.7, False,
    ),
    "object": (
        lambda: make(Robust(4.0), outcomes=(-9.0, 9.0), log_concave=False), robust, 0.7, False,
    ),
}  # fmt: skip


@every_case("case", CASES)
def test_projections_are_those_of_the_density(case):
    build, log_p, y, compiled = CASES[case]
    likelihood = build()
    for mu, sigma in [(0.0, 1.0), (-2.0, 0.3), (3.0, 2.0)][: 3 if compiled else 2]:
        log_z, mean, variance, star = tilted(np.vectorize(log_p), mu, sigma)
        for method, std in (("ep", math.sqrt(variance)), ("qp", star)):
            got = project_arrays(likelihood, mu, sigma, y, method=method)
            # Quadrature around one peak that nobody pointed out.
            np.testing.assert_allclose(got.log_z, log_z, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(got.mean, mean, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(got.std, std, rtol=1e-8)
    assert likelihood.split.compiled is compiled


def pointed(f, y, theta):
    return -abs(f - y) / theta[0]


def at_the_observation(y, theta):
    return [y]


@pytest.mark.parametrize("log_prob", [pointed, Robust(4.0)], ids=["compiled", "called back"])
def test_eight_threads_ask_for_one_handle(log_prob):
    """All get the same addresses, of callbacks that were never replaced, and right numbers."""
    threads, rounds = 8, 3
    mu = np.linspace(-2.0, 2.0, 3)
    found = []
    with ThreadPoolExecutor(threads) as pool:
        for k in range(rounds):
            # Made anew in every round, so that all threads meet where nothing is compiled yet.
            options = {"outcomes": None, "log_concave": False, "landmarks": at_the_observation}
            likelihood = make(log_prob, theta=[0.5], **options)
            barrier = threading.Barrier(threads)

            def work(likelihood=likelihood, barrier=barrier):
                barrier.wait(60.0)
                addresses = likelihood.landmarks.handle, likelihood.split.handle
                return addresses, project(likelihood, mu, 1.0, 0.25)[1]

            results = [f.result(300.0) for f in [pool.submit(work) for _ in range(threads)]]
            assert len({addresses for addresses, _ in results}) == 1, f"round {k}"
            found.extend(std for _, std in results)
    density = np.vectorize(lambda f: log_prob(f, 0.25, [0.5]))
    oracle = [tilted(density, m, 1.0, [0.25])[3] for m in mu]
    assert len(found) == threads * rounds
    np.testing.assert_allclose(found, np.tile(oracle, (len(found), 1)), rtol=1e-10)


class Trouble(Exception):
    pass


def troubled(f, y):
    if abs(f) > 3.5:
        raise Trouble(f"too far: {f!r:s}")
    return -0.5 * (f - y) ** 2


def troubled_compiled(f, y):
    if abs(f) > 3.5:
        raise ValueError("too far")
    return -0.5 * (f - y) ** 2


def test_an_exception_is_not_swallowed(capfd):
    likelihood = make(troubled)
    K = np.eye(2) + 0.5
    for act in (
        lambda: project(likelihood, 0.0, 1.0, 1.0),
        lambda: infer(K, [1.0, -1.0], likelihood),
        lambda: infer(K, [1.0, -1.0], likelihood, method="ep", order="parallel"),
    ):
        with pytest.raises(NumericalError, match="log_prob of mine raised Trouble") as caught:
            act()
        assert isinstance(caught.value.__cause__, Trouble)
    assert likelihood.split.compiled is False
    # Nothing is left behind: a cavity that never goes so far.
    mean, _ = project(likelihood, 0.5, 0.05, 1.0)
    np.testing.assert_allclose(mean, (0.5 / 0.05**2 + 1.0) / (1.0 / 0.05**2 + 1.0), rtol=1e-12)
    # Compiled exceptions end in an error too.
    likelihood = make(troubled_compiled)
    with pytest.raises(NumericalError, match="raised ValueError: too far") as caught:
        project(likelihood, 0.0, 1.0, 1.0)
    assert likelihood.split.compiled is True
    assert isinstance(caught.value.__cause__, ValueError)
    assert capfd.readouterr().err == ""
    # A NaN names where it is.
    likelihood = make(lambda f, y: math.nan if f > 3.5 else -0.5 * (f - y) ** 2)
    words = r"log_prob of mine is nan at f = 4, y = 1"
    refuses(words, project, likelihood, 0.0, 1.0, 1.0, error=NumericalError)


def test_an_interrupt_is_one():
    asked = []

    def impatient(f, y):
        asked.append(f)
        if len(asked) > 50:
            raise KeyboardInterrupt
        return -0.5 * (f - y) ** 2

    with pytest.raises(KeyboardInterrupt):
        project(make(impatient), 0.0, 1.0, 1.0)
    # What came after was not computed.
    assert len(asked) == 51


@every_case("log_prob", [logistic, probit_scipy, numba.njit(logistic), Robust(3.0)])
def test_pickles(log_prob):
    concave = not isinstance(log_prob, Robust)
    likelihood = make(log_prob, parameters=["slope"], log_concave=concave)
    expected = project(likelihood, 0.3, 2.0, 1.0)
    back = pickle.loads(pickle.dumps(likelihood))
    assert back.name == "mine"
    assert back.parameters == {"slope": 1.5}
    assert back.log_concave is concave
    np.testing.assert_array_equal(project(back, 0.3, 2.0, 1.0), expected)
    refuses("y must be one of -1, 1, got 3", back.validate, [3])


def test_unpickles_to_one_object():
    data = pickle.dumps(make())
    assert pickle.loads(data) is pickle.loads(data)
    assert copy.deepcopy(make(theta=[2.0])).theta[0] == 2.0
    probit = likelihoods.get("probit")
    assert pickle.loads(pickle.dumps(probit)) is probit
    assert copy.deepcopy(probit) is probit
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(make(lambda f, y: -f * f))


@pytest.mark.slow
def test_functions_typed_in_and_other_processes(tmp_path):
    """A function without a file, warnings being errors; then one that comes out of a pickle."""
    code = """
import math, pickle, sys
from qpruntime import project
from qpruntime.likelihoods import Likelihood, user_defined

def typed(f, y):
    return -abs(f - y)

print(project(Likelihood.from_log_prob(typed, name="typed"), 0.0, 1.0, 1.0)[1])
with open("mine.pickle", "rb") as file:
    mine = pickle.load(file)
print(project(mine, 0.3, 2.0, 1.0)[1])
"""
    likelihood = make()
    expected = project(likelihood, 0.3, 2.0, 1.0)[1]
    # By then it has an address, which must not travel.
    (tmp_path / "mine.pickle").write_bytes(pickle.dumps(likelihood))
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    run = python("-W", "error", "-", input=code, cwd=tmp_path, environment={"PYTHONPATH": path})
    typed, other = (float(line) for line in run.stdout.split())
    np.testing.assert_allclose(typed, project(make(lambda f, y: -abs(f - y)), 0.0, 1.0, 1.0)[1])
    np.testing.assert_allclose(other, expected, rtol=1e-14)


def test_compiled_arithmetic_that_differs_is_not_used():
    # 3^41 does not fit in 64 bits: compiled integers wrap around.
    likelihood = make(lambda f, y: -f * f + 1e-19 * float(3 ** (40 + int(abs(y)))))
    project(likelihood, 0.0, 1.0, 1.0)
    assert likelihood.split.compiled is False
    assert likelihood.log_prob(0.0, 1.0) == pytest.approx(1e-19 * 3.0**41)


@every_case(
    ("log_prob", "message"),
    [
        (lambda f, y: np.array([f, y]), r"returned an array of shape \(2,\) at f = 0.3, y = -1"),
        (lambda f, y: None, "returned None of type NoneType"),
        (lambda f, y: "1.0", "'1.0', which is not a real number"),
        (lambda f, y: 1j * f, "which is not a real number"),
        (lambda f, y: np.complex128(f), "which is not a real number"),
        (lambda f, y: math.nan, "returned NaN for y = -1 at every f"),
        (lambda f, y: math.log(f), "raised ValueError: .* at f = -0.5, y = -1"),
        (lambda f, y, theta: theta[3] * f, "raised IndexError"),
        (lambda f, y: f.nothing, "raised AttributeError"),
        (lambda f, y: f + "1", "raised .*Error: .* at f = 0.3, y = -1"),
        (lambda f: f, r"must take \(f, y, theta\) or \(f, y\)"),
        (3.0, "must be a function"),
    ],
)
def test_what_log_prob_must_not_do(log_prob, message):
    refuses(message, make, log_prob)


@every_case(
    ("options", "message"),
    [
        ({"name": "probit"}, "built-in"),
        ({"name": ""}, "letters, digits"),
        ({"name": "../x"}, "letters, digits"),
        ({"outcomes": "few"}, "outcomes must be"),
        ({"outcomes": (2.0, 1.0)}, "low must be below high"),
        ({"outcomes": [np.nan]}, "finite numbers"),
        ({"theta": [np.nan]}, "theta.* must be finite"),
        ({"theta": ["a"]}, "theta must be an array of real numbers"),
        ({"parameters": ["a", "b"]}, "names 2 entries, theta has 1"),
        ({"parameters": {"slope": 3.0}}, "theta is"),
        ({"theta": {"a": 1.0}, "parameters": ["b"]}, "not in both"),
        ({"validate": 3}, "validate must be"),
    ],
)
def test_options_are_checked(options, message):
    refuses(message, make, **options)


@pytest.mark.parametrize(
    ("claim", "log_prob", "message"),
    [
        ("mirror", lambda f, y: -((f - y - 0.5) ** 2), r"not mirror: .* at f = 0.3, y = 1"),
        ("location", lambda f, y: -abs(y - f) / (1.0 + y * y), "not location: .* added to both"),
        ("even", lambda f, y: -abs(y - f), r"not even: .* at f = 0.3, y = 1"),
        ("log_concave", lambda f, y: -math.log1p((y - f) ** 2), "not log_concave: it is convex"),
    ],
)
def test_false_claims_are_refused(claim, log_prob, message):
    options = {"log_concave": False, "outcomes": None}
    make(log_prob, **options)
    refuses(message, make, log_prob, **{**options, claim: True})


def test_outcomes_and_true_claims_are_believed():
    assert make(outcomes=None).validate([0.5, -7]).tolist() == [0.5, -7.0]
    assert make().outcomes == "one of -1, 1"
    interval = make(outcomes=(0, np.inf))
    assert interval.outcomes == "numbers from 0 to inf"
    assert interval.validate(3).tolist() == 3.0
    for likelihood, wrong in ((make(), 0), (interval, -1), (interval, np.nan), (interval, "a")):
        refuses(r"^y", likelihood.validate, [wrong])
    own = make(outcomes=None, validate=lambda y: np.asarray(y, float) + 1.0)
    assert own.validate([1.0]).tolist() == [2.0]
    assert make(theta={"slope": 2.0}).parameters == {"slope": 2.0}
    make(lambda f, y: -max(0.0, 1.0 - y * f), mirror=True)
    make(lambda f, y: 0.0 if y * f > 0.0 else -math.inf, mirror=True)
    made = make(lambda f, y: -np.logaddexp(0.0, 40.0 * (y - f)), outcomes=None, location=True)
    assert made.location
    assert made.log_concave


@every_case(
    "log_prob, name, why",
    [
        (probit_scipy, "probit_scipy", r"numba.njit\(probit_scipy\)\(0.0, y\) says why"),
        (gaussian_array, "gaussian_array", "it takes arrays of f; let it take one number"),
        (Robust(4.0), "Robust", "it is a Robust; numba compiles functions"),
    ],
)
def test_what_is_not_compiled_says_so_once(log_prob, name, why, caplog):
    user_defined.tell_once.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="qpruntime"):
        for slope in (1.0, 1.0, 2.0):  # as where parameters are learnt
            options = {"theta": {"slope": slope}, "outcomes": None, "log_concave": False}
            project(make(log_prob, **options), 0.1, 1.0, 1, "ep")
    (message,) = [text for text in caplog.messages if "compiling" not in text]
    assert message.startswith(f"qpruntime: log_prob {name} runs in Python, uncompiled")
    assert f"about {user_defined._SLOWER} times as long" in message
    assert "tablegen.build" in message
    assert re.search(why, message)
    caplog.clear()
    project(make(), 0.1, 1.0, 1, "ep")  # which is compiled
    assert not caplog.messages
