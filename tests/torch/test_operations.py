"""Functions on PyTorch: autograd and torch.func, two orders; GPyTorch where 20 points fail."""

import sys

import numpy as np
import pytest

from qpruntime import functions as core
from tests.tools.cases import every_case, refuses
from tests.tools.half_plane import observation_of

# Of PyTorch about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")

MU, SIGMA = np.array([0.4, -1.5, 3.0]), np.array([0.8, 4.0, 0.05])
NAMES = ("probit", "poisson", "student-t", "laplace", "logistic")
SEEN = {name: observation_of(name) for name in NAMES}
METHODS = ("log_partition", "moments", "expected_log_prob")


@pytest.mark.parametrize("missing", ["torch", "gpytorch"])
def test_names_the_extra(missing, monkeypatch):
    if missing == "gpytorch":
        pytest.importorskip("torch", reason="the extra torch is not installed")
    for name in (missing, f"{missing}.likelihoods"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [n for n in sys.modules if n.startswith("qpruntime.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=rf"run pip install '\.\[{missing}\]' in a checkout"):
        import qpruntime.torch.gpytorch  # noqa: F401


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="the extra torch is not installed")


@pytest.mark.slow
@every_case("name, y", SEEN.items())
def test_values_and_derivatives(torch, name, y):
    from qpruntime.torch import functions

    ours, own = functions(name), core(name)
    mu, sigma = torch.tensor(MU), torch.tensor(SIGMA)
    for method in METHODS:
        got = getattr(ours, method)(mu, sigma, y, derivatives=True)
        want = getattr(own, method)(MU, SIGMA, y, derivatives=True)
        for part, right in zip(got, want, strict=True):
            parts = part if isinstance(part, tuple) else (part,)
            right = right if isinstance(right, tuple) else (right,)
            for a, b in zip(parts, right, strict=True):
                # Where little is left of a derivative it is right in units of 1/sigma.
                np.testing.assert_allclose(a.numpy(), b, rtol=2e-9, atol=2e-11)


@pytest.mark.slow
@every_case("name", SEEN)
def test_autograd_to_the_second_order(torch, name):
    """Backwards, twice, and by torch.func: Price's theorem connects them."""
    from qpruntime.torch import functions

    call = functions(name).log_partition
    for m, s in zip(MU, SIGMA, strict=True):
        mu = torch.tensor(m, requires_grad=True)
        sigma = torch.tensor(s, requires_grad=True)
        first, by_sigma = torch.autograd.grad(
            call(mu, sigma, SEEN[name]), (mu, sigma), create_graph=True
        )
        (second,) = torch.autograd.grad(first, mu)
        price = sigma * (second + first**2)
        np.testing.assert_allclose(by_sigma.item(), price.item(), rtol=1e-8)
        hessian = torch.func.hessian(lambda a, s=s: call(a, s, SEEN[name]))(mu.detach())
        np.testing.assert_allclose(hessian.item(), second.item(), rtol=1e-9)


def test_vmap_types_and_observations(torch):
    from qpruntime.torch import functions

    own = functions("probit")
    mu = torch.tensor(MU)
    by_one = torch.func.vmap(torch.func.grad(lambda m: own.log_partition(m, 1.0, 1.0)))(mu)
    want = core("probit").log_partition(MU, 1.0, 1, derivatives=True).d_mu
    np.testing.assert_allclose(by_one.numpy(), want, rtol=1e-13)
    single = own.sigma_star(mu.float(), 1.0, 1)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), core("probit").sigma_star(MU, 1.0, 1), rtol=1e-5)
    pairs = functions("binomial").log_predictive(mu, 1.0, [[1, 3], [2, 3], [0, 5]])
    want = core("binomial").log_predictive(MU, 1.0, [[1, 3], [2, 3], [0, 5]])
    np.testing.assert_allclose(pairs.numpy(), want, rtol=1e-10)


def test_the_likelihood_of_gpytorch(torch):
    gpytorch = pytest.importorskip("gpytorch", reason="the extra gpytorch is not installed")
    from qpruntime.torch.gpytorch import CertifiedLikelihood

    own, y = CertifiedLikelihood("student-t(nu=4, scale=0.1)"), torch.zeros(3, dtype=torch.float64)
    mean = torch.tensor(MU, requires_grad=True)
    q = gpytorch.distributions.MultivariateNormal(mean, torch.diag(torch.tensor(SIGMA**2)))
    want = core("student-t(nu=4, scale=0.1)")
    for found, wanted in (
        (own.expected_log_prob(y, q), want.expected_log_prob(MU, SIGMA, y, derivatives=True)),
        (own.log_marginal(y, q), want.log_partition(MU, SIGMA, y, derivatives=True)),
    ):
        np.testing.assert_allclose(found.detach().numpy(), wanted.value, rtol=1e-9)
        (slope,) = torch.autograd.grad(found.sum(), mean)
        np.testing.assert_allclose(slope.numpy(), wanted.d_mu, rtol=1e-8)
    refuses("use log_marginal", own, torch.zeros(3))
