"""GPOrdinal: against integrals over the latent function, and levels as people have them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPOrdinal, InputError, infer, load
from qpruntime.likelihoods import get
from tests.tools.cases import every_case

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, (150, 1))
F = 2.0 * np.sin(X[:, 0])
CODES = np.digitize(F + RNG.standard_normal(150), [-1.2, -0.4, 1.0])
WORDS = np.array(["bad", "poor", "fair", "good"])
NEW = np.array([[1.5], [3.1], [20.0]])
KERNEL = ConstantKernel(4.0) * RBF(1.5, "fixed")


@pytest.fixture(scope="module")
def model():
    return GPOrdinal(KERNEL, levels=WORDS, method="ep").fit(X, WORDS[CODES])


def test_probabilities_are_integrals_over_f(model):
    mean, variance = model.latent(NEW)
    z = np.linspace(-9.0, 9.0, 20_001)
    w = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    edges = np.array([-np.inf, *model.thresholds_, np.inf])
    for i in range(3):
        f = mean[i] + np.sqrt(variance[i]) * z
        wanted = [w @ (ndtr(b - f) - ndtr(a - f)) for a, b in pairwise(edges)]
        np.testing.assert_allclose(model.predict_proba(NEW)[i], wanted, rtol=1e-9)
        density = [model.predict_log_density(NEW[i : i + 1], [word])[0] for word in WORDS]
        np.testing.assert_allclose(density, np.log(wanted), rtol=1e-9)
    np.testing.assert_array_equal(model.predict(NEW)[:2], ["good", "fair"])


def test_thresholds_are_learnt_with_the_kernel(model):
    gaps = np.diff(model.thresholds_)
    # The truth is 0.8 and 1.4; 150 levels know them so well.
    np.testing.assert_allclose(gaps, [0.8, 1.4], atol=0.35)
    assert model.converged_
    # At other gaps the evidence is lower: by sites of `infer`, which learns nothing.
    kernel = model.kernel_(X)
    for factor in (0.93, 1.0, 1.07):
        names = {"gap_2": factor * gaps[0], "gap_3": gaps[1], "gap_4": 1e8}
        post = infer(kernel, CODES, get("ordinal", **names), method="ep", mean=model.mean_)
        gap = post.log_evidence - model.log_marginal_likelihood_value_
        assert abs(gap) < 1e-6 if factor == 1.0 else gap < -1e-3


def test_quantiles_and_draws(model):
    cumulated = np.cumsum(model.predict_proba(NEW), axis=1)
    place = [np.searchsorted(row, 0.3) for row in cumulated]
    np.testing.assert_array_equal(model.predict_quantiles(NEW, 0.3), WORDS[place])
    assert model.predict_interval(NEW).shape == (3, 2)
    drawn = model.sample(NEW, 20_000, random_state=0)
    for word, wanted in zip(WORDS, model.predict_proba(NEW).T, strict=True):
        share = (drawn == word).mean(axis=0)
        np.testing.assert_allclose(share, wanted, atol=5.0 * 0.5 / np.sqrt(20_000))


def test_numbers_and_words_are_alike(model, tmp_path):
    plain = GPOrdinal(KERNEL, method="ep").fit(X, CODES)
    np.testing.assert_allclose(plain.predict_proba(NEW), model.predict_proba(NEW), rtol=1e-12)
    model.save(tmp_path / "model.qp")
    np.testing.assert_array_equal(load(tmp_path / "model.qp").predict(NEW), model.predict(NEW))


@every_case(
    ("y", "levels", "words"),
    [
        (np.zeros(150), None, "2 to 12 levels, got 1: one class"),
        (CODES, [0, 1, 2], "none of levels="),
        (CODES, [0, 1, 2, 2], "different ones"),
        (np.arange(150) % 20, None, "got 20"),
    ],
)
def test_refusals(y, levels, words):
    with pytest.raises(InputError, match=words):
        GPOrdinal(levels=levels).fit(X, y)
