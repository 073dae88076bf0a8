"""Corrected marginals and evidence against exact integrals, and their parts against differences.

Exact problems: K = a I + b 11', where f_i = g + sqrt(a) e_i and everything is an integral over the
one number g of products of one-dimensional integrals.
"""

import json
import math
import pickle
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

from qpruntime import ConvergenceWarning, CorrectionWarning, infer, likelihoods
from qpruntime.inference.corrections.linear_response import pair_sums
from qpruntime.likelihoods import Likelihood
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import REFERENCE

GRID = np.linspace(-9.0, 9.0, 401)
SHARES = -0.5 * GRID**2 - 0.5 * math.log(2.0 * math.pi) + math.log(GRID[1] - GRID[0])


def exchangeable(likelihood, a, b, y, prior=0.0, seen=np.array, weights=1.0):
    """Integrate a problem of covariance a I + b 11' by nested sums; moments are of seen(f)."""
    y = likelihoods.get(likelihood).validate(y)
    g = prior + math.sqrt(b) * GRID
    # Points of f on which everything is summed: an even grid with halves of cells at 0, where the
    # heaviside jumps.
    reach = 8.0 * math.sqrt(a + b)
    f = prior + np.linspace(-reach, reach, 2001)
    f = f - f[np.argmin(np.abs(f))] + 0.5 * (f[1] - f[0])
    step = f[1] - f[0]
    kernel = -0.5 * (f[:, None] - g) ** 2 / a - 0.5 * math.log(2.0 * math.pi * a) + math.log(step)
    levels = np.array([likelihoods.get(likelihood).log_prob(f, v) for v in y])
    levels = levels * np.broadcast_to(weights, len(y))[:, None]
    log_z = np.array([logsumexp(row[:, None] + kernel, axis=0) for row in levels])
    total = SHARES + log_z.sum(axis=0)
    evidence = logsumexp(total)
    found = SimpleNamespace(log_evidence=evidence, mean=[], variance=[], quantiles=[])
    for i, row in enumerate(levels):
        p = np.exp((logsumexp(kernel + (total - log_z[i]), axis=1) + row) - evidence)
        value = seen(f)
        found.mean.append(p @ value)
        found.variance.append(p @ (value - found.mean[-1]) ** 2)
        order = np.argsort(value)
        below = np.cumsum(p[order])
        last = np.append(np.diff(value[order]) > 0.5 * step, True)  # two f may have one |f|
        ends = value[order][last] + 0.5 * step
        found.quantiles.append(np.interp([0.05, 0.95], below[last], ends))
    return SimpleNamespace(**{name: np.array(part) for name, part in vars(found).items()})


def curve(n=25, variance=25.0, reach=6.0):
    x = np.linspace(0.0, reach, n)
    return variance * (np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(n))


def labels(n=25, seed=3):
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 6.0, n)
    return np.where(np.sin(2.0 * x) + 0.4 * rng.standard_normal(n) > 0.0, 1.0, -1.0)


HEAVY = [0.0, 0.1, -0.2, 0.3, 2.5, 0.2, -0.1, 0.15]
#: likelihood, a, b, prior mean, observations; then bars: evidence, mean and quantiles (in standard
#: deviations), log variance. What is left is what pairs of sites do not know, measured when the
#: formulas were derived and here; EP misses by the last two numbers, of evidence and log variance.
CASES = [
    ("probit", 3.0, 4.0, 0.0, [1.0] * 20, (6e-4, 1e-3, 0.01, 8e-3), (0.018, 0.03)),
    ("logistic", 2.0, 16.0, 0.0, [1.0] * 9 + [-1.0], (2e-3, 2e-3, 0.02, 0.02), (0.014, 0.03)),
    ("poisson-exp", 1.0, 2.0, -1.0, [0.0] * 8 + [1.0, 3.0], (1e-4, 1e-4, 2e-3, 2e-3), (3e-3, 3e-3)),
    ("student-t(nu=4, scale=0.3)", 0.2, 1.0, 0.0, HEAVY, (1e-5, 1e-4, 2e-4, 2e-4), (3e-5, 0.0)),
    ("heaviside", 2.0, 3.0, 0.0, [1.0] * 7 + [-1.0], (3e-4, 1e-4, 6e-3, 1e-3), (3e-3, 2e-3)),
    ("laplace(scale=0.5)", 0.5, 1.0, 0.0, [0.1, 0.3, -0.2, 2, 0, 0.4], (4e-4,) * 4, (8e-5, 5e-4)),
    ("binomial", 1.0, 3.0, -1.0, [[0, 5], [1, 3], [4, 4], [0, 20]], (4e-4,) * 4, (3e-4, 1e-3)),
    ("negative-binomial", 1.0, 2.0, 0.0, [0, 0, 3, 1, 9], (2e-4,) * 4, (8e-5, 4e-4)),
    ("poisson", 0.3, 1.0, 2.5, [4.0, 6.0, 9.0, 5.0, 7.0, 1.0], (4e-5, 5e-4, 1e-3, 6e-3), (5e-5, 0)),
]


