"""Class probabilities of normal latents, beside bivariate normals, Genz' rule and mpmath."""

import json

import mpmath
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from qpruntime.inference.multiclass.probability_kernels import (
    independent_variances,
    log_orthants,
    log_probabilities,
)
from tests.tools import oracle
from tests.tools.cases import every_case

REFERENCE = json.loads((oracle.REFERENCE / "operators.json").read_text())


def normals(seed, C, v, points=1):
    """Means and covariances of normals such as posteriors are, contrasts of variance about v."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(points, C)) * np.sqrt(v) * 0.7
    root = rng.normal(size=(points, C, C)) * np.sqrt(v / C)
    return mean, root @ root.transpose(0, 2, 1) / 2.0 + np.eye(C) * v / 4.0


def exact(m, S, own):
    """p(own) as the normal probability of an orthant of contrasts: Genz' rule, good to 2e-6."""
    others = [j for j in range(len(m)) if j != own]
    A = np.zeros((len(others), len(m)))
    A[:, own] = 1.0
    A[np.arange(len(others)), others] = -1.0
    cov = A @ (S + np.eye(len(m))) @ A.T
    if len(others) == 2:
        return multivariate_normal.cdf(A @ m, cov=cov)
    rng = np.random.default_rng(0)
    return multivariate_normal.cdf(A @ m, cov=cov, abseps=2e-6, maxpts=200_000, rng=rng)


@pytest.mark.parametrize("case", REFERENCE["class_probabilities"], ids=lambda c: len(c["mean"]))
def test_probabilities_of_the_reference(case):
    """Genz' values to 1e-6: 1e-6 where the integral is exact, 3e-4 by EP and pairs."""
    found = np.exp(log_probabilities(np.array([case["mean"]]), np.array([case["covariance"]])))
    atol = 1e-8 if len(case["mean"]) == 3 else 3e-4
    np.testing.assert_allclose(found[0], case["probabilities"], rtol=0, atol=atol)


def test_two_classes_are_one_probit():
    mean, covariance = normals(2, 2, 9.0, points=5)
    gap = covariance[:, 0, 0] + covariance[:, 1, 1] - 2.0 * covariance[:, 0, 1] + 2.0
    z = (mean[:, 0] - mean[:, 1]) / np.sqrt(gap)
    found = log_probabilities(mean, covariance)[:, 0]
    np.testing.assert_allclose(found, [float(mpmath.log(mpmath.ncdf(x))) for x in z], rtol=1e-12)


@every_case("C, v", [(3, 0.5), (3, 25.0), (3, 400.0), (4, 25.0), (6, 25.0), (4, 400.0)])
def test_more_classes_are_orthants(C, v):
    """Of three classes a bivariate normal, which SciPy has to rounding."""
    mean, covariance = normals(3, C, v, points=12 if C == 3 else 4)
    found = np.exp(log_probabilities(mean, covariance))
    known = [[exact(m, S, c) for c in range(C)] for m, S in zip(mean, covariance, strict=True)]
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-13 if C == 3 else 5e-4)


def test_one_latent_that_explains_the_others():
    """Variances of independent latents below zero: the contrasts of each class are taken apart."""
    mean, root = np.array([[0.4, -0.2, 0.6]]), np.array([1.0, 3.7, -2.2])
    covariance = (np.outer(root, root) + 0.05 * np.eye(3))[None]
    assert min(independent_variances(covariance[0])) < 0.0
    found = np.exp(log_probabilities(mean, covariance))[0]
    known = [exact(mean[0], covariance[0], c) for c in range(3)]
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-13)


def test_what_all_classes_share_does_not_count():
    for C in (2, 3, 5):
        mean, covariance = normals(4, C, 9.0, points=3)
        plain = np.exp(log_probabilities(mean, covariance))
        moved = np.exp(log_probabilities(mean + 5.0, covariance + 1000.0))
        np.testing.assert_allclose(moved, plain, rtol=0, atol=2e-12)
        np.testing.assert_allclose(plain.sum(axis=1), 1.0, rtol=0, atol=1e-14)


def test_far_below_double_precision():
    """The log of a class 200 deviations out, by mpmath, and by EP: finite, and the same."""
    covariance = np.diag([1.0, 2.0, 0.5])
    mean = np.array([-200.0, 0.0, 1.0])
    found = log_probabilities(mean[None], covariance[None])[0, 0]

    def density(z):
        first = mpmath.npdf(z, -200, mpmath.sqrt(2)) * mpmath.ncdf(z / mpmath.sqrt(3))
        return first * mpmath.ncdf((z - 1) / mpmath.sqrt(mpmath.mpf("1.5")))

    with mpmath.workdps(40):
        at = max(range(-200, 1), key=density)
        known = float(mpmath.log(mpmath.quad(density, mpmath.linspace(at - 20, at + 20, 21))))
    assert abs(found - known) < 1e-9 * abs(known)
    by_sites = np.empty(1)
    log_orthants(mean[None], covariance[None], np.array([0]), by_sites)
    assert abs(by_sites[0] - known) < 0.02
    many = log_probabilities(np.array([[-200.0, 0.0, 1.0, 0.5]]), np.eye(4)[None])
    assert np.isfinite(many).all()
    assert many[0, 0] < -5000.0
