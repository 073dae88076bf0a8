"""Hyper-parameters integrated, beside quadrature over them by dense algebra of its own."""

import pickle
from functools import cache

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.spatial.distance import pdist
from scipy.special import logsumexp
from scipy.stats import norm, poisson
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from qpruntime.criticism import leave_one_out
from qpruntime.estimators.averaging import nodes_of
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(3)
X = RNG.uniform(0.0, 5.0, (14, 1))
Y = np.sin(X[:, 0]) + 0.3 * RNG.standard_normal(14)
LABELS = Y > 0.2
COUNTS = RNG.poisson(3.0 * np.exp(np.sin(X[:, 0])))
NEW = np.array([[1.0], [4.0], [7.0]])
KERNEL = ConstantKernel(1.0) * RBF(1.0)
NOISE = 0.3
# Of the quadrature: log variance, log length-scale. Steps are a tenth of a standard deviation.
A, B = np.linspace(-8.0, np.log(1e5), 321), np.linspace(-5.0, 6.0, 301)


class Known:
    """A Gaussian process with normal noise: everything closed at fixed hyper-parameters."""

    def __init__(self, rows):
        x, y = X[rows], Y[rows]
        evidence = np.empty((A.size, B.size))
        mean, variance = np.empty((2, A.size, B.size, len(NEW)))
        for j, b in enumerate(B):
            shape = np.exp(-0.5 * (x - x.T) ** 2 / np.exp(2.0 * b))
            cross = np.exp(-0.5 * (NEW - x.T) ** 2 / np.exp(2.0 * b))
            values, Q = np.linalg.eigh(shape)
            t, R = Q.T @ y, cross @ Q
            total = np.exp(A)[:, None] * values + NOISE**2
            evidence[:, j] = -0.5 * (t**2 / total + np.log(2.0 * np.pi * total)).sum(axis=1)
            mean[:, j] = np.exp(A)[:, None] * ((t / total) @ R.T)
            gain = np.exp(2.0 * A)[:, None] * (1.0 / total)
            variance[:, j] = np.exp(A)[:, None] - gain @ (R.T**2)
        # The prior that the page states; distances of all rows of the model.
        middle = np.log(np.median(pdist(X)))
        logs = evidence + (norm(0.0, 3.0).logpdf(A)[:, None] + norm(middle, 1.5).logpdf(B))
        # The trapezoid rule: half of the last row, which is at the bound of the variance.
        logs[[0, -1]] -= np.log(2.0)
        self.log_evidence = logsumexp(logs) + np.log((A[1] - A[0]) * (B[1] - B[0]))
        self.weights = np.exp(logs - logsumexp(logs))
        self.mean, self.variance = mean, variance

    def average(self, values):
        return np.einsum("ab,ab...->...", self.weights, values)


@cache
def known(left_out=None):
    return Known([k for k in range(len(X)) if k != left_out])


def regressor(**options):
    given = {"hyperparameters": "integrate", "method": "ep", "random_state": 0} | options
    return qp.GPRegressor(
        KERNEL,
        likelihood=f"gaussian(scale={NOISE})",
        parameter_bounds={"scale": "fixed"},
        normalize_y=False,
        **given,
    )


@cache
def fitted():
    return regressor().fit(X, Y)