def wrong(found, true):
    """Largest errors of means and quantiles, in standard deviations, and of log variances."""
    std = np.sqrt(true.variance)
    ends = (found.quantile([0.05, 0.95]) - true.quantiles) / std[:, None]
    parts = (found.mean - true.mean) / std, ends, np.log(found.variance / true.variance)
    return [np.abs(part).max() for part in parts]


@every_case("likelihood, a, b, prior, y, bars, gaps", CASES)
def test_exact_problems(likelihood, a, b, prior, y, bars, gaps):
    n = len(y)
    true = exchangeable(likelihood, a, b, y, prior)
    post = infer(a * np.eye(n) + b, y, likelihood, "ep", mean=prior)
    found, evidence = post.marginals(), post.corrected_evidence()
    errors = np.array([abs(evidence.value - true.log_evidence), *wrong(found, true)])
    assert (errors <= bars).all(), errors
    assert abs(post.log_evidence - true.log_evidence) >= gaps[0]
    assert np.abs(np.log(post.variance / true.variance)).max() >= gaps[1]


@pytest.mark.parametrize(
    ("y", "bar"),
    [([4.0, 6.0, 9.0, 5.0, 7.0, 3.0], 3e-3), ([0.0, 0.0, 1.0, 0.0, 0.0], 0.03)],
    ids=["two peaks", "one"],
)
def test_unknown_sign(y, bar):
    """Square link, prior mean 0: marginals of |f| beside exact ones, by one peak and by chains."""
    n = len(y)
    true = exchangeable("poisson", 0.3, 4.0, y, seen=np.abs)
    std = np.sqrt(true.variance)
    # Of two peaks EP's sites are held.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        post = infer(0.3 * np.eye(n) + 4.0, y, "poisson", "ep")
    found = post.marginals()
    assert found.folded
    assert "|f|" in found.notes[-1]
    assert abs(post.corrected_evidence().value - true.log_evidence) <= bar
    assert (np.array(wrong(found, true)) <= [bar, 2.0 * bar, 2.0 * bar]).all()
    assert (found.cdf(0.0) == 0.0).all()
    assert ("mirrored peaks" in " ".join(post.check())) == (len(y) == 6)
    # Chains end up in either peak; folded they are alike.
    chains = post.marginals(correction="sample", steps=4000, random_state=3)
    assert chains.folded
    assert chains.rhat.max() < 1.03
    assert (np.abs(chains.mean - true.mean) < 4.0 / np.sqrt(chains.effective) * std).all()
    assert (np.abs(np.log(chains.variance / true.variance)) < 4.0 * chains.spread).all()
    one, two = (m.log_probability(y) for m in (found, chains))
    assert one == pytest.approx(two, abs=0.05)
    refuses("mean=0", post.marginals, np.full((1, n), 4.0), [4.3], mean=1.0)


def test_the_numbers_of_the_derivation():
    """K of correlation 1/2 and labels +1: log Z = -log(N + 1); a = 3, b = 4 to seven digits."""
    for n in (3, 12, 40):
        post = infer(0.5 * (np.eye(n) + 1.0) * 2e6, np.ones(n), method="ep")
        assert abs(post.corrected_evidence().value + math.log(n + 1)) <= 0.03
    post = infer(3.0 * np.eye(20) + 4.0, np.ones(20), method="ep", tol=1e-10)
    assert post.marginals().mean[0] == pytest.approx(3.9212006, abs=2e-7)
    assert post.marginals(correction="fact").variance[0] == pytest.approx(3.4524146, abs=2e-6)
    assert post._correcting.corrected.response.variance[0] == pytest.approx(3.5296649, abs=2e-6)
    # A third of the log variance of the former, two thirds of the latter: 3.503711.
    third = 3.4524146 ** (1.0 / 3.0) * 3.5296649 ** (2.0 / 3.0)
    assert post.marginals().variance[0] == pytest.approx(third, rel=1e-6)
    got = post._correcting.corrected.found.tilted.hermite[0, 3:5]
    assert got == pytest.approx([0.2222418, -0.1350030], abs=1e-7)


