"""Formulas on JAX and PyTorch at extremes: values and derivatives against the kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qpruntime import NumericalError, likelihoods
from qpruntime import functions as core
from tests.tools.cases import every_case

# Of PyTorch about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

METHODS = ("log_partition", "mean", "std", "expected_log_prob")
#: Observations of each likelihood: ordinary ones, and ones where formulas change.
OBSERVED = {
    "binomial": ([2.0, 7.0], [0.0, 1.0], [5.0, 5.0], [300.0, 1000.0]),
    "heaviside": (1.0, -1.0),
    "laplace": (0.2, -40.0),
    "logistic": (1.0, -1.0),
    "negative-binomial": (0.0, 2.0, 500.0),
    "poisson": (0.0, 3.0, 60.0),
    "poisson-exp": (0.0, 1.0, 4.0, 1000.0),
    "probit": (1.0, -1.0),
    "step": (0.7, -3.0),
    "student-t": (0.3, 1e3),
}
CAVITIES = list(itertools.product((0.0, 0.4, -3.0, 50.0, -50.0), (1e-8, 1e-3, 0.8, 20.0, 1e4)))
#: Expectations of e^f overflow beyond.
LARGEST = 1e290


def pick(found, method):
    """One array of what a function returns."""
    return {"mean": found[0], "std": found[1]}[method] if method in ("mean", "std") else found


def name_of(method):
    return "moments" if method in ("mean", "std") else method


def test_every_likelihood_is_observed():
    assert set(OBSERVED) == set(likelihoods.names())


def certified(name, method, y):
    """Rows of a value and its derivatives over the cavities; NaN where the kernels refuse."""
    call, rows = getattr(core(name), name_of(method)), []
    for mu, sigma in CAVITIES:
        try:
            found = call(mu, sigma, y, derivatives=True)
            rows.append([float(pick(part, method)) for part in found])
        except NumericalError:
            rows.append([np.nan] * 3)
    want = np.array(rows).T
    if (name, y) == ("poisson", 60.0):
        # Sums of many counts lose digits where the cavity is 1e9 times narrower than it is far.
        want[:, np.array(CAVITIES)[:, 1] < 1e-6] = np.nan
    assert np.isfinite(want).mean() > 0.7
    return want


def by_torch(name, method, y, mu, sigma, forward):
    """Value and derivatives, forwards or in reverse."""
    import torch

    from qpruntime.torch import functions

    call = getattr(functions(name), name_of(method))
    m, s = (torch.tensor(a, requires_grad=not forward) for a in (mu, sigma))
    label = torch.as_tensor(y, dtype=m.dtype)
    if forward:
        return [pick(part, method).numpy() for part in call(m, s, label, derivatives=True)]
    value = pick(call(m, s, label), method)
    slopes = torch.autograd.grad(value.sum(), (m, s))
    return [value.detach().numpy(), *(a.numpy() for a in slopes)]


def agrees(found, want, method, digits, least):
    """Compare in relative terms, and in units that the rounding of mu/sigma leaves."""
    mu, sigma = np.array(CAVITIES).T
    steep = method in ("log_partition", "expected_log_prob")
    value_unit = 1e-3 if steep else np.abs(mu) + sigma if method == "mean" else 0.0 * mu
    slope_unit = (1.0 / sigma if steep else 1.0) * (1.0 + np.abs(mu) / sigma)
    for got, right, unit in zip(found, want, (value_unit, slope_unit, slope_unit), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = ~(np.abs(got - right) <= digits * np.abs(right) + least * unit)
        wrong &= np.isfinite(right) & (np.abs(right) < LARGEST)
        assert not wrong.any(), [(CAVITIES[i], got[i], right[i]) for i in np.flatnonzero(wrong)[:4]]


@pytest.mark.slow
@every_case("forward", [False, True])
@every_case("method", METHODS)
@every_case("name, y", [(name, y) for name, seen in OBSERVED.items() for y in seen])
def test_torch_at_extremes(name, y, method, forward):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    if (name, method) == ("heaviside", "expected_log_prob"):
        return
    mu, sigma = np.array(CAVITIES).T
    found = by_torch(name, method, y, mu, sigma, forward)
    agrees(found, certified(name, method, y), method, 1e-7, 1e-10)


def test_numbers_of_python_have_the_default_type_of_jax():
    jax = pytest.importorskip("jax", reason="the extra jax is not installed")
    from qpruntime.jax import functions

    own = functions("probit")
    with jax.enable_x64(True):
        assert own.log_partition(0.3, 0.8, 1.0).dtype == np.float64
        want = float(core("probit").log_partition(0.3, 0.8, 1))
        assert float(own.log_partition(0.3, 0.8, 1.0)) == pytest.approx(want, rel=1e-13)
        assert own.log_partition(np.float32(0.3), 0.8, 1).dtype == np.float32
    with jax.enable_x64(False):
        assert own.log_partition(0.3, 0.8, 1.0).dtype == np.float32


@every_case("method", ["log_partition", "mean", "std", "expected_log_prob"])
@every_case("name", list(OBSERVED))
def test_widths_that_are_not_positive_are_nan(name, method):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    for sigma in (-1.0, 0.0):
        for found in by_torch(
            name, method, OBSERVED[name][0], np.zeros(1), np.array([sigma]), True
        ):
            assert np.isnan(found).all()


def test_reverse_gradients_of_expected_counts():
    """E log p = y mu - exp(mu + sigma^2/2) - log y!."""
    pytest.importorskip("torch", reason="the extra torch is not installed")
    mu, sigma = np.array([0.4, -2.0, 5.0]), np.array([0.8, 0.1, 1.5])
    for y in (0.0, 1.0, 2.0, 40.0):
        _, by_mu, by_sigma = by_torch("poisson-exp", "expected_log_prob", y, mu, sigma, False)
        rate = np.exp(mu + 0.5 * sigma**2)
        np.testing.assert_allclose(by_mu, y - rate, rtol=1e-12)
        np.testing.assert_allclose(by_sigma, -sigma * rate, rtol=1e-12)