def test_moments_of_latent_values_and_of_draws_are_those_of_the_mixture():
    """A grid ends at a thousandth of the density; what is beyond has large variances."""
    own = known()
    mean = own.average(own.mean)
    variance = own.average(own.variance + (own.mean - mean) ** 2)
    found, spread = fitted().latent(NEW)
    np.testing.assert_allclose(found, mean, atol=5e-4)
    np.testing.assert_allclose(spread, variance, rtol=8e-3)
    # The law of total variance, at the nodes that there are.
    nodes = fitted().integrated_
    pairs = zip(nodes.kernels, nodes.posteriors, strict=True)
    ends = [post.predict(kernel(NEW, X), kernel.diag(NEW)) for kernel, post in pairs]
    w, (m, v) = nodes.weights, np.array(ends).transpose(1, 0, 2)
    np.testing.assert_allclose(found, w @ m, rtol=1e-12)
    np.testing.assert_allclose(spread, w @ (v + m**2) - (w @ m) ** 2, rtol=1e-9)
    predicted, std = fitted().predict(NEW, return_std=True)
    np.testing.assert_allclose(predicted, found, rtol=1e-9)
    np.testing.assert_allclose(std**2, spread + NOISE**2, rtol=1e-9)
    _, covariance = fitted().latent(NEW, full_covariance=True)
    np.testing.assert_allclose(np.diag(covariance), spread, rtol=1e-9)
    # Draws have them.
    mean, covariance = fitted().latent(NEW, full_covariance=True)
    f = fitted().sample_latent(NEW, 20000, 1)
    assert (np.abs(f.mean(axis=0) - mean) < 5.0 * np.sqrt(np.diag(covariance) / 20000)).all()
    np.testing.assert_allclose(np.cov(f.T), covariance, atol=0.06 * covariance.max())
    y = fitted().sample(NEW, 20000, 2)
    np.testing.assert_allclose(y.var(axis=0), np.diag(covariance) + NOISE**2, rtol=0.06)


def test_evidence_densities_and_quantiles_are_those_of_quadrature():
    own, at, levels = known(), np.array([0.9, -0.4, 1.5]), [0.05, 0.5, 0.9]
    laws = norm(own.mean, np.sqrt(own.variance + NOISE**2))
    expected = np.log(own.average(laws.pdf(at)))
    np.testing.assert_allclose(fitted().predict_log_density(NEW, at), expected, rtol=0, atol=1.2e-3)

    def below(y, i, q):
        return own.average(laws.cdf(y)[..., i]) - q

    roots = [[brentq(below, -9.0, 9.0, args=(i, q)) for q in levels] for i in range(len(NEW))]
    np.testing.assert_allclose(fitted().predict_quantiles(NEW, levels), roots, atol=2e-3)
    low, high = fitted().predict_interval(NEW, 0.9).T
    np.testing.assert_allclose(low, fitted().predict_quantiles(NEW, 0.05), rtol=1e-9)
    assert (high > low).all()
    # To 4e-4: a factor of 1.001 in the Jacobian, in a weight or the prior would be more.
    assert fitted().integrated_.log_evidence == pytest.approx(known().log_evidence, abs=4e-4)
    assert fitted().integrated_.design == "grid"
    assert fitted().integrated_.names == ("k1__constant_value", "k2__length_scale")
    ratio = known().log_evidence - known(5).log_evidence
    assert fitted().loo()[5] == pytest.approx(ratio, abs=1.5e-3)
    assert leave_one_out(fitted()).log_density[5] == pytest.approx(fitted().loo()[5], abs=1e-12)


@every_case(
    ("design", "off"),
    [(qp.Integrate("composite"), 0.12), (qp.Integrate("importance", n=512), 0.01)],
)
def test_other_designs_come_near(design, off):
    """As far as measured: an axis of the composite design ends where a heavy tail goes on."""
    found = regressor(hyperparameters=design).fit(X, Y).integrated_
    assert found.log_evidence == pytest.approx(known().log_evidence, abs=off)
    assert found.pareto_k < 0.7 + 0.2 * (design.design == "importance")