def test_two_sites_are_exact():
    """Conditioning one of two sites on the other leaves nothing out (Sheppard's quadrant)."""
    K = np.array([[4.0, 3.0], [3.0, 4.0]])
    found = infer(K, [1.0, 1.0], method="ep", tol=1e-10).marginals(correction="fact")
    x = np.linspace(-10.0, 14.0, 4001)
    step = x[1] - x[0]
    p = np.exp(log_ndtr(x) + log_ndtr(0.75 * x / math.sqrt(1.0 + 4.0 - 9.0 / 4.0)) - x * x / 8.0)
    p /= p.sum() * step
    mean = p @ x * step
    # Of a correlation this large every other knot of the spline is used: 1.2e-4 measured.
    assert found.mean == pytest.approx(mean, abs=3e-4)
    assert found.variance == pytest.approx(p @ (x - mean) ** 2 * step, rel=5e-4)
    assert (found.density([[-30.0, 60.0]]) == 0.0).all()
    inner = x[1200:3200:100]
    assert found.density(inner[None])[1] == pytest.approx(p[1200:3200:100], rel=3e-3, abs=1e-6)
    below = np.cumsum(p) * step - 0.5 * p * step
    assert found.cdf(inner[None])[0] == pytest.approx(below[1200:3200:100], abs=1e-4)
    expected = np.tile([0.01, 0.5, 0.999], (2, 1))
    assert found.cdf(found.quantile([0.01, 0.5, 0.999])) == pytest.approx(expected, abs=1e-9)


def test_response_and_means_are_derivatives():
    """Of EP's means by the prior mean, and of the corrected evidence; central differences."""
    K, y = curve(), labels()
    options = {"method": "ep", "tol": 1e-11, "max_sweeps": 400}
    post = infer(K, y, **options)
    corrected = post._correcting.corrected
    moved = corrected.found.fixed.mean + corrected.found.V @ corrected.response.push
    B = corrected.response
    for i in (0, 7, 20):
        step = 1e-3 / math.sqrt(post.variance[i])
        up, down = (infer(K, y, mean=sign * step * K[i], **options) for sign in (1.0, -1.0))
        assert (up.mean[i] - down.mean[i]) / (2.0 * step) == pytest.approx(B.variance[i], rel=1e-6)
        values = []
        for sign, other in ((1.0, up), (-1.0, down)):
            found = other._correcting.corrected.found
            pairs = pair_sums(found.V, found.fixed, found.tilted.hermite)
            values.append(sign * (other.log_evidence + pairs.shift))
        slope = sum(values) / (2.0 * step)
        assert moved[i] == pytest.approx(slope, abs=2e-5 * math.sqrt(post.variance[i]))


def test_tilt_is_the_curvature_of_the_evidence():
    """Of a prior mean moved by lambda K_i, and lambda^2 K_ii/2 for the normal itself."""
    K, y = curve(), np.ones(25)
    options = {"method": "ep", "tol": 1e-11, "max_sweeps": 400}
    post = infer(K, y, **options)
    found = post.marginals(correction="tilt").variance[7]
    step = 0.03 / math.sqrt(post.variance[7])
    up, middle, down = (
        infer(K, y, mean=sign * step * K[7], **options).corrected_evidence().value
        for sign in (1.0, 0.0, -1.0)
    )
    curvature = (up - 2.0 * middle + down) / step**2 + K[7, 7]
    # Its own steps of 0.1 leave 6e-4; pairs of sites make 7 % of it.
    assert found == pytest.approx(curvature, rel=1e-3)


def test_new_points_continue_the_sites():
    """A new point that coincides with a site whose observation is nearly nothing is that site."""
    K, y = curve(26), labels(26)
    weights = np.ones(26)
    weights[9] = 0.0
    whole = infer(K, y, method="ep", weights=weights).marginals()
    rest = np.arange(26) != 9
    new = infer(K[np.ix_(rest, rest)], y[rest], method="ep").marginals(K[9:10, rest], K[9:10, 9])
    levels = [0.02, 0.5, 0.98]
    assert new.quantile(levels) == pytest.approx(whole.quantile(levels)[9:10], abs=1e-5)
    assert new.mean == pytest.approx(whole.mean[9:10], abs=1e-6)
    assert new.variance == pytest.approx(whole.variance[9:10], rel=1e-6)


