"""Formulas on JAX and PyTorch at extremes: values and derivatives against the kernels."""

import functools
import itertools

import numpy as np
import pytest

from qpruntime import NumericalError, functions as core, likelihoods
from tests.tools.cases import every_case

# Of PyTorch about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

#: Observations of each likelihood: ordinary ones, and ones where formulas change.
OBSERVED = {
    "binomial": ([2.0, 7.0], [0.0, 1.0], [5.0, 5.0], [300.0, 1000.0]),
    "heaviside": (1.0, -1.0),
    "laplace": (0.25, -40.0),
    "logistic": (1.0, -1.0),
    "negative-binomial": (0.0, 2.0, 500.0),
    "poisson": (0.0, 3.0, 60.0),
    "poisson-exp": (0.0, 1.0, 4.0, 1000.0),
    "probit": (1.0, -1.0),
    "step": (0.75, -3.0),
    "student-t": (0.25, 1e3),
}
# Numbers of single precision, so that both precisions are asked the same.
CAVITIES = np.array(
    list(itertools.product((0.0, 0.4, -3.0, 50.0, -50.0), (1e-8, 1e-3, 0.8, 20.0, 1e4))),
    dtype=np.float32,
).astype(float)
#: Expectations of e^f overflow beyond.
LARGEST = {"double": 1e290, "single": 1e30}
#: Relative error, and error in the units of `agrees`. What is derived of a table's spline is less
#: accurate than its values.
DIGITS = {"double": (1e-7, 1e-10), "single": (1e-4, 1e-4)}
SPLINE = 1e-7
#: The kernels' derivatives of moments lose digits where log p is large at the tilted mean.
LARGE, LOST = 1e4, 2e-4


def methods_of(name):
    """What is compared: mean and deviation apart, expectations and tables where they exist."""
    found = ["log_partition", "mean", "std"]
    if name != "heaviside":
        found.append("expected_log_prob")
    if name in ("heaviside", "poisson", "probit"):
        found.append("sigma_star")
    return found


def rows_of(name):
    """All pairs of an observation and a cavity: mu, sigma, y."""
    seen = OBSERVED[name]
    mu, sigma = np.tile(CAVITIES, (len(seen), 1)).T
    return mu, sigma, np.repeat(np.array(seen), len(CAVITIES), axis=0)


def every_value(functions, name, y):
    """A function of mu and sigma that returns all methods' values, one after the other."""
    own = functions(name)

    def call(mu, sigma):
        found = dict.fromkeys(methods_of(name))
        found["mean"], found["std"] = own.moments(mu, sigma, y)
        for method in found:
            if method not in ("mean", "std"):
                found[method] = getattr(own, method)(mu, sigma, y)
        return tuple(found.values())

    return call


@functools.cache
def certified(name):
    """Value and both derivatives, shape (3, rows), by method; NaN where the kernels refuse."""
    own = core(name)
    found = {method: [] for method in methods_of(name)}
    for at in zip(*rows_of(name), strict=True):
        for method in found:
            part = {"mean": 0, "std": 1}.get(method)
            try:
                each = getattr(own, method if part is None else "moments")(*at, derivatives=True)
                found[method].append([float(v if part is None else v[part]) for v in each])
            except NumericalError:
                found[method].append([np.nan] * 3)
    return {method: np.array(rows).T for method, rows in found.items()}


def by_torch(name, precision, mu, sigma, y):
    """Value and derivatives by method and direction."""
    import torch

    from qpruntime.torch import functions

    kind = {"double": torch.float64, "single": torch.float32}[precision]
    mu, sigma, y = (torch.as_tensor(a, dtype=kind) for a in (mu, sigma, y))
    call, methods = every_value(functions, name, y), methods_of(name)
    one, none = torch.ones_like(mu), torch.zeros_like(mu)
    tangents = (one, none), (none, one)
    by_mu, by_sigma = (torch.func.jvp(call, (mu, sigma), each)[1] for each in tangents)
    m, s = mu.clone().requires_grad_(), sigma.clone().requires_grad_()
    found = {}
    for k, (method, value) in enumerate(zip(methods, call(m, s), strict=True)):
        slopes = torch.autograd.grad(value.sum(), (m, s), retain_graph=True)
        for direction, pair in {"forward": (by_mu[k], by_sigma[k]), "reverse": slopes}.items():
            found[method, direction] = [a.detach().numpy() for a in (value, *pair)]
    return found