@pytest.mark.slow
def test_classes_are_averaged():
    """Weights by evidences of `infer` and priors by hand; probabilities by the node's normals."""
    model = qp.GPClassifier(KERNEL, hyperparameters="integrate", method="ep", tol=1e-9)
    model.fit(X, LABELS)
    found = model.integrated_
    middle, signs = np.log(np.median(pdist(X))), np.where(LABELS, 1.0, -1.0)
    logs, shares, normals = [], [], []
    for theta in found.theta:
        kernel = KERNEL.clone_with_theta(theta)
        post = qp.infer(kernel(X), signs, "probit", "ep", tol=1e-10)
        logs.append(post.log_evidence + norm(0.0, 3.0).logpdf(theta[0]))
        logs[-1] += norm(middle, 1.5).logpdf(theta[1])
        mean, variance = post.predict(kernel(NEW, X), kernel.diag(NEW))
        shares.append(norm.cdf(mean / np.sqrt(1.0 + variance)))
        normals.append((mean, np.sqrt(variance)))
    weights = np.exp(np.array(logs) - logsumexp(logs))
    np.testing.assert_allclose(found.weights, weights, rtol=5e-5)
    p = weights @ np.array(shares)
    np.testing.assert_allclose(model.predict_proba(NEW)[:, 1], p, rtol=5e-5)
    np.testing.assert_allclose(norm.cdf(model.decision_function(NEW)), p, rtol=5e-5)
    np.testing.assert_array_equal(model.predict(NEW), p > 0.5)
    ends, (m, s) = model.predict_interval(NEW, 0.8), np.transpose(normals, (1, 2, 0))

    def below(f, i, q):
        return weights @ norm.cdf(f, m[i], s[i]) - q

    for i in range(len(NEW)):
        low, high = (norm.cdf(brentq(below, -300.0, 300.0, args=(i, q))) for q in (0.1, 0.9))
        # The interval has the prediction in it.
        assert ends[i] == pytest.approx([min(low, p[i]), max(high, p[i])], abs=2e-4)


@pytest.mark.parametrize("design", ["composite", pytest.param("grid", marks=pytest.mark.slow)])
def test_outliers_are_averaged(design):
    """Weights by evidences of `infer` and priors by hand, observations by a sum over f."""
    ends_at = {"tol": 1e-7, "max_sweeps": 1000}
    kernel = ConstantKernel(10.0, "fixed") * RBF(1.0)
    model = qp.GPRobustRegressor(
        kernel,
        nu=8.0,
        noise_bounds={"start": 1.2, "scale": (0.3, 9.0)},
        normalize_y=False,
        method="ep",
        **ends_at,
        hyperparameters=qp.Integrate(design),
    ).fit(X, 4.0 * Y)
    found, y, q = model.integrated_, np.array([-6.0, 1.0, 30.0]), [0.05, 0.4, 0.95]
    assert found.names == ("k2__length_scale", "scale")
    assert model.scale_ == pytest.approx(np.exp(model.optimum_.theta[1]))
    ends = model.predict_quantiles(NEW, q)
    middle, steps = np.log(np.median(pdist(X))), np.linspace(-9.0, 9.0, 601)
    logs, density, below, moments = [], [], [], []
    for theta in found.theta:
        own, scale = kernel.clone_with_theta(theta[:1]), float(np.exp(theta[1]))
        post = qp.infer(own(X), 4.0 * Y, f"student-t(nu=8, scale={scale!r})", "ep", **ends_at)
        logs.append(post.log_evidence + norm(np.log(1.2), 3.0).logpdf(theta[1]))
        logs[-1] += norm(middle, 1.5).logpdf(theta[0])
        mean, variance = post.predict(own(NEW, X), own.diag(NEW))
        moments.append((mean, variance))
        f = (mean[:, None] + np.sqrt(variance)[:, None] * steps)[:, :, None]
        share = norm.pdf(steps) * (steps[1] - steps[0])
        density.append(np.einsum("tnk,n->tk", student.pdf(y, 8.0, f, scale), share))
        below.append(np.einsum("tnk,n->tk", student.cdf(ends[:, None], 8.0, f, scale), share))
    w = found.weights
    if design == "grid":  # whose nodes are as likely as the density says, and nothing else
        np.testing.assert_allclose(w, np.exp(np.array(logs) - logsumexp(logs)), rtol=2e-4)
    np.testing.assert_allclose(np.tensordot(w, below, 1), np.tile(q, (3, 1)), rtol=2e-4)
    densities = np.transpose([model.predict_log_density(NEW, np.full(3, value)) for value in y])
    np.testing.assert_allclose(np.exp(densities), np.tensordot(w, density, 1), rtol=2e-4)
    centre = sum(a * m for a, (m, _) in zip(w, moments, strict=True))
    spread = sum(a * (v + (m - centre) ** 2) for a, (m, v) in zip(w, moments, strict=True))
    np.testing.assert_allclose(model.latent(NEW), [centre, spread], rtol=2e-4)
    draws = model.sample(NEW[:2], 4000, 0)
    np.testing.assert_allclose((draws < ends[:2, 1]).mean(axis=0), 0.4, atol=0.035)


