"""Functions on JAX: derivatives of two orders, transformations, single precision."""

import sys

import numpy as np
import pytest

from qpruntime import functions as core
from qpruntime.interop.array_formulas import FORMS
from tests.tools.cases import every_case
from tests.tools.half_plane import observation_of

MU, SIGMA = np.array([0.4, -1.5, 3.0]), np.array([0.8, 4.0, 0.05])
SEEN = {name: observation_of(name) for name in FORMS}
METHODS = ("log_partition", "moments", "expected_log_prob")


def test_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [name for name in sys.modules if name.startswith("qpruntime.jax")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"needs JAX: run pip install '\.\[jax\]' in a checkout"):
        import qpruntime.jax  # noqa: F401


@pytest.fixture
def double():
    with pytest.importorskip("jax", reason="the extra jax is not installed").enable_x64(True):
        yield


def leaves(found):
    """Value, d/d mu and d/d sigma; of moments those of both in one."""
    return [np.asarray(part) for part in found]


@pytest.mark.slow
@every_case("name, y", SEEN.items())
def test_values_and_derivatives(double, name, y):
    import jax

    from qpruntime.jax import functions

    ours, own = functions(name), core(name)
    for method in METHODS:
        if (name, method) == ("heaviside", "expected_log_prob"):
            continue
        call = jax.jit(lambda m, s, method=method: getattr(ours, method)(m, s, y, derivatives=True))
        want = getattr(own, method)(MU, SIGMA, y, derivatives=True)
        for got, right in zip(leaves(call(MU, SIGMA)), leaves(want), strict=True):
            # Where little is left of a derivative it is right in units of 1/sigma.
            np.testing.assert_allclose(got, right, rtol=2e-9, atol=2e-11)


@pytest.mark.slow
@every_case("name", ["probit", "logistic", "student-t", "poisson"])
def test_second_derivatives(double, name):
    """Price's theorem: d log Z/d sigma = sigma (L'' + L'^2), primes by mu."""
    import jax

    from qpruntime.jax import functions

    call = functions(name).log_partition
    for mu, sigma in zip(MU, SIGMA, strict=True):
        first = jax.grad(call)(mu, sigma, SEEN[name])
        second = jax.hessian(call)(mu, sigma, SEEN[name])
        by_sigma = jax.grad(call, argnums=1)(mu, sigma, SEEN[name])
        np.testing.assert_allclose(by_sigma, sigma * (second + first**2), rtol=1e-8)


def test_transformations_and_no_call_back(double):
    import jax

    from qpruntime.jax import functions

    star = functions("probit").sigma_star
    by_one = jax.vmap(star, (0, 0, None))(MU, SIGMA, 1.0)
    np.testing.assert_array_equal(by_one, star(MU, SIGMA, 1.0))
    assert "callback" not in str(jax.make_jaxpr(jax.grad(lambda m: star(m, SIGMA, 1.0).sum()))(MU))
    assert star(MU, SIGMA, np.array([1, -1, 1])).dtype == np.float64
