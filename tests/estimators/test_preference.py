"""`GPPreference`: utilities of comparisons against dense algebra, closed forms and sampling."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime
from qpruntime import GPPreference, InputError, Search, infer
from qpruntime.kernels import On, Same
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import unit_normal

FIXED = ConstantKernel(1.7, "fixed")
PRIORS = Search(priors={"length_scale": ("log-normal", 1.0, 1.0)})
GAMES = np.array([[0, 1], [1, 2], [2, 0], [0, 3], [3, 1], [0, 1], [4, 0], [2, 4], [1, 4]])


def rows_of(pairs, n, scores=None):
    """Differences of those who won and those who lost."""
    first, second = np.transpose(pairs)
    if scores is not None:
        first, second = np.where(scores == 1.0, (first, second), (second, first))
    return np.eye(n)[first] - np.eye(n)[second]


def drawn(seed=0, n=8, count=60):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    f = 1.5 * X[:, 0] - np.sin(2.0 * X[:, 1])
    pairs = np.array([rng.choice(n, 2, replace=False) for _ in range(count)])
    return X, pairs, (f[pairs[:, 0]] - f[pairs[:, 1]] + rng.normal(size=count) > 0.0).astype(float)


@every_case("method", ["ep", "qp"])
def test_by_dense_algebra(method):
    """Utilities and probabilities of a fixed kernel, by `infer` on all differences."""
    X, pairs, scores = drawn()
    kernel = FIXED * RBF(0.8, "fixed")
    model = GPPreference(kernel, method=method, tol=1e-10).fit(X, pairs, scores=scores)
    A, K = rows_of(pairs, len(X), scores), kernel(X)
    post = infer(A @ K @ A.T, np.ones(len(A)), method=method, tol=1e-10, max_sweeps=300)
    assert model.log_marginal_likelihood_value_ == pytest.approx(post.log_evidence, abs=1e-8)
    np.testing.assert_allclose(model.posterior_.loo(), post.loo(), atol=1e-7)
    new = np.random.default_rng(1).normal(size=(3, 2))
    wide = kernel(np.vstack([X, new]))
    less = np.eye(11)
    less[:, :8] -= 1.0 / 8.0
    mean, variance = post.predict(less @ wide[:, :8] @ A.T, np.diag(less @ wide @ less.T))
    for some, given in ((slice(0, 8), None), (slice(8, 11), new)):
        ours = model.utility(given)
        np.testing.assert_allclose(ours[0], mean[some], atol=1e-7)
        np.testing.assert_allclose(ours[1], np.sqrt(variance[some]), atol=1e-7)
    B = rows_of([(0, 1), (2, 0)], 3)
    mean, variance = post.predict(B @ wide[8:, :8] @ A.T, np.diag(B @ wide[8:, 8:] @ B.T))
    told = model.predict_proba([[0, 1], [2, 0]], new)
    np.testing.assert_allclose(told[:, 0], norm.cdf(mean / np.sqrt(1.0 + variance)), atol=1e-7)
    np.testing.assert_allclose(told.sum(axis=1), 1.0, rtol=1e-12)
    low, high = model.predict_interval([[0, 1], [2, 0]], new, level=0.8).T
    reach = norm.ppf(0.9) * np.sqrt(variance)
    np.testing.assert_allclose(low, norm.cdf(mean - reach), atol=1e-7)
    np.testing.assert_allclose(high, norm.cdf(mean + reach), atol=1e-7)


def test_one_comparison():
    """One win between two of their own: evidence 1/2 and moments of a skew normal, exact for EP."""
    model = GPPreference(FIXED * Same(), method="ep").fit(None, [["b", "a"]])
    assert model.log_marginal_likelihood_value_ == pytest.approx(np.log(0.5), abs=1e-12)
    v = 2.0 * 1.7
    shift = v / np.sqrt(1.0 + v) * norm.pdf(0.0) / 0.5
    mean, std = model.utility(["b", "a"])
    np.testing.assert_allclose(mean, [0.5 * shift, -0.5 * shift], rtol=1e-9)
    np.testing.assert_allclose(std, 0.5 * np.sqrt(v - shift**2), rtol=1e-9)
    assert model.noise_ == pytest.approx(1.0 / np.sqrt(0.5 * 1.7))
    assert model.items_.tolist() == ["a", "b"]
    assert model.predict([["a", "b"]]).tolist() == ["b"]


def test_the_same_game_three_times():
    """A weight of 3 is one factor Phi^3: the evidence is an orthant probability."""
    model = GPPreference(FIXED * Same(), method="ep", tol=1e-10)
    model.fit(None, [[1, 2], [1, 2]], [3.0, 0.0])
    # P(d + e_k > 0, k = 1, 2, 3), d ~ N(0, 3.4): exact, for one site matches the moments of Phi^3.
    covariance = 3.4 + np.eye(3)
    exact = 1.0 / 8.0 + 3.0 * np.arcsin(3.4 / 4.4) / (4.0 * np.pi)
    close = multivariate_normal.cdf(np.zeros(3), np.zeros(3), covariance)
    assert exact == pytest.approx(close, abs=1e-4)
    assert model.log_marginal_likelihood_value_ == pytest.approx(np.log(exact), abs=1e-8)


def test_a_tie_is_half_a_win_of_either():
    """Z = E sqrt(Phi(d) Phi(-d)) to EP's error, and no one is better; nor in a circle of wins."""
    model = GPPreference(FIXED * Same(), method="ep").fit(None, [["a", "b"]], scores=[0.5])
    x, w = unit_normal(200)
    d = x * np.sqrt(3.4)
    exact = w @ np.sqrt(norm.cdf(d) * norm.cdf(-d))
    # Two sites along one difference: EP, 4e-3 off.
    assert model.log_marginal_likelihood_value_ == pytest.approx(np.log(exact), abs=1e-2)
    np.testing.assert_allclose(model.utility()[0], 0.0, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba([["a", "b"]]), 0.5, atol=1e-9)
    swapped = GPPreference(FIXED * Same()).fit(None, [["a", "b"], ["b", "c"]], scores=[0, 1])
    plain = GPPreference(FIXED * Same()).fit(None, [["b", "a"], ["b", "c"]])
    np.testing.assert_array_equal(swapped.utility(), plain.utility())
    circle = GPPreference().fit(None, [["a", "b"], ["b", "c"], ["c", "a"]])
    np.testing.assert_allclose(circle.utility()[0], 0.0, atol=1e-6)


