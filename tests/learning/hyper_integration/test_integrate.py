"""Nodes of densities that are known: designs, importance, Pareto's k, and proper priors."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.special import logsumexp
from scipy.stats import genpareto, multivariate_normal, norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime.errors import InputError, SamplingWarning
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.hyper_integration.density import Density, proper_prior
from qpruntime.learning.hyper_integration.designs import draws, pareto_k, pareto_shape
from qpruntime.learning.hyper_integration.integrate import find_nodes, warn_unreliable
from qpruntime.learning.hyperpriors import priors_of
from tests.tools.cases import every_case
from tests.tools.oracle import slopes

MEAN = np.array([0.3, -1.0, 0.5])
ROOT = np.array([[0.7, 0.0, 0.0], [0.4, 0.5, 0.0], [-0.3, 0.2, 1.1]])
#: Log of the integral of the densities below.
TOTAL = -3.2


class Known:
    """A density in place of an objective: negative, with sites for what was evaluated."""

    def __init__(self, log_density):
        self.log_density, self.evaluations, self.sites = log_density, 0, ()

    def __call__(self, theta):
        self.evaluations += 1
        value, slope = self.log_density(theta)
        return -value, -slope


def density(log_density, p):
    return Density(Known(log_density), np.tile([-40.0, 40.0], (p, 1)))


def nodes_of(log_density, start, design, n=None):
    """Nodes of a density, and their weighted means and covariance."""
    start = np.array(start, dtype=float)
    rng = np.random.default_rng(0)
    found = find_nodes(density(log_density, start.size), start, design, n, rng)
    w = np.exp(found.log_weights - logsumexp(found.log_weights))
    theta = np.array([node.theta for node in found.nodes])
    return found, w @ theta, np.cov(theta.T, aweights=w, ddof=0)


def normal(p):
    root = ROOT[:p, :p]
    inverse = np.linalg.inv(root @ root.T)
    law = multivariate_normal(MEAN[:p], root @ root.T)
    return lambda t: (TOTAL + float(law.logpdf(t)), -inverse @ (t - MEAN[:p]))


def skewed(t):
    """log of Gumbel's density of t0, and a normal one of t1 about t0^2/8."""
    e = math.exp(-t[0])
    gap = t[1] - 0.125 * t[0] ** 2
    value = TOTAL - t[0] - e + float(norm.logpdf(gap))
    return value, np.array([-1.0 + e + gap * 0.25 * t[0], -gap])


@every_case(("design", "p"), [("grid", 1), ("grid", 2), ("composite", 2), ("composite", 3)])
def test_designs_integrate_normal_densities(design, p):
    """The mass to 3e-4, where grids end 7 below the top; moments of the second order too."""
    found, mean, covariance = nodes_of(normal(p), MEAN[:p], design)
    assert found.design == design
    assert found.log_evidence == pytest.approx(TOTAL, abs=3e-4)
    np.testing.assert_allclose(mean, MEAN[:p], atol=1e-4)
    np.testing.assert_allclose(covariance, ROOT[:p, :p] @ ROOT[:p, :p].T, atol=3e-3)


def test_a_grid_and_importance_integrate_a_skewed_density():
    """Its mass is known, the mean of t0 is Euler's constant, that of t1 E t0^2/8."""
    found, mean, _ = nodes_of(skewed, [0, 0], "grid")
    assert found.log_evidence == pytest.approx(TOTAL, abs=2e-3)
    square = np.euler_gamma**2 + math.pi**2 / 6.0
    np.testing.assert_allclose(mean, [np.euler_gamma, square / 8.0], atol=0.02)
    found, _, _ = nodes_of(skewed, [0, 0], "importance", 4096)
    # Weights vary by a factor of two or so: 1 % of 4096.
    assert found.log_evidence == pytest.approx(TOTAL, abs=0.02)
    assert found.pareto_k < 0.7
    assert 500.0 < found.effective <= 4096.0
    assert len(found.nodes) == 4096


def test_importance_weights_are_a_density():
    """Means of f/q are integrals of f; 2^14 points of a Sobol sequence leave errors of 1e-4."""
    z, logs = draws(2, 2**14, np.array([[0.6, 1.4], [1.9, 0.8]]), 1)
    ratio = np.exp(multivariate_normal([0.2, -0.1], [[0.5, 0.2], [0.2, 0.6]]).logpdf(z) - logs)
    assert ratio.mean() == pytest.approx(1.0, abs=3e-4)
    np.testing.assert_allclose((ratio[:, None] * z).mean(axis=0), [0.2, -0.1], atol=2e-3)


@every_case("k", [-0.2, 0.3, 0.7, 1.2])
def test_pareto_shapes(k):
    """Beside SciPy's maximum of the likelihood, and the truth."""
    x = np.sort(genpareto.rvs(k, size=4000, random_state=1))
    assert pareto_shape(x) == pytest.approx(k, abs=0.06)
    assert pareto_shape(x) == pytest.approx(genpareto.fit(x, floc=0.0)[0], abs=0.02)
    n, one = 50, x[::80]
    expected = (n * pareto_shape(one) + 5.0) / (n + 10.0)
    assert pareto_shape(one, 10.0) == pytest.approx(expected, abs=1e-12)


