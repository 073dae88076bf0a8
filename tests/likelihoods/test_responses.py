"""Labels -1 and +1: booleans are labels, and what is none is told what it may be."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, Matern

from qpruntime import InputError, infer, infer_series, infer_sparse, likelihoods, project
from qpruntime.likelihoods import responses
from tests.tools.cases import every_case

T = np.linspace(0.0, 3.0, 5)
K = np.exp(-0.5 * (T[:, None] - T) ** 2)
SIGNS = np.array([1, -1, 1, 1, -1])
CALLS = {
    "infer": lambda y, name: infer(K, y, name).mean,
    "infer_series": lambda y, name: infer_series(T, y, Matern(1.0, nu=0.5), name).mean,
    "infer_sparse": lambda y, name: _sparse(y, name).log_evidence,
    "project": lambda y, name: project(name, 0.3, 1.0, y)[0],
}


def _sparse(y, name):
    return infer_sparse(T[:, None], y, RBF(1.0), T[::2, None], name)


@every_case("call", CALLS)
@every_case("likelihood", ["probit", "heaviside"])
def test_booleans_are_labels(call, likelihood):
    of_signs = CALLS[call](SIGNS, likelihood)
    same = SIGNS > 0
    for y in (same, same.tolist(), same.astype(object)):
        np.testing.assert_array_equal(CALLS[call](y, likelihood), of_signs)


@every_case("call", CALLS)
@every_case(
    "y, remedy",
    [
        ([0, 1, 1, 0, 1], "got 0: of 0 and 1 make labels by 2 \\* y - 1, or booleans by y == 1"),
        ([1, 3, 0, 2, 1], "got 3: for counts name .*'poisson', 'poisson-exp' or 'negative-bin"),
        ([1, 3.5, 0, -2, 1], "got 3.5: for real numbers name .*'student-t' or 'laplace'"),
        (["a", "b", "a", "a", "b"], "."),
    ],
)
def test_what_is_no_label_is_told_what_to_name(call, y, remedy):
    """Of a series and of others alike, and not of GPClassifier, which nobody called."""
    with pytest.raises(InputError, match=f"labels must be -1 or .1.*{remedy}|y must be an array"):
        CALLS[call](y, None if call == "project" else "probit")
    with pytest.raises(InputError) as raised:
        CALLS[call](y, "probit")
    assert "GPClassifier" not in str(raised.value)


def test_the_likelihoods_named_are_those():
    counted = {n for n in likelihoods.names() if likelihoods.get(n).outcomes.startswith("counts")}
    real = {n for n in likelihoods.names() if likelihoods.get(n).outcomes == "real numbers"}
    for values, known in ((np.array([3.0]), counted), (np.array([0.5]), real)):
        words = responses._instead(values)
        assert {n for n in likelihoods.names() if f"'{n}'" in words} == known