@pytest.mark.slow
def test_counts_are_averaged():
    model = qp.GPPoissonRegressor(
        KERNEL, link="exp", dispersion=np.inf, method="ep", hyperparameters="integrate"
    ).fit(X, COUNTS)
    found, at = model.integrated_, np.arange(400)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    pmf = 0.0
    for theta, w in zip(found.theta, found.weights, strict=True):
        kernel = KERNEL.clone_with_theta(theta)
        post = qp.infer(kernel(X), COUNTS, "poisson-exp", "ep", mean=model.mean_, tol=1e-9)
        mean, variance = post.predict(kernel(NEW[:2], X), kernel.diag(NEW[:2]), mean=model.mean_)
        rate = np.exp(mean[:, None] + np.sqrt(variance)[:, None] * nodes)
        each = poisson(rate[:, :, None]).pmf(at)
        pmf = pmf + w * np.einsum("tnc,n->tc", each, weights / weights.sum())
    got = np.exp(model.predict_log_pmf(NEW[:2], np.tile(at[:20], (2, 1))))
    np.testing.assert_allclose(got, pmf[:, :20], rtol=3e-5)
    mean, std = model.predict(NEW[:2], return_std=True)
    np.testing.assert_allclose(mean, pmf @ at, rtol=1e-4)
    # Of the rate: a count adds its mean. Its square has a tail that nodes of Hermite miss.
    square = pmf @ at**2 - (pmf @ at) ** 2 - pmf @ at
    np.testing.assert_allclose(std**2, square, rtol=5e-3)
    for level in (0.1, 0.5, 0.95):
        known_count = (np.cumsum(pmf, axis=1) < level).sum(axis=1)
        np.testing.assert_array_equal(model.predict_quantiles(NEW[:2], level), known_count)
    drawn = model.sample(NEW[:2], 4000, 0)
    assert drawn.dtype == np.int64
    assert (np.abs(drawn.mean(axis=0) - mean) < 5.0 * np.sqrt((square + pmf @ at) / 4000)).all()
    refuses("the most probable count is of one set", model.predict_count, NEW)


@pytest.mark.slow
def test_counts_far_from_the_data_have_the_quantiles_of_the_prior():
    """At some nodes the 99 % quantile is beyond what counts can be, and not on average."""
    X = np.random.default_rng(2).uniform(0.0, 1.0, (40, 1))
    y = np.random.default_rng(2).poisson(np.exp(1.0 + np.sin(5.0 * X[:, 0])))
    model = qp.GPPoissonRegressor(
        KERNEL, link="exp", dispersion=np.inf, method="ep", hyperparameters="integrate"
    ).fit(X, y)
    ((weights, models),) = nodes_of(model)
    moments = [one.latent([[50.0]]) for one in models]
    z = np.linspace(-9.0, 9.0, 20_001)
    share = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    assert max(m[0] + 2.326 * np.sqrt(v[0]) for m, v in moments) > np.log(1e6)

    def below(count):
        rates = [np.exp(m[0] + np.sqrt(v[0]) * z) for m, v in moments]
        return sum(w * share @ poisson.cdf(count, r) for w, r in zip(weights, rates, strict=True))

    for q in (0.5, 0.9, 0.97):
        found = model.predict_quantiles([[50.0]], [q])[0, 0]
        assert below(found - 1) < q <= below(found)
    with pytest.raises(qp.NumericalError, match="its counts reach beyond 1000000"):
        model.predict_quantiles([[50.0]], [0.9999])
    words = "more than 1000 times the largest observed rate"
    with pytest.warns(UserWarning, match=words) as caught:
        mean = model.predict([[50.0]])
    assert len(caught) == 1
    rates = [np.exp(m[0] + 0.5 * v[0]) for m, v in moments]
    assert mean[0] == pytest.approx(weights @ rates, rel=1e-9)


