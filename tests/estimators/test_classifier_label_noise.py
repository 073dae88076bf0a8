"""Labels of which some are wrong: their share is learnt by GPClassifier."""

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, load

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (250, 2))
TRUE = X[:, 0] + 0.5 * np.sin(3.0 * X[:, 1]) > 0.0
WRONG = np.arange(250) % 8 == 0
Y = (TRUE ^ WRONG).astype(int)
# A larger variance has several fixed points, which warm starts tell apart.
KERNEL = ConstantKernel(16.0, "fixed") * RBF(1.2, "fixed")
OPTIONS = {"method": "ep", "inducing": None}


@pytest.fixture(scope="module")
def model():
    return GPClassifier(KERNEL, likelihood="noisy-probit", **OPTIONS).fit(X, Y)


def test_the_share_of_wrong_labels_is_learnt(model, tmp_path):
    flip = model.parameters_["flip"]
    # One label in eight is wrong; two standard errors of a share of 250 rows.
    assert abs(flip - 0.125) < 0.042
    best = model.log_marginal_likelihood_value_
    for factor in (0.96, 1.0, 1.04):
        spelt = f"noisy-probit(flip={factor * flip!r})"
        held = GPClassifier(KERNEL, likelihood=spelt, **OPTIONS).fit(X, Y)
        assert held.parameters_["flip"] == pytest.approx(factor * flip, rel=1e-12)
        gap = best - held.log_marginal_likelihood_value_
        assert abs(gap) < 1e-6 if factor == 1.0 else gap > 1e-4
    mean, variance = model.latent(X[:20])
    wanted = flip + (1.0 - 2.0 * flip) * ndtr(mean / np.sqrt(1.0 + variance))
    np.testing.assert_allclose(model.predict_proba(X[:20])[:, 1], wanted, rtol=1e-10)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").parameters_ == model.parameters_
    assert GPClassifier(KERNEL, **OPTIONS).fit(X[:30], Y[:30]).parameters_ == {}


def test_where_it_is_held():
    """With numbers beside the name, without optimisation, and of three classes."""
    for likelihood, optimize in (("noisy-probit(flip=0.05)", True), ("noisy-probit", False)):
        options = OPTIONS | {"likelihood": likelihood, "optimize": optimize}
        assert GPClassifier(KERNEL, **options).fit(X, Y).parameters_ == {"flip": 0.05}
    three = GPClassifier(KERNEL, likelihood="noisy-probit", **OPTIONS)
    assert three.fit(X[:40], Y[:40] + (X[:40, 1] > 0.5)).parameters_ == {"flip": 0.05}
