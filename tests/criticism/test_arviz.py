"""Fitted models in ArviZ's form."""

import warnings

import numpy as np
import pytest
from scipy import stats

from qpruntime import GPClassifier
from qpruntime.criticism import leave_one_out, to_arviz
from tests.criticism.conftest import COUNTS, EXPOSURE, KERNEL, LABELS, X
from tests.tools.cases import refuses

pytest.importorskip("xarray")


@pytest.mark.slow
def test_groups(labels, counts, numbers):
    for model, unit in ((labels, 1.0), (counts, 1.0), (numbers, numbers._unit_)):
        tree = to_arviz(model, n_samples=1000, random_state=0)
        f, post = tree["posterior"]["f"].values[0], model.posterior_
        std = unit * np.sqrt(post.variance)
        error = (f.mean(axis=0) - model.latent_units()[0] - unit * post.mean) / std
        assert np.abs(error).max() < 5.0 / np.sqrt(1000.0)
        np.testing.assert_allclose(f.std(axis=0), std, rtol=0.1)
        left = tree["loo"]["log_density"].values
        np.testing.assert_array_equal(left, leave_one_out(model).log_density)
        # exp(-loo) is the mean of 1/p(y|f): harmonic, so of rows that others expect only.
        each = tree["log_likelihood"]["y"].values[0]
        assert each.shape == (1000, 60)
        assert np.median(np.abs(-np.log(np.mean(np.exp(-each), axis=0)) - left)) < 0.03
    y = to_arviz(counts, n_samples=500, random_state=1)
    np.testing.assert_array_equal(y["observed_data"]["y"].values, COUNTS)
    f = y["posterior"]["f"].values[0]
    expected = stats.poisson.logpmf(COUNTS, np.exp(f))
    np.testing.assert_allclose(y["log_likelihood"]["y"].values[0], expected, rtol=1e-9, atol=1e-10)
    drawn = y["posterior_predictive"]["y"].values[0].mean(axis=0)
    np.testing.assert_allclose(drawn, counts.predict(X, exposure=EXPOSURE), rtol=0.35)


def test_what_was_not_kept_is_asked_for():
    model = GPClassifier(KERNEL, optimize=False, inducing=15).fit(X, LABELS)
    refuses("pass y", to_arviz, model)
    refuses("pass X", to_arviz, model, LABELS)
    tree = to_arviz(model, LABELS, X=X, n_samples=50, random_state=0)
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, LABELS == "up")
    refuses("60 rows", to_arviz, model, LABELS, X=X[:5])


def test_arviz_reads_it(counts):
    with warnings.catch_warnings(action="ignore"):  # it announces its next release, and more
        arviz = pytest.importorskip("arviz", reason="arviz is not installed")
    found = arviz.loo(to_arviz(counts, n_samples=2000, random_state=0), pointwise=False)
    assert abs(float(found.elpd_loo) - leave_one_out(counts).elpd) < 1.0