def test_ranks_by_sampling():
    """Shares of ranks among draws of an independent generator from the dense posterior."""
    model = GPPreference(FIXED * Same(), method="ep", tol=1e-10).fit(None, GAMES)
    A, K = rows_of(GAMES, 5), 1.7 * np.eye(5)
    tau, nu = model.posterior_.sites.tau, model.posterior_.sites.nu
    S = np.linalg.inv(np.linalg.inv(K) + A.T @ (tau[:, None] * A))
    draws = np.random.default_rng(3).multivariate_normal(S @ A.T @ nu, S, 200_000)
    order = np.argsort(-draws, axis=1)
    share = np.array([[np.mean(order[:, r] == i) for r in range(5)] for i in range(5)])
    found = model.rank_proba(n_samples=50_000)
    np.testing.assert_allclose(found, share, atol=0.012)  # 5 standard errors
    np.testing.assert_allclose(found.sum(axis=0), 1.0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found, model.rank_proba(n_samples=50_000))


def test_games_with_dates():
    """A series for every player: the covariance is written out, and so is the operator."""
    rng = np.random.default_rng(4)
    pairs = np.array([rng.choice(4, 2, replace=False) for _ in range(25)])
    times = np.sort(rng.uniform(0.0, 9.0, 25))
    times[4] = times[5]
    kernel = ConstantKernel(1.3, "fixed") * On(Same(), [0]) * On(Matern(2.0, "fixed", nu=1.5), [1])
    model = GPPreference(kernel, method="ep", tol=1e-10).fit(None, pairs, times=times)

    def prior(player, t, other, s):
        u = np.sqrt(3.0) * np.abs(t[:, None] - s) / 2.0
        return 1.3 * (player[:, None] == other) * (1.0 + u) * np.exp(-u)

    who, when = pairs.T.ravel(), np.tile(times, 2)
    wide = prior(who, when, who, when)
    A = np.hstack([np.eye(25), -np.eye(25)])
    post = infer(A @ wide @ A.T, np.ones(25), method="ep", tol=1e-10, max_sweeps=300)
    assert model.log_marginal_likelihood_value_ == pytest.approx(post.log_evidence, abs=1e-8)
    players, at = np.arange(4), np.full(4, 3.3)
    less = np.eye(4) - 0.25
    crossed = less @ prior(players, at, who, when) @ A.T
    mean, variance = post.predict(crossed, np.diag(less @ prior(players, at, players, at) @ less.T))
    ours = model.utility(times=3.3)
    np.testing.assert_allclose(ours[0], mean, atol=1e-7)
    np.testing.assert_allclose(ours[1], np.sqrt(variance), atol=1e-7)
    np.testing.assert_array_equal(model.utility([0, 1], times=times[-1]), model.utility([0, 1]))
    days = np.datetime64("2020-02-27") + np.arange(25)
    dated = GPPreference(kernel).fit(None, pairs, times=days)
    numbered = GPPreference(kernel).fit(None, pairs, times=days.astype(float))
    np.testing.assert_array_equal(dated.utility()[0], numbered.utility()[0])