def test_k_of_weights():
    """Weights of a t by a normal have no variance; of a narrow normal by a wide one no tail."""
    z = np.random.default_rng(0).standard_normal(4000)
    heavy = np.log1p(z * z / 2.0) * -1.5 + 0.5 * z * z
    assert pareto_k(heavy) > 0.7
    assert pareto_k(-2.0 * z * z) < 0.5
    assert math.isnan(pareto_k(np.zeros(10)))
    assert pareto_k(np.zeros(100)) == -math.inf
    # What is nowhere has no weight.
    assert pareto_k(np.append(heavy, -np.inf)) == pareto_k(heavy)


def test_auto_is_a_grid_of_two_and_draws_of_more_which_warn_where_weights_are_poor():
    assert nodes_of(normal(2), MEAN[:2], "auto")[0].design == "grid"
    more, _, _ = nodes_of(normal(3), MEAN, "auto")
    assert (more.design, len(more.nodes)) == ("importance", 64)
    assert more.log_evidence == pytest.approx(TOTAL, abs=0.1)
    with pytest.raises(InputError, match='"grid" takes at most 3 hyper-parameters'):
        nodes_of(normal(3), np.zeros(4), "grid")

    # Of a density with a heavy tail in each of four coordinates.
    def heavy(t):
        return -float(np.log1p(t * t).sum()), -2.0 * t / (1.0 + t * t)

    found, _, _ = nodes_of(heavy, np.zeros(4), "auto")
    assert (found.design, found.trusted) == ("importance", False)
    with pytest.warns(SamplingWarning, match=r'use Integrate\("importance", n=512\)'):
        warn_unreliable(found)


def test_two_modes_leave_few_effective_draws():
    """A second mode of twice the mass: the first one's draws hardly see it."""

    def two(t):
        gaps = np.array([t / 0.4, (t - 1.2) / 0.8])
        logs = -0.5 * (gaps**2).sum(axis=1) + [-3.0 * math.log(0.4), math.log(2.0 / 0.8**3)]
        shares = np.exp(logs - logsumexp(logs))
        slopes = np.array([-t / 0.4**2, -(t - 1.2) / 0.8**2])
        return float(logsumexp(logs)), shares @ slopes

    for given in (("importance", 128), ("auto",)):
        assert not nodes_of(two, np.zeros(3), *given)[0].trusted
    near, _, _ = nodes_of(normal(3), MEAN, "importance", 128)
    assert near.trusted
    assert near.share == pytest.approx(near.effective / 128, rel=1e-12)


KERNEL = ConstantKernel(2.0) * RBF([1.0, 3.0])
X = np.random.default_rng(0).uniform(-1.0, 4.0, (30, 2))


def medians():
    apart = [np.median(pdist(column[:, None])) for column in X.T]
    return np.log([2.0, *(math.sqrt(2.0) * np.array(apart)), 0.4])


@every_case(
    ("given", "laws"),
    [
        (None, lambda m: [norm(m[0], 3.0), norm(m[1], 1.5), norm(m[2], 1.5), norm(m[3], 3.0)]),
        (
            LogNormal(np.log([5.0]), np.array([10.0])),
            lambda m: [norm(np.log(5.0), 3.0), norm(m[1], 1.5), norm(m[2], 1.5), norm(m[3], 3.0)],
        ),
        (
            {"length_scale": ("log-normal", 0.7, 0.2)},
            lambda m: [norm(m[0], 3.0), *[norm(np.log(0.7), 0.2)] * 2, norm(m[3], 3.0)],
        ),
    ],
)
def test_priors_are_proper(given, laws):
    """Log densities of SciPy's normal laws, constants and all, and slopes by differences."""
    if isinstance(given, dict):
        given = priors_of(given, KERNEL, {})
    prior = proper_prior(given, KERNEL, KERNEL.theta, X, np.log([0.4]))
    theta = np.array([0.3, -0.2, 1.1, 0.5])
    known = sum(law.logpdf(t) for law, t in zip(laws(medians()), theta, strict=True))
    value, slope = prior(theta)
    assert value == pytest.approx(known, abs=1e-12)
    assert slope == pytest.approx(slopes(lambda at: prior(at)[0], theta), abs=1e-7)


def test_densities_end_at_bounds():
    one = Density(Known(normal(2)), np.array([[-1.0, 1.0], [-2.0, 2.0]]))
    assert one.at(np.array([0.0, 2.5])) is None
    assert one.at(np.array([0.5, 0.5])).value == normal(2)(np.array([0.5, 0.5]))[0]
    lost = Density(lambda theta: (1.0, theta), np.array([[-1.0, 1.0]]))
    lost._objective = type("Lost", (), {"sites": None, "__call__": lambda s, t: (1e3, t)})()
    assert lost.at(np.zeros(1)) is None
