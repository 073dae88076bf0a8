"""Choices of one among several: the product of probits, integrated over the noise they share."""

import datetime

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime
from qpruntime import GPPreference, infer
from qpruntime.estimators.pairwise_data import (
    choice_operator,
    items_of,
    pairs_of,
    probabilities_of,
    times_of,
)
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.learning.train_operator import OperatorFamily, with_units
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import unit_normal

X = np.random.default_rng(3).normal(size=(12, 2))
KERNEL = ConstantKernel(3.0) * RBF([1.0, 1.5])


def exact(mean, covariance, chosen=0, near=1e-7):
    """P(f_chosen + e_chosen is the largest), noise of variance 1/2 each, by Genz's integral."""
    others = [j for j in range(len(mean)) if j != chosen]
    D = np.zeros((len(others), len(mean)))
    D[:, chosen] = 1.0
    D[np.arange(len(others)), others] = -1.0
    spread = D @ (covariance + 0.5 * np.eye(len(mean))) @ D.T
    return multivariate_normal.cdf(D @ mean, np.zeros(len(others)), spread, abseps=near)


def drawn(seed, count, sizes=(2, 3, 5)):
    rng = np.random.default_rng(seed)
    f = 2.0 * X[:, 0] - X[:, 1]
    rows = []
    for _ in range(count):
        own = rng.choice(len(X), rng.choice(sizes), replace=False)
        best = np.argmax(f[own] + np.sqrt(0.5) * rng.normal(size=own.size))
        rows.append([own[best], *np.delete(own, best)])
    return rows


def test_one_choice_beside_the_exact_integral():
    """Three alike have 1/3 each; EP's evidence is off by a hundredth, corrected below 1e-3."""
    A = choice_operator([np.arange(3)], 3)
    for K, value in (
        (np.eye(3), np.log(1.0 / 3.0)),
        (KERNEL(X[:3]), np.log(exact(np.zeros(3), KERNEL(X[:3])))),
    ):
        post = infer(with_units(K, 1), np.ones(2), method="ep", operator=A)
        assert abs(post.log_evidence - value) < 2e-2
        assert abs(post.corrected_evidence().value - value) < 1e-3
    # The operator is the product of probits over the shared noise, by quadrature over it.
    f = np.array([0.3, -0.2, 0.9, 0.1])
    A = choice_operator([np.array([2, 0, 1, 3])], 4).toarray()
    nodes, weights = unit_normal(60)
    by_sites = weights @ norm.cdf(np.array([A @ np.append(f, u) for u in nodes])).prod(axis=1)
    # Genz's rule draws its points: 1e-7 is its own error.
    assert abs(by_sites - exact(f, np.zeros((4, 4)), 2)) < 1e-6


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_probabilities_of_new_choices(k):
    """Beside Genz's integral; of two a comparison with noise of variance 1."""
    rng = np.random.default_rng(k)
    mean, root = rng.normal(size=k), rng.normal(size=(k, k))
    covariance = root @ root.T
    found = probabilities_of(mean, covariance)
    near, limit = (1e-7, 1e-6) if k < 4 else (1e-5, 5e-4)
    known = [exact(mean, covariance, c, near) for c in range(k)]
    np.testing.assert_allclose(found, known, atol=limit)
    assert abs(found.sum() - 1.0) < 1e-12
    if k == 2:
        spread = covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]
        assert abs(found[0] - norm.cdf((mean[0] - mean[1]) / np.sqrt(1.0 + spread))) < 1e-12


@pytest.mark.parametrize("latent", [True, False])
def test_slopes_of_the_evidence(latent):
    """By the kernel's parameters, with the shared noise beside it: differences to 1e-6."""
    A = choice_operator([np.array(row) for row in drawn(0, 25)], len(X))
    rows = Functionals(A, A.shape[1])

    def evidence(theta):
        K = with_units(KERNEL.clone_with_theta(theta)(X), rows.latent - len(X))
        return infer(K, np.ones(rows.n), method="ep", operator=A, tol=1e-11, max_sweeps=300)

    family = OperatorFamily(KERNEL, X, np.zeros(len(X)), rows, latent)
    solved = family.at(KERNEL.theta).factor(evidence(KERNEL.theta).sites)
    for k, slope in enumerate(family.contract(solved.slope())):
        step = 1e-4 * np.eye(3)[k]
        up, down = (evidence(KERNEL.theta + s * step).log_evidence for s in (1.0, -1.0))
        assert abs(slope - (up - down) / 2e-4) < 1e-6 * max(1.0, abs(slope))