def test_what_is_learnt():
    """The learnt variance is the peak of the evidence by `infer`; utilities are found again."""
    rng = np.random.default_rng(6)
    f = rng.normal(size=12) * 1.5
    pairs = np.array([rng.choice(12, 2, replace=False) for _ in range(400)])
    scores = (f[pairs[:, 0]] - f[pairs[:, 1]] + rng.normal(size=400) > 0.0).astype(float)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * Same()
    model = GPPreference(kernel, method="ep").fit(None, pairs, scores=scores)
    variance = np.exp(model.kernel_.theta[0])
    A = rows_of(pairs, 12, scores)

    def evidence(v):
        return infer(v * np.eye(12), np.ones(400), method="ep", operator=A, tol=1e-10).log_evidence

    low, top, high = (evidence(variance * k) for k in (0.97, 1.0, 1.03))
    assert top > max(low, high)
    assert model.optimum_.value == pytest.approx(top, abs=1e-6)
    mean, std = model.utility()
    assert np.mean(np.abs(mean - (f - f.mean())) < 2.0 * std) > 0.7
    # Without a variance of its own a kernel gets one.
    own = GPPreference(RBF(1.0)).fit(drawn()[0], *drawn()[1:2], scores=drawn()[2])
    assert own.kernel_.n_dims == 2


@every_case(
    ("arguments", "said"),
    [
        ((None, [0, 1]), r"shape \(P, 2\)"),
        ((None, np.empty((0, 2))), r"shape \(P, 2\)"),
        ((None, [["a", "a"]]), "two items or more"),
        ((None, [["a", "b"], ["b", "b"]]), "comparison 1 is of an item with itself"),
        ((None, [[0.0, np.nan]]), "not finite"),
        ((None, np.array([["a", 1]], dtype=object)), "one type"),
        ((["a", "b"], [["a", "c"]]), "item 'c'"),
        ((np.eye(3), [[0, 3]]), "from 0 to 2"),
        ((np.eye(3), [[0.5, 1.0]]), "from 0 to 2"),
        ((np.eye(3), [["0", "1"]]), "from 0 to 2"),
        (([[np.nan], [1.0]], [[0, 1]]), "X"),
        ((np.zeros((2, 2)), [[0, 1]]), "same features"),
        (([[0.0], [1.0], [1.0]], [[0, 1], [1, 2]]), "comparison 1 is of two items with the same"),
        ((None, [["a", "b"]], [-1.0]), "sample_weight"),
        ((None, [["a", "b"]], [0.0]), "sample_weight"),
        ((None, [["a", "b"]], [1.0, 2.0]), "sample_weight"),
    ],
)
def test_what_is_refused(arguments, said):
    refuses(said, GPPreference().fit, *arguments)