def test_weights_are_powers():
    weights = [2.0, 1.0, 0.5, 1.0, 3.0, 0.2]
    true = exchangeable("probit", 3.0, 4.0, [1.0] * 6, weights=weights)
    post = infer(3.0 * np.eye(6) + 4.0, np.ones(6), method="ep", weights=weights)
    assert abs(post.corrected_evidence().value - true.log_evidence) < 1e-3
    assert (np.array(wrong(post.marginals(), true)) < [2e-3, 0.01, 0.01]).all()


def test_own_densities_and_jumps():
    """A user's log density, without moments, gives what the likelihood of the package does."""

    def probit(f, y):
        x = -y * f * math.sqrt(0.5)
        if x < 20.0:
            return math.log(0.5 * math.erfc(x))
        return -x * x - math.log(2.0 * x * math.sqrt(math.pi)) - 0.5 / (x * x)

    densities = {"probit": probit, "heaviside": lambda f, y: 0.0 if y * f > 0.0 else -math.inf}
    K, y = curve(12, 4.0) + 0.5 * np.eye(12), labels(12)
    for name, density in densities.items():
        own = Likelihood.from_log_prob(density, name=f"own-{name}", outcomes=[-1, 1])
        one, two = (infer(K, y, which, "ep", tol=1e-9) for which in (name, own))
        wanted = one.corrected_evidence().value
        assert two.corrected_evidence().value == pytest.approx(wanted, abs=1e-5)
        a, b = one.marginals(), two.marginals()
        assert b.mean == pytest.approx(a.mean, abs=1e-4)
        assert b.quantile([0.05, 0.95]) == pytest.approx(a.quantile([0.05, 0.95]), abs=2e-3)


def test_other_methods_and_pickles():
    K, y = curve(), labels()
    ep, qp = (infer(K, y, method=method) for method in ("ep", "qp"))
    found = qp.marginals()
    assert found.variance == pytest.approx(ep.marginals().variance, rel=1e-5)
    assert any("EP was run beside" in note for note in found.notes)
    assert ep.marginals().notes == ()
    again = pickle.loads(pickle.dumps(qp))
    refuses("with_covariance", again.marginals)
    refuses("not the prior covariance", again.with_covariance, 2.0 * K)
    assert (again.with_covariance(K).marginals().mean == found.mean).all()
    refuses("go together", qp.marginals, K[:2])
    refuses("correction", qp.marginals, correction="more")


def test_second_derivatives_and_chains():
    """ "tilt" and "sample" against exact variances, also where K is singular, and at new points."""
    true = exchangeable("probit", 3.0, 4.0, [1.0] * 20)
    post = infer(3.0 * np.eye(20) + 4.0, np.ones(20), method="ep", tol=1e-9)
    tilt = post.marginals(correction="tilt")
    assert np.log(tilt.variance / true.variance) == pytest.approx(0.0, abs=2e-3)
    K = np.full((1, 20), 4.0)
    given = {"correction": "sample", "steps": 4000, "random_state": 7}
    one, two = (post.marginals(K, [7.0], **given) for _ in range(2))
    assert (one.quantile([0.1, 0.9]) == two.quantile([0.1, 0.9])).all()
    found = post.marginals(correction="sample", steps=10_000, random_state=1)
    assert found.rhat.max() < 1.02
    assert any("4 chains of 10000 steps" in note for note in found.notes)
    # Four standard errors, as the chains themselves give them; all sites are alike.
    std = np.sqrt(true.variance)
    error = 4.0 / np.sqrt(found.effective.min())
    assert (np.abs(found.mean - true.mean) < error * std).all()
    assert (np.abs(np.log(found.variance / true.variance)) < 4.0 * found.spread).all()
    ends = found.quantile([0.05, 0.95]) - true.quantiles
    assert (np.abs(ends) < 3.0 * error * std[:, None]).all()
    # A new point of the same covariance with all sites, by the blend and by chains.
    blend = post.marginals(K, [7.0])
    near = 4.0 * std[0] / math.sqrt(one.effective[0])
    assert one.mean[0] == pytest.approx(blend.mean[0], abs=near)
    assert np.log(one.variance / blend.variance)[0] == pytest.approx(0.0, abs=4.0 * one.spread[0])
    refuses("200 sites at most", infer(np.eye(201), np.ones(201)).marginals, correction="tilt")


def test_wide_cavities_see_the_edge():
    """Moments are those of a fixed point also where the edge is 1/1000 of a standard deviation."""
    x = np.linspace(0.0, 6.0, 20)
    K = 1e7 * (np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-4 * np.eye(20))
    post = infer(K, np.where(x > 2.9, 1.0, -1.0), method="ep", tol=1e-9)
    hermite = post._correcting.corrected.found.tilted.hermite
    assert post._correcting.corrected.found.is_own
    assert np.abs(hermite[:, 1:3]).max() < 1e-8