def by_jax(name, precision, mu, sigma, y):
    import jax
    import jax.numpy as jnp

    from qpruntime.jax import functions

    with jax.enable_x64(precision == "double"):
        mu, sigma, y = (jnp.asarray(a, dtype=float) for a in (mu, sigma, y))
        call, methods = every_value(functions, name, y), methods_of(name)
        one, none = jnp.ones_like(mu), jnp.zeros_like(mu)
        _, push = jax.linearize(call, mu, sigma)
        by_mu, by_sigma = push(one, none), push(none, one)
        found = {}
        for k, method in enumerate(methods):
            # One method at a time: where another one's slope overflows, 0 times it is NaN.
            value, pull = jax.vjp(lambda *at, k=k: call(*at)[k], mu, sigma)
            each = {"forward": (by_mu[k], by_sigma[k]), "reverse": pull(one)}
            for direction, pair in each.items():
                found[method, direction] = [np.asarray(a) for a in (value, *pair)]
    return found


LIBRARIES = {"torch": by_torch, "jax": by_jax}


def agrees(found, name, method, precision):
    """Compare in relative terms, and in units that the rounding of mu/sigma leaves."""
    mu, sigma, y = rows_of(name)
    want = certified(name)
    mean, std = want["mean"][0], want["std"][0]
    digits, least = DIGITS[precision]
    steep = method in ("log_partition", "expected_log_prob")
    small = 1e-3 if precision == "double" else 1.0  # of log Z near 0
    value_unit = small if steep else np.abs(mu) + sigma if method == "mean" else 0.0
    slope_unit = (1.0 / sigma if steep else 1.0) * (1.0 + np.abs(mu) / sigma)
    with np.errstate(all="ignore"):
        log_p = np.abs(likelihoods.get(name).log_prob(mean, y))
    lossy = (log_p > LARGE) & (method in ("mean", "std", "sigma_star"))
    slope_digits = np.where(lossy, np.maximum(LOST, digits), digits)
    # Between two numbers of this precision nothing is seen of a density that has moved there.
    seen = ~(std < np.finfo(found[0].dtype).eps * np.abs(mean - mu))
    spline = SPLINE if method == "sigma_star" else 0.0
    of_slopes = slope_digits, least * slope_unit + spline
    tolerances = (digits, least * value_unit), of_slopes, of_slopes
    for got, right, (relative, absolute) in zip(found, want[method], tolerances, strict=True):
        compared = np.isfinite(right) & (np.abs(right) < LARGEST[precision]) & seen
        # Expected counts of wide cavities overflow in single precision, two cells of five.
        assert compared.mean() >= (0.7 if precision == "double" else 0.5)
        with np.errstate(over="ignore", invalid="ignore"):
            right_enough = np.abs(got - right) <= relative * np.abs(right) + absolute
        wrong = np.flatnonzero(compared & ~right_enough)[:4]
        assert not wrong.size, [(mu[i], sigma[i], y[i], got[i], right[i]) for i in wrong]


def compare_with_kernels(library, precision, name):
    pytest.importorskip(library, reason=f"the extra {library} is not installed")
    for (method, direction), values in LIBRARIES[library](name, precision, *rows_of(name)).items():
        assert {v.dtype for v in values} == {np.dtype("f8" if precision == "double" else "f4")}
        try:
            agrees(values, name, method, precision)
        except AssertionError as error:
            raise AssertionError(f"{method}, {direction}: {error}") from error


@every_case("precision", DIGITS)
@every_case("library, name", [("torch", "laplace"), ("torch", "poisson-exp"), ("jax", "heaviside")])
def test_some_derivatives_at_extremes(library, precision, name):
    compare_with_kernels(library, precision, name)


@pytest.mark.slow
@every_case("precision", DIGITS)
@every_case("library", LIBRARIES)
@every_case("name", OBSERVED)
def test_all_derivatives_at_extremes(library, precision, name):
    compare_with_kernels(library, precision, name)


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


@every_case("name", OBSERVED)
def test_widths_that_are_not_positive_are_nan(name):
    assert set(OBSERVED) == set(likelihoods.names())
    pytest.importorskip("torch", reason="the extra torch is not installed")
    sigma, y = np.array([-1.0, 0.0]), np.array(OBSERVED[name][:1] * 2)
    for values in by_torch(name, "double", np.zeros(2), sigma, y).values():
        assert np.isnan(values).all()
