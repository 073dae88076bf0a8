"""A log density that numba does not compile says so, once, and what that costs."""

import logging
import math
import re

from scipy.special import log_ndtr

from qpruntime import Likelihood, project
from qpruntime.likelihoods import user_defined
from tests.tools.cases import every_case


def compiled(f, y, theta):
    return math.log(0.5 * math.erfc(-y * f * theta[0] * math.sqrt(0.5)) + 1e-300)


def by_scipy(f, y, theta):
    return log_ndtr(y * f * theta[0])


def of_arrays(f, y, theta):
    return log_ndtr(y * f[:1] * theta[0])


class Called:
    def __call__(self, f, y, theta):
        return compiled(f, y, theta)


def made(log_prob, slope=1.0):
    return Likelihood.from_log_prob(
        log_prob, name="mine", theta={"slope": slope}, outcomes=[-1, 1], log_concave=True
    )


@every_case(
    "log_prob, name, why",
    [
        (by_scipy, "by_scipy", r"numba.njit\(by_scipy\)\(0.0, y, theta\) says why"),
        (of_arrays, "of_arrays", "it takes arrays of f; let it take one number"),
        (Called(), "Called", "it is a Called; numba compiles functions"),
    ],
)
def test_it_says_so_once(log_prob, name, why, caplog):
    user_defined.tell_once.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="qpruntime"):
        for slope in (1.0, 1.0, 2.0):  # as where parameters are learnt
            project(made(log_prob, slope), 0.1, 1.0, 1, "ep")
    (message,) = caplog.messages
    assert message.startswith(f"qpruntime: log_prob {name} runs in Python, uncompiled")
    assert f"about {user_defined._SLOWER} times as long" in message
    assert "tablegen.build" in message
    assert re.search(why, message)


def test_what_is_compiled_says_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="qpruntime"):
        project(made(compiled), 0.1, 1.0, 1, "ep")
    assert not caplog.messages