def test_pairs_in_rows_are_pairs():
    rows = drawn(1, 30, sizes=(2,))
    one, two = (
        GPPreference(KERNEL, optimize=False).fit(X, given) for given in (rows, np.array(rows))
    )
    np.testing.assert_array_equal(one.utility(), two.utility())


def test_choices_are_learnt_from(tmp_path):
    model = GPPreference(random_state=0).fit(X, drawn(2, 80))
    new = np.array(drawn(5, 40, sizes=(4,)))
    p = model.predict_proba(new)
    assert p.shape == (40, 4)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    truth = 2.0 * X[:, 0] - X[:, 1]
    best = np.array([exact(truth[row], np.zeros((4, 4))) for row in new])
    loss, least = -np.log(p[:, 0]).mean(), -np.log(best).mean()
    assert least < loss < least + 0.3 < np.log(4.0)
    assert (model.predict(new) == new[np.arange(40), p.argmax(axis=1)]).all()
    mean, _ = model.utility()
    assert np.corrcoef(mean, truth)[0, 1] > 0.95
    np.testing.assert_allclose(model.rank_proba(n_samples=1000).sum(axis=0), 1.0)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(qpruntime.load(tmp_path / "model").predict_proba(new), p)


def test_names_and_times():
    names = [["tea", "ale", "rye"], ["tea", "rye"], ["ale", "tea", "rye"], ["tea", "ale"]]
    model = GPPreference().fit(None, names, times=[0.0, 1.0, 2.0, 3.0])
    assert model.predict_proba([["tea", "ale", "rye"]], times=3.0).shape == (1, 3)
    assert model.posterior_.n == 6
    dropped = GPPreference(optimize=False).fit(None, names, sample_weight=[1.0, 1.0, 0.0, 1.0])
    left = GPPreference(optimize=False).fit(None, [names[k] for k in (0, 1, 3)])
    np.testing.assert_array_equal(dropped.utility(), left.utility())
    # Days are days in every type.
    days = [datetime.date(2020, 1, 2), datetime.date(2020, 1, 1)]
    wanted = [18263.0, 18262.0]
    for times in (days, np.array(days, dtype="datetime64[ns]"), np.array(wanted)):
        assert times_of(times, 2).tolist() == wanted
    for wrong in (np.ma.array(wanted, mask=[0, 1]), np.array(["2020", "NaT"], dtype="M8[D]")):
        refuses("times", times_of, wrong, 2)


@every_case(
    "rows, options, said",
    [
        ([[0, 1, 2], [1]], {}, "row 1 has shape"),
        ([[0, 1, 1]], {}, "choice 0 has an item twice"),
        ([[0, 1, 99]], {}, "from 0 to 11"),
        ([[0, 1, 2]], {"scores": [1.0]}, "scores are for pairs"),
        ([[0, 1, 2]], {"sample_weight": [2.0]}, "repeat a choice"),
        ([[0, 1, 2]], {"sample_weight": [0.0]}, "1 for one of them"),
        ([], {}, "pairs must have"),
    ],
)
def test_what_is_refused(rows, options, said):
    model = GPPreference(KERNEL, optimize=False)
    refuses(said, model.fit, X, rows, **options)
    assert not hasattr(model, "posterior_")


def test_items_that_are_alike():
    twins = np.vstack([X, X[:1]])
    refuses("same features", GPPreference(KERNEL, optimize=False).fit, twins, [[0, 3, 12]])
    model = GPPreference(KERNEL, optimize=False).fit(X, drawn(3, 10))
    refuses(r"shape \(P, 2\)", model.predict_interval, [[0, 1, 2]])


PAIRS = [["b", "a"], ["b", "c"], ["a", "c"]]


@every_case(
    "pairs",
    [
        np.array(PAIRS, dtype=bytes),
        np.array(PAIRS, dtype=object),
        [[np.str_(one) for one in row] for row in PAIRS],
    ],
)
def test_items_are_known_by_value(pairs):
    items = items_of(None, pairs_of(PAIRS))
    assert items.numbers(pairs, "pairs").tolist() == [[1, 0], [1, 2], [0, 2]]
    assert items_of(None, pairs_of(pairs)).names.tolist() == ["a", "b", "c"]


@every_case(
    "pairs, words",
    [
        ([[1, 2]], "pairs has levels that are text in the fit and numbers now"),
        ([["a", None]], "pairs have missing names"),
        ([["a", "z"]], "pairs have the item 'z', which"),
        (np.ma.array(PAIRS, mask=[[0, 1], [0, 0], [0, 0]]), "pairs has masked entries"),
    ],
)
def test_other_items_are_refused(pairs, words):
    refuses(words, items_of(None, pairs_of(PAIRS)).numbers, pairs, "pairs")
