"""GPOrdinal: against integrals over the latent function, and levels as people have them."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri
from sklearn.ensemble import VotingClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import get_scorer

from qpruntime import GPOrdinal, InputError, infer
from qpruntime.likelihoods import get
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, (150, 1))
F = 2.0 * np.sin(X[:, 0])
CODES = np.digitize(F + RNG.standard_normal(150), [-1.2, -0.4, 1.0])
WORDS = np.array(["bad", "poor", "fair", "good"])
#: Column of the probability of each word: classes are sorted.
COLUMNS = np.array([0, 3, 1, 2])
NEW = np.array([[1.5], [3.1], [20.0]])
KERNEL = ConstantKernel(4.0) * RBF(1.5, "fixed")


#: Distribution functions of the noise.
BELOW = {"logistic": expit, "probit": ndtr}


def fitted(likelihood):
    own = GPOrdinal(KERNEL, levels=WORDS, likelihood=likelihood, method="ep")
    return own.fit(X, WORDS[CODES])


@pytest.fixture(scope="module")
def model():
    return fitted("logistic")


@every_case("noise", BELOW)
def test_probabilities_are_integrals_over_f(noise):
    model, below = fitted(noise), BELOW[noise]
    mean, variance = model.latent(NEW)
    z = np.linspace(-9.0, 9.0, 20_001)
    w = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    edges = np.array([-np.inf, *model.thresholds_, np.inf])
    for i in range(3):
        f = mean[i] + np.sqrt(variance[i]) * z
        wanted = [w @ (below(b - f) - below(a - f)) for a, b in pairwise(edges)]
        np.testing.assert_allclose(model.predict_proba(NEW)[i, COLUMNS], wanted, rtol=1e-9)
        density = [model.predict_log_density(NEW[i : i + 1], [word])[0] for word in WORDS]
        np.testing.assert_allclose(density, np.log(wanted), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(NEW)[:2], ["good", "fair"])
    # Of a latent function that is known only the noise is left: digits in both tails.
    low, high = model.thresholds_[[0, -1]]
    gap = low - high - 9.0
    for f, column in ((high + 9.0, 0), (low - 9.0, 2)):
        model._predicted = lambda points, finish, f=f, **_: finish(np.array([f]), np.array([1e-30]))
        p = model.predict_proba(NEW[:1])[0]
        np.testing.assert_allclose(p[column], below(gap), rtol=1e-12)
        np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-13)


def test_thresholds_are_learnt_with_the_kernel():
    model = fitted("probit")
    gaps = np.diff(model.thresholds_)
    # The truth is 0.8 and 1.4; 150 levels know them so well.
    np.testing.assert_allclose(gaps, [0.8, 1.4], atol=0.35)
    assert model.converged_
    # At other gaps the evidence is lower: by sites of `infer`, which learns nothing.
    kernel = model.kernel_(X)
    for factor in (0.93, 1.0, 1.07):
        names = {"gap_2": factor * gaps[0], "gap_3": gaps[1], "gap_4": 1e8}
        names["middle"] = 0.5 * (model.thresholds_[0] + model.thresholds_[-1])
        post = infer(kernel, CODES, get("ordinal", **names), method="ep", mean=model.mean_)
        gap = post.log_evidence - model.log_marginal_likelihood_value_
        assert abs(gap) < 1e-6 if factor == 1.0 else gap < -1e-3
    # Logistic noise is the default, and its thresholds are wider.
    own, probit = GPOrdinal(KERNEL, method="ep").fit(X, CODES), fitted("probit")
    assert own.likelihood_.name == "ordinal-logistic" != probit.likelihood_.name
    ratio = np.diff(own.thresholds_) / np.diff(probit.thresholds_)
    np.testing.assert_allclose(ratio, 1.7, rtol=0.1)
    refuses("likelihood must be one of", GPOrdinal(likelihood="cloglog").fit, X, CODES)


def test_quantiles_and_draws(model):
    probabilities = model.predict_proba(NEW)[:, COLUMNS]
    cumulated = np.cumsum(probabilities, axis=1)
    place = [np.searchsorted(row, 0.3) for row in cumulated]
    np.testing.assert_array_equal(model.predict_quantiles(NEW, 0.3), WORDS[place])
    assert model.predict_interval(NEW).shape == (3, 2)
    drawn = model.sample(NEW, 20_000, random_state=0)
    for word, wanted in zip(WORDS, probabilities.T, strict=True):
        share = (drawn == word).mean(axis=0)
        np.testing.assert_allclose(share, wanted, atol=5.0 * 0.5 / np.sqrt(20_000))


def test_numbers_and_words_are_alike(model):
    plain = GPOrdinal(KERNEL, method="ep").fit(X, CODES)
    expected = model.predict_proba(NEW)[:, COLUMNS]
    np.testing.assert_allclose(plain.predict_proba(NEW), expected, rtol=1e-12)
    density = model.predict_log_density(NEW, ["bad", "fair", "good"])
    found = model.predict_log_density(NEW, np.array([b"bad", b"fair", b"good"]))
    np.testing.assert_array_equal(found, density)
    words = "y has levels that are text in the fit and numbers now"
    refuses(words, model.predict_log_density, NEW, [0, 1, 2])
    # They take column k of the probabilities for the k-th of the sorted labels.
    assert model.levels_.tolist() == WORDS.tolist()
    assert model.classes_.tolist() == sorted(WORDS)
    y, proba = WORDS[CODES], model.predict_proba(X)
    by_hand = np.log(proba[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean()
    np.testing.assert_allclose(by_hand, model.predict_log_density(X, y).mean(), rtol=1e-9)
    np.testing.assert_allclose(get_scorer("neg_log_loss")(model, X, y), by_hand, rtol=1e-12)
    assert model.score(X, y) == (model.predict(X) == y).mean() > 0.5


@every_case(
    ("y", "levels", "words"),
    [
        (np.zeros(150), None, "2 to 12 levels, got 1: add rows of another class"),
        (CODES, [0, 1, 2], "none of levels="),
        (CODES, [0, 1, 2, 2], "different ones"),
        (np.arange(150) % 20, None, "got 20"),
    ],
)
def test_refusals(y, levels, words):
    refuses(words, GPOrdinal(levels=levels).fit, X, y)


def test_an_ensemble_votes_with_levels_that_are_words():
    """`VotingClassifier` hands on numbers of the sorted labels, which a message says."""
    y = WORDS[CODES]
    one = GPOrdinal(KERNEL, levels=WORDS, method="ep", optimize=False)
    with pytest.raises(InputError, match=r"VotingClassifier .* levels=\[0, 3, 1, 2\]"):
        VotingClassifier([("a", one)], voting="soft").fit(X, y)
    wanted = one.fit(X, y).predict_proba(NEW)
    coded = GPOrdinal(KERNEL, levels=[0, 3, 1, 2], method="ep", optimize=False)
    for voting in ("soft", "hard"):
        both = VotingClassifier([("a", coded), ("b", coded)], voting=voting).fit(X, y)
        np.testing.assert_array_equal(both.predict(NEW), one.predict(NEW))
    soft = VotingClassifier([("a", coded)], voting="soft").fit(X, y)
    np.testing.assert_allclose(soft.predict_proba(NEW), wanted, rtol=1e-12)


@every_case("kernel", [None, KERNEL])
def test_levels_in_the_opposite_order_are_the_same_model(kernel):
    """Evidence, probabilities, and thresholds of the other sign; also where shares are uneven."""
    y = np.digitize(F[:70] + RNG.standard_normal(70), [-2.0, -1.6, 0.1])
    up = GPOrdinal(kernel, method="ep").fit(X[:70], y)
    down = GPOrdinal(kernel, method="ep").fit(X[:70], -y)
    got = up.log_marginal_likelihood_value_
    np.testing.assert_allclose(got, down.log_marginal_likelihood_value_, atol=1e-6)
    np.testing.assert_allclose(up.predict_proba(NEW), down.predict_proba(NEW)[:, ::-1], atol=1e-5)
    mirrored = down.mean_ - down.thresholds_[::-1]
    np.testing.assert_allclose(up.thresholds_ - up.mean_, mirrored, atol=1e-4)


def test_two_levels_begin_at_their_shares():
    """With one threshold f has the mean of the probit of the shares, whatever the direction.

    Logistic noise is 1.7 times as wide.
    """
    y = np.arange(40) % 4 == 0
    for likelihood, unit in (("probit", 1.0), ("logistic", 1.7)):
        own = GPOrdinal(RBF(), likelihood=likelihood, method="ep", optimize=False)
        own.fit(X[:40], y)
        wanted = unit * np.sqrt(2.0) * ndtri((10 + 0.5) / (40 + 1.0))
        np.testing.assert_allclose(own.mean_ - own.thresholds_, [wanted], rtol=1e-12)


def test_declared_orders_are_the_order_of_the_levels(model):
    """Categories of pandas and polars, against the same order given by hand."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    fixed = {"kernel": model.kernel_, "optimize": False, "method": "ep"}
    wanted = GPOrdinal(levels=WORDS, **fixed).fit(X, WORDS[CODES])
    words = WORDS[CODES]
    for y in (
        pd.Series(pd.Categorical(words, WORDS, ordered=True)),
        pd.Categorical(words, WORDS),
        pl.Series(words.tolist(), dtype=pl.Enum(WORDS.tolist())),
    ):
        own = GPOrdinal(**fixed).fit(X, y)
        assert own.levels_.tolist() == WORDS.tolist()
        assert own.log_marginal_likelihood_value_ == wanted.log_marginal_likelihood_value_
    more = pd.Categorical(words, [*WORDS, "never"], ordered=True)
    assert GPOrdinal(**fixed).fit(X, more).levels_.tolist() == [*WORDS, "never"]
    unordered = GPOrdinal(**fixed).fit(X, pd.Categorical(words, [*WORDS, "never"]))
    assert unordered.levels_.tolist() == WORDS.tolist()


def test_a_quantile_is_the_lowest_level_that_reaches_it():
    """Probability .25 is reached by the first level, whose probability it is."""

    class Known(GPOrdinal):
        def predict_proba(self, X):
            return np.array([[0.25, 0.25, 0.5]])

    model = Known()
    model.levels_ = np.array([3, 5, 7])
    found = model.predict_quantiles(X[:1], [0.24, 0.25, 0.26, 0.5, 0.51])
    assert found.tolist() == [[3, 3, 5, 5, 7]]


def test_a_level_of_weight_0_is_no_level():
    y = CODES.copy()
    y[0] = 7
    weights = np.ones(150)
    weights[0] = 0.0
    far = X.copy()
    far[0] = 1e6
    own = GPOrdinal(method="ep").fit(far, y, sample_weight=weights)
    alone = GPOrdinal(method="ep").fit(X[1:], CODES[1:])
    assert own.levels_.tolist() == [0, 1, 2, 3]
    assert own.log_marginal_likelihood_value_ == alone.log_marginal_likelihood_value_