@pytest.mark.slow
def test_corrected_weights():
    """Of normal noise none are corrected; of labels by `Posterior.corrected_evidence`."""
    corrected = regressor(hyperparameters=qp.Integrate(evidence="corrected")).fit(X, Y).integrated_
    np.testing.assert_allclose(corrected.weights, fitted().integrated_.weights, rtol=1e-6)
    plain, other = (
        qp.GPClassifier(KERNEL, hyperparameters=qp.Integrate(evidence=how), method="qp")
        .fit(X, LABELS)
        .integrated_
        for how in ("ep", "corrected")
    )
    kept = {tuple(theta): w for theta, w in zip(plain.theta, plain.weights, strict=True)}
    signs, ratios = np.where(LABELS, 1.0, -1.0), []
    for theta, w in zip(other.theta, other.weights, strict=True):
        if tuple(theta) in kept:
            post = qp.infer(KERNEL.clone_with_theta(theta)(X), signs, "probit", "ep", tol=1e-9)
            rise = post.corrected_evidence().value - post.log_evidence
            ratios.append(np.log(w / kept[tuple(theta)]) - rise)
    assert len(ratios) > 20
    np.testing.assert_allclose(ratios, ratios[0], atol=2e-4)
    assert other.log_evidence != plain.log_evidence


