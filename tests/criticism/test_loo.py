"""Rows left out, in units of the data, and models side by side."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, compare
from qpruntime.criticism import leave_one_out, pit
from qpruntime.criticism.loo import _words, left_out_moments, standard_error
from qpruntime.predictive.density import log_density
from tests.criticism.conftest import COUNTS, EXPOSURE, KERNEL, LABELS, NUMBERS, X
from tests.tools.cases import refuses

pytest.importorskip("pandas")


def test_units_of_numbers_do_not_matter(numbers):
    other = GPRobustRegressor(KERNEL, noise_bounds={"start": 100.0}, method="ep", optimize=False)
    other.fit(X, 7.0 - 100.0 * NUMBERS)
    gap = leave_one_out(numbers).log_density - leave_one_out(other).log_density
    np.testing.assert_allclose(gap, math.log(100.0), rtol=0.0, atol=1e-7)
    assert abs(leave_one_out(numbers).elpd - numbers.posterior_.loo().sum()) > 10.0


def test_a_row_left_out_is_a_row_less(labels):
    found = leave_one_out(labels)
    for i in (0, 17, 59):
        others = np.delete(np.arange(60), i)
        less = GPClassifier(KERNEL, optimize=False).fit(X[others], LABELS[others])
        said = less.predict_log_proba(X[[i]])[0, list(less.classes_).index(LABELS[i])]
        # EP's cavity is the posterior of the other rows but for what their sites would change.
        assert abs(found.log_density[i] - said) < 0.02
    assert found.se == pytest.approx(math.sqrt(60.0) * np.std(found.log_density, ddof=1))
    some = leave_one_out(labels, rows=[3, 1])
    np.testing.assert_array_equal(some.log_density, found.log_density[[3, 1]])


def test_several_classes_are_coupled_as_predictions_are():
    y = np.digitize(X[:, 0], [-0.6, 0.6])
    model = GPClassifier(KERNEL, optimize=False).fit(X, y)
    found = leave_one_out(model)
    own = np.array([post.loo() for post in model.posterior_]).T
    true = y[:, None] == np.arange(3)
    other = np.log(-np.expm1(own))
    score = np.where(true, own, other) - model.coupling_ * np.where(true, other, own)
    expected = (score - logsumexp(score, axis=1, keepdims=True))[np.arange(60), y]
    np.testing.assert_allclose(found.log_density, expected, rtol=1e-12)
    np.testing.assert_array_equal(leave_one_out(model, y).log_density, found.log_density)
    joint = GPClassifier(KERNEL, optimize=False, multi_class="joint").fit(X, y)
    table = compare({"apart": model, "joint": joint})
    assert table.loc["joint", "elpd"] == joint.posterior_.loo().sum()
    refuses("label 9", leave_one_out, model, np.where(y == 1, 9, y))


def test_the_best_is_first_and_differences_are_paired(labels):
    flat = GPClassifier(ConstantOnly, optimize=False).fit(X, LABELS)
    table = compare([flat, labels], evidence=True)
    assert list(table.index) == ["GPClassifier 1", "GPClassifier 0"]
    terms = leave_one_out(flat).log_density - leave_one_out(labels).log_density
    worst = table.loc["GPClassifier 0"]
    assert worst["difference"] == pytest.approx(terms.sum(), rel=1e-12)
    assert worst["difference_se"] == pytest.approx(math.sqrt(60.0) * terms.std(ddof=1), rel=1e-12)
    assert "100 rows" in worst["words"]
    assert table["log_evidence"].iloc[0] == labels.posterior_.log_evidence
    assert table["corrected"].iloc[0] == labels.posterior_.corrected_evidence().value
    assert compare({"a": labels, "b": labels}).loc["b", "words"] == "the same predictions"


ConstantOnly = type(KERNEL.k1)(1e-4) * KERNEL.k2


def test_what_does_not_compare(labels, counts, numbers):
    refuses("densities", compare, [counts, numbers])
    turned = GPClassifier(KERNEL, optimize=False).fit(X, LABELS[::-1])
    refuses("other outcomes", compare, [labels, turned])
    shorter = GPClassifier(KERNEL, optimize=False).fit(X[1:], LABELS[1:])
    refuses("other outcomes", compare, [labels, shorter])
    refuses("other rows", compare, [labels.posterior_, shorter.posterior_])
    refuses("no models", compare, [])
    refuses("estimator", compare, [np.zeros(3)])
    thinned = GPPoissonRegressor(KERNEL, link="exp", optimize=False, inducing=8)
    thinned.fit(X, COUNTS, EXPOSURE)
    found = compare({"all": counts, "few": thinned}, evidence=True)["corrected"]
    assert list(np.isnan(found[["all", "few"]])) == [False, True]
    # Outcomes in other units differ by rounding, which grows with the outcome.
    one, near, far = (
        GPRobustRegressor(KERNEL, optimize=False).fit(X, 1e9 * factor * NUMBERS)
        for factor in (1.0, 1.0 + 1e-11, 1.0 + 1e-7)
    )
    assert len(compare([one, near])) == 2
    refuses("other outcomes", compare, [one, far])


def test_counts_lie_between_the_sums_of_probabilities_below_and_up_to_them(counts):
    """Of the smallest counts, by the probabilities of all counts up to each."""
    for seen in (0, 1, 2):
        rows = np.flatnonzero(seen == COUNTS)[:3]
        assert rows.size
        mean, variance = left_out_moments(counts.posterior_, rows)
        at = "poisson-exp", mean, variance
        each = np.exp([log_density(*at, np.full(rows.size, k)) for k in (0.0, 1.0, 2.0)])
        below, upto = each[:seen].sum(axis=0), each[: seen + 1].sum(axis=0)
        drawn = np.array([pit(counts, rows=rows, random_state=seed) for seed in range(60)])
        assert ((drawn >= below - 1e-9) & (drawn <= upto + 1e-9)).all()
        # Sixty uniform draws miss an end by so much once in ten thousand sets.
        width = upto - below
        assert (drawn.min(axis=0) < below + 0.15 * width).all()
        assert (drawn.max(axis=0) > upto - 0.15 * width).all()


def test_words_about_a_difference_of_models():
    """Four nats are told apart, and a hundred rows have a standard error."""
    assert _words(np.full(100, 0.05)) == ""
    assert _words(np.full(100, 0.0399)) == "less than 4 nats: not told apart"
    assert _words(np.full(99, 0.05)) == "less than 100 rows: the standard error is too small"
    assert _words(np.zeros(3)) == "the same predictions"
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(2.0)
    assert math.isnan(standard_error(np.ones(1)))