def test_repeated_sites_have_cliffs():
    """Two sites all but the same, edges a thousandth of their deviation wide, are one site."""
    K = 1e6 * np.array([[1.0, 0.5], [0.5, 1.0]])
    twice = np.array([0, 0, 1])
    K3 = K[np.ix_(twice, twice)] + 0.01 * np.eye(3)
    y = np.array([1.0, 1.0, -1.0])
    one = infer(K, y[1:], method="ep", tol=1e-9, weights=[2.0, 1.0]).marginals(correction="fact")
    found = infer(K3, y, method="ep", tol=1e-9).marginals(correction="fact")
    levels = [0.05, 0.5, 0.95]
    std = np.sqrt(one.variance)
    # EP of one site in place of two is another approximation: 0.04 measured.
    assert found.quantile(levels)[1:] == pytest.approx(one.quantile(levels), abs=0.06 * std.max())
    assert np.log(found.variance[1:] / one.variance) == pytest.approx(0.0, abs=0.06)


def test_it_says_what_is_off():
    """Labels of one kind: EP's variances are 30 % too small, and it says so; torn noise warns."""
    said = " ".join(infer(curve(40), np.ones(40), method="qp").check())
    percent = int(re.search(r"variances are about (\d+)% too small", said).group(1))
    assert 25 <= percent <= 45  # log variance -.365 by long chains
    assert "evidence is about 0.5" in said  # -.514 by bridge sampling
    assert infer(curve(25, 1.0), labels(), method="ep").check() == ()
    # Labels that a function separates: means .126 off by long chains, .019 once corrected.
    x = np.linspace(0.0, 6.0, 40)
    apart = infer(curve(40, 1000.0), np.where((x > 1.5) & (x < 4.0), 1.0, -1.0), method="ep")
    said = " ".join(apart.check())
    assert 0.07 <= float(re.search(r"means are off by about ([.\d]+)", said).group(1)) <= 0.15
    # Two waves two apart under heavy tails: peaks between which EP's normal lies.
    K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 1.5**2) + 1e-6 * np.eye(40)
    y = np.sin(x) + np.where(np.arange(40) % 2, 1.0, -1.0)
    y += 0.1 * np.random.default_rng(1).standard_normal(40)
    torn = infer(K, y, "student-t(nu=4, scale=0.3)", method="ep")
    with pytest.warns(CorrectionWarning, match="sample it"):
        found = torn.marginals()
    assert "sample it" in found.notes[-1]
    assert "sample it" in " ".join(torn.check())


def test_long_chains_of_other_problems():
    """Twelve problems with long chains of their own (python -m scripts.studies truth): the targets.

    Bars are those that the corrections were made for, with three errors of the chains, which are
    root mean squares over sites; the worst of up to 60 sites may be off by three and a half.
    """
    for record in json.loads((REFERENCE / "truth.json").read_text()):
        name, sites, truth = record["name"], record["sites"], record["truth"]
        x = np.array(sites["x"])
        distance = np.abs(x - x.T) / record["length"]
        shape = {"rbf": np.exp(-0.5 * distance**2), "rough": np.exp(-distance)}[record["kernel"]]
        K = record["v"] * (shape + record["nugget"] * np.eye(record["n"]))
        post = infer(K, sites["y"], record["likelihood"], "ep", mean=record["mean"])
        found, evidence = post.marginals(), post.corrected_evidence().value
        mean, variance = np.array(sites["mean"]), np.array(sites["variance"])
        ends = np.column_stack([sites["q05"], sites["q95"]])
        std = np.sqrt(variance)
        off = np.sqrt(np.mean(((found.mean - mean) / std) ** 2))
        assert off <= math.hypot(0.02, 3.0 * truth["error mean"]), name
        gap = np.abs(np.log(found.variance / variance))
        assert gap.mean() <= math.hypot(0.045, truth["error log_variance"]), name
        assert gap.max() <= 0.1 + 3.5 * truth["error log_variance"], name
        off = np.sqrt(np.mean(((found.quantile([0.05, 0.95]) - ends) / std[:, None]) ** 2))
        assert off <= math.hypot(0.045, truth["error quantiles"]), name
        assert abs(evidence - truth["log_evidence"]) <= 0.03 + 3.0 * truth["error evidence"], name