@every_case(
    ("call", "said"),
    [
        (lambda m: m.predict_proba([["a", "d"]]), "item 'd'"),
        (lambda m: m.predict_proba([["a", "b"]], times=3.0), "without times"),
        (lambda m: m.predict_proba([[0, 1]], np.eye(2)), "leave X out"),
        (lambda m: m.predict_interval([["a", "b"]], level=1.0), "level"),
        (lambda m: m.rank_proba(n_samples=0), "n_samples"),
        (lambda m: clone(m).set_params(method="vb").fit(None, [["a", "b"]]), "method"),
        (lambda m: clone(m).set_params(kernel="auto").fit(None, [["a", "b"]]), "kernel"),
        (lambda m: clone(m).set_params(kernel=None, optimize=PRIORS).fit(None, GAMES), "priors"),
        (lambda m: m.fit(None, [["a", "b"]], scores=[2.0]), "scores"),
        (lambda m: m.fit(None, [["a", "b"]], times=[np.nan]), "times"),
        (lambda m: m.fit(None, [["a", "b"]], times=[1.0, 2.0]), "times"),
    ],
)
def test_calls_that_are_refused(call, said):
    model = GPPreference(FIXED * Same()).fit(None, [["a", "b"], ["b", "c"]])
    before = dict(vars(model))
    refuses(said, call, model)
    assert vars(model) == before


@pytest.mark.slow
def test_a_large_tournament():
    """10^5 games of 10^3 players: strengths are found, in many fewer seconds than this allows."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=1000)
    pairs = rng.integers(0, 1000, (100_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    scores = (f[pairs[:, 0]] - f[pairs[:, 1]] + rng.normal(size=len(pairs)) > 0.0).astype(float)
    model = GPPreference().fit(None, pairs, scores=scores)
    mean, std = model.utility()
    assert 1.0 / model.noise_ == pytest.approx(f.std(), rel=0.1)
    assert ((mean - (f - f.mean())) / std).std() == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_hyper_parameters_are_integrated(tmp_path):
    """Nodes weighed by evidences of `infer` and priors by hand; probabilities by each node's."""
    X, pairs, scores = drawn(count=30)
    kernel = ConstantKernel(1.0) * RBF(1.0)
    given = {"method": "ep", "tol": 1e-9, "hyperparameters": "integrate"}
    model = GPPreference(kernel, **given).fit(X, pairs, scores=scores)
    A, asked = rows_of(pairs, len(X), scores), pairs[:4]
    B, middle = rows_of(asked, len(X)), np.log(np.median(pdist(X)))
    logs, shares, normals = [], [], []
    for theta in model.integrated_.theta:
        K = kernel.clone_with_theta(theta)(X)
        post = infer(A @ K @ A.T, np.ones(len(A)), method="ep", tol=1e-9, max_sweeps=300)
        prior = norm(0.0, 3.0).logpdf(theta[0]) + norm(middle, 1.5).logpdf(theta[1])
        logs.append(post.log_evidence + prior)
        mean, variance = post.predict(B @ K @ A.T, np.diag(B @ K @ B.T))
        shares.append(norm.cdf(mean / np.sqrt(1.0 + variance)))
        normals.append(norm(mean, np.sqrt(variance)))
    weights = np.exp(np.array(logs) - logsumexp(logs))
    np.testing.assert_allclose(model.integrated_.weights, weights, rtol=2e-4)
    p = weights @ np.array(shares)
    np.testing.assert_allclose(model.predict_proba(asked)[:, 0], p, rtol=1e-5)
    expected = np.where(p >= 0.5, asked[:, 0], asked[:, 1])
    np.testing.assert_array_equal(model.predict(asked), expected)
    ends = norm.ppf(model.predict_interval(asked, level=0.8))
    below = sum(w * one.cdf(ends.T) for w, one in zip(weights, normals, strict=True))
    np.testing.assert_allclose(below.T, np.tile([0.1, 0.9], (4, 1)), rtol=1e-4)
    mean, std = model.utility()
    assert abs(mean.sum()) < 1e-9
    assert (std > 0.0).all()
    np.testing.assert_allclose(model.rank_proba(n_samples=200).sum(axis=0), 1.0, rtol=1e-12)
    model.save(tmp_path / "model")
    copy = qpruntime.load(tmp_path / "model")
    np.testing.assert_array_equal(copy.predict_proba(asked), model.predict_proba(asked))
    with pytest.raises(InputError, match="cannot act with optimize=False"):
        GPPreference(kernel, optimize=False, hyperparameters="integrate").fit(X, pairs)
    with pytest.raises(InputError, match="nothing to integrate"):
        GPPreference(FIXED * RBF(1.0, "fixed"), hyperparameters="integrate").fit(X, pairs)