def test_the_mode_is_what_it_was():
    plain, same = qp.GPClassifier(KERNEL), qp.GPClassifier(KERNEL, hyperparameters="mode")
    integrated = qp.GPClassifier(KERNEL, hyperparameters="integrate")
    for model in (plain, same, integrated):
        model.fit(X, LABELS)
    assert plain.integrated_ is None
    np.testing.assert_array_equal(plain.predict_proba(NEW), same.predict_proba(NEW))
    assert integrated.kernel_ == plain.kernel_
    assert integrated.log_marginal_likelihood_value_ == plain.log_marginal_likelihood_value_
    assert (integrated.predict_proba(NEW) != plain.predict_proba(NEW)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qpruntime.SamplingWarning")
def test_several_classes_and_features_in_units():
    """Nodes of each class; a default kernel is of the features themselves at every node."""
    points = np.random.default_rng(0).uniform(0.0, 4.0, (36, 2)) * [1.0, 100.0]
    classes = np.digitize(points[:, 0], [1.3, 2.7])
    design = qp.Integrate("composite")
    model = qp.GPClassifier(hyperparameters=design, method="ep", random_state=0)
    model.fit(points, classes)
    other = clone(model).fit(points * [10.0, 0.1], classes)
    assert [one.design for one in model.integrated_] == ["composite"] * 3
    new = points[:5] + 0.1
    shares = model.predict_proba(new)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(other.predict_proba(new * [10.0, 0.1]), shares, atol=1e-5)
    assert model.latent(new)[0].shape == (5, 3)
    assert model.latent(new, full_covariance=True)[1].shape == (3, 5, 5)
    assert model.sample_latent(new, 2, 0).shape == (2, 5, 3)
    assert leave_one_out(model).log_density.shape == (36,)


@every_case(
    ("options", "words"),
    [
        ({"hyperparameters": "average"}, "hyperparameters must be one of"),
        ({"optimize": False}, "cannot act with optimize=False"),
        ({"optimize": "loo"}, 'cannot act with optimize="loo"'),
        ({"solver": "markov"}, "cannot act with solver='markov'"),
        ({"correction": "blend"}, "cannot act with correction='blend'"),
        ({"monotone": {0: 1}}, "cannot act with monotone"),
        ({"prior_mean": DummyRegressor()}, "cannot act with prior_mean"),
        ({"kernel": ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")}, "nothing to integrate"),
    ],
)
def test_what_cannot_act_is_refused(options, words):
    given = {"kernel": KERNEL, "hyperparameters": "integrate"} | options
    refuses(words, qp.GPClassifier(**given).fit, X, LABELS)


def test_joint_classes_and_other_parts_refuse():
    joint = qp.GPClassifier(KERNEL, multi_class="joint", hyperparameters="integrate")
    refuses("does not have hyperparameters='integrate'", joint.fit, X, np.arange(14) % 3)
    many = np.random.default_rng(0).uniform(0.0, 5.0, (2000, 2))
    model = qp.GPClassifier(hyperparameters="integrate")
    refuses("inducing=200", model.fit, many, many[:, 0] > 2.0)
    for call in (fitted().marginals, fitted().components):
        refuses('fit with hyperparameters="mode"', call, NEW)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qpruntime.SamplingWarning")
def test_inducing_points_at_all_rows_are_the_dense_engine():
    """Where the inputs are the rows nothing is left out, but for the jitter of 1e-8.

    Modes are known to about 0.01, and nodes of a design are as far apart: 2e-3 of the evidence.
    """
    design = qp.Integrate("composite")
    dense = qp.GPClassifier(KERNEL, hyperparameters=design, method="ep").fit(X, LABELS)
    sparse = clone(dense).set_params(inducing=qp.Inducing(X, power=1.0, learn=False)).fit(X, LABELS)
    assert sparse.engine_ == "inducing"
    wanted = dense.integrated_.log_evidence
    assert sparse.integrated_.log_evidence == pytest.approx(wanted, abs=4e-3)
    np.testing.assert_allclose(sparse.predict_proba(NEW), dense.predict_proba(NEW), atol=2e-3)
    ends = (model.predict_interval(NEW, 0.5) for model in (sparse, dense))
    np.testing.assert_allclose(next(ends), next(ends), atol=6e-3)
    other = clone(sparse).set_params(hyperparameters=qp.Integrate(evidence="corrected"))
    refuses("needs a covariance matrix", other.fit, X, LABELS)
    refuses("of one set of hyper-parameters", sparse.partial_fit, X, LABELS)


def test_values_survive(tmp_path):
    model = fitted()
    value = qp.Integrate("importance", n=16)
    assert repr(value) == "Integrate('importance', n=16)"
    other = clone(model).set_params(hyperparameters=value, hyperparameters__n=32)
    assert other.hyperparameters == qp.Integrate("importance", n=32)
    assert other.get_params()["hyperparameters__design"] == "importance"
    assert "integrate" in repr(model)
    assert "grid" in repr(model.integrated_)
    model.save(tmp_path / "model")
    for again in (qp.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict_quantiles(NEW), model.predict_quantiles(NEW))
        assert again.integrated_.names == model.integrated_.names


@pytest.mark.slow
def test_levels_and_times():
    """Shares of levels sum to 1 and quantiles follow them; survival curves meet their quantiles."""
    levels = np.digitize(Y, [-0.4, 0.5])
    average = qp.Integrate("importance", n=32)
    model = qp.GPOrdinal(KERNEL, likelihood="probit", method="ep", hyperparameters=average)
    model.set_params(random_state=0).fit(X, levels)
    shares = model.predict_proba(NEW)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    below = np.cumsum(shares, axis=1)
    np.testing.assert_array_equal(model.predict_quantiles(NEW, 0.5), (below[:, :-1] < 0.5).sum(1))
    assert set(np.unique(model.sample(NEW, 50, 0))) <= {0, 1, 2}
    times = qp.GPSurvival(KERNEL, method="ep", hyperparameters=qp.Integrate("importance", n=32))
    times.set_params(random_state=0).fit(X, np.exp(Y), event=np.arange(14) % 4 > 0)
    curves = times.predict_survival(NEW, times.predict(NEW))
    np.testing.assert_allclose(np.diag(curves), 0.5, atol=1e-8)


@pytest.mark.slow
def test_priors_that_are_given():
    search = qp.Search(priors={"length_scale": ("log-normal", 1.0, 0.05)})
    found = regressor(optimize=search).fit(X, Y).integrated_
    lengths = np.average(found.theta[:, 1], weights=found.weights)
    assert abs(lengths) < 0.03
    spread = np.average((found.theta[:, 1] - lengths) ** 2, weights=found.weights)
    assert spread == pytest.approx(0.05**2, rel=0.2)
